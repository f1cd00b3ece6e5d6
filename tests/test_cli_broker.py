"""`edgekit broker`: what it refuses, and how it says where it listens and who may connect."""

from __future__ import annotations

import dataclasses
import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgekit.cli.broker import as_json, as_text, load_users, secret_path
from edgekit.cli.main import main
from edgekit.errors import UsageError
from edgekit.telemetry.access import Role, User
from edgekit.telemetry.broker import Broker, Tls, find_mosquitto

Capture = pytest.CaptureFixture[str]


def broker(host: str = "127.0.0.1", port: int = 1883) -> Broker:
    """A broker as `start_broker` gives it, without one running."""
    process: Any = SimpleNamespace(pid=0)
    return Broker(host=host, port=port, kind="mosquitto", process=process, log=Path("broker.log"))


USERS = [
    User(name="reader", role=Role.READER, password="r-secret"),
    User(name="hall/cam-1", role=Role.DEVICE, password="d-secret"),
]


# What is refused, before anything is started


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--anonymous", "--device", "hall/cam-1"], 2, "--anonymous lets everyone in; leave --device and"),
        (["--anonymous", "--client-certificates"], 2, "leave --device and --client-certificates out"),
        (["--name", "broker.example"], 2, "--name is for the certificate; give --tls too"),
        (["--kind", "amqtt", "--tls"], 5, "amqtt is for trying out and knows no TLS"),
        (["--anonymous", "--host", "0.0.0.0"], 3, "'0.0.0.0' is reachable from the network: users are required"),
        (["--anonymous", "--host", "192.168.1.5"], 3, "users are required"),
        (["--port", "-5"], 2, "--port -5: must be from 0 to 65535"),
        (["--port", "65536"], 2, "--port 65536: must be from 0 to 65535"),
        (["--device", "cam-1"], 2, "'cam-1' cannot be a device's name; it must be SITE/DEVICE"),
        (["--device", "hall/Cam"], 2, "cannot be a device's name"),
        (["--device", "hall/cam/1"], 2, "cannot be a device's name"),
        (["--device", "../etc"], 2, "cannot be a device's name"),
        (["--device", "hall/+"], 2, "cannot be a device's name"),
        (["--device", "_all/cam"], 2, "'_all' stands for everyone"),
        (["--kind", "amqtt", "--device", "hall/cam-1"], 5, "amqtt is for trying out and knows no users"),
        (["--kind", "amqtt", "--host", "0.0.0.0"], 5, "knows no users"),
    ],
)
def test_what_does_not_go_together_is_one_line(
    arguments: list[str], code: int, words: str, tmp_path: Path, capsys: Capture
) -> None:
    before = signal.getsignal(signal.SIGINT)
    assert main(["broker", "--dir", str(tmp_path), *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("edgekit broker: ")
    assert words in err
    assert not (tmp_path / "broker.log").exists(), "nothing was started"
    assert signal.getsignal(signal.SIGINT) is before, "whoever calls the verb keeps their own"


def test_a_kind_that_is_none_says_which_there_are(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as left:
        main(["broker", "--kind", "hivemq"])
    assert left.value.code == 2
    assert "choose from" in capsys.readouterr().err


@pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
def test_a_port_that_is_taken_is_exit_4_and_names_the_way_out(tmp_path: Path, capsys: Capture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["broker", "--dir", str(tmp_path), "--port", str(port)]) == 4
    assert capsys.readouterr().err == (
        f"edgekit broker: broker 127.0.0.1:{port}: the port is in use; choose another with --port\n"
    )


# Who may connect


def test_a_refused_name_leaves_no_secret_behind(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        load_users(tmp_path, ["hall/cam-1", "hall/CAM"])
    assert not (tmp_path / "secrets/devices/hall/CAM").exists()


def test_a_password_is_long_random_and_readable_by_its_owner_alone(tmp_path: Path) -> None:
    users = load_users(tmp_path, ["hall/cam-1", "hall/cam-2"])
    assert len({user.password for user in users}) == len(users)
    for user in users:
        path = secret_path(tmp_path, user.name, user.role.value)
        assert path.read_text().strip() == user.password
        assert path.stat().st_mode & 0o777 == 0o600
        assert re.fullmatch(r"[0-9a-f]{40}", user.password)


def test_a_password_of_ones_own_is_kept(tmp_path: Path) -> None:
    path = secret_path(tmp_path, "reader", "reader")
    path.parent.mkdir(parents=True)
    path.write_text("chosen by me\n")
    assert {user.name: user.password for user in load_users(tmp_path, [])}["reader"] == "chosen by me"


# How it is said


def test_for_people_it_says_how_to_connect_and_where_passwords_lie_never_what_they_are(tmp_path: Path) -> None:
    text = as_text(broker(), USERS, tmp_path)
    assert text.splitlines()[0] == "mosquitto listens on 127.0.0.1:1883"
    assert f"password in {tmp_path / 'secrets/reader'}" in text
    assert f"password in {tmp_path / 'secrets/devices/hall/cam-1'}" in text
    assert "no device may connect yet" not in text
    assert not any(user.password in text for user in USERS)
    assert "--username reader --password-file" in text


def test_without_a_device_it_says_that_none_may_connect(tmp_path: Path) -> None:
    assert "no device may connect yet: start with --device SITE/DEVICE" in as_text(broker(), USERS[:1], tmp_path)


def test_for_trying_out_it_says_that_everyone_may(tmp_path: Path) -> None:
    text = as_text(broker(), None, tmp_path)
    assert "anyone on this machine may connect" in text
    assert "password" not in text


def test_to_the_network_it_names_no_address_that_leads_nowhere(tmp_path: Path) -> None:
    text = as_text(broker(host="0.0.0.0"), USERS, tmp_path)
    assert '    host = "THIS_MACHINE"' in text
    assert "--host 0.0.0.0" not in text


@pytest.mark.parametrize("users", [None, USERS])
def test_the_commands_that_it_shows_are_real(users: list[User] | None, tmp_path: Path) -> None:
    from edgekit.cli.main import build_parser
    from edgekit_tui.main import build_parser as console_parser

    lines = [line.split() for line in as_text(broker(port=1884), users, tmp_path).splitlines()]
    (fleet,) = [words[1:] for words in lines if words[:2] == ["edgekit", "fleet"]]
    (console,) = [words[1:] for words in lines if words[:1] == ["edgekit-console"]]
    for args in (build_parser("fleet").parse_args(fleet), console_parser().parse_args(console)):
        assert (args.host, args.port) == ("127.0.0.1", 1884)
        assert (args.username is None) == (users is None)


def test_the_settings_that_it_shows_are_a_devices_settings(tmp_path: Path) -> None:
    from edgekit.config import load_daemon_config

    for users in (None, USERS):
        text = as_text(broker(), users, tmp_path)
        shown = [line.strip() for line in text.splitlines() if re.match(r"    (\[mqtt\]|\w+ = )", line)]
        path = tmp_path / "edgekit.toml"
        path.write_text("\n".join([*shown, "[[model]]", 'name = "digits"', ""]))
        assert load_daemon_config(path).mqtt.port == 1883


@pytest.mark.parametrize("clients_too", [False, True])
def test_with_tls_what_it_shows_trusts_its_authority(clients_too: bool, tmp_path: Path) -> None:
    from edgekit.cli.main import build_parser
    from edgekit.config import load_daemon_config

    authority = tmp_path / "certificates/authority.pem"
    tls = Tls(certificate=tmp_path / "broker.pem", authority=authority, clients_too=clients_too)
    text = as_text(broker(port=8883), USERS, tmp_path, tls)
    assert text.startswith("mosquitto listens on 127.0.0.1:8883 with TLS\n")
    (fleet,) = [line.split()[1:] for line in text.splitlines() if line.startswith("    edgekit fleet")]
    args = build_parser("fleet").parse_args(fleet)
    mine = str(tmp_path / "certificates/reader.pem") if clients_too else None
    assert (args.ca_file, args.certificate_file, args.key_file) == (str(authority), mine, mine)
    shown = [line.strip() for line in text.splitlines() if re.match(r"    (\[mqtt\]|\w+ = )", line)]
    (tmp_path / "edgekit.toml").write_text("\n".join([*shown, "[[model]]", 'name = "digits"', ""]))
    mqtt = load_daemon_config(tmp_path / "edgekit.toml").mqtt
    assert (mqtt.tls, mqtt.certificate_file is not None) == (True, clients_too)
    value = json.loads(as_json(broker(), USERS, tmp_path, tls))
    assert value["ca_file"] == str(authority)
    assert ("certificate_file" in value["users"][1]) is clients_too


def test_json_is_one_line_with_files_and_no_secret(tmp_path: Path) -> None:
    line = as_json(broker(), USERS, tmp_path)
    assert "\n" not in line
    value = json.loads(line)
    assert (value["kind"], value["host"], value["port"]) == ("mosquitto", "127.0.0.1", 1883)
    assert value["users"][1] == {
        "name": "hall/cam-1",
        "role": "device",
        "password_file": str(tmp_path / "secrets/devices/hall/cam-1"),
    }
    assert "secret" not in line.replace("secrets", "")
    assert json.loads(as_json(broker(), None, tmp_path))["users"] is None


def test_a_user_that_is_printed_shows_no_password() -> None:
    for user in USERS:
        assert user.password not in repr(user) + str(user) + repr([user])
        assert user.password not in repr(dataclasses.replace(user))


def test_looking_at_its_help_starts_nothing() -> None:
    code = (
        "import sys; from edgekit.cli.main import main\n"
        "try: main(['broker', '--help'])\n"
        "except SystemExit: pass\n"
        "print([n for n in ('amqtt', 'paho', 'numpy', 'rich') if n in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[]"
