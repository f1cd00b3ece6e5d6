"""The link: delivered once and for all, reconnecting, TLS and passwords, brokers that misbehave."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgekit.config import MqttConfig
from edgekit.errors import ConfigError
from edgekit.telemetry.access import Role, User
from edgekit.telemetry.backoff import BackOff
from edgekit.telemetry.broker import Broker, Tls, find_mosquitto, start_broker
from edgekit.telemetry.certificates import Authority
from edgekit.telemetry.connection import Outgoing
from edgekit.telemetry.keepalive import KeepAlive, idle_s, wire_keepalive_s
from edgekit.telemetry.link import Link, LinkState, Opening
from edgekit.telemetry.messages import Received
from tests.network import QUICK, free_port
from tests.waiting import until

needs_mosquitto = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
KINDS = [pytest.param("mosquitto", marks=[pytest.mark.broker, needs_mosquitto]), "amqtt"]


class Ears:
    """What a link received and went through."""

    def __init__(self) -> None:
        self.messages: list[Received] = []
        self.states: list[LinkState] = []

    def payloads(self, topic: str) -> list[bytes]:
        return [m.payload for m in self.messages if m.topic == topic]


class Network:
    """Links and brokers of one test, all ended with it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.links, self.brokers = folder, list[Link](), list[Broker]()

    def broker(self, kind: str = "mosquitto", **options: object) -> Broker:
        if kind == "amqtt":
            pytest.importorskip("amqtt", reason="amqtt is not installed")
        broker = start_broker(self.folder / kind, kind=kind, **options)  # type: ignore[arg-type]
        self.brokers.append(broker)
        return broker

    def link(
        self,
        port: int,
        *,
        name: str = "a-link",
        reads: tuple[str, ...] = (),
        opening: Callable[[], Opening] = Opening,
        back_off: BackOff = QUICK,
        unacknowledged_s: float = 30.0,
        **settings: object,
    ) -> tuple[Link, Ears]:
        ears = Ears()
        config = MqttConfig(**{"host": "127.0.0.1", "port": port, **settings})  # type: ignore[arg-type]
        link = Link(
            config,
            client_id=name,
            subscriptions=reads,
            opening=opening,
            on_message=ears.messages.append,
            on_state=ears.states.append,
            back_off=back_off,
            unacknowledged_s=unacknowledged_s,
        )
        self.links.append(link)
        link.start()
        return link, ears


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    made = Network(tmp_path)
    yield made
    for link in made.links:
        link.stop(timeout_s=0.2)
    for broker in made.brokers:
        broker.stop()


def connected(link: Link) -> bool:
    return until(lambda: link.state.connected)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_stored_before_the_connection_arrives_in_order(network: Network, kind: str) -> None:
    broker = network.broker(kind)
    reader, ears = network.link(broker.port, name="reader", reads=("t/#",))
    assert connected(reader)
    opening = Opening(will=Outgoing("t/will", b"dead"), first=[Outgoing("t/hi", b"hi")])
    writer, _ = network.link(broker.port, name="writer", opening=lambda: opening)
    for i in range(100):
        writer.store("t/data", b"%d" % i)
    assert until(lambda: len(ears.messages) == 101)
    assert ears.messages[0].topic == "t/hi"
    assert ears.payloads("t/data") == [b"%d" % i for i in range(100)]
    assert until(lambda: writer.outbox.depth == 0)


@pytest.mark.broker
@needs_mosquitto
def test_stop_delivers_everything_and_the_farewell_before_it_disconnects(network: Network) -> None:
    broker = network.broker()
    reader, ears = network.link(broker.port, name="reader", reads=("t/#",))
    writer, _ = network.link(broker.port, name="writer", opening=lambda: Opening(will=Outgoing("t/status", b"will")))
    assert connected(reader)
    assert connected(writer)
    for i in range(200):
        writer.store("t/data", b"%d" % i)
    assert writer.stop([Outgoing("t/status", b"goodbye")])
    assert until(lambda: ears.payloads("t/status") == [b"goodbye"])
    assert len(ears.payloads("t/data")) == 200
    time.sleep(0.2)
    assert ears.payloads("t/status") == [b"goodbye"]


