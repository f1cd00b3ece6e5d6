"""Windows as they are sent: late ones say so, those from before the clock was set get their time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edgekit.telemetry.clock import boot_id
from edgekit.telemetry.messages import Metrics, decode, encode
from edgekit.telemetry.outbox_file import Item
from edgekit.telemetry.window import Moment, as_sent

NOW_MS = 1_800_000_000_000


def stored(*, added_s: float = 100.0, oldest_seq: int | None = None, **fields: object) -> Item:
    made = {"t_unix_ms": 7_000, "t_mono_ms": 100_000, "boot": "b00t", "clock_synced": True, **fields}
    window = Metrics(epoch=1, seq=5, window_ms=10_000, **made)  # type: ignore[arg-type]
    return Item(0, "t/metrics", encode(window), added_s, (1, 5), oldest_seq)


def sent(item: Item, *, at_s: float = 103.0, synced: bool | None = True, boot: str = "b00t") -> Metrics:
    window = decode("metrics", as_sent(item, Moment(at_s, NOW_MS, synced, boot), live_s=10.0))
    assert isinstance(window, Metrics)
    return window


def test_a_prompt_window_goes_out_byte_for_byte() -> None:
    item = stored(oldest_seq=0)
    assert as_sent(item, Moment(103.0, NOW_MS, True, "b00t"), live_s=10.0) == item.payload


def test_an_event_is_never_touched() -> None:
    item = Item(0, "t/event", b'{"clock_synced":false}', float("-inf"))
    assert as_sent(item, Moment(103.0, NOW_MS, True, "b00t"), live_s=10.0) == item.payload


@pytest.mark.parametrize(("added_s", "historical"), [(100.0, False), (92.9, True), (float("-inf"), True)])
def test_a_window_older_than_its_length_or_of_an_earlier_process_is_historical(
    added_s: float, historical: bool
) -> None:
    assert sent(stored(added_s=added_s)).historical is historical


def test_it_tells_what_of_its_epoch_still_waits() -> None:
    window = sent(stored(added_s=0.0, oldest_seq=3))
    assert (window.oldest_seq, window.historical, window.seq) == (3, True, 5)


def test_when_the_time_arrives_windows_of_this_boot_get_theirs() -> None:
    window = sent(stored(clock_synced=False), at_s=160.0)
    assert window.t_unix_ms == NOW_MS - 60_000
    assert window.clock_synced is True


@pytest.mark.parametrize(("synced", "boot"), [(False, "b00t"), (None, "b00t"), (True, "another")])
def test_a_time_that_cannot_be_known_is_not_made_up(synced: bool | None, boot: str) -> None:
    window = sent(stored(clock_synced=False), at_s=160.0, synced=synced, boot=boot)
    assert (window.t_unix_ms, window.clock_synced) == (7_000, False)


def test_the_boot_is_the_kernels_or_else_this_processs(tmp_path: Path) -> None:
    (tmp_path / "boot_id").write_text("0a1b2c3d-9999-4444-8888-777766665555\n")
    assert boot_id(tmp_path / "boot_id") == "0a1b2c3d"
    assert re.fullmatch("[0-9a-f]{8}", boot_id(tmp_path / "none"))
    assert boot_id(tmp_path / "none") == boot_id(tmp_path / "none")
