"""A device that does not know the time: TLS works, windows are dated when it comes, jumps are told."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from edgekit.config import MqttConfig
from edgekit.errors import BrokerError
from edgekit.telemetry import clock as clocks
from edgekit.telemetry.broker import Tls, find_mosquitto, start_broker
from edgekit.telemetry.clock import EARLIEST_UNIX_S, NOTED_S, ClockFloor, ClockWatch
from edgekit.telemetry.link import Link, Opening
from edgekit.telemetry.messages import Birth, Event, Metrics, OutboxState, Readings, decode, encode
from edgekit.telemetry.outbox import NOTHING
from edgekit.telemetry.outbox_file import Item
from edgekit.telemetry.recorder import Recorder
from edgekit.telemetry.reporter import Reporter
from edgekit.telemetry.stream import Stream
from edgekit.telemetry.windows import Windows
from tests.network import QUICK
from tests.waiting import until

NOW = datetime.now(timezone.utc)
DAY = timedelta(days=1)
needs_mosquitto = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")


def test_the_floor_survives_and_only_a_clock_that_is_set_moves_it(tmp_path: Path) -> None:
    floor = ClockFloor(tmp_path)
    assert floor.unix_s == EARLIEST_UNIX_S
    for now_s, synced in ((4e9, False), (4e9, None), (5.0, True)):  # unset, unknown, set to nonsense
        floor.learn(now_s, synced)
        assert floor.unix_s == EARLIEST_UNIX_S
    assert not (tmp_path / "clock.json").exists()
    first_s = EARLIEST_UNIX_S + 86_400
    floor.learn(first_s, True)
    written = (tmp_path / "clock.json").read_bytes()
    floor.learn(first_s + NOTED_S - 1, True)
    assert (tmp_path / "clock.json").read_bytes() == written, "not every window costs a write"
    assert ClockFloor(tmp_path).unix_s == first_s
    floor.learn(first_s + NOTED_S, True)
    assert ClockFloor(tmp_path).unix_s == first_s + NOTED_S
    floor.learn(first_s, True)  # it had been set wrongly, and is put right
    assert ClockFloor(tmp_path).unix_s == first_s


@pytest.mark.parametrize("damage", [b"", b"{", b'{"unix_s":"x"}', b'{"unix_s":5}'])
def test_a_damaged_floor_is_the_day_of_this_code(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "clock.json").write_bytes(damage)
    assert ClockFloor(tmp_path).unix_s == EARLIEST_UNIX_S


@pytest.mark.parametrize(
    ("now_s", "synced", "behind"),
    [
        (5.0, None, True),
        (5.0, True, True),
        (EARLIEST_UNIX_S + 9, True, False),
        (EARLIEST_UNIX_S + 9, None, False),
        (EARLIEST_UNIX_S + 9, False, True),
    ],
)
def test_a_clock_is_behind_when_it_shows_less_than_the_floor_or_nobody_set_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now_s: float, synced: bool | None, behind: bool
) -> None:
    monkeypatch.setattr(clocks, "clock_synced", lambda: synced)
    monkeypatch.setattr(clocks.time, "time", lambda: now_s)
    assert ClockFloor(tmp_path).is_clock_behind() is behind


def test_a_jump_is_told_once_and_bending_is_none() -> None:
    watch = ClockWatch()
    looks = [(100.0, 100.0), (110.005, 110.0), (120.0, 120.0), (1.8e9 + 130.0, 130.0), (1.8e9 + 140.0, 140.0)]
    assert [watch.jump_s(unix_s, mono_s) for unix_s, mono_s in looks] == [None, None, None, 1.8e9, None]
    assert watch.jump_s(1.8e9 + 148.0, 150.0) == pytest.approx(-2.0)


def test_a_clock_that_is_set_between_two_windows_is_told_and_the_first_is_dated_after_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall_s, synced = [1000.0], [False]
    monkeypatch.setattr("edgekit.telemetry.windows.unix_ms", lambda: int(wall_s[0] * 1000))
    monkeypatch.setattr("edgekit.telemetry.windows.clock_synced", lambda: synced[0])
    told: list[str] = []
    windows = Windows(tmp_path, 10.0, recorder=Recorder(), readings=Readings, on_jump=lambda text, _: told.append(text))
    windows.advance()
    stored: list[Metrics] = []
    windows.close(OutboxState(), stored.append)
    wall_s[0], synced[0] = EARLIEST_UNIX_S + 500_000.0, True
    windows.close(OutboxState(), stored.append)
    assert told == [f"the clock jumped by {EARLIEST_UNIX_S + 499_000.0:+.1f} s and is synchronised"]
    assert windows.floor.unix_s == wall_s[0]
    assert [window.seq for window in stored] == [0, 1]
    early = Item(0, "t", encode(stored[0]), time.monotonic(), (stored[0].epoch, 0))
    sent = decode("metrics", windows.as_sent(early))
    assert isinstance(sent, Metrics)
    assert sent.clock_synced
    assert abs(sent.t_unix_ms - wall_s[0] * 1000) < 60_000


def test_a_device_tells_a_jump_as_an_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reporter = Reporter(
        MqttConfig(host="127.0.0.1", port=9),
        site="hall",
        device="cam-1",
        state_folder=tmp_path,
        birth=lambda epoch: Birth(epoch=epoch, t_unix_ms=0, board="Pi 5"),
        readings=Readings,
        recorder=Recorder(),
    )
    reporter._close_window()
    monkeypatch.setattr("edgekit.telemetry.windows.unix_ms", lambda: 5000)
    reporter._close_window()
    (event,) = [decode("event", i.payload) for i in reporter._outbox.after(NOTHING, 9) if i.topic.endswith("/event")]
    assert isinstance(event, Event)
    assert event.kind == "clock"
    assert event.detail["jumped_s"] < -1e9
    reporter.stop("done", timeout_s=0.1)


Certify = Callable[[datetime, datetime], int]


@pytest.fixture
def certify(tmp_path: Path) -> Iterator[Certify]:
    """Starts a broker whose certificate is valid between two dates, and gives its port."""
    x509 = pytest.importorskip("cryptography.x509", reason="cryptography is not installed")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    def name(text: str) -> object:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    ends = []

    def start(begins: datetime, expires: datetime) -> int:
        keys = {who: ec.generate_private_key(ec.SECP256R1()) for who in ("ca", "broker")}
        signed = {}
        for who, extensions in (
            ("ca", [x509.BasicConstraints(ca=True, path_length=None), usage]),
            ("broker", [x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])]),
        ):
            made = x509.CertificateBuilder().subject_name(name(who)).issuer_name(name("ca"))
            made = made.public_key(keys[who].public_key()).serial_number(x509.random_serial_number())
            made = made.not_valid_before(begins).not_valid_after(expires)
            for extension in extensions:
                made = made.add_extension(extension, critical=True)
            # what Python asks for from 3.13 on
            issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(keys["ca"].public_key())
            made = made.add_extension(issuer, critical=False)
            subject = x509.SubjectKeyIdentifier.from_public_key(keys[who].public_key())
            made = made.add_extension(subject, critical=False)
            signed[who] = made.sign(keys["ca"], hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        secret = keys["broker"].private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (tmp_path / "ca.pem").write_bytes(signed["ca"])
        (tmp_path / "broker.pem").write_bytes(secret + signed["broker"])
        tls = Tls(certificate=tmp_path / "broker.pem", authority=tmp_path / "ca.pem")
        broker = start_broker(tmp_path / f"broker{len(ends)}", kind="mosquitto", tls=tls)
        ends.append(broker.stop)
        return broker.port

    yield start
    for end in ends:
        end()


def link_state(port: int, tmp_path: Path, floor: ClockFloor | None) -> tuple[bool, str]:
    """Whether a device with this floor connects, and what it says if not."""
    config = MqttConfig(host="127.0.0.1", port=port, tls=True, ca_file=str(tmp_path / "ca.pem"))
    link = Link(
        config,
        client_id="x",
        subscriptions=(),
        opening=Opening,
        on_message=lambda _: None,
        back_off=QUICK,
        floor=floor,
    )
    link.start()
    assert until(lambda: link.state.connected or link.failures > 0)
    found = link.state.connected, link.state.text
    link.stop(timeout_s=0.5)
    return found


class Floor(ClockFloor):
    """Of a device whose clock is, or is not, behind."""

    def __init__(self, folder: Path, floor: datetime, *, behind: bool = True) -> None:
        super().__init__(folder)
        self.unix_s, self._behind = floor.timestamp(), behind

    def is_clock_behind(self) -> bool:
        return self._behind


@pytest.mark.broker
@needs_mosquitto
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # paho leaves the failed socket to GC
def test_before_the_clock_is_set_tls_asks_only_what_is_certain(certify: Certify, tmp_path: Path) -> None:
    # The broker's certificate begins tomorrow: what a device with yesterday's clock sees of every renewed one.
    port = certify(NOW + DAY, NOW + 5 * DAY)
    assert link_state(port, tmp_path, Floor(tmp_path, NOW)) == (True, "connected")
    assert link_state(port, tmp_path, Floor(tmp_path, NOW + 4 * DAY)) == (True, "connected")
    connected, text = link_state(port, tmp_path, Floor(tmp_path, NOW + 6 * DAY))
    assert not connected
    assert "its certificate expired on" in text
    assert f"it is at least {NOW + 6 * DAY:%Y-%m-%d}" in text
    # With a clock that was set, and for everyone else, dates are checked as always.
    for strict in (Floor(tmp_path, NOW, behind=False), None):
        connected, text = link_state(port, tmp_path, strict)
        assert not connected
        assert "certificate is not yet valid" in text
        assert f"this clock ({time.strftime('%Y-%m-%d', time.gmtime())}" in text
    config = MqttConfig(host="127.0.0.1", port=port, tls=True, ca_file=str(tmp_path / "ca.pem"))
    with pytest.raises(BrokerError, match="not yet valid"):
        Stream(config, "reader", [("t", 0)])
    # And whoever signed it is checked in any case.
    certify(NOW - DAY, NOW + DAY)  # by another authority, which is the one that is trusted now
    connected, text = link_state(port, tmp_path, Floor(tmp_path, NOW))
    assert not connected
    assert "not trusted" in text


def test_closing_windows_from_two_threads_numbers_each_once(tmp_path: Path) -> None:
    windows, stored = Windows(tmp_path, 1.0, recorder=Recorder(), readings=Readings), list[Metrics]()
    windows.advance()
    threads = [
        threading.Thread(target=lambda: [windows.close(OutboxState(), stored.append) for _ in range(50)])
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [window.seq for window in stored] == list(range(100))