@pytest.mark.broker
@needs_mosquitto
@pytest.mark.skipif(shutil.which("mosquitto_sub") is None, reason="mosquitto-clients is not installed")
def test_a_restarted_broker_is_found_again_and_gets_everything_stored_meanwhile(network: Network) -> None:
    broker = network.broker()
    # A session that the broker itself keeps over its restart: it misses nothing that arrives afterwards.
    keeper = ["mosquitto_sub", "-p", str(broker.port), "-i", "keeper", "-c", "-q", "1", "-t", "t/#"]
    subprocess.run([*keeper, "-E"], check=True)
    opening = Opening(first=[Outgoing("t/born", b"born")])
    writer, ears = network.link(broker.port, name="writer", opening=lambda: opening)
    assert connected(writer)
    broker.stop()
    assert until(lambda: not writer.state.connected)
    for i in range(50):
        writer.store("t/data", b"%d" % i)
    assert writer.outbox.depth == 50
    network.broker(port=broker.port)
    assert until(lambda: writer.outbox.depth == 0)
    assert [state.connected for state in ears.states][:2] == [True, False]
    heard = subprocess.run([*keeper, "-C", "52", "-W", "5"], capture_output=True, text=True, check=True).stdout.split()
    assert heard == ["born", "born", *map(str, range(50))]


@pytest.mark.broker
@needs_mosquitto
def test_two_clients_with_one_id_take_turns_and_are_told_apart_by_the_back_off(network: Network) -> None:
    # mosquitto 2.0 does not say why it hangs up, so only the back-off keeps the two apart.
    broker = network.broker()
    _, ears = network.link(broker.port, name="same")
    _, others = network.link(broker.port, name="same")
    assert until(lambda: all(any(not s.connected for s in heard.states) for heard in (ears, others)))


def test_a_takeover_that_the_broker_names_is_reported_and_waited_out(network: Network) -> None:
    connack, session_taken_over = b"\x20\x03\x00\x00\x00", b"\xe0\x02\x8e\x00"  # MQTT 5.0, sections 3.2 and 3.14
    with serve_bytes(connack + session_taken_over) as server:
        slow_after_that = BackOff(first_s=0.01, longest_s=0.01, takeover_s=60.0)
        link, ears = network.link(server.getsockname()[1], back_off=slow_after_that)
        assert until(lambda: any(state.taken_over for state in ears.states))
        time.sleep(0.2)
        assert link.failures == 1


def test_waits_grow_from_the_first_to_the_longest_and_differ_from_device_to_device() -> None:
    back_off = BackOff(first_s=1.0, longest_s=60.0, stable_s=30.0, takeover_s=30.0)
    for failures in (0, 1, 2, 5, 7, 1000):
        longest_s = min(60.0, 2.0 ** max(0, failures - 1))
        drawn = [back_off.wait_s(failures) for _ in range(200)]
        assert 0.2 * longest_s <= min(drawn) < max(drawn) <= longest_s
        assert max(drawn) - min(drawn) > 0.5 * longest_s
    assert all(30.0 <= back_off.wait_s(1, taken_over=True) <= 60.0 for _ in range(50))
    assert [back_off.failures(3, lasted_s=s) for s in (0.0, 30.0, 30.1)] == [4, 4, 0]


@pytest.mark.parametrize("keepalive_s", [2, 3, 4, 5, 14, 15, 60, 65_535])
def test_both_ends_notice_a_silent_other_within_one_and_a_half_keepalives(keepalive_s: int) -> None:
    asked_s = wire_keepalive_s(keepalive_s)
    assert 2 * (asked_s + idle_s(keepalive_s)) < 1.5 * keepalive_s  # paho: one silence, one unanswered ping
    assert 1.5 * asked_s < 1.5 * keepalive_s  # the broker
    watch = KeepAlive(keepalive_s, heard_s=100.0, spoke_s=100.0)
    assert not watch.is_due(100.0 + keepalive_s / 2)
    assert watch.is_due(100.1 + keepalive_s / 2)
    watch.pinged_s = 100.1 + keepalive_s / 2
    assert not watch.is_due(watch.pinged_s + 0.1)
    assert not watch.is_dead(100.0 + keepalive_s)
    assert watch.is_dead(100.0 + 1.45 * keepalive_s)


