"""Garbage on any topic: no fold stops, no other device changes, and whatever is shown afterwards can be shown."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.registry import CollectorRegistry
from rich.console import Console

from edgekit.cli.fleet_table import fleet_json, fleet_table, groups_json, groups_table
from edgekit.collect.intake import Intake
from edgekit.collect.prometheus import FleetCollector
from edgekit.collect.rollup import merge
from edgekit.collect.store import Store
from edgekit.groups import BY, Listening, listen
from edgekit.telemetry.commands import CommandDesk
from edgekit.telemetry.desired import Reported, Step
from edgekit.telemetry.histogram import HistogramBuilder
from edgekit.telemetry.messages import (
    KINDS,
    Ack,
    Birth,
    Command,
    Event,
    LaneMetrics,
    Metrics,
    ModelState,
    OutboxState,
    Readings,
    Received,
    Reply,
    State,
    Status,
    decode,
    encode,
    topic,
)

COUNT = int(os.environ.get("EDGEKIT_FUZZ", "5000"))
"""`make soak` sends 100,000."""
NOW_S = 1_800_000_000.0
BYSTANDER = ("hall", "bystander")
BATCH = 250


def latency(*values: float) -> Any:
    builder = HistogramBuilder(max_scale=4)
    builder.record_many(list(values))
    return builder.histogram()


LANE = LaneMetrics(
    model="m",
    artifact="a",
    requests=3,
    batch_sizes={"2": 2},
    infer_ms=latency(1.0, 2.0, 300.0),
    queue_ms=latency(0.0, 0.1),
)
SOUND: dict[str, Any] = {
    "status": Status(state=State.ONLINE, epoch=5, reason="r", session="s"),
    "birth": Birth(
        epoch=5,
        t_unix_ms=1,
        board="Pi 5",
        board_id="pi-5",
        facts={"memory": {"total": 1}},
        models=(ModelState(model="m", artifact="a", precision="int8", runtime="onnx", latency_limit_ms=5.0),),
        versions={"edgekit": "1"},
        memory_total_bytes=2**33,
    ),
    "metrics": Metrics(
        epoch=5,
        seq=3,
        t_unix_ms=int(NOW_S * 1000),
        t_mono_ms=5,
        window_ms=10_000,
        clock_synced=True,
        lanes=(LANE,),
        system=Readings(memory_available_bytes=5, temperature_c=40.0),
        outbox=OutboxState(depth=1, dropped={"outbox full": 2}),
    ),
    "event": Event(epoch=5, t_unix_ms=1, kind="k", text="t", detail={"a": [1, {"b": None}]}),
    "command": Command(id="c", verb="reload", args={"a": 1}, expires_unix_ms=2**50),
    "reply": Reply(id="c", ok=True, text="t", detail={"x": 1}),
    "ack": Ack(epoch=5, seq=3),
    "reported": Reported(t_unix_ms=1, group="g", running="1.0", desired="2.0", step=Step.FETCHING, share=0.5),
}
LEAVES = sorted({*KINDS, *SOUND, "", "rebirth", "other", "metrics/x", "#", "+"})
HOSTILE: list[str] = [
    "null", "true", "-1", "0", "1e400", "-1e308", "NaN", "Infinity", str(2**53), str(2**53 + 1), str(2**64), "9" * 400,
    "0.1", "1e-320", '""', '"' + "x" * 5000 + '"', '"\\u0000\\ud800"', '"\\u001b[2J"', '"../../etc"', "[]", "{}",
    "[1,2,3]", '{"a":{}}', "[" * 2000 + "]" * 2000, '{"a":' * 1500 + "1" + "}" * 1500, "[" * 200 + "0" + "]" * 200,
    "-2147483648", "2147483647", "4294967296", '"online"', '"realtime"', "86400000", "1", "20", "-10",
]  # fmt: skip
"""JSON texts, not values: what Python would not write must be sent too."""


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place within a JSON value."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inner:
        yield from places(below, (*path, key))


MARKER = "\u2603"


def with_hole(value: Any, path: tuple[Any, ...]) -> str:
    """The JSON text of a value with a hole at one place."""
    if not path:
        return MARKER
    changed = json.loads(json.dumps(value))
    target = changed
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = MARKER
    return json.dumps(changed, ensure_ascii=False).replace(f'"{MARKER}"', MARKER)


def filled(hole: str, text: str) -> bytes:
    return hole.replace(MARKER, text).encode("utf-8", "surrogatepass")


class Generator:
    """Endless garbage, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._values = {leaf: json.loads(encode(payload)) for leaf, payload in SOUND.items()}
        self._holes = {leaf: [with_hole(v, path) for path in places(v)] for leaf, v in self._values.items()}
        self._kinds: list[Callable[[str], bytes]] = [
            self._bytes, self._text, self._replaced, self._replaced, self._replaced, self._several, self._torn,
            self._foreign, self._extra, self._sound,
        ]  # fmt: skip

    def message(self) -> Received:
        dice = self._dice
        leaf = dice.choice(list(SOUND)) if dice.random() < 0.9 else dice.choice(LEAVES)
        made = dice.choice(self._kinds)(leaf if leaf in SOUND else "metrics")
        device = f"fuzz-{dice.randrange(40)}"
        where = topic(dice.choice(("hall", "cellar")), device, leaf)
        if dice.random() < 0.08:
            where = dice.choice((
                f"edgekit/v1/hall/{leaf}", f"edgekit/v2/hall/bystander/{leaf}", f"edgekit/v1//{device}/{leaf}",
                f"edgekit/v1/hall/bystander/{leaf}/x", f"edgekit/v1/HALL/{device}/{leaf}", "", "/", "a" * 5000,
                f"edgekit/v1/_all/_all/{leaf}", f"edgekit/v1/hall/_all/{leaf}", f"edgekit/v1/hall/caf\u00e9/{leaf}",
                f"edgekit/v1/hall/{'d' * 64}/{leaf}", f"edgekit/v1/hall/by\nstander/{leaf}", f"$SYS/{leaf}",
                f"edgekit/v1/hall/bystander\n/{leaf}",
            ))  # fmt: skip
        return Received(topic=where, payload=made, retained=dice.random() < 0.1, received_s=NOW_S + dice.random())

    def _bytes(self, _leaf: str) -> bytes:
        return self._dice.randbytes(self._dice.randrange(300))

    def _text(self, _leaf: str) -> bytes:
        return self._dice.choice(HOSTILE).encode("utf-8", "surrogatepass")

    def _replaced(self, leaf: str) -> bytes:
        return filled(self._dice.choice(self._holes[leaf]), self._dice.choice(HOSTILE))

    def _several(self, leaf: str) -> bytes:
        value = json.loads(json.dumps(self._values[leaf]))
        for _ in range(3):
            path = self._dice.choice([p for p in places(value) if p])
            target = value
            for key in path[:-1]:
                target = target[key]
            target[path[-1]] = self._dice.choice((None, -1, 2**53, 1e308, "", [], {}, True, 0, 1, 300, -5, "x"))
        return json.dumps(value).encode()

    def _torn(self, leaf: str) -> bytes:
        payload = bytearray(encode(SOUND[leaf]))
        if self._dice.random() < 0.5:
            return bytes(payload[: self._dice.randrange(len(payload))])
        payload[self._dice.randrange(len(payload))] = self._dice.randrange(256)
        return bytes(payload)

    def _foreign(self, leaf: str) -> bytes:
        return json.dumps({**self._values[leaf], "v": self._dice.choice((2, 0, -1, "1", None, 1.5, 2**60))}).encode()

    def _extra(self, leaf: str) -> bytes:
        names = {"site": "hall", "device": "bystander", "topic": topic(*BYSTANDER, "status"), "__class__": "Status"}
        return json.dumps({**self._values[leaf], **names}).encode()

    def _sound(self, leaf: str) -> bytes:
        """In form, but from a device that lies about everything it may."""
        if leaf != "metrics":
            return encode(SOUND[leaf])
        big = self._dice.choice((0, 1, 2**31, 2**53))
        window = {**self._values["metrics"], "epoch": big, "seq": self._dice.choice((0, 7, 2**40, 2**53))}
        window |= {"t_unix_ms": self._dice.choice((0, 1, 2**53)), "oldest_seq": self._dice.choice((0, 2**53))}
        return json.dumps({**window, "window_ms": self._dice.choice((1, 86_400_000))}).encode()


