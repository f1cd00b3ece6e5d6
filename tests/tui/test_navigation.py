"""From place to place: keys, the command line, breadcrumbs and history."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from edgekit_tui.app import Console
from edgekit_tui.command_screen import CommandScreen
from edgekit_tui.device_screen import DeviceScreen
from edgekit_tui.events_screen import EventsScreen
from edgekit_tui.fleet_screen import FleetScreen
from edgekit_tui.model_screens import ModelScreen, ModelsScreen
from edgekit_tui.overview_screen import OverviewScreen
from tests.tui.simulated import DEAD, drive, table_of, text_of


async def run(app: Console, pilot: Pilot[None], line: str) -> None:
    await pilot.press("colon")
    await pilot.pause()
    app.screen.query_one(Input).value = line
    await pilot.press("enter")
    await pilot.pause()


def test_one_key_a_place_and_escape_leads_up() -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        for key, kind in (("1", OverviewScreen), ("2", FleetScreen), ("3", ModelsScreen), ("4", EventsScreen)):
            await pilot.press(key)
            await pilot.pause()
            assert isinstance(app.screen, kind)
            assert "connected" in text_of(app)
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, OverviewScreen)
        await pilot.press("escape")
        assert isinstance(app.screen, OverviewScreen)

    drive(act)


@pytest.mark.parametrize("ascii_only", [False, True])
def test_the_overview_tells_health_at_every_size(ascii_only: bool) -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        for size in ((80, 24), (120, 40), (250, 70)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            text = text_of(app)
            for words in ("worst offenders  3", DEAD, "connection lost", "latency of all requests", "req/s"):
                assert words in text, (size, words)
            assert ("in the field" in text) == (size[0] >= 104)
            assert text.isascii() or not ascii_only

    drive(act, start="overview", ascii_only=ascii_only)


def test_an_offender_opens_and_history_goes_both_ways() -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        await pilot.press("down", "down", "enter")
        await pilot.pause()
        assert isinstance(app.screen, DeviceScreen)
        assert app.screen.key[1] == "line-2-cam"
        await pilot.press("4", "left_square_bracket")
        await pilot.pause()
        assert isinstance(app.screen, DeviceScreen)
        await pilot.press("right_square_bracket")
        await pilot.pause()
        assert isinstance(app.screen, EventsScreen)
        await run(app, pilot, "back")
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, OverviewScreen)

    drive(act, start="overview")


def test_a_model_leads_to_the_devices_that_run_an_artifact_of_it() -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        assert "ocr-recognizer" in text_of(app)
        await run(app, pilot, "model ocr-detector")
        assert isinstance(app.screen, ModelScreen)
        text = text_of(app)
        for words in ("standard against flash", "1.4x faster", "ocr-fp32", "by board", "accuracy 99.4 %"):
            assert words in text
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, FleetScreen)
        assert {row.device for row in table_of(app).rows} == {"gate-south", "dock-2"}
        await pilot.press("escape", "escape")
        await pilot.pause()
        assert isinstance(app.screen, ModelScreen)

    drive(act, start="models")


def test_events_follow_filter_and_open() -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        assert "following" in text_of(app)
        await pilot.press("slash", *"kind:thr")
        await pilot.pause()
        text = text_of(app)
        assert "events  1 of 3" in text
        assert "clock 1500" in text
        assert "2 models warmed up" not in text
        await pilot.press("enter", "enter")
        await pilot.pause()
        assert isinstance(app.screen, DeviceScreen)
        await pilot.press("escape")
        await pilot.pause()
        await pilot.press("escape", "g", "f")
        await pilot.pause()
        assert "2 models warmed up" in text_of(app)

    drive(act, start="events")


def test_the_command_line_says_what_is_wrong_and_keeps_the_line() -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        await run(app, pilot, "devcies")
        assert isinstance(app.screen, CommandScreen)
        assert "did you mean 'devices'?" in text_of(app)
        await pilot.press("escape")
        await pilot.pause()
        await run(app, pilot, "device nobody")
        await pilot.pause()
        assert "no device 'nobody'" in text_of(app)
        await run(app, pilot, "filter board:pi")
        assert isinstance(app.screen, FleetScreen)
        assert "4 of 14  /board:pi" in text_of(app)
        await run(app, pilot, "theme light")
        assert app.theme == "edgekit-light"
        await run(app, pilot, "q")
        assert not app.is_running

    drive(act, start="overview")


def test_what_is_listed_can_be_exported(tmp_path: Path) -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        await run(app, pilot, "filter board:pi")
        await run(app, pilot, f"export {tmp_path / 'some.json'}")
        await run(app, pilot, f"export {tmp_path / 'some.csv'}")
        await run(app, pilot, f"screenshot {tmp_path / 'some.svg'}")
        await run(app, pilot, f"export {tmp_path / 'no' / 'such.csv'}")
        await pilot.pause()
        assert "cannot be written" in text_of(app)

    drive(act)
    rows = json.loads((tmp_path / "some.json").read_text())["rows"]
    assert len(rows) == 4
    assert rows[0]["p99_ms"] > 0
    lines = (tmp_path / "some.csv").read_text().splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("site,device,state")
    assert "line-2-cam" in (tmp_path / "some.svg").read_text()


def test_a_logarithmic_plot_spreads_small_latencies() -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        linear = text_of(app)
        await pilot.press("l")
        await pilot.pause()
        assert text_of(app) != linear
        await run(app, pilot, "scale")
        assert text_of(app) == linear

    drive(act, start="overview")