def test_a_broker_that_answers_pings_but_acknowledges_nothing_is_left(network: Network) -> None:
    with serve_bytes(b"\x20\x03\x00\x00\x00", hold_s=30.0) as server:
        link, ears = network.link(server.getsockname()[1], unacknowledged_s=0.2)
        link.store("t/data", b"1")
        assert until(lambda: any("acknowledged nothing" in state.text for state in ears.states))
        assert link.outbox.depth == 1


@pytest.mark.broker
@needs_mosquitto
def test_a_wrong_password_is_said_and_a_rotated_one_is_read_without_a_restart(network: Network, tmp_path: Path) -> None:
    broker = network.broker(users=[User(name="operator", role=Role.OPERATOR, password="right")])
    secret = tmp_path / "secret"
    secret.write_text("wrong\n")
    link, _ = network.link(broker.port, username="operator", password_file=str(secret))
    assert until(lambda: "Not authorized" in link.state.text)
    secret.write_text("right\n")
    assert connected(link)
    assert "wrong" not in repr(link.state)


def test_settings_that_can_never_connect_are_refused_at_once(tmp_path: Path) -> None:
    missing = str(tmp_path / "nothing")
    bad: list[tuple[dict[str, object], str]] = [
        ({}, "host"),
        ({"host": "h", "password_file": missing}, "password_file"),
        ({"host": "h", "tls": True, "ca_file": missing}, "ca_file"),
        ({"host": "h", "ca_file": missing}, "tls"),
        ({"host": "h", "tls": True, "certificate_file": missing}, "key_file"),
        ({"host": "h", "port": 0}, "port"),
        ({"host": "h", "keepalive_s": 1}, "keepalive_s"),
        ({"host": "h", "window_s": 0.0}, "window_s"),
        ({"host": "h", "window_s": float("nan")}, "window_s"),
    ]
    for settings, key in bad:
        with pytest.raises(ConfigError, match=key):
            Link(
                MqttConfig(**settings),  # type: ignore[arg-type]
                client_id="x",
                subscriptions=(),
                opening=Opening,
                on_message=lambda _: None,
            )


def serve_bytes(answer: bytes | None, *, then: bytes = b"", hold_s: float = 0.0) -> socket.socket:
    """A server that reads, answers `answer` (None: nothing), `then` to what comes next, and hangs up after `hold_s`."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            with client:
                client.settimeout(2.0)
                client.recv(1024)
                if answer is not None:
                    client.sendall(answer)
                if then:
                    client.recv(1024)
                    client.sendall(then)
                time.sleep(hold_s)

    threading.Thread(target=serve, daemon=True).start()
    return server


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x20\x00", b"\x20\x02\x00", b"\xff" * 64, b""]
)
def test_a_server_that_is_no_broker_is_an_error_in_words_not_a_crash(network: Network, answer: bytes) -> None:
    with serve_bytes(answer) as server:
        link, _ = network.link(server.getsockname()[1])
        assert until(lambda: link.failures > 0)
        assert not link.state.connected
        assert link.state.text not in ("", "not started")
        link.stop(timeout_s=0.1)


def test_a_broker_that_accepts_and_stalls_does_not_hold_up_the_stop(network: Network) -> None:
    with serve_bytes(None, hold_s=30.0) as server:
        link, _ = network.link(server.getsockname()[1])
        time.sleep(0.3)
        began = time.monotonic()
        assert not link.stop(timeout_s=0.5)
        assert time.monotonic() - began < 2.0


def test_an_unreachable_broker_is_tried_again_and_again(network: Network) -> None:
    link, _ = network.link(free_port())
    assert until(lambda: link.failures >= 3)
    assert "refused" in link.state.text


@pytest.fixture
def secure(network: Network, tmp_path: Path) -> tuple[int, dict[str, str]]:
    """The port of a mosquitto that demands a client certificate, and the files of one who has it."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    authority = Authority(tmp_path)
    authority.server(tmp_path / "server.pem", ["127.0.0.1"])
    authority.client(tmp_path / "client.pem", "hall/cam-1")
    tls = Tls(certificate=tmp_path / "server.pem", authority=authority.certificate, clients_too=True)
    mine = str(tmp_path / "client.pem")
    files = {"ca_file": str(authority.certificate), "certificate_file": mine, "key_file": mine}
    return network.broker(tls=tls).port, files