def test_the_generator_makes_what_decodes_and_what_does_not() -> None:
    generator, found = Generator(1), {True: 0, False: 0}
    for _ in range(1000):
        message = generator.message()
        try:
            decode(message.topic.rpartition("/")[2], message.payload)
        except ValueError:
            found[False] += 1
        else:
            found[True] += 1
    assert min(found.values()) > 100, "a fuzzer whose payloads are all refused tests nothing behind the decoder"


def test_a_reader_survives_garbage_and_a_bystander_is_as_it_was() -> None:
    birth = encode(SOUND["birth"])
    sane = [Received(topic=topic(*BYSTANDER, "birth"), payload=birth, received_s=NOW_S)]
    sane += [Received(topic=topic(*BYSTANDER, "metrics"), payload=encode(SOUND["metrics"]), received_s=NOW_S)]
    state = listen(Listening(), sane, now_s=NOW_S)
    device, heard = state.fleet.devices[BYSTANDER], dict(state.heard)[BYSTANDER]
    generator, began_s = Generator(2), time.process_time()
    for _ in range(COUNT // BATCH):
        state = listen(state, [generator.message() for _ in range(BATCH)], now_s=NOW_S)
    assert state.fleet.devices[BYSTANDER] == device
    assert dict(state.heard)[BYSTANDER] == heard
    assert state.fleet.malformed > COUNT / 10
    assert len(state.fleet.devices) <= 90
    shown = [fleet_json(state, NOW_S), *(groups_json(state, by, NOW_S) for by in BY)]
    json.dumps(shown, allow_nan=False)
    console = Console(file=io.StringIO(), width=200)
    for table in (fleet_table(state, NOW_S, width=200), *(groups_table(state, by) for by in BY)):
        console.print(table)
    print(f"{COUNT / (time.process_time() - began_s):.0f} messages a second of processor time")


def test_a_collector_stores_what_is_sound_of_garbage_and_goes_on(tmp_path: Path) -> None:
    store = Store(tmp_path / "h.db")
    intake, generator = Intake(store), Generator(3)
    for _ in range(COUNT // BATCH):
        intake.take([generator.message() for _ in range(BATCH)])
        batch = intake.taken()
        store.commit(batch.windows, batch.events, batch.pages, now_ms=int(NOW_S * 1000))
        intake.stored(batch, int(NOW_S * 1000))
    assert intake.counts.malformed > 0
    assert intake.counts.windows > 0
    groups: dict[tuple[str, str, str, str], Any] = {}
    for place, rollup in intake.places.items():
        group = (store.names[place.device][0], place.model, place.lane, place.artifact)
        groups[group] = merge(groups[group], rollup) if group in groups else rollup
    state = listen(Listening(), [generator.message() for _ in range(500)], now_s=NOW_S)
    counts = {"windows": 1, "historical": 0, "duplicates": 0, "malformed": 0, "delay_p99_ms": 1.0, "state": "connected"}
    registry = CollectorRegistry()
    registry.register(FleetCollector(lambda: (state.fleet, groups, counts)))  # type: ignore[arg-type]
    assert b"edgekit_requests_total" in generate_latest(registry)
    store.pour(intake.poured(), rolled=intake.newest)
    store.close()
    again = Store(tmp_path / "h.db")
    assert Intake(again).newest == intake.newest
    again.close()


def test_a_device_answers_garbage_commands_with_words_or_not_at_all(tmp_path: Path) -> None:
    acted: list[Command] = []

    def act(command: Command) -> Reply:
        acted.append(command)
        return Reply(id=command.id, ok=True)

    answers: list[Reply] = []
    desk = CommandDesk(("reload",), own=lambda _verb: None, on_command=act, answer=answers.append)
    generator = Generator(4)
    for _ in range(COUNT // 10):
        desk.read(Received(topic=topic(*BYSTANDER, "command"), payload=generator.message().payload, received_s=NOW_S))
    assert all(command.verb == "reload" for command in acted)
    assert len({command.id for command in acted}) == len(acted)


@pytest.mark.parametrize("leaf", sorted(SOUND))
def test_every_hostile_text_at_every_place_is_taken_or_refused_as_one_error(leaf: str) -> None:
    value = json.loads(encode(SOUND[leaf]))
    for hole in (with_hole(value, path) for path in places(value)):
        for text in HOSTILE:
            with contextlib.suppress(ValueError):
                assert isinstance(decode(leaf, filled(hole, text)), KINDS[leaf])
