"""The table with a fleet too large to draw, and panels that repaint only what differs."""

from __future__ import annotations

from typing import ClassVar

from rich.style import Style
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.screen import Screen

from edgekit_tui.app import Console
from edgekit_tui.draw import ASCII, UNICODE, Lines
from edgekit_tui.ink import INK_CLASSES, INKS, Inked, Panel, clip, right_align
from edgekit_tui.news import Folded
from tests.tui.changed import replace
from tests.tui.simulated import NOW_S, drive, lived_view, table_of, text_of

VIEW = lived_view()
MANY = replace(
    VIEW,
    rows=tuple(replace(VIEW.rows[i % 14], device=f"dev-{i:05d}", p99_ms=float(i % 977)) for i in range(10_000)),
)


async def lines_drawn(app: Console, pilot: Pilot[None], *keys: str) -> int:
    """How many lines the table makes for these keys."""
    table, made = table_of(app), []
    real = table._line
    table._line = lambda y: (made.append(y), real(y))[1]  # type: ignore[method-assign]
    await pilot.press(*keys)
    await pilot.pause()
    table._line = real  # type: ignore[method-assign]
    return len(made)


def test_ten_thousand_rows_are_shown_sorted_and_walked_at_once() -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        assert len(table_of(app).rows) == 10_000
        drawn = await lines_drawn(app, pilot, "9", "G")
        assert 0 < drawn < 10 * table_of(app).size.height, "a virtual table draws the rows in sight alone"
        assert table_of(app).selected == table_of(app).rows[-1]
        assert table_of(app).rows[-1].device in text_of(app)
        await pilot.press("pageup", "home")
        await pilot.pause()
        assert table_of(app).rows[0].device in text_of(app)

    drive(act, view=MANY)


def test_the_wheel_scrolls_without_moving_the_cursor() -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        table = table_of(app)
        chosen = table.selected
        table.scroll_to(y=5000, animate=False)
        await pilot.pause()
        assert table.selected == chosen
        assert "dev-05003" in text_of(app)
        assert "dev-00001" not in text_of(app)
        assert screen_header(app).rstrip("│ ").endswith("seen"), "the titles stay, and the scrollbar covers none"

    drive(act, view=MANY)


def screen_header(app: Console) -> str:
    return next(line for line in text_of(app).splitlines() if "artifact" in line)


def test_a_fleet_that_shrinks_leaves_the_cursor_on_a_row() -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        await pilot.press("G")
        app.post_message(Folded(replace(MANY, rows=MANY.rows[:3])))
        await pilot.pause()
        assert table_of(app).selected == table_of(app).rows[2]
        app.post_message(Folded(replace(MANY, rows=())))
        await pilot.pause()
        assert table_of(app).selected is None
        await pilot.press("enter", "j", "k", "G", "g", "pagedown")
        app.post_message(Folded(MANY))
        await pilot.pause()
        assert table_of(app).selected is not None

    drive(act, view=MANY)


def test_ages_grow_by_the_second_without_a_message() -> None:
    now = [NOW_S]

    async def act(app: Console, pilot: Pilot[None]) -> None:
        line = next(line for line in text_of(app).splitlines() if "dock-3" in line)
        assert "95s" in line
        now[0] += 120
        app.draw()
        await pilot.pause()
        line = next(line for line in text_of(app).splitlines() if "dock-3" in line)
        assert "3m" in line

    drive(act, clock=lambda: now[0])


class BenchScreen(Screen[None]):
    """What lends its inks to the panel."""

    COMPONENT_CLASSES: ClassVar[set[str]] = set(INK_CLASSES)

    def compose(self) -> ComposeResult:
        yield Panel(id="one")


class Bench(App[None]):
    """A panel alone."""

    CSS = "Panel { height: auto; } " + " ".join(f".ink--{ink} {{ color: red; }}" for ink in INKS)

    def get_default_screen(self) -> BenchScreen:
        return BenchScreen()


def test_a_panel_grows_with_its_text_and_paints_only_differences() -> None:
    import asyncio

    async def session() -> None:
        app = Bench()
        async with app.run_test(size=(30, 10)) as pilot:
            panel = app.screen.query_one(Panel)
            painted: list[int] = []
            original = panel.render_line
            panel.render_line = lambda y: painted.append(y) or original(y)  # type: ignore[method-assign, func-returns-value]

            async def show(*texts: str) -> list[int]:
                painted.clear()
                lines: Lines = tuple(((text, "text"),) for text in texts)
                panel.show(lambda _w, _h: lines)
                await pilot.pause()
                return sorted(set(painted))

            assert await show("a", "b", "c") == [0, 1, 2]
            assert panel.size.height == 3
            assert await show("a", "b", "c") == []
            assert await show("a", "B", "c") != []
            await show("a")
            assert panel.size.height == 1

    asyncio.run(session())


def test_every_ink_has_a_look_in_the_stylesheet() -> None:
    async def act(app: Console, _: Pilot[None]) -> None:
        table = table_of(app)
        assert isinstance(table, Inked)
        looks = {ink: table.ink(ink) for ink in INKS}
        assert all(look != Style.null() and look.color is not None for look in looks.values())
        assert looks["good"].color != looks["bad"].color != looks["warn"].color

    drive(act)


def test_only_the_line_under_the_cursor_lies_on_its_colour_and_the_title_keeps_its_own() -> None:
    async def act(app: Console, _: Pilot[None]) -> None:
        table, crumbs = table_of(app), app.screen.query_one("#crumbs", Panel)
        title = crumbs.render_line(0)._segments[0]
        assert title.text.strip() == "edgekit"
        assert title.style is not None
        assert title.style.bgcolor == crumbs.ink("title").bgcolor != crumbs.base().bgcolor
        lit, other = table.render_line(1), table.render_line(2)
        cursor = table.ink("cursor").bgcolor
        assert {segment.style.bgcolor for segment in lit if segment.style} == {cursor}
        assert cursor not in {segment.style.bgcolor for segment in other if segment.style}
        assert lit.cell_length == other.cell_length == table.size.width

    drive(act)


def test_looks_follow_the_theme() -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        table = table_of(app)
        before = table.render_line(2)
        app.theme = "edgekit-light"
        await pilot.pause()
        after = table.render_line(2)
        assert before.text == after.text
        assert [one.style for one in before] != [one.style for one in after]

    drive(act)


def test_lines_are_clipped_and_aligned_to_their_width() -> None:
    line = (("temperature ", "faint"), ("87.0", "bad"))
    assert clip(line, 14, UNICODE) == (("temperature ", "faint"), ("8…", "bad"))
    assert clip(line, 40, ASCII) == line
    assert right_align((("ab", "text"),), (("z", "bad"),), 5) == (("ab", "text"), ("  ", "text"), ("z", "bad"))
    assert right_align((("abcd", "text"),), (("z", "bad"),), 5) == (("abcd", "text"),)
