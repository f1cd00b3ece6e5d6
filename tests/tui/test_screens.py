"""Every screen and key, driven by the message that the worker posts."""

from __future__ import annotations

import pytest
from textual.dom import DOMNode
from textual.pilot import Pilot
from textual.widgets import Input

from edgekit_tui.app import Console
from edgekit_tui.columns import columns
from edgekit_tui.device_screen import DeviceScreen
from edgekit_tui.fleet_screen import FleetScreen
from edgekit_tui.help_screen import KEYS, HelpScreen
from edgekit_tui.table import FleetTable
from tests.tui.simulated import drive, lived_view, screen_lines, table_of, text_of

VIEW = lived_view()


@pytest.mark.parametrize("ascii_only", [False, True])
def test_the_fleet_screen_holds_the_fleet_at_every_size(ascii_only: bool) -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        for size in ((80, 24), (120, 40), (200, 60), (250, 70)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            lines = screen_lines(app)
            text = "\n".join(lines)
            for words in ("gate-north", "line-2-cam", "throttled", "offline", "stale", "!", "req/s", "connected"):
                assert words in text, (size, words)
            assert max(map(len, lines)) <= size[0]
            assert len(lines) == size[1]
            assert ("fleet latency" in text) == (size[1] >= 34)
            assert text.isascii() or not ascii_only

    drive(act, ascii_only=ascii_only)


def test_a_screen_that_changes_its_size_is_styled_once() -> None:
    """A thousand rows are styled with it: each time more is a frame late."""

    async def act(app: Console, pilot: Pilot[None]) -> None:
        styled: list[DOMNode] = []
        update_styles = app.update_styles

        def count(node: DOMNode, **how: object) -> None:
            styled.append(node)
            update_styles(node, **how)

        app.update_styles = count  # type: ignore[method-assign]
        await pilot.resize_terminal(250, 70)
        await pilot.pause()
        assert {"-roomy", "-tall"} <= app.screen.classes
        assert not {"-low", "-narrow"} & app.screen.classes
        assert styled.count(app.screen) == 1
        await pilot.resize_terminal(251, 71)
        await pilot.pause()
        assert styled.count(app.screen) == 1, "nothing that styles depend on has changed"

    drive(act, size=(80, 24))


@pytest.mark.parametrize("ascii_only", [False, True])
def test_the_device_screen_tells_why_it_runs_what_it_runs(ascii_only: bool) -> None:
    told = ("throttled", "Raspberry Pi 4 4GB", "latency of ocr-detector", "infer ms", "selection", "accuracy 99.4",
            "int8-dynamic: p99", "clock 1500 to 1000 MHz", "onnxruntime", "kernel")  # fmt: skip

    async def act(app: Console, pilot: Pilot[None]) -> None:
        app.open_named("line-2-cam")
        for size in ((80, 24), (120, 40), (200, 60)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            scroll, seen = app.screen.query_one("#scroll"), ""
            for top in range(0, 80, 15):
                scroll.scroll_to(y=top, animate=False)
                await pilot.pause()
                seen += text_of(app)
            assert all(words in seen for words in told), [words for words in told if words not in seen]
            assert seen.isascii() or not ascii_only

    drive(act, ascii_only=ascii_only)


def test_enter_opens_the_row_under_the_cursor_and_escape_goes_back() -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        await pilot.press("down", "down", "j", "k")
        chosen = table_of(app).selected
        assert chosen is not None
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, DeviceScreen)
        assert app.screen.key == chosen.key
        assert f"{chosen.site} › {chosen.device}" in text_of(app)
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, FleetScreen)
        assert table_of(app).selected == chosen

    drive(act)


def test_n_and_p_walk_through_the_list_as_it_is_sorted_and_filtered() -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        await pilot.press("9", "enter")
        await pilot.pause()
        order = [row.key for row in table_of(app).rows]
        assert isinstance(app.screen, DeviceScreen)
        start = order.index(app.screen.key)
        await pilot.press("n")
        await pilot.pause()
        assert app.screen.key == order[(start + 1) % len(order)]
        await pilot.press("p", "p")
        await pilot.pause()
        assert app.screen.key == order[start - 1]
        assert app.screen.key[1] in text_of(app)

    drive(act)


