"""The broker: it starts, serves, dies with its parent, and enforces who may read and write what."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgekit.cli.broker import load_users
from edgekit.cli.main import main
from edgekit.errors import BrokerError, ConfigError, RuntimeUnavailable, UsageError
from edgekit.telemetry.access import Role, User, access_rules, password_file
from edgekit.telemetry.access_rabbitmq import rabbitmq_definitions
from edgekit.telemetry.broker import Broker, find_mosquitto, start_broker
from tests.waiting import until

needs_mosquitto = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
needs_clients = pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="mosquitto-clients is not installed")
KINDS = [pytest.param("mosquitto", marks=[pytest.mark.broker, needs_mosquitto]), "amqtt"]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """Start brokers that end with the test."""
    running = []

    def start(**options: object) -> Broker:
        if options.get("kind") == "amqtt":
            pytest.importorskip("amqtt", reason="amqtt is not installed")
        broker = start_broker(tmp_path / f"broker{len(running)}", **options)  # type: ignore[arg-type]
        running.append(broker)
        return broker

    yield start
    for broker in running:
        broker.stop()


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=0.5).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_it_listens_when_start_returns_and_is_gone_when_stop_returns(started: Callable[..., Broker], kind: str) -> None:
    broker = started(kind=kind)
    assert broker.kind == kind
    assert accepts(broker.port)
    broker.stop()
    assert not accepts(broker.port)
    assert broker.process.returncode == 0
    broker.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_it_dies_with_a_parent_that_is_killed(tmp_path: Path, kind: str) -> None:
    code = (
        "import sys, time; from pathlib import Path; from edgekit.telemetry.broker import start_broker\n"
        f"print(start_broker(Path(sys.argv[1]), kind={kind!r}).port, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    port = int(parent.stdout.readline())
    assert accepts(port)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert until(lambda: not accepts(port))


def test_a_port_in_use_is_said_before_someone_elses_broker_is_taken_for_ours(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(BrokerError, match="in use"):
        start_broker(tmp_path, port=other.getsockname()[1])


def test_open_to_the_network_without_users_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="users are required"):
        start_broker(tmp_path, host="0.0.0.0")


def test_amqtt_is_refused_where_access_rules_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(RuntimeUnavailable, match="knows no users"):
        start_broker(tmp_path, kind="amqtt", users=[User(name="op", role=Role.OPERATOR, password="x")])


@pytest.mark.broker
@needs_mosquitto
def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match=r"ended at once: .*"):
        start_broker(tmp_path, host="192.0.2.1", port=18_830, users=[])


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("cam-1", Role.DEVICE),
        ("hall/cam/1", Role.DEVICE),
        ("hall/+", Role.DEVICE),
        ("hall/CAM", Role.DEVICE),
        ("hall/_all", Role.DEVICE),
        ("hall/cam-1", Role.OPERATOR),
        ("a:b", Role.READER),
        ("", Role.READER),
    ],
)
def test_names_that_would_match_more_than_themselves_are_refused(name: str, role: Role) -> None:
    with pytest.raises(UsageError, match="name"):
        User(name=name, role=role, password="x")


def test_passwords_are_salted_and_never_shown() -> None:
    user = User(name="hall/cam-1", role=Role.DEVICE, password="hunter2")
    assert "hunter2" not in repr(user) + password_file([user])
    assert password_file([user]) != password_file([user])


PASSWORDS = {
    "hall/cam-1": "one", "hall/cam-2": "two", "operator": "op", "reader": "re", "collector": "co", "steward": "st"
}  # fmt: skip
USERS = [
    User(name=name, role=Role.DEVICE if "/" in name else Role(name), password=password)
    for name, password in PASSWORDS.items()
]


Case = tuple[str, str, str]
"""Who listens, who speaks, and the topic below the root."""

ALLOWED: list[Case] = [
    ("reader", "hall/cam-1", "hall/cam-1/status"),
    ("reader", "hall/cam-1", "hall/cam-1/metrics"),
    ("reader", "hall/cam-1", "hall/cam-1/reply"),
    ("hall/cam-1", "operator", "hall/cam-1/command"),
    ("hall/cam-1", "hall/cam-1", "hall/cam-1/status"),
    ("hall/cam-1", "reader", "hall/_all/rebirth"),
    ("hall/cam-1", "reader", "_all/_all/rebirth"),
    ("hall/cam-1", "collector", "hall/cam-1/ack"),
    ("collector", "hall/cam-1", "hall/cam-1/metrics"),
    ("collector", "hall/cam-1", "hall/cam-1/status"),
    ("hall/cam-1", "collector", "_all/_all/rebirth"),
    ("reader", "steward", "hall/cam-1/status"),
    ("reader", "steward", "hall/cam-1/birth"),
    ("reader", "hall/cam-1", "hall/cam-1/summary"),
]
DENIED: list[Case] = [
    ("reader", "hall/cam-1", "hall/cam-2/status"),
    ("reader", "hall/cam-1", "hall/cam-1/command"),
    ("hall/cam-2", "hall/cam-1", "hall/cam-2/command"),
    ("hall/cam-2", "operator", "hall/cam-1/command"),
    ("hall/cam-2", "hall/cam-1", "hall/cam-1/metrics"),
    ("hall/cam-1", "reader", "hall/cam-1/command"),
    ("hall/cam-1", "collector", "hall/cam-1/command"),
    ("hall/cam-1", "hall/cam-2", "hall/_all/rebirth"),
    ("reader", "operator", "hall/cam-1/status"),
    ("reader", "hall/cam-1", "hall/cam-1/ack"),
    ("reader", "collector", "hall/cam-1/status"),
    ("reader", "collector", "hall/cam-1/birth"),
    ("reader", "collector", "hall/cam-1/metrics"),
    ("collector", "operator", "hall/cam-1/command"),
    ("collector", "collector", "hall/cam-1/ack"),
    ("hall/cam-1", "steward", "hall/cam-1/command"),
    ("hall/cam-1", "steward", "hall/cam-1/ack"),
    ("hall/cam-2", "hall/cam-1", "hall/cam-1/summary"),
]


def client(tool: str, port: int, user: str, *arguments: str, password: str | None = None) -> list[str]:
    secret = PASSWORDS.get(user, "") if password is None else password
    return [tool, "-p", str(port), "-u", user, "-P", secret, "-q", "1", "-V", "5", *arguments]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with users and access rules."""
    with start_broker(tmp_path_factory.mktemp("rules"), users=USERS) as broker:
        yield broker