@pytest.mark.broker
@needs_mosquitto
def test_tls_with_a_client_certificate_carries_messages(network: Network, secure: tuple[int, dict[str, str]]) -> None:
    port, files = secure
    link, ears = network.link(port, reads=("t/#",), tls=True, **files)
    assert connected(link), link.state
    for i in range(30):
        link.store("t/data", b"%d" % i * 1000)
    assert until(lambda: len(ears.messages) == 30)


@pytest.mark.broker
@needs_mosquitto
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # paho leaves the failed socket to GC
def test_a_certificate_of_an_unknown_authority_is_refused_in_words(
    network: Network, secure: tuple[int, dict[str, str]], tmp_path: Path
) -> None:
    port, files = secure
    stranger = Authority(tmp_path / "stranger")
    for trusted in ({}, {"ca_file": str(stranger.certificate)}):
        link, _ = network.link(port, name=f"link-{len(trusted)}", tls=True, **trusted)
        assert until(lambda link=link: "not trusted" in link.state.text), link.state
    stranger.client(tmp_path / "stranger.pem", "hall/cam-1")
    theirs = str(tmp_path / "stranger.pem")
    link, _ = network.link(port, name="stranger", tls=True, **files | {"certificate_file": theirs, "key_file": theirs})
    without, _ = network.link(port, name="without", tls=True, ca_file=files["ca_file"])
    assert until(lambda: link.failures > 1 and without.failures > 1)
    assert not link.state.connected
    assert not without.state.connected


@pytest.mark.broker
@needs_mosquitto
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_certificates_that_are_replaced_are_used_without_a_restart(
    network: Network, secure: tuple[int, dict[str, str]], tmp_path: Path
) -> None:
    port, files = secure
    Authority(tmp_path / "stranger").client(tmp_path / "rotated.pem", "hall/cam-1")
    rotated = str(tmp_path / "rotated.pem")
    link, _ = network.link(port, tls=True, **files | {"certificate_file": rotated, "key_file": rotated})
    assert until(lambda: link.failures > 0)
    (tmp_path / "client.pem").replace(rotated)
    assert connected(link), link.state


@pytest.mark.broker
@needs_mosquitto
def test_what_the_broker_refuses_is_dropped_counted_and_said(network: Network, tmp_path: Path) -> None:
    broker = network.broker(users=[User(name="hall/cam-1", role=Role.DEVICE, password="x")])
    (tmp_path / "secret").write_text("x")
    link, ears = network.link(broker.port, username="hall/cam-1", password_file=str(tmp_path / "secret"))
    assert connected(link)
    link.store("edgekit/v1/hall/cam-2/event", b"{}")
    link.store("edgekit/v1/hall/cam-1/event", b"{}")
    assert until(lambda: link.outbox.depth == 0)
    assert link.outbox.dropped == {"refused by the broker: Not authorized": 1}
    assert (link.refused, link.state.connected) == (1, True)
    assert any("a message was refused: Not authorized" in state.text for state in ears.states)


def test_what_the_broker_cannot_take_now_waits_for_another_connection(network: Network) -> None:
    quota_exceeded = b"\x40\x04\x00\x01\x97\x00"  # MQTT 5.0, section 3.4: a PUBACK for the first packet
    with serve_bytes(b"\x20\x03\x00\x00\x00", then=quota_exceeded) as server:
        link, ears = network.link(server.getsockname()[1])
        link.store("t/data", b"1")
        assert until(lambda: any("did not take a message: Quota exceeded" in state.text for state in ears.states))
        assert until(lambda: link.refused > 1)
        assert (link.outbox.depth, dict(link.outbox.dropped)) == (1, {})


@pytest.mark.broker
@needs_mosquitto
def test_what_is_larger_than_the_broker_takes_is_dropped_and_counted(network: Network) -> None:
    broker = network.broker()
    link, ears = network.link(broker.port, reads=("t/#",))
    assert connected(link)
    link.store("t/big", b"x" * 400_000)
    link.store("t/small", b"y")
    assert until(lambda: ears.payloads("t/small") == [b"y"])
    assert link.outbox.dropped == {"larger than the broker takes": 1}
    assert link.state.connected
