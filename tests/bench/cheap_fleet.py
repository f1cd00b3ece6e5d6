"""Many devices over one connection, cheap enough that the publisher does not disturb what is measured.

`python -m tests.bench.cheap_fleet PORT DEVICES --window-s 10`: births, then windows spread evenly, until it is killed.
It speaks just enough MQTT 3.1.1 by itself: CONNECT, PUBLISH with QoS 1, and it throws the PUBACKs away.
"""

from __future__ import annotations

import argparse
import select
import socket
import time
from collections.abc import Iterator

import msgspec
import numpy as np

from edgekit.telemetry.histogram import HistogramBuilder
from edgekit.telemetry.messages import (
    Birth,
    Event,
    LaneMetrics,
    Metrics,
    ModelState,
    Readings,
    State,
    Status,
    topic,
)

BOARDS = ("Jetson Orin Nano 8GB", "Raspberry Pi 5 8GB", "Raspberry Pi 4 4GB", "Intel N100 mini PC", "Coral Dev Board")
MODELS = (("ocr-detector", "ocr-int8", "int8", 24.0), ("ocr-detector", "ocr-fp32", "float32", 41.0),
          ("voice-activity", "vad-fp32", "float32", 0.6))  # fmt: skip
TURN_S = 0.05
SHAPES = 64
"Different latency histograms; a device takes them in turn."


def packet(kind: int, *parts: bytes) -> bytes:
    """An MQTT control packet. Source: MQTT 3.1.1, section 2.2."""
    body, length = b"".join(parts), bytearray()
    left = len(body)
    while True:
        left, digit = left >> 7, left & 127
        length.append(digit | (128 if left else 0))
        if not left:
            return bytes((kind,)) + bytes(length) + body


def text(value: str) -> bytes:
    return len(value).to_bytes(2, "big") + value.encode()


