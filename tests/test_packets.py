"""MQTT packets as bytes, and the stream that reads thousands of them from a real broker."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.config import MqttConfig
from edgekit.errors import BrokerError
from edgekit.telemetry import packets
from edgekit.telemetry.access import Role, User
from edgekit.telemetry.broker import Broker, find_mosquitto, start_broker
from edgekit.telemetry.messages import Received
from edgekit.telemetry.stream import Stream

needs_mosquitto = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")


@given(
    st.lists(
        st.tuples(st.text(max_size=30), st.binary(max_size=300), st.integers(0, 65_535), st.booleans()), max_size=8
    ),
    st.integers(1, 50),
)
def test_what_is_published_is_parsed_again_however_it_is_cut(
    messages: list[tuple[str, bytes, int, bool]], step: int
) -> None:
    data = b"".join(packets.publish(t, p, packet_id=i, retain=r) for t, p, i, r in messages)
    parser, found = packets.Parser(), list[packets.Packet]()
    for at in range(0, len(data), step):
        found += parser.feed(data[at : at + step])
    assert [(p.topic, p.body, p.id, p.retained) for p in found] == messages
    assert all(p.qos == (1 if p.id else 0) for p in found)


@given(st.binary(max_size=400))
def test_bytes_that_are_not_mqtt_are_an_error_or_nothing(data: bytes) -> None:
    try:
        found = packets.Parser().feed(data)
    except (ValueError, IndexError):
        return
    assert sum(len(p.body) for p in found) <= len(data)


@pytest.mark.parametrize("size", [0, 100, 127, 128, 16_383, 16_384, 300_000])
def test_lengths_of_every_size_are_framed_as_the_standard_says(size: int) -> None:
    (found,) = packets.Parser().feed(packets.publish("t", b"x" * size))
    assert found.body == b"x" * size
    with pytest.raises(ValueError, match="four bytes"):
        packets.Parser().feed(b"\x30\xff\xff\xff\xff\xff")
    with pytest.raises(ValueError, match=r"a packet of"):
        packets.Parser().feed(b"\x30\xff\xff\xff\x7f")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    users = [User(name="operator", role=Role.OPERATOR, password="right")]
    with start_broker(tmp_path_factory.mktemp("broker"), kind="mosquitto", users=users) as running:
        yield running


@pytest.fixture
def config(broker: Broker, tmp_path: Path) -> MqttConfig:
    (tmp_path / "secret").write_text("right\n")
    return MqttConfig(
        host="127.0.0.1", port=broker.port, username="operator", password_file=str(tmp_path / "secret"), keepalive_s=1
    )


def hear(stream: Stream, wanted: int, timeout_s: float = 5.0) -> list[Received]:
    found: list[Received] = []
    deadline = time.monotonic() + timeout_s
    while len(found) < wanted and time.monotonic() < deadline:
        found += stream.receive(0.1)
    return found


@pytest.mark.broker
@needs_mosquitto
@pytest.mark.parametrize("qos", [0, 1])
def test_a_stream_hears_everything_in_order(config: MqttConfig, qos: int) -> None:
    reader = Stream(config, f"reader-{qos}", [("edgekit/v1/+/+/command", qos)])
    writer = Stream(config, f"writer-{qos}", [("edgekit/v1/x/y/event", 0)])
    payloads = [b"%d" % i * random.Random(i).randrange(1, 400) for i in range(2000)]
    for payload in payloads:
        writer.publish("edgekit/v1/hall/cam-1/command", payload)
    writer.flush()
    heard: list[Received] = []
    deadline = time.monotonic() + 5.0
    while len(heard) < 2000 and time.monotonic() < deadline:
        writer.receive(0.0)
        heard += reader.receive(0.05)
    assert [m.payload for m in heard] == payloads
    reader.close()
    writer.close()


@pytest.mark.broker
@needs_mosquitto
def test_a_silent_stream_stays_connected_by_its_pings(config: MqttConfig) -> None:
    stream = Stream(config, "quiet", [("edgekit/v1/+/+/command", 0)])
    assert hear(stream, 1, timeout_s=2.5) == []  # a broker hangs up after 1.5 keep-alives of silence
    stream.publish("edgekit/v1/a/b/command", b"still here")
    assert [m.payload for m in hear(stream, 1)] == [b"still here"]
    stream.close()


@pytest.mark.broker
@needs_mosquitto
def test_what_came_while_the_reader_was_busy_is_a_sign_of_life(config: MqttConfig) -> None:
    stream = Stream(config, "busy", [("edgekit/v1/+/+/command", 0)])
    stream.publish("edgekit/v1/a/b/command", b"to myself")
    stream.flush()
    time.sleep(1.45)  # a disk that took its time; longer than a broker may be silent
    assert [m.payload for m in stream.receive(0.5)] == [b"to myself"]
    stream.close()


@pytest.mark.broker
@needs_mosquitto
def test_a_wrong_password_is_said(config: MqttConfig, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("wrong")
    with pytest.raises(BrokerError, match="not authorized"):
        Stream(config, "x", [("t", 0)])


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff" * 64, b"\x20\x02\x00\x05", b""])
def test_a_server_that_is_no_broker_is_an_error_in_words(answer: bytes) -> None:
    def serve() -> None:
        client, _ = server.accept()
        with client:
            client.recv(1024)
            client.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(BrokerError) as refused:
            Stream(MqttConfig(host="127.0.0.1", port=server.getsockname()[1]), "x", [("t", 0)])
        thread.join()
    assert str(refused.value).count("\n") == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_broker_that_stops_answering_is_noticed_within_one_and_a_half_keepalives() -> None:
    def serve() -> None:
        client, _ = server.accept()
        client.recv(1024)
        client.sendall(b"\x20\x02\x00\x00")
        client.recv(1024)
        client.sendall(b"\x90\x03\x00\x01\x00")
        ended.wait(5.0)  # half open: connected, and deaf
        client.close()

    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        stream = Stream(MqttConfig(host="127.0.0.1", port=server.getsockname()[1], keepalive_s=1), "x", [("t", 0)])
        began = time.monotonic()
        with pytest.raises(BrokerError, match=r"no answer for \d s"):
            hear(stream, 1)
        assert time.monotonic() - began < 2.0
        stream.close()
        ended.set()
        thread.join()


def test_a_broker_that_never_answers_does_not_hold_up_who_is_told_to_stop() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        config = MqttConfig(host="127.0.0.1", port=server.getsockname()[1])
        asked: list[float] = []

        def is_over() -> bool:
            asked.append(time.monotonic())
            return len(asked) > 1

        with pytest.raises(BrokerError, match="was left before it had answered"):
            Stream(config, "x", [("t", 0)], is_over=is_over)
    assert len(asked) == 2
