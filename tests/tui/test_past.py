"""Time travel: the kept moments, a screen that stands still, and recordings played again."""

from __future__ import annotations

import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from textual.pilot import Pilot

from edgekit.errors import ConfigError
from edgekit.telemetry.recording import RecordingWriter
from edgekit_tui.app import Console
from edgekit_tui.feed import Folder
from edgekit_tui.news import Folded
from edgekit_tui.past import DEVICE_VIEWS, KEEP_S, Past, Timeline
from edgekit_tui.replay import Replay
from tests.tui import simulated
from tests.tui.changed import replace
from tests.tui.simulated import NOW_S, drive, lived_view, text_of
from tests.tui.test_navigation import run

VIEW = lived_view()


def at(seconds: float, devices: int = 12) -> object:
    return replace(VIEW, now_s=NOW_S + seconds, totals=replace(VIEW.totals, devices=devices))


def kept(past: Past) -> list[float]:
    return [view.now_s - NOW_S for view in past.views]


def test_moments_are_kept_apart_and_thinned_with_age() -> None:
    past = Past()
    devices = DEVICE_VIEWS // 40
    for second in range(0, 4000, 2):
        past.add(at(second, devices))  # type: ignore[arg-type]
    times = kept(past)
    assert len(times) <= 40
    assert times == sorted(times)
    assert times[-1] >= 4000 - 2 - KEEP_S
    assert times[0] < 2000, "the old are thinned, not dropped"
    assert min(b - a for a, b in pairwise(times)) >= KEEP_S


def test_a_huge_fleet_keeps_few_moments() -> None:
    past = Past()
    for second in range(0, 400, 10):
        past.add(at(second, 10_000))  # type: ignore[arg-type]
    assert len(past.views) == 2


def test_travelling_walks_the_moments_and_comes_back_to_the_present() -> None:
    held: list[bool] = []
    timeline = Timeline(held.append)
    for second in (0, 10, 20):
        timeline.past.add(at(second))  # type: ignore[arg-type]
    present = at(25)
    timeline.travel(-1, present)  # type: ignore[arg-type]
    assert timeline.looking is not None
    assert timeline.looking.now_s == NOW_S + 20
    assert timeline.moment(NOW_S + 25).endswith("5s ago")
    timeline.travel(-9, present)  # type: ignore[arg-type]
    assert timeline.looking.now_s == NOW_S
    timeline.travel(3, present)  # type: ignore[arg-type]
    assert timeline.looking is None
    assert (held[0], held[-1]) == (True, False)


def test_the_moment_before_and_after_is_found_to_the_second() -> None:
    past = Past()
    assert (past.before(NOW_S), past.after(NOW_S)) == (None, None)
    for second in (0, 9.9, 10, 20):
        past.add(at(second))  # type: ignore[arg-type]
    assert kept(past) == [0, 10, 20]

    def found(view: object) -> float | None:
        return None if view is None else view.now_s - NOW_S  # type: ignore[attr-defined, no-any-return]

    assert [found(past.before(NOW_S + s)) for s in (-5, 0, 10, 10.1, 99)] == [0, 0, 0, 10, 20], "the oldest at least"
    assert [found(past.after(NOW_S + s)) for s in (-5, 0, 10, 19.9, 20)] == [0, 10, 20, 20, None]


def test_there_is_nothing_to_travel_to_before_any_data() -> None:
    held: list[bool] = []
    timeline = Timeline(held.append)
    timeline.travel(-1, None)
    assert (timeline.looking, timeline.moment(NOW_S), held) == (None, "", [])
    present = at(5)
    timeline.travel(1, present)  # type: ignore[arg-type]
    assert timeline.looking is None, "there is nothing beyond the present"
    timeline.travel(-1, present)  # type: ignore[arg-type]
    assert timeline.looking is present, "with no kept moment it stands still where it is"


def test_a_paused_screen_stands_still_while_the_fleet_goes_on() -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        await pilot.press("space")
        await pilot.pause()
        assert "paused at" in text_of(app)
        later = replace(VIEW, rows=VIEW.rows[:2], now_s=NOW_S + 60)
        app.post_message(Folded(later))
        await pilot.pause()
        assert "mail-scan" in text_of(app)
        await run(app, pilot, "ping all")
        await pilot.pause()
        assert "this is the past" in text_of(app)
        await pilot.press("space")
        await pilot.pause()
        assert "mail-scan" not in text_of(app)
        await run(app, pilot, "ago 1m")
        assert "mail-scan" in text_of(app)
        assert "paused at" in text_of(app)
        await pilot.press("full_stop", "full_stop")
        await pilot.pause()
        assert "mail-scan" not in text_of(app)
        await run(app, pilot, "ago soon")
        await pilot.pause()
        assert "'soon' is not 90s" in text_of(app)
        await pilot.press("4", "t")
        await pilot.pause()
        assert "paused at" in text_of(app)

    drive(act, send=lambda *_: True)


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.rec"
    writer = RecordingWriter(path)
    for batch in simulated.life(NOW_S, windows=20):
        writer.write(sorted(batch, key=lambda message: message.received_s))
    writer.close()
    return path


def test_a_recording_has_its_own_time_and_pace(recording: Path) -> None:
    clock = [100.0]
    replay = Replay(recording, speed=10, clock=lambda: clock[0])
    folder = Folder(replay, endpoint="fleet.rec")
    replay.start()
    began = replay.now_s()
    view = folder.step(replay.now_s())
    assert view is not None
    assert view.totals.states == {"online": 12}
    clock[0] += 5
    assert replay.now_s() == began + 50
    replay.pause(True)
    clock[0] += 60
    assert replay.now_s() == began + 50
    assert [m.received_s for m in replay.drain()][-1] <= began + 50
    assert replay.drain() == []
    replay.pause(False)
    clock[0] += 1000
    view = folder.step(replay.now_s())
    assert view is not None
    assert "has ended" in replay.state
    assert replay.now_s() == pytest.approx(NOW_S, abs=5), "time ends with the recording: nobody becomes stale by it"
    assert view.totals.states["offline"] == 1


def test_what_is_no_recording_says_so(tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(b"something else")
    with pytest.raises(ConfigError, match="is no recording"):
        Replay(path, speed=1)
    empty = tmp_path / "empty"
    RecordingWriter(empty).close()
    with pytest.raises(ConfigError, match="holds no message"):
        Replay(empty, speed=1)


def test_a_recording_is_printed_at_once(recording: Path) -> None:
    command = [sys.executable, "-m", "edgekit_tui.main", "--replay", str(recording), "--once"]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "line-2-cam" in done.stdout
    assert "✖ offline" in done.stdout
    assert time.monotonic() - began < 30
