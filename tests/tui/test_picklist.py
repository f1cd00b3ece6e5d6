"""A list to choose from: what is in sight, where the cursor stands, and what is painted anew."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

from textual import on
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.screen import Screen

from edgekit_tui.draw import Line
from edgekit_tui.ink import INK_CLASSES, INKS
from edgekit_tui.picklist import Items, PickList

WIDTH, HEIGHT = 30, 11
"A header and ten lines."


class BenchScreen(Screen[None]):
    """What lends its inks to the list."""

    COMPONENT_CLASSES: ClassVar[set[str]] = set(INK_CLASSES)

    def compose(self) -> ComposeResult:
        yield PickList()


class Bench(App[None]):
    """A list alone."""

    CSS = "PickList { height: 1fr; overflow-x: hidden; overflow-y: auto; scrollbar-size-vertical: 1; } " + " ".join(
        f".ink--{ink} {{ color: red; }}" for ink in INKS
    )

    def __init__(self) -> None:
        super().__init__()
        self.chosen: list[object] = []

    def get_default_screen(self) -> BenchScreen:
        return BenchScreen()

    @on(PickList.Chosen)
    def _chosen(self, event: PickList.Chosen) -> None:
        self.chosen.append(event.key)


class Hand:
    """Shows lines in the list and looks at it."""

    def __init__(self, app: Bench, pilot: Pilot[None]) -> None:
        self.app, self.pilot = app, pilot
        self.list = app.screen.query_one(PickList)
        self.list.focus()
        self.painted: list[int] = []
        render = self.list.render_line
        self.list.render_line = lambda y: self.painted.append(y) or render(y)  # type: ignore[method-assign, func-returns-value]

    async def show(self, keys: Sequence[object], texts: Sequence[str] = ()) -> list[int]:
        """The lines of the screen that were painted for it."""
        lines: Items = [(key, ((text, "text"),)) for key, text in zip(keys, texts or map(str, keys), strict=True)]
        head: Line = (("title", "head"),)
        self.painted.clear()
        self.list.show(lambda _: (head, lines))
        await self.settle()
        return sorted(set(self.painted))

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.settle()

    async def settle(self) -> None:
        """Scrolling waits for the next refresh."""
        await self.pilot.pause()
        await self.pilot.pause()

    @property
    def seen(self) -> list[str]:
        return [self.list.render_line(y).text.strip() for y in range(HEIGHT)]

    @property
    def lit(self) -> list[str]:
        """The lines that bear the cursor's mark."""
        return [line.removeprefix("▌").strip() for line in self.seen if line.startswith("▌")]


def drive(act: Callable[[Hand], Awaitable[None]]) -> None:
    async def session() -> None:
        app = Bench()
        async with app.run_test(size=(WIDTH, HEIGHT)) as pilot:
            await pilot.pause()
            await act(Hand(app, pilot))

    asyncio.run(session())


def test_the_cursor_is_kept_in_sight_wherever_it_goes() -> None:
    async def act(hand: Hand) -> None:
        await hand.show(range(50))
        assert hand.seen == ["title", "▌ 0", *map(str, range(1, 10))]
        await hand.press(*"jjj")
        assert hand.lit == ["3"]
        assert hand.seen[1] == "0"
        await hand.press(*"jjjjjj")
        assert (hand.lit, hand.seen[1]) == (["9"], "0"), "the last line in sight"
        await hand.press("j")
        assert (hand.lit, hand.seen[1], hand.seen[-1]) == (["10"], "1", "▌ 10")
        await hand.press("pagedown")
        assert hand.lit == ["19"]
        await hand.press("G", "j")
        assert (hand.lit, hand.seen[-1]) == (["49"], "▌ 49")
        await hand.press("pageup", "k")
        assert hand.lit == ["39"]
        await hand.press("g", "k")
        assert (hand.lit, hand.seen[1]) == (["0"], "▌ 0")

    drive(act)


def test_only_lines_that_differ_are_painted() -> None:
    async def act(hand: Hand) -> None:
        keys = [f"k{n}" for n in range(5)]
        await hand.show(keys, list("abcde"))
        await hand.press("j")
        assert await hand.show(keys, list("abcde")) in ([], [2])
        painted = await hand.show(keys, list("abcDe"))
        assert 4 in painted
        assert not {0, 1, 3, 5} & set(painted)
        assert hand.seen == ["title", "a", "▌ b", "c", "D", "e", "", "", "", "", ""]
        assert len(await hand.show([*keys, "k5"], list("abcDef"))) == HEIGHT, "another number of lines: all of them"

    drive(act)


def test_the_cursor_goes_along_with_its_line_and_stays_where_that_is_gone() -> None:
    async def act(hand: Hand) -> None:
        await hand.show("abc")
        await hand.press("j")
        await hand.show("xyabc")
        assert (hand.list.selected, hand.lit) == ("b", ["b"])
        await hand.show("xyzwv")
        assert hand.list.selected == "w"
        await hand.show("x")
        assert hand.list.selected == "x"
        await hand.show("")
        assert hand.list.selected is None
        await hand.press("enter", "j", "G", "g")
        await hand.show("ab")
        assert hand.app.chosen == []

    drive(act)


def test_following_keeps_the_newest_in_sight_until_the_cursor_leaves_it() -> None:
    async def act(hand: Hand) -> None:
        hand.list.follows = True
        await hand.show(range(20))
        assert hand.lit == ["19"]
        await hand.show(range(25))
        assert (hand.lit, hand.seen[-1]) == (["24"], "▌ 24")
        await hand.press("k")
        await hand.show(range(30))
        assert (hand.lit, hand.list.follows) == (["23"], False)
        hand.list.follows = True
        await hand.press("G")
        assert hand.list.follows
        await hand.show([])
        await hand.show(range(2))
        assert hand.lit == ["1"]

    drive(act)


def test_enter_and_a_second_click_choose_and_the_title_does_not() -> None:
    async def act(hand: Hand) -> None:
        await hand.show("abc")
        await hand.press("j", "enter")
        assert hand.app.chosen == ["b"]
        await hand.pilot.click(PickList, offset=(4, 3))
        assert hand.lit == ["c"]
        await hand.pilot.click(PickList, offset=(4, 0))
        await hand.pilot.click(PickList, offset=(4, 9))
        assert (hand.lit, hand.app.chosen) == (["c"], ["b"])
        await hand.pilot.click(PickList, offset=(4, 3), times=2)
        await hand.pilot.pause()
        assert hand.app.chosen == ["b", "c"]

    drive(act)


def test_without_the_focus_no_line_is_lit() -> None:
    async def act(hand: Hand) -> None:
        await hand.show("abc")
        assert hand.lit == ["a"]
        hand.app.screen.set_focus(None)
        await hand.pilot.pause()
        assert hand.lit == []
        assert hand.list.selected == "a"

    drive(act)


def test_a_smaller_screen_still_shows_the_cursor() -> None:
    async def act(hand: Hand) -> None:
        await hand.show(range(50))
        await hand.press(*"jjjjjjjjj")
        await hand.pilot.resize_terminal(WIDTH, 5)
        await hand.settle()
        assert [hand.list.render_line(y).text.strip() for y in range(5)] == ["title", "6", "7", "8", "▌ 9"]

    drive(act)
