"""Every screen with every key, at every size, with hostile and with missing data: never an error, never a control."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from textual.pilot import Pilot

from edgekit.fleet import Fleet, FleetEvent
from edgekit.ships import Ship
from edgekit.telemetry.desired import Desired, Reported, Step
from edgekit.telemetry.messages import Event
from edgekit_tui import command, places
from edgekit_tui.app import Console
from edgekit_tui.columns import columns
from edgekit_tui.feed import View
from edgekit_tui.help_screen import HelpScreen
from edgekit_tui.news import Folded
from edgekit_tui.places import Place, Route
from edgekit_tui.totals import cells_of
from edgekit_tui.view_screen import ViewScreen
from tests.tui.changed import replace
from tests.tui.simulated import NOW_S, drive, lived_view, screen_lines, text_of
from tests.tui.test_navigation import run
from tests.tui.test_pictures import ROUTES as STORED
from tests.tui.test_pictures import stored

VIEW = lived_view()
ROUTES: dict[str, Route] = {
    "overview": (),
    "devices": (Place(places.DEVICES),),
    "device": (Place(places.DEVICES), Place(places.DEVICE, ("berlin", "gate-north", "ocr-detector"))),
    "models": (Place(places.MODELS),),
    "model": (Place(places.MODELS), Place(places.MODEL, ("ocr-detector",))),
    "events": (Place(places.EVENTS),),
    "releases": (Place(places.RELEASES),),
    "alerts": (Place(places.ALERTS),),
}
TINY, LARGE = (10, 3), (250, 70)
NAMES = (
    "x" * 500,
    "日本語の長い名前" * 20,
    "\u202eשלום\u202c مرحبا",
    "tab\there\nnewline\x1b[31m",
    "[/closed] [bold]markup [@click=quit]",
    "👩‍👩‍👧‍👦" * 30,
    "e\u0301" * 60,
    "",
)
"Long, wide, right to left, controls, markup, joined, combining, nothing."
KEYS = (
    "j", "k", "g", "G", "down", "up", "home", "end", "pagedown", "pageup", "ctrl+f", "ctrl+b", "l", "f", "t", "a", "A",
    "n", "p", "left", "right", "space", "comma", "full_stop", "less_than_sign", "greater_than_sign", "space",
    "left_square_bracket", "right_square_bracket", "slash", "escape", "tab", "shift+tab", "f5", "ctrl+z", "enter",
)  # fmt: skip


def hostile() -> View:
    """Every text that comes from outside is one of NAMES."""
    rows = tuple(
        replace(row, device=name, model=name[::-1], artifact=name, board=name, site=name, runtime=name, reason=name,
                precision=name, state="offline" if i % 3 else name or "online")
        for i, (row, name) in enumerate(zip(VIEW.rows, NAMES, strict=False))
    )  # fmt: skip
    device = VIEW.fleet.devices["berlin", "gate-north"]
    assert device.birth is not None
    state = device.birth.models[0]
    devices = {}
    events = []
    for name in NAMES:
        model = msgspec.structs.replace(state, model=name, artifact=name, reasons=(name,), rejections=((name, name),))
        birth = msgspec.structs.replace(device.birth, board=name, models=(model,), facts={name: {name: name}},
                                        versions={name: name})  # fmt: skip
        devices[name, name] = msgspec.structs.replace(device, site=name, device=name, birth=birth, reason=name)
        said = Event(epoch=1, t_unix_ms=0, kind=name, text=name)
        events.append(FleetEvent(site=name, device=name, received_s=NOW_S - 5, event=said))
    totals = replace(VIEW.totals, cells=cells_of(rows), artifacts=dict.fromkeys(NAMES, 3),
                     boards=dict.fromkeys(NAMES, 2), software=dict.fromkeys(NAMES, 1))  # fmt: skip
    ships = {
        (name, name): Ship(desired=Desired(release=name[:60]),
                           reported=Reported(t_unix_ms=0, group=name, desired=name[:60], step=Step.FAILED, reason=name))
        for name in NAMES
    }  # fmt: skip
    alerts = tuple(replace(VIEW.alerts[0], device=name, site=name, rule=name, model=name, text=name) for name in NAMES)
    return replace(VIEW, rows=rows, fleet=Fleet(devices=devices, events=tuple(events)), totals=totals, alerts=alerts,
                   releases=ships, link=replace(VIEW.link, endpoint=NAMES[0], state=NAMES[3]))  # fmt: skip


HOSTILE = hostile()
EMPTY = replace(
    VIEW, rows=(), fleet=Fleet(), alerts=(), releases={}, trend=(),
    totals=replace(VIEW.totals, devices=0, states={}, models=0, artifacts={}, p50_ms=None, p99_ms=None, sample_count=0,
                   qps=0.0, last_seen_s=None, latency=None, cells=(), boards={}, software={}),
)  # fmt: skip


SEEN: dict[str, Callable[[str], bool]] = {
    "overview": lambda text: "connecting to broker" in text or "no devices yet" in text,
    "devices": lambda text: "no devices yet" in text,
    "device": lambda text: "forgotten by the broker" in text,
    "models": lambda text: "no devices yet" in text,
    "model": lambda text: "no device runs a" in text,
    "events": lambda text: "events  0" in text,
    "releases": lambda text: "no release was wished for" in text,
    "alerts": lambda text: "nothing to tell" in text,
}
"What a screen says when there is nothing to show."


async def holds(app: Console, pilot: Pilot[None], size: tuple[int, int]) -> str:
    """The screen at a size, after it was checked to stay within it."""
    await pilot.resize_terminal(*size)
    await pilot.pause()
    app.draw()
    await pilot.pause()
    lines = screen_lines(app)
    assert app.error is None
    assert len(lines) <= size[1], size
    assert "\x1b" not in "".join(lines)
    return "\n".join(lines)


def route_to(kind: str, view: View) -> Route:
    """To the place; in the hostile fleet to a subject of its own."""
    if view is HOSTILE and kind == "device":
        return (Place(places.DEVICES), Place(places.DEVICE, (NAMES[4], NAMES[4], NAMES[4][::-1])))
    if view is HOSTILE and kind == "model":
        return (Place(places.MODELS), Place(places.MODEL, (NAMES[4][::-1],)))
    return ROUTES[kind]


@pytest.mark.parametrize("view", [HOSTILE, EMPTY], ids=["hostile", "empty"])
def test_no_data_breaks_a_screen_at_any_size(view: View) -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        for kind in ROUTES:
            app.go(route_to(kind, view))
            for size in (TINY, LARGE) if view is HOSTILE else (TINY,):
                await holds(app, pilot, size)
            text = await holds(app, pilot, (120, 40))
            if view is EMPTY:
                assert SEEN[kind](text), text
                assert "None" not in text
        app.post_message(Folded(VIEW))
        app.go(ROUTES["devices"])
        text = await holds(app, pilot, (120, 40))
        assert "● connected" in text.splitlines()[0], "and the screen comes back by itself"

    drive(act, start="overview", view=view)


def test_every_key_may_be_pressed_on_every_screen() -> None:
    """What a key does is told elsewhere; here that none of them ends the console, whatever is on the screen."""

    async def act(app: Console, pilot: Pilot[None]) -> None:
        for kind in ROUTES:
            app.timeline.look_at(None)
            app.go(ROUTES[kind])
            await pilot.pause()
            for key in KEYS:
                app.simulate_key(key)
            await pilot.pause()
            assert app.error is None, kind
            assert app.is_running, kind
            while not isinstance(app.screen, ViewScreen):
                app.pop_screen()
        app.timeline.look_at(None)
        app.post_message(Folded(VIEW))
        app.go(())
        assert "edgekit" in await holds(app, pilot, (120, 40))

    drive(act, start="overview")


def test_ascii_alone_draws_every_screen() -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        for kind in ROUTES:
            app.go(ROUTES[kind])
            for size in ((80, 24), (200, 60)):
                text = await holds(app, pilot, size)
                assert text.isascii(), (kind, [char for char in text if not char.isascii()])
                assert len(text) > 200, kind

    drive(act, start="overview", ascii_only=True)


def test_without_colour_every_screen_tells_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def act(app: Console, pilot: Pilot[None]) -> None:
        for kind in ROUTES:
            app.go(STORED[kind])
            text = await holds(app, pilot, (120, 40))
            wanted = stored(kind, (120, 40)).read_text(encoding="utf-8")
            assert text.rpartition("\n")[0] + "\n" == wanted, kind

    drive(act, start="overview")


def test_the_palette_and_a_question_take_no_text_for_markup() -> None:
    said: list[str] = []

    async def act(app: Console, pilot: Pilot[None]) -> None:
        await pilot.press("ctrl+p")
        await pilot.pause()
        await pilot.press(*"closed")
        await pilot.pause(0.5)
        said.append("\n".join(screen_lines(app)))
        await pilot.press("escape")
        app.action_run(f"send '{NAMES[4]}' all")
        await pilot.pause()
        said.append("\n".join(screen_lines(app)))
        assert app.error is None

    drive(act, view=HOSTILE, start="devices", send=lambda *_: True)
    assert "[/closed] [bold]markup" in said[0].partition("closed")[2]
    assert f"─ {NAMES[4]} ─" in said[1]


def test_every_screen_has_help_a_past_and_stands_a_click() -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        for kind in ROUTES:
            app.go(ROUTES[kind])
            await pilot.pause()
            before = app.screen
            await pilot.press("question_mark")
            assert isinstance(app.screen, HelpScreen), kind
            await pilot.press("question_mark", "space")
            await pilot.pause()
            assert app.screen is before, kind
            assert "paused at" in text_of(app).splitlines()[0], kind
            await pilot.press("space")
            await pilot.pause()
            assert "paused at" not in text_of(app), kind
            for x, y in ((0, 0), (60, 12), (119, 38)):
                await pilot.click(offset=(x, y))
                assert app.error is None, kind

    drive(act, start="overview")


PLACE_WORDS = [(alias, word.name) for word in command.WORDS for alias in word.aliases if word.name in command.PLACES]


def test_every_alias_of_a_place_means_it_and_every_place_can_be_named() -> None:
    assert [command.parse_command(alias).name for alias, _ in PLACE_WORDS] == [name for _, name in PLACE_WORDS]

    async def act(app: Console, pilot: Pilot[None]) -> None:
        for name in command.PLACES:
            await run(app, pilot, name)
            assert name == app.base.KIND

    drive(act, start="events")


def test_every_place_has_a_key_of_its_own_that_no_screen_takes_away() -> None:
    assert set(places.TOP.values()) == set(command.PLACES)
    taken = {column.key for column in columns()}
    assert not taken & set(places.TOP), "a key that sorts the devices cannot lead away from them"

    async def act(app: Console, pilot: Pilot[None]) -> None:
        for kind in ROUTES:
            app.go(ROUTES[kind])
            await pilot.pause()
            for key, place in places.TOP.items():
                assert app.screen.active_bindings[key].binding.action == f"go('{place}')", (kind, key)
        for key, place in places.TOP.items():
            await pilot.press(key)
            await pilot.pause()
            assert place == app.base.KIND, key

    drive(act, start="overview")


@pytest.mark.parametrize("width", [10, 40, 76, 80, 96, 109, 110, 120, 250])
@pytest.mark.parametrize("kind", ROUTES)
def test_breadcrumbs_tell_the_place_and_the_connection_as_far_as_they_fit(width: int, kind: str) -> None:
    from edgekit_tui import tiles
    from edgekit_tui.draw import ASCII, UNICODE, width_of

    for glyphs in (UNICODE, ASCII):
        for moment in ("", "paused at 12:00:00, 5m ago"):
            line = tiles.crumbs(ROUTES[kind], VIEW, width, glyphs, NOW_S, 3, moment)
            text = "".join(part for part, _ in line)
            place = ROUTES[kind][0].kind if ROUTES[kind] else "overview"
            assert width < 40 or place in text
            assert width < 80 or bool(moment) or "connected" in text
            assert width < 80 or moment in text
            assert width < 60 or bool(moment) or width_of(line) <= width