@pytest.fixture(scope="module")
def heard(guarded: Broker) -> set[Case]:
    """Which of all cases came through: every reader listens to all its topics, then every writer speaks."""
    cases = [*ALLOWED, *DENIED]
    listening = {}
    for reader in {reader for reader, _, _ in cases}:
        topics = [word for r, _, topic in cases if r == reader for word in ("-t", f"edgekit/v1/{topic}")]
        command = client("mosquitto_sub", guarded.port, reader, *topics, "-W", "2", "-F", "%p %t")
        listening[reader] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    time.sleep(0.5)
    for writer, topic in {(writer, topic) for _, writer, topic in cases}:
        command = client("mosquitto_pub", guarded.port, writer, "-t", f"edgekit/v1/{topic}", "-m", writer)
        subprocess.run(command, capture_output=True, check=False)
    through = set()
    for reader, process in listening.items():
        output, _ = process.communicate(timeout=10)
        for line in output.splitlines():
            writer, _, topic = line.partition(" edgekit/v1/")
            through.add((reader, writer, topic))
    return through


@pytest.mark.broker
@needs_mosquitto
@needs_clients
@pytest.mark.parametrize("case", ALLOWED)
def test_mosquitto_lets_through_what_each_role_needs(heard: set[Case], case: Case) -> None:
    assert case in heard


@pytest.mark.broker
@needs_mosquitto
@needs_clients
@pytest.mark.parametrize("case", DENIED)
def test_mosquitto_stops_what_is_not_theirs(heard: set[Case], case: Case) -> None:
    assert heard
    assert case not in heard