def test_one_key_sorts_by_a_column_and_again_turns_it_round() -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        for column in columns():
            await pilot.press(column.key)
            first = [column.sort(row) for row in table_of(app).rows]
            await pilot.press(column.key)
            second = [column.sort(row) for row in table_of(app).rows]
            known = [value for value in first if value is not None]
            assert known in (sorted(known), sorted(known, reverse=True)), column.id  # type: ignore[type-var]
            assert known == [value for value in second if value is not None][::-1], column.id
            assert first[len(known) :] == second[len(known) :] == [None] * (len(first) - len(known)), column.id

    drive(act, size=(200, 60))


def test_the_cursor_stays_on_its_device_when_the_order_changes() -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        await pilot.press("G")
        chosen = table_of(app).selected
        await pilot.press("5")
        assert table_of(app).selected == chosen
        await pilot.press("g")
        assert table_of(app).selected != chosen

    drive(act)


def test_typing_a_filter_narrows_the_table_and_escape_shows_all() -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        await pilot.press("slash", *"board:orin")
        await pilot.pause()
        assert {row.device for row in table_of(app).rows} == {"gate-north", "gate-south", "dock-1"}
        assert "5 of 14" in text_of(app)
        await pilot.press("enter")
        await pilot.pause()
        assert app.focused is table_of(app)
        assert "/board:orin" in text_of(app)
        await pilot.press("escape")
        await pilot.pause()
        assert len(table_of(app).rows) == 14

    drive(act)


def test_what_is_typed_in_one_go_with_the_slash_goes_into_the_filter_slashes_too() -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        for key in ("slash", *"d5/s"):
            app.simulate_key(key)
        await pilot.pause()
        await pilot.pause()
        assert app.screen.query_one(Input).value == "d5/s"
        assert "by device" in text_of(app)

    drive(act)


def test_a_half_typed_filter_says_what_is_wrong_and_keeps_the_last_good_one() -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        await pilot.press("slash", *"gate")
        app.screen.query_one(Input).value = "gate bord:x"
        await pilot.pause()
        assert "did you mean 'board'?" in text_of(app)
        assert {row.device for row in table_of(app).rows} == {"gate-north", "gate-south"}
        app.screen.query_one(Input).value = "nothing-is-called-this"
        await pilot.pause()
        assert "no row matches nothing-is-called-this" in text_of(app)

    drive(act)


def test_help_names_every_key_and_closes() -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        await pilot.press("question_mark")
        await pilot.pause()
        assert isinstance(app.screen, HelpScreen)
        text = text_of(app)
        assert all(what in text for _, what in KEYS)
        assert all(column.title in text for column in columns())
        assert "662" in text
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, FleetScreen)

    drive(act)


def test_q_quits_cleanly_from_every_screen() -> None:
    async def from_device(app: Console, pilot: Pilot[None]) -> None:
        await pilot.press("enter", "q")
        await pilot.pause()
        assert not app.is_running
        assert app.return_code == 0

    async def from_fleet(app: Console, pilot: Pilot[None]) -> None:
        await pilot.press("q")
        await pilot.pause()
        assert not app.is_running
        assert app.return_code == 0

    drive(from_device)
    drive(from_fleet)


def test_the_palette_opens_a_device_by_name() -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        await pilot.press("ctrl+p")
        await pilot.pause()
        await pilot.press(*"dock-2")
        await pilot.pause(0.6)
        await pilot.press("enter")
        await pilot.pause(0.3)
        assert isinstance(app.screen, DeviceScreen)
        assert app.screen.key[1] == "dock-2"

    drive(act)


def test_the_mouse_sorts_chooses_and_opens() -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        await pilot.click(FleetTable, offset=(4, 0))
        assert [row.state for row in table_of(app).rows[:2]] == ["offline", "stale"]
        await pilot.click(FleetTable, offset=(10, 3))
        assert table_of(app).selected == table_of(app).rows[2]
        await pilot.click(FleetTable, offset=(10, 3), times=2)
        await pilot.pause()
        assert isinstance(app.screen, DeviceScreen)

    drive(act)
