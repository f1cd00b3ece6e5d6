"""The line of keys: what works here and what it does, pressed by a click, cut where it does not fit."""

from __future__ import annotations

import pytest
from textual.pilot import Pilot

from edgekit_tui import places
from edgekit_tui.app import Console
from edgekit_tui.help_screen import HelpScreen
from edgekit_tui.key_line import KeyLine
from edgekit_tui.places import Place
from tests.tui.simulated import drive, screen_lines


def foot(app: Console) -> str:
    """The last line of the screen."""
    return screen_lines(app)[-1]


async def settle(app: Console, pilot: Pilot[None]) -> None:
    await pilot.pause()
    app.draw()
    await pilot.pause()


def test_every_shown_key_stands_there_once_and_the_palette_at_the_right() -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        for kind in (places.DEVICES, places.EVENTS, places.ALERTS):
            app.go((Place(kind),))
            await settle(app, pilot)
            line = foot(app)
            wanted = {
                binding.description
                for _, binding, _, _ in app.screen.active_bindings.values()
                if binding.show and binding.key != app.COMMAND_PALETTE_BINDING
            }
            assert len(wanted) >= 4
            for description in wanted:
                assert line.count(f" {description}  ") == 1, (kind, description, line)
            assert line.rstrip().endswith("palette")

    drive(act, start="overview")


def test_a_click_on_a_key_presses_it() -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        await settle(app, pilot)
        await pilot.click(KeyLine, offset=(foot(app).index("help") + 1, 0))
        await pilot.pause()
        assert isinstance(app.screen, HelpScreen)
        await pilot.press("escape")
        await settle(app, pilot)
        before = app.screen
        await pilot.click(KeyLine, offset=(foot(app).index("│") - 2, 0))  # before the palette
        await pilot.pause()
        assert app.screen is before
        await pilot.click(KeyLine, offset=(foot(app).index("palette"), 0))
        await pilot.pause()
        assert app.screen is not before

    drive(act, start="alerts")


def test_the_line_follows_the_screen() -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        await settle(app, pilot)
        devices = foot(app)
        assert "filter" in devices
        app.go((Place(places.ALERTS),))
        await settle(app, pilot)
        assert foot(app) != devices
        app.go((Place(places.DEVICES),))
        await settle(app, pilot)
        assert foot(app) == devices

    drive(act, start="devices")


@pytest.mark.parametrize("ascii_only", [False, True])
def test_what_does_not_fit_is_cut_and_the_palette_stays(ascii_only: bool) -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        for width in (200, 80, 40, 24):
            await pilot.resize_terminal(width, 30)
            await settle(app, pilot)
            line = foot(app)
            assert len(line) <= width
            assert "palette" in line, width
            assert not ascii_only or line.isascii()
            line_widget = app.screen.query_one(KeyLine)
            assert all(0 <= start < end <= width + 1 for start, end, _, _ in line_widget._spots), width
        await pilot.resize_terminal(10, 3)
        await settle(app, pilot)
        assert app.error is None

    drive(act, start="devices", ascii_only=ascii_only)


def test_a_key_that_does_not_work_now_rings_and_does_nothing() -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        await settle(app, pilot)
        line = app.screen.query_one(KeyLine)
        rung: list[bool] = []
        app.bell = lambda: rung.append(True)  # type: ignore[method-assign]
        line._spots = tuple((start, end, key, False) for start, end, key, _ in line._spots)
        before = app.screen
        await pilot.click(KeyLine, offset=(foot(app).index("help") + 1, 0))
        await pilot.pause()
        assert rung == [True]
        assert app.screen is before

    drive(act, start="devices")