@pytest.mark.broker
@needs_mosquitto
@pytest.mark.parametrize("user", ["collector", "operator", "reader", "steward"])
def test_only_the_steward_may_forget_a_device_and_nobody_else_is_told_it_worked(
    guarded: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str], user: str
) -> None:
    (tmp_path / "secret").write_text(PASSWORDS[user])
    verb = ["fleet", "forget", "hall/gone", "--port", str(guarded.port), "--for", "0.1"]
    code = main([*verb, "--username", user, "--password-file", str(tmp_path / "secret")])
    out, err = capsys.readouterr()
    if user == "steward":
        assert (code, out) == (0, "hall/gone: forgotten\n")
    else:
        assert (code, out) == (4, "")
        assert "does not let this user forget devices; the steward may" in err


@pytest.mark.broker
@needs_mosquitto
@needs_clients
@pytest.mark.parametrize(("user", "password"), [("operator", "wrong"), ("nobody", "x"), ("hall/cam-3", "one")])
def test_mosquitto_turns_strangers_away(guarded: Broker, user: str, password: str) -> None:
    command = client("mosquitto_pub", guarded.port, user, "-t", "x", "-m", "x", password=password)
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0


def test_a_device_named_like_a_role_gets_no_more_than_its_own() -> None:
    rules = access_rules([User(name="operator/reader", role=Role.DEVICE, password="x")])
    assert "user" not in rules.split()


def test_passwords_are_made_once_and_devices_stay_known(tmp_path: Path) -> None:
    first = {user.name: user.password for user in load_users(tmp_path, ["hall/cam-1"])}
    second = {user.name: user.password for user in load_users(tmp_path, ["hall/cam-2"])}
    assert first.items() <= second.items()
    assert second.keys() == {"reader", "operator", "collector", "steward", "hall/cam-1", "hall/cam-2"}
    assert len(set(second.values())) == 6
    assert (tmp_path / "secrets/operator").stat().st_mode & 0o077 == 0


