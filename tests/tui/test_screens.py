"""Every screen and key, driven by the message that the worker posts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from tests.tui.simulated import NOW_S, lived, lived_view, screen_lines
from textual.pilot import Pilot
from textual.widgets import Input

from edgekit_tui.app import KEYS, Console, Folded
from edgekit_tui.columns import columns
from edgekit_tui.device_screen import DeviceScreen
from edgekit_tui.feed import View
from edgekit_tui.fleet_screen import FleetScreen
from edgekit_tui.help_screen import HelpScreen
from edgekit_tui.table import FleetTable

VIEW = lived_view()
Act = Callable[["Console", "Pilot[None]"], Awaitable[None]]


def drive(act: Act, *, size: tuple[int, int] = (120, 40), view: View | None = VIEW, **options: object) -> None:
    """Run the console, post the view as the worker does, and act."""

    async def session() -> None:
        app = Console(clock=lambda: NOW_S, **options)  # type: ignore[arg-type]
        async with app.run_test(size=size) as pilot:
            if view is not None:
                app.post_message(Folded(view))
            await pilot.pause()
            await act(app, pilot)

    asyncio.run(session())


def text_of(app: Console) -> str:
    return "\n".join(screen_lines(app))


def table_of(app: Console) -> FleetTable:
    fleet = next(screen for screen in app.screen_stack if isinstance(screen, FleetScreen))
    return fleet.query_one(FleetTable)


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
        assert f"fleet › {chosen.site} › {chosen.device}" in text_of(app)
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


def test_before_any_data_the_screen_says_what_it_waits_for() -> None:
    link = replace(VIEW.link, connected=False, was_connected=False, state="connection refused", since_s=NOW_S - 7)
    empty = lived(windows=0)[2].fleet.__class__()
    totals = replace(VIEW.totals, devices=0, states={}, last_seen_s=None)
    waiting = replace(VIEW, fleet=empty, rows=(), totals=totals, link=link)

    async def connecting(app: Console, _: Pilot[None]) -> None:
        assert "connecting to broker 127.0.0.1:1883…" in text_of(app)
        assert "connection refused" in text_of(app)
        assert "edgekit broker" in text_of(app)

    async def empty_fleet(app: Console, _: Pilot[None]) -> None:
        assert "no devices yet" in text_of(app)
        assert "edgekit run" in text_of(app)

    drive(connecting, view=waiting)
    drive(empty_fleet, view=replace(waiting, link=replace(link, connected=True, was_connected=True)))


def test_a_lost_broker_is_seen_and_old_data_is_called_old() -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        gone = replace(VIEW.link, connected=False, was_connected=True, since_s=NOW_S - 42)
        app.post_message(Folded(replace(VIEW, link=gone)))
        await pilot.pause()
        assert "reconnecting… 42s" in text_of(app)
        assert "data 1s old" in text_of(app)
        assert app.screen.has_class("-cut-off")
        app.post_message(Folded(VIEW))
        await pilot.pause()
        assert not app.screen.has_class("-cut-off")

    drive(act)


def test_nothing_is_repainted_when_nothing_changed() -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        painted: list[int] = []
        table = table_of(app)
        original = table.render_line
        table.render_line = lambda y: painted.append(y) or original(y)  # type: ignore[method-assign, func-returns-value]
        app.post_message(Folded(replace(VIEW)))
        await pilot.pause()
        assert painted == []
        row = next(i for i, row in enumerate(table.rows) if row.device == "dock-2")
        changed = tuple(replace(r, p50_ms=99.0) if r.device == "dock-2" else r for r in VIEW.rows)
        app.post_message(Folded(replace(VIEW, rows=changed)))
        await pilot.pause()
        assert set(painted) == {row + 1}

    drive(act)


def test_views_that_pile_up_are_drawn_once() -> None:
    assert Folded(VIEW).can_replace(Folded(VIEW))


def test_hostile_names_and_tiny_screens_never_raise() -> None:
    names = (
        "x" * 500,
        "日本語の長い名前" * 20,
        "\u202eשלום\u202c مرحبا",
        "tab\there\nnewline\x1b[31m",
        "[bold]markup[/]",
        "",
    )
    rows = tuple(
        replace(row, device=name, model=name[::-1], artifact=name, board=name, site=name)
        for row, name in zip(VIEW.rows, names, strict=False)
    )

    async def act(app: Console, pilot: Pilot[None]) -> None:
        for size, keys in (((10, 3), ("slash", "escape", "question_mark", "escape")), ((1, 1), ("9", "G")),
                           ((33, 8), ("question_mark", "escape")), ((250, 70), ()), ((120, 40), ())):  # fmt: skip
            await pilot.resize_terminal(*size)
            await pilot.press(*keys)
        assert "日本語の長い名前" in text_of(app)
        assert "[bold]markup[/]" in text_of(app)
        assert "\x1b" not in text_of(app)
        app.post_message(Folded(VIEW))
        await pilot.pause()
        app.open_named("gate-north")
        for size in ((10, 3), (1, 1), (250, 70), (80, 24)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
        assert "gate-north" in text_of(app)

    drive(act, view=replace(VIEW, rows=rows))


@pytest.mark.parametrize("theme", ["edgekit", "edgekit-light", "edgekit-high-contrast", "edgekit-colour-blind"])
def test_every_theme_draws(theme: str) -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        assert app.theme == theme
        app.theme = "edgekit"
        await pilot.pause()
        assert "gate-north" in text_of(app)

    drive(act, theme=theme)
