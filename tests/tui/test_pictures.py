"""The screens as they are stored, in every theme; `python -m tests.tui.test_pictures` draws them anew.

Stored are the text of each and a hash of its SVG: 96 SVGs would be ten megabytes that nobody reads.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.theme import Theme

from edgekit_tui import places
from edgekit_tui.app import Console
from edgekit_tui.places import Place, Route
from edgekit_tui.theme import THEMES
from tests.tui.simulated import drive, lines_of

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
HASHES = FOLDER / "svg.json"


def stored(name: str, size: tuple[int, int]) -> Path:
    return FOLDER / f"{name}-{size[0]}x{size[1]}.txt"


async def picture_at(app: Console, pilot: Pilot[None], size: tuple[int, int]) -> tuple[str, str]:
    """The screen at a size: its text without the line of keys, which has tests of its own, and all of it as SVG.

    The SVG is as Textual draws it, without the number that it gives each drawing.
    """
    await pilot.resize_terminal(*size)
    await pilot.pause()
    app.draw()
    await pilot.pause()
    svg = app.export_screenshot(simplify=True)
    return "\n".join(lines_of(svg)[:-1]) + "\n", re.sub(r"terminal-\d+", "terminal", svg)


def key_of(name: str, size: tuple[int, int], theme: Theme) -> str:
    return f"{name}-{size[0]}x{size[1]}-{theme.name}"


def hash_of(svg: str) -> str:
    return hashlib.sha256(svg.encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", ROUTES)
def test_a_screen_looks_as_it_is_stored_in_every_theme(name: str, tmp_path: Path) -> None:
    hashes = json.loads(HASHES.read_text())

    async def act(app: Console, pilot: Pilot[None]) -> None:
        app.go(ROUTES[name])
        for theme in THEMES:
            app.theme = theme.name
            for size in SIZES:
                (text, svg), key = await picture_at(app, pilot, size), key_of(name, size, theme)
                assert text == stored(name, size).read_text(encoding="utf-8"), (theme.name, size)
                drawn = tmp_path / f"{key}.svg"
                drawn.write_text(svg, encoding="utf-8")
                assert hash_of(svg) == hashes[key], f"its colours have changed: look at {drawn}"

    drive(act, start="overview")


def test_each_theme_and_each_size_looks_different() -> None:
    """Else a theme that does nothing would be stored, too."""
    hashes = json.loads(HASHES.read_text())
    assert len(hashes) == len(ROUTES) * len(SIZES) * len(THEMES) == len(set(hashes.values()))


def draw_anew() -> None:
    """Write what the screens look like now; look at the difference before it is committed."""
    FOLDER.mkdir(exist_ok=True)
    hashes: dict[str, str] = {}
    for name, route in ROUTES.items():

        async def act(app: Console, pilot: Pilot[None], name: str = name, route: Route = route) -> None:
            app.go(route)
            for theme in THEMES:
                app.theme = theme.name
                for size in SIZES:
                    text, svg = await picture_at(app, pilot, size)
                    hashes[key_of(name, size, theme)] = hash_of(svg)
                    stored(name, size).write_text(text, encoding="utf-8")

        drive(act, start="overview")
    HASHES.write_text(json.dumps(hashes, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    draw_anew()