class Publisher:
    """One connection that publishes with QoS 1 and never waits for an acknowledgement."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.sendall(packet(0x10, text("MQTT"), b"\x04\x02\x00\x00", text(f"cheap-fleet-{time.time_ns()}")))
        assert self._socket.recv(4)[3] == 0, "the broker refuses us"
        self._id, self._out = 0, bytearray()

    def put(self, where: str, payload: bytes, *, retain: bool = False) -> None:
        """Queue a message until `flush`."""
        self._id = self._id % 65_535 + 1
        self._out += packet(0x33 if retain else 0x32, text(where), self._id.to_bytes(2, "big"), payload)

    def flush(self) -> None:
        """Send what is queued, and throw away what the broker says."""
        while self._out:
            readable, writable, _ = select.select([self._socket], [self._socket], [])
            if readable and not self._socket.recv(1 << 16):
                raise SystemExit("the broker closed the connection")
            if writable:
                del self._out[: self._socket.send(self._out[: 1 << 16])]


def births(devices: int) -> Iterator[tuple[str, bytes]]:
    """Status and birth of every device."""
    for i in range(devices):
        model, artifact, precision, typical_ms = MODELS[i % len(MODELS)]
        state = ModelState(
            model=model, artifact=artifact, precision=precision, runtime="onnxruntime", settings="4 threads",
            reasons=("fastest measured p50 here: 10.1 ms against 19.2 ms of fp32", "accuracy 99.4 % of the standard"),
            rejections=(("ocr-int8-dynamic", "p99 72.9 ms is over the limit of 40 ms"),), latency_limit_ms=60.0,
            benched_p50_ms=typical_ms, benched_p99_ms=typical_ms * 1.6, accuracy_ratio=0.994,
        )  # fmt: skip
        birth = Birth(
            epoch=1, t_unix_ms=int(time.time() * 1000), board=BOARDS[i % len(BOARDS)], models=(state,),
            facts={"machine": "aarch64", "os": "Debian GNU/Linux 12", "kernel": "6.6.31",
                   "cpu": {"cores_usable": 4, "features": ["asimddp", "i8mm"]}},
            versions={"edgekit": "0.1.0", "onnxruntime": "1.22.0"}, memory_total_bytes=8 << 30,
            allowed_commands=("ping", "rebirth"),
        )  # fmt: skip
        yield topic(*name(i), "status"), msgspec.json.encode(Status(state=State.ONLINE, epoch=1))
        yield topic(*name(i), "birth"), msgspec.json.encode(birth)


def name(i: int) -> tuple[str, str]:
    return f"site-{i % 7}", f"cam-{i:05d}"


def shapes() -> list[list[bytes]]:
    """For each model, windows without their beginning: epoch, sequence number and times are put before them."""
    rng = np.random.default_rng(3)
    made = []
    for model, artifact, _, typical_ms in MODELS:
        tails = []
        for _ in range(SHAPES):
            latency, queue = HistogramBuilder(max_scale=5), HistogramBuilder(max_scale=3)
            scale = typical_ms * float(rng.lognormal(0, 0.25))
            latency.record_many(scale * rng.lognormal(0, 0.1, 90))
            queue.record_many(rng.exponential(0.3, 90))
            lane = LaneMetrics(
                model=model, artifact=artifact, requests=90, queue_ms=queue.histogram(), infer_ms=latency.histogram()
            )
            system = Readings(
                memory_available_bytes=5 << 30, temperature_c=float(rng.uniform(45, 75)), cpu_percent=31.0
            )
            window = Metrics(epoch=1, seq=0, t_unix_ms=0, t_mono_ms=0, window_ms=10_000, lanes=(lane,), system=system)
            fields = msgspec.json.decode(msgspec.json.encode(window))
            for known in ("epoch", "seq", "t_unix_ms", "t_mono_ms"):
                del fields[known]
            tails.append(b"," + msgspec.json.encode(fields)[1:])
        made.append(tails)
    return made


def trouble(i: int, seq: int) -> str:
    """What is wrong with a device in a window, for people who want to see a fleet that is not well."""
    if i % 40 == 11 and seq >= 3:
        return "dead"
    if i % 20 == 3 and seq % 8 >= 2:
        return "throttled"
    return "drops" if i % 25 == 7 and seq >= 2 else ""


def say_trouble(publisher: Publisher, i: int, seq: int, wrong: str, window: bytes) -> bytes:
    """The window as a troubled device sends it; its events and its death besides."""
    now_ms = int(time.time() * 1000)
    if wrong == "dead":
        if seq == 3:
            died = Status(state=State.OFFLINE, epoch=1, reason="connection lost")
            publisher.put(topic(*name(i), "status"), msgspec.json.encode(died), retain=True)
        return b""
    fields = msgspec.json.decode(window)
    if wrong == "throttled":
        fields["system"] |= {"throttled": True, "temperature_c": 86.4}
        for lane in fields["lanes"]:
            lane["infer_ms"]["offset"] += 2 ** max(0, lane["infer_ms"]["scale"])  # everything twice as slow
            for key in ("min", "max", "sum"):
                lane["infer_ms"][key] *= 2
        if seq % 8 == 2:
            happened = Event(epoch=1, t_unix_ms=now_ms, kind="throttled", text="clock 1500 to 1000 MHz at 86.4 degrees")
            publisher.put(topic(*name(i), "event"), msgspec.json.encode(happened))
    else:
        fields["outbox"] = {"depth": 40, "dropped": {"full": seq * 3}}
    return msgspec.json.encode(fields)


def run(port: int, devices: int, window_s: float, *, silent: bool, troubled: bool) -> None:
    """Publish until killed; `silent`: the births alone; `troubled`: some throttle, drop and die."""
    publisher = Publisher(port)
    for where, payload in births(devices):
        publisher.put(where, payload, retain=True)
    publisher.flush()
    print("born", flush=True)
    tails, seqs = shapes(), [0] * devices
    topics = [topic(*name(i), "metrics") for i in range(devices)]
    began, sent = time.monotonic(), 0
    while True:
        time.sleep(TURN_S)
        due = 0 if silent else int((time.monotonic() - began) * devices / window_s)
        for n in range(sent, due):
            i, now_ms = n % devices, int(time.time() * 1000)
            head = b'{"epoch":1,"seq":%d,"t_unix_ms":%d,"t_mono_ms":%d' % (seqs[i], now_ms, now_ms % 10**9)
            window = head + tails[i % len(MODELS)][(i + seqs[i]) % SHAPES]
            if troubled and (wrong := trouble(i, seqs[i])):
                window = say_trouble(publisher, i, seqs[i], wrong, window)
            if window:
                publisher.put(topics[i], window)
            seqs[i] += 1
        if due - sent and due // 500 != sent // 500:
            happened = Event(
                epoch=1, t_unix_ms=int(time.time() * 1000), kind="throttled", text="clock 1500 to 1000 MHz"
            )
            publisher.put(topic(*name(due % devices), "event"), msgspec.json.encode(happened))
        sent = max(sent, due)
        publisher.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("port", type=int)
    parser.add_argument("devices", type=int)
    parser.add_argument("--window-s", type=float, default=10.0)
    parser.add_argument("--silent", action="store_true", help="births alone")
    parser.add_argument("--troubled", action="store_true", help="some throttle, drop and die")
    args = parser.parse_args()
    run(args.port, args.devices, args.window_s, silent=args.silent, troubled=args.troubled)