def test_a_device_name_never_becomes_a_path_outside(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be a device's name"):
        load_users(tmp_path, ["../../etc"])
    assert not (tmp_path.parent / "etc").exists()


def run_verb(tmp_path: Path, *options: str) -> tuple[subprocess.Popen[str], dict[str, object]]:
    command = [sys.executable, "-m", "edgekit.cli.main", "broker", "--port", "0", "--dir", str(tmp_path), "--json"]
    verb = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert verb.stdout is not None
    return verb, json.loads(verb.stdout.readline())


@pytest.mark.broker
@needs_mosquitto
def test_the_verb_tells_where_it_listens_and_who_may_connect_and_ends_on_sigterm(tmp_path: Path) -> None:
    verb, answer = run_verb(tmp_path, "--device", "hall/cam-1")
    assert answer["kind"] == "mosquitto"
    assert [user["name"] for user in answer["users"]] == ["reader", "operator", "collector", "steward", "hall/cam-1"]  # type: ignore[attr-defined]
    verb.send_signal(signal.SIGTERM)
    verb.communicate(timeout=10)
    assert verb.returncode == 0
    assert not accepts(int(str(answer["port"])))


def test_the_verb_warns_that_amqtt_is_for_trying_out(tmp_path: Path) -> None:
    pytest.importorskip("amqtt", reason="amqtt is not installed")
    verb, answer = run_verb(tmp_path, "--kind", "amqtt")
    assert answer["users"] is None
    verb.send_signal(signal.SIGINT)
    _, talk = verb.communicate(timeout=10)
    assert "amqtt is for trying out" in talk
    assert verb.returncode == 0


@pytest.mark.broker
@needs_mosquitto
def test_the_verb_ends_with_an_error_when_its_broker_dies(tmp_path: Path) -> None:
    verb, _ = run_verb(tmp_path, "--anonymous")
    children = subprocess.run(["pgrep", "-P", str(verb.pid)], capture_output=True, text=True, check=True)
    os.kill(int(children.stdout), signal.SIGKILL)
    _, talk = verb.communicate(timeout=10)
    assert verb.returncode == 4
    assert "mosquitto ended" in talk


def test_the_verb_refuses_what_does_not_go_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broker", "--anonymous", "--device", "hall/cam-1"]) == 2
    assert main(["broker", "--anonymous", "--host", "0.0.0.0"]) == 3
    assert "users are required" in capsys.readouterr().err


@pytest.mark.broker
@needs_mosquitto
@needs_clients
def test_the_verb_reads_users_and_certificates_anew_on_sighup_and_keeps_who_is_still_right(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    verb, answer = run_verb(tmp_path, "--device", "hall/cam-1", "--client-certificates")
    try:
        by_name = {user["name"]: user for user in answer["users"]}  # type: ignore[attr-defined]
        cam, reader = by_name["hall/cam-1"], by_name["reader"]
        pem, secret = cam["certificate_file"], Path(cam["password_file"])
        files = ["--cafile", str(answer["ca_file"]), "--cert", pem, "--key", pem]
        where = ["-p", str(answer["port"]), *files, "-t", "edgekit/v1/hall/cam-1/status"]

        def publishes(password: str) -> bool:
            words = ["mosquitto_pub", *where, "-u", "hall/cam-1", "-P", password, "-m", "x"]
            return subprocess.run(words, capture_output=True, check=False).returncode == 0

        old = secret.read_text().strip()
        listening = [
            "mosquitto_sub",
            *where,
            "-u",
            "reader",
            "-P",
            Path(reader["password_file"]).read_text().strip(),
            "-C",
            "2",
        ]
        listener = subprocess.Popen(listening, stdout=subprocess.PIPE, text=True)
        time.sleep(0.3)
        assert publishes(old)
        secret.unlink()
        load_users(tmp_path, ["hall/cam-9"])  # as `edgekit provision --broker-dir` does
        verb.send_signal(signal.SIGHUP)
        assert verb.stderr is not None
        assert "read anew" in verb.stderr.readline()
        new = secret.read_text().strip()
        assert new != old
        assert until(lambda: publishes(new) and not publishes(old))
        assert listener.communicate(timeout=5)[0].split() == ["x", "x"]
        newcomer = ["mosquitto_pub", *where[:-1], "edgekit/v1/hall/cam-9/status", "-u", "hall/cam-9", "-m", "x", "-P"]
        newcomer += [(tmp_path / "secrets/devices/hall/cam-9").read_text().strip()]
        assert subprocess.run(newcomer, capture_output=True, check=False).returncode == 0
    finally:
        verb.terminate()
        verb.communicate(timeout=10)


def test_rights_for_rabbitmq_are_regular_expressions_over_routing_keys() -> None:
    definitions = json.loads(rabbitmq_definitions(USERS))
    topics = {rights["user"]: rights for rights in definitions["topic_permissions"]}

    def may(user: str, what: str, topic: str) -> bool:
        return re.search(topics[user][what], f"edgekit/v1/{topic}".replace("/", ".").replace("+", "*")) is not None

    for reader, writer, topic in ALLOWED:
        assert may(writer, "write", topic), (writer, topic)
        assert may(reader, "read", topic), (reader, topic)
    for reader, writer, topic in DENIED:
        assert not (may(writer, "write", topic) and may(reader, "read", topic)), (reader, writer, topic)
    assert may("reader", "read", "#")
    assert may("collector", "read", "+/+/metrics")
    assert not may("collector", "read", "#")
    assert not may("hall/cam-1", "read", "+/+/command")
    assert not may("hall/cam-1", "read", "hall/+/command")
    own = "mqtt-subscription-hall/cam-1qos1"
    resources = {rights["user"]: rights["configure"] for rights in definitions["permissions"]}
    assert [name for name, pattern in resources.items() if re.search(pattern, own)] == ["hall/cam-1"]
    assert not any(user.password in str(definitions) for user in USERS if len(user.password) > 2)


def test_the_verb_prints_rabbitmqs_definitions_and_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["broker", "--rabbitmq", "--device", "hall/cam-1", "--dir", str(tmp_path)]) == 0
    names = {user["name"] for user in json.loads(capsys.readouterr().out)["users"]}
    assert names == {"reader", "operator", "collector", "steward", "hall/cam-1"}
    assert not (tmp_path / "broker.log").exists()
