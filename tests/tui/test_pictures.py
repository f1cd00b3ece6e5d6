"""The screens as they are stored, in every theme; `python -m tests.tui.test_pictures` draws them anew."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot

from edgekit_tui import places
from edgekit_tui.app import Console
from edgekit_tui.places import Place, Route
from edgekit_tui.theme import THEMES
from tests.tui.simulated import drive, screen_lines

FOLDER = Path(__file__).parent / "screens"
ROUTES: dict[str, Route] = {
    "overview": (),
    "devices": (Place(places.DEVICES),),
    "device": (Place(places.DEVICES), Place(places.DEVICE, ("berlin", "line-2-cam", "ocr-detector"))),
    "model": (Place(places.MODELS), Place(places.MODEL, ("ocr-detector",))),
    "models": (Place(places.MODELS),),
    "events": (Place(places.EVENTS),),
    "releases": (Place(places.RELEASES),),
    "alerts": (Place(places.ALERTS),),
}
SIZES = ((80, 24), (120, 40), (200, 60))
COMPARED = THEMES[1:]
"With the first theme the screens are drawn; these must show the same text in their own colours."


def stored(name: str, size: tuple[int, int]) -> Path:
    return FOLDER / f"{name}-{size[0]}x{size[1]}.txt"


async def text_at(app: Console, pilot: Pilot[None], size: tuple[int, int]) -> str:
    """The screen at a size, without the line of keys, which has tests of its own."""
    await pilot.resize_terminal(*size)
    await pilot.pause()
    app.draw()
    await pilot.pause()
    return "\n".join(screen_lines(app)[:-1]) + "\n"


@pytest.mark.parametrize("name", ROUTES)
def test_a_screen_looks_as_it_is_stored_in_every_theme(name: str) -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        app.go(ROUTES[name])
        for size in SIZES:
            assert await text_at(app, pilot, size) == stored(name, size).read_text(encoding="utf-8"), size
        for theme in COMPARED:
            app.theme = theme.name
            await pilot.pause()
            text = await text_at(app, pilot, SIZES[1])
            assert text == stored(name, SIZES[1]).read_text(encoding="utf-8"), theme.name
            assert str(theme.primary) in app.export_screenshot(simplify=True), theme.name

    drive(act, start="overview")


def draw_anew() -> None:
    """Write what the screens look like now; look at the difference before it is committed."""
    FOLDER.mkdir(exist_ok=True)
    for name, route in ROUTES.items():

        async def act(app: Console, pilot: Pilot[None], name: str = name, route: Route = route) -> None:
            app.go(route)
            for size in SIZES:
                stored(name, size).write_text(await text_at(app, pilot, size), encoding="utf-8")

        drive(act, start="overview")


if __name__ == "__main__":
    draw_anew()
