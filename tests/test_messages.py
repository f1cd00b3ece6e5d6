"""Payloads: what goes out comes back, newer keys pass, anything else is one ValueError; a window stays small."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit.telemetry.clock import clock_synced
from edgekit.telemetry.commands import REMEMBERED, CommandGate
from edgekit.telemetry.desired import Desired, Reported, Step
from edgekit.telemetry.epoch import EpochCounter
from edgekit.telemetry.histogram import quantile
from edgekit.telemetry.messages import (
    KINDS,
    MAX_PAYLOAD_BYTES,
    Ack,
    Birth,
    Command,
    Event,
    Metrics,
    ModelState,
    OutboxState,
    Readings,
    Reply,
    State,
    Status,
    Summary,
    decode,
    encode,
    mark_historical,
    parse_topic,
    topic,
)
from edgekit.telemetry.recorder import Recorder

EXAMPLES: dict[str, msgspec.Struct] = {
    "status": Status(state=State.OFFLINE, epoch=7, reason="stopped", session="ab"),
    "birth": Birth(
        epoch=1,
        t_unix_ms=5,
        board="Pi",
        models=(
            ModelState(model="m", artifact="a", precision="int8", runtime="onnxruntime", rejections=(("b", "c"),)),
        ),
    ),
    "metrics": Metrics(epoch=1, seq=2, t_unix_ms=3, t_mono_ms=4, window_ms=10_000, clock_synced=None),
    "event": Event(epoch=1, t_unix_ms=1, kind="k", text="t", detail={"a": [1]}),
    "command": Command(id="1", verb="ping", expires_unix_ms=5),
    "reply": Reply(id="1", ok=False, text="no"),
    "ack": Ack(epoch=1, seq=9),
    "summary": Summary(t_unix_ms=1, samples=700, p50_ms=1.5, p99_ms=2.5, temperature_c=50.0),
    "desired": Desired(release="2.0", digest="ab" * 32, id="r1"),
    "reported": Reported(t_unix_ms=1, group="canary", running="1.0", desired="2.0", step=Step.FETCHING, share=0.5),
}


def typical_window(requests: int = 100, spread: float = 0.15) -> Metrics:
    """One model, ten requests a second, latency that varies by ±15 %, short waits, all readings but power."""
    rng, recorder = np.random.default_rng(4), Recorder()
    infers_ms = rng.gamma(spread**-2, 6.4 * spread**2, requests)
    for infer_ms, queue_ms in zip(infers_ms, rng.gamma(4, 0.02, requests), strict=True):
        recorder.observe(
            model="ocr-detector",
            lane="realtime",
            artifact="static-int8",
            infer_ms=float(infer_ms),
            queue_ms=float(queue_ms),
            batch_size=1,
        )
    return Metrics(
        epoch=117,
        seq=86_400,
        t_unix_ms=1_796_049_840_000,
        t_mono_ms=999_999_999,
        window_ms=10_000,
        clock_synced=True,
        lanes=recorder.take(),
        system=Readings(
            memory_available_bytes=3_221_225_472,
            rss_bytes=201_326_592,
            temperature_c=61.2,
            cpu_percent=37.5,
        ),
        outbox=OutboxState(bytes_sent=51_840_000),
    )


@pytest.mark.parametrize("leaf", KINDS)
def test_what_is_encoded_decodes_to_the_same(leaf: str) -> None:
    assert decode(leaf, encode(EXAMPLES[leaf])) == EXAMPLES[leaf]


@pytest.mark.parametrize("leaf", KINDS)
def test_keys_of_a_newer_sender_are_ignored(leaf: str) -> None:
    newer = {**json.loads(encode(EXAMPLES[leaf])), "not_yet_invented": {"deep": [1, 2]}}
    assert decode(leaf, json.dumps(newer).encode()) == EXAMPLES[leaf]


@pytest.mark.parametrize("leaf", KINDS)
def test_a_missing_key_or_a_wrong_type_is_refused(leaf: str) -> None:
    table = json.loads(encode(EXAMPLES[leaf]))
    key = next(iter(table))
    with pytest.raises(ValueError, match=leaf):
        decode(leaf, json.dumps({k: v for k, v in table.items() if k != key}).encode())
    with pytest.raises(ValueError, match=leaf):
        decode(leaf, json.dumps({**table, key: {"a": 1}}).encode())


@given(st.sampled_from([*KINDS, "other", ""]), st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_no_bytes_raise_anything_but_value_error(leaf: str, payload: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert type(decode(leaf, payload)) is KINDS[leaf]


def test_a_payload_beyond_the_limit_is_refused_unread() -> None:
    with pytest.raises(ValueError, match="more than"):
        decode("event", b" " * (MAX_PAYLOAD_BYTES + 1))


@pytest.mark.parametrize("number", ["-1", "9007199254740993", "1e999", "null", "1.5"])
def test_numbers_that_other_readers_could_not_hold_are_refused(number: str) -> None:
    with pytest.raises(ValueError, match="ack"):
        decode("ack", b'{"epoch":1,"seq":' + number.encode() + b"}")


def test_topics_are_taken_apart_as_they_are_put_together() -> None:
    parsed = parse_topic(topic("hall", "cam-1", "birth"))
    assert parsed is not None
    assert (parsed.site, parsed.device, parsed.leaf) == ("hall", "cam-1", "birth")
    for other in ("edgekit/v1/hall/cam-1", "edgekit/v1/hall//status", "other/v1/a/b/status", "edgekit/v1/a/b/c/d"):
        assert parse_topic(other) is None


def test_a_late_window_is_marked_without_decoding_it() -> None:
    window = typical_window()
    late = decode("metrics", mark_historical(encode(window)))
    assert late == msgspec.structs.replace(window, historical=True)


def test_a_typical_window_takes_at_most_600_bytes() -> None:
    assert len(encode(typical_window())) <= 600
    assert len(encode(typical_window(requests=20))) <= 600
    assert len(encode(typical_window(requests=5_000, spread=0.5))) <= 900


def test_the_recorder_counts_what_was_inferred_and_what_was_not() -> None:
    recorder = Recorder()
    for value in (1.0, 2.0, 4.0):
        recorder.observe(model="m", lane="realtime", artifact="a", infer_ms=value, batch_size=4)
    recorder.count(model="m", lane="realtime", artifact="a", errors=1, rejected=2, cache_hits=3)
    recorder.count(model="m", lane="idle", artifact="a")
    (lane,) = recorder.take()
    assert (lane.requests, lane.errors, lane.rejected, lane.cache_hits) == (9, 1, 2, 3)
    assert lane.batch_sizes == {"4": 3}
    assert lane.infer_ms is not None
    assert lane.infer_ms.count == 3
    assert quantile(lane.infer_ms, 0.5) == pytest.approx(2.0, rel=0.022)
    assert lane.queue_ms is None
    assert recorder.take() == ()


def test_the_epoch_outlives_the_process_and_never_repeats(tmp_path: Path) -> None:
    first = EpochCounter(tmp_path)
    assert first.is_fresh
    assert [first.advance(), first.advance()] == [1, 2]
    second = EpochCounter(tmp_path)
    assert not second.is_fresh
    assert second.advance() == 3
    assert second.advance(past=40) == 41
    assert EpochCounter(tmp_path).current == 41
    assert second.is_own(first.session)
    assert not second.is_own("")


def test_an_epoch_does_not_repeat_when_its_file_is_lost_restored_or_was_never_written(tmp_path: Path) -> None:
    now_s = 1_800_000_000.0
    before = EpochCounter(tmp_path)
    used = [before.advance(unix_s=now_s), before.advance(unix_s=now_s + 0.1), before.advance(unix_s=now_s + 0.2)]
    assert used == sorted(set(used))
    image = (tmp_path / "epoch.json").read_bytes()
    used += [before.advance(unix_s=now_s + 60)]
    (tmp_path / "epoch.json").unlink()
    assert EpochCounter(tmp_path).advance(unix_s=now_s + 61) > max(used)
    (tmp_path / "epoch.json").write_bytes(image)  # the card of last week
    assert EpochCounter(tmp_path).advance(unix_s=now_s + 61) > max(used)
    # A clock that shows 1970 says nothing: the file counts on, as it does behind a clock that was far ahead.
    assert EpochCounter(tmp_path).advance(unix_s=5.0) > max(used)
    ahead = EpochCounter(tmp_path).advance(unix_s=4_000_000_000.0)
    assert EpochCounter(tmp_path).advance(unix_s=now_s + 100) == ahead + 1


@pytest.mark.parametrize("damage", [b"", b"{", b'{"epoch":"x"}', b"\xff"])
def test_a_damaged_epoch_file_counts_as_a_device_without_a_past(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "epoch.json").write_bytes(damage)
    assert EpochCounter(tmp_path).is_fresh


NOW_MS = 1_800_000_000_000


def refusal(gate: CommandGate, synced: bool | None = True, **fields: object) -> str | None:
    command = Command(**{"id": "1", "verb": "ping", **fields})  # type: ignore[arg-type]
    reply = gate.refusal(command, now_unix_ms=NOW_MS, clock_synced=synced)
    return reply.text if reply else None


def test_a_command_runs_once_and_asking_again_gets_the_same_answer() -> None:
    gate = CommandGate(("ping",))
    assert refusal(gate) is None
    assert "still running" in (refusal(gate) or "")
    gate.answered(Reply(id="1", ok=True, text="pong"))
    assert refusal(gate) == "pong"


def test_only_what_the_config_allows_runs() -> None:
    assert "allows ping, rebirth" in (refusal(CommandGate(("ping", "rebirth")), verb="rollback") or "")
    assert refusal(CommandGate(("rollback",)), verb="rollback") is None


@pytest.mark.parametrize(
    ("expires", "synced", "why"),
    [
        (NOW_MS + 1, True, None),
        (NOW_MS - 5, True, "expired 5 ms ago"),
        (NOW_MS + 1, False, "not synchronised"),
        (NOW_MS + 1, None, None),
        (None, False, None),
    ],
)
def test_expiry_needs_a_clock_that_is_known_to_be_right(expires: int | None, synced: bool | None, why: str) -> None:
    text = refusal(CommandGate(("ping",)), synced, expires_unix_ms=expires)
    assert text is None if why is None else why in (text or "")


def test_the_memory_of_commands_is_bounded() -> None:
    gate = CommandGate(("ping",))
    for i in range(REMEMBERED + 1):
        assert refusal(gate, id=str(i)) is None
    assert refusal(gate, id=str(REMEMBERED)) is not None
    assert refusal(gate, id="0") is None


def test_the_clock_is_believed_when_systemd_says_so_and_is_never_guessed(tmp_path: Path) -> None:
    assert clock_synced(tmp_path) in (True, False, None)
    flag = tmp_path / "systemd/timesync/synchronized"
    flag.parent.mkdir(parents=True)
    flag.touch()
    assert clock_synced(tmp_path) is True


def test_what_was_acted_on_is_not_acted_on_again_after_a_restart(tmp_path: Path) -> None:
    gate = CommandGate(("reload",), tmp_path)
    for command_id in ("done", "cut short"):
        assert refusal(gate, id=command_id, verb="reload") is None
        assert gate.begin(Command(id=command_id, verb="reload")) is None
    gate.answered(Reply(id="done", ok=True, text="reloaded", detail={"long": "x" * 1000}))
    again = CommandGate(("reload",), tmp_path)
    answers = {i: again.refusal(Command(id=i, verb="reload"), now_unix_ms=0, clock_synced=True) for i in IDS}
    assert answers["done"] == Reply(id="done", ok=True, text="reloaded")
    assert answers["cut short"] is not None
    assert "restarted while it acted on" in answers["cut short"].text
    assert answers["new"] is None
    assert (tmp_path / "commands.json").stat().st_size < 1000


IDS = ("done", "cut short", "new")


def test_only_so_many_are_kept_and_a_file_that_cannot_be_read_is_begun_anew(tmp_path: Path) -> None:
    gate = CommandGate(("reload",), tmp_path)
    for n in range(REMEMBERED + 3):
        gate.begin(Command(id=str(n), verb="reload"))
    again = CommandGate(("reload",), tmp_path)
    assert refusal(again, id="3", verb="reload") is not None
    assert refusal(again, id="2", verb="reload") is None
    (tmp_path / "commands.json").write_text("{")
    assert refusal(CommandGate(("reload",), tmp_path), id="3", verb="reload") is None


def test_a_command_that_cannot_be_noted_is_refused(tmp_path: Path) -> None:
    gate = CommandGate(("reload",), tmp_path / "folder")
    (tmp_path / "folder").write_text("a file where the folder should be")
    refused = gate.begin(Command(id="x", verb="reload"))
    assert refused is not None
    assert "cannot be noted" in refused.text
    gate.answered(refused)
    assert refusal(gate, id="y", verb="reload") is None
