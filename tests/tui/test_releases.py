"""Releases: wishes and reports from the wire, what they amount to, and the screen."""

from __future__ import annotations

import json

import msgspec
import pytest
from textual.pilot import Pilot

from edgekit.ships import Ship
from edgekit.telemetry.desired import Desired, Reported, Step
from edgekit.telemetry.messages import Received, topic
from edgekit_tui import once, places
from edgekit_tui.app import Console
from edgekit_tui.device_screen import DeviceScreen
from edgekit_tui.draw import ASCII, UNICODE, Glyphs, width_of
from edgekit_tui.feed import View
from edgekit_tui.news import Folded
from edgekit_tui.picklist import PickList
from edgekit_tui.places import Place
from edgekit_tui.releases import MOST, by_device, by_group, of_device
from edgekit_tui.releases_screen import ReleasesScreen
from edgekit_tui.standing import STEPS, standing
from tests.tui.changed import replace
from tests.tui.simulated import NOW_S, SHIPPED, drive, lived, lived_view, table_of, text_of
from tests.tui.test_navigation import run

VIEW = lived_view()
WISH = Desired(release="r2", id="w")
KEY = ("lab", "one")


def said(leaf: str, payload: bytes | msgspec.Struct, device: str = "one") -> Received:
    raw = payload if isinstance(payload, bytes) else msgspec.json.encode(payload)
    return Received(topic=topic("lab", device, leaf), payload=raw, received_s=NOW_S)


def report(step: Step = Step.COMMITTED, **fields: object) -> Reported:
    return Reported(**{"t_unix_ms": 0, "desired": "r2", "desired_id": "w", "step": step, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ship", "word"),
    [
        (Ship(desired=WISH), "no answer yet"),
        (Ship(desired=WISH, reported=report(desired="r1")), "no answer yet"),
        (Ship(desired=WISH, reported=report(desired_id="older")), "no answer yet"),
        (Ship(desired=WISH, reported=report()), "committed"),
        (Ship(desired=WISH, reported=report(Step.REFUSED)), "refused"),
        (Ship(reported=report(Step.IDLE, desired="")), "nothing asked"),
        (Ship(reported=report(Step.ROLLED_BACK)), "rolled back"),
    ],
)
def test_only_a_report_that_answers_the_wish_counts(ship: Ship, word: str) -> None:
    assert standing(ship).word == word


def test_every_step_has_a_word_and_trouble_comes_first() -> None:
    assert set(STEPS) == set(Step)
    orders = {step: now.order for step, now in STEPS.items()}
    assert max(orders[s] for s in (Step.ROLLED_BACK, Step.FAILED, Step.REFUSED)) < orders[Step.WAITING]
    assert orders[Step.WAITING] < orders[Step.FETCHING] < orders[Step.INSTALLED] < orders[Step.BOOTED]
    assert orders[Step.BOOTED] < orders[Step.COMMITTED] < orders[Step.IDLE]


def lines_of(lines: object) -> list[str]:
    return ["".join(text for text, _ in line) for line in lines]  # type: ignore[attr-defined]


def test_a_group_is_told_by_how_far_its_devices_are() -> None:
    lines = lines_of(by_group(VIEW.releases, 100, UNICODE))
    cameras = next(line for line in lines if line.startswith("cameras"))
    assert cameras.split()[1:3] == ["2026.12", "4"]
    for words in ("1 rolled back", "1 waiting", "1 fetching", "1 committed"):
        assert words in cameras
    assert next(line for line in lines if line.startswith("docks")).split()[1:] == ["–", "1", "1", "nothing", "asked"]


def test_devices_that_need_somebody_are_listed_first_with_the_reason() -> None:
    _, items = by_device(VIEW.releases, 120, UNICODE)
    assert [key[1] for key, _ in items] == [
        "line-2-cam", "lobby-mic", "gate-south", "line-1-cam", "gate-north", "dock-1",
    ]  # fmt: skip
    lines = lines_of(line for _, line in items)
    assert "p99 1.9 times" in lines[0]
    assert "no answer yet" in lines[1]
    assert "fetching 42%" in lines[2]
    assert len(items) == len(SHIPPED) + 1


def test_a_device_keeps_its_place_from_step_to_step_until_it_is_settled() -> None:
    def order(step: Step) -> list[str]:
        ships = {("lab", name): Ship(reported=report(Step.FETCHING)) for name in "abc"}
        ships["lab", "b"] = Ship(reported=report(step))
        return [key[1] for key, _ in by_device(ships, 80, UNICODE)[1]]

    for step in (Step.WAITING, Step.FETCHING, Step.INSTALLED, Step.BOOTED):
        assert order(step) == ["a", "b", "c"]
    assert order(Step.COMMITTED) == order(Step.IDLE) == ["a", "c", "b"]
    assert order(Step.FAILED) == order(Step.CANCELLED) == ["b", "a", "c"]


def test_columns_are_as_wide_as_their_texts_so_that_reasons_have_room() -> None:
    ships = {("lab", "a"): Ship(desired=WISH, reported=report(Step.FAILED, running="r1", reason="x" * 100, group="g"))}
    (head,), items = by_device(ships, 80, UNICODE)
    assert head[0] == "device wanted runs step          why"
    assert lines_of(line for _, line in items) == ["a      r2     r1   failed        " + "x" * 46 + "…"]
    (head,), items = by_device({**ships, ("hall", "a"): Ship(desired=WISH)}, 100, UNICODE)
    assert head[0] == "site  device  group  wanted  runs  step           why"
    assert lines_of(line for _, line in items)[1] == "hall  a       –      r2      –     no answer yet  "
    assert by_group(ships, 80, UNICODE)[0] == (("group wanted devices", "head"),)


@pytest.mark.parametrize("glyphs", [ASCII, UNICODE])
@pytest.mark.parametrize("width", [1, 20, 60, 89, 90, 200])
def test_lists_keep_to_their_width_with_hostile_names(glyphs: Glyphs, width: int) -> None:
    names = ("x" * 500, "日本語の長い名前" * 9, "\u202eשלום\u202c", "tab\there\x1b[31m", "[bold]", "")
    ships = {
        ("lab", name): Ship(desired=Desired(release=name), reported=report(running=name, group=name, reason=name))
        for name in names
    }
    header, items = by_device(ships, width, glyphs)
    lines = [header, *(line for _, line in items), *by_group(ships, width, glyphs)[1:]]
    assert max(map(width_of, lines)) <= max(width, 40), "below forty cells the box cuts"
    text = "".join(lines_of(lines))
    assert "\x1b" not in text
    assert text.isascii() or glyphs.unicode


@pytest.mark.parametrize(
    ("device", "text"),
    [
        ("gate-north", ["runs 2026.12  committed  of group cameras"]),
        ("gate-south", ["runs 2026.11  wanted 2026.12  ◌ fetching 42%  of group cameras"]),
        ("line-1-cam", ["runs 2026.11  wanted 2026.12  ◌ waiting  of group cameras", "its turn is in 12 min"]),
        ("line-2-cam", ["runs 2026.11  wanted 2026.12  ✗ rolled back  of group cameras",
                        "p99 1.9 times that of 2026.11, limit 1.2"]),
        ("lobby-mic", ["runs a release not told yet  wanted 2026.12  ◌ no answer yet"]),
        ("dock-1", ["runs 2026.11  nothing asked  of group docks"]),
    ],
)  # fmt: skip
def test_a_device_tells_what_it_runs_what_it_should_and_why_not(device: str, text: list[str]) -> None:
    ship = next(ship for (_, name), ship in VIEW.releases.items() if name == device)
    assert lines_of(of_device(ship, 100, UNICODE)) == text


def test_a_long_reason_is_told_over_lines_and_never_wider_than_the_screen() -> None:
    ship = Ship(desired=WISH, reported=report(Step.FAILED, reason="p99 is \x1b[2J slower 日本 " * 30))
    for width in (1, 7, 40, 80):
        lines = of_device(ship, width, UNICODE)
        assert len(lines) == 5
        assert all(width_of(line) <= max(width, 2) for line in lines)
        assert "\x1b" not in "".join(lines_of(lines))
    assert lines_of(of_device(Ship(reported=report(running="")), 80, UNICODE))[0].startswith("runs no release ")


def test_a_huge_fleet_is_listed_in_part() -> None:
    ships = {("lab", f"d{n:05}"): Ship(desired=WISH) for n in range(MOST + 1)}
    assert len(by_device(ships, 80, UNICODE)[1]) == MOST

    async def act(app: Console, pilot: Pilot[None]) -> None:
        assert f"by device  {MOST + 1}, the first {MOST}" in text_of(app)

    drive(act, start="releases", view=replace(VIEW, releases=ships))


def test_a_new_report_is_a_new_view_and_a_rebirth_of_the_wish_is_seen() -> None:
    source, folder, before = lived(windows=2)
    source.messages = [said("reported", report()), said("reported", report(running="r2"), "bench-n100")]
    after = folder.step(NOW_S + 0.2)
    assert after is not None
    assert [row.release for row in after.rows if row.device == "bench-n100"] == ["r2"]
    assert [row.release for row in before.rows if row.device == "bench-n100"] == [""]
    assert after.releases[KEY].reported == report()
    assert KEY not in before.releases, "a view never changes"
    source.messages = [said("reported", b"nonsense")]
    assert folder.step(NOW_S + 0.4) is None


def test_the_screen_tells_and_opens() -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        await pilot.press("6")
        await pilot.pause()
        assert isinstance(app.screen, ReleasesScreen)
        text = text_of(app)
        for words in ("by group", "by device  6", "rolled back", "its turn is in 12 min"):
            assert words in text
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, DeviceScreen)
        assert app.screen.key[1] == "line-2-cam"
        assert "runs 2026.11  wanted 2026.12  ✗ rolled back" in text_of(app)
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, ReleasesScreen)
        await pilot.press("escape")
        await run(app, pilot, "rel")
        assert isinstance(app.screen, ReleasesScreen)

    drive(act, start="overview")


def test_the_cursor_stays_at_the_top_or_goes_along_with_the_device_it_was_put_on() -> None:
    def with_steps(**steps: Step) -> View:
        said = {key: replace(VIEW.releases[key].reported, step=steps.get(key[1].replace("-", "_"), Step.IDLE))
                for key in VIEW.releases if key[1] != "lobby-mic"}  # fmt: skip
        return replace(VIEW, releases={key: Ship(reported=report) for key, report in said.items()})

    async def act(app: Console, pilot: Pilot[None]) -> None:
        async def chosen(**steps: Step) -> str:
            app.post_message(Folded(with_steps(**steps)))
            await pilot.pause()
            return str(app.screen.query_one(PickList).selected[1])  # type: ignore[index]

        assert await chosen(gate_south=Step.FAILED) == "gate-south"
        assert await chosen(line_1_cam=Step.FAILED) == "line-1-cam", "nobody chose a device yet"
        await pilot.press("j")
        assert await chosen(line_1_cam=Step.FAILED) == "gate-north"
        assert await chosen(line_1_cam=Step.FAILED, dock_1=Step.FAILED) == "gate-north"
        await pilot.press("g")
        assert await chosen(dock_1=Step.FAILED) == "dock-1"

    drive(act, start="releases", view=with_steps())


def test_the_table_has_a_column_of_releases_as_soon_as_one_is_reported() -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        async def header(view: View) -> str:
            app.post_message(Folded(view))
            await pilot.pause()
            return next(line for line in text_of(app).splitlines() if "artifact" in line)

        none = replace(VIEW, releases={}, rows=tuple(replace(row, release="", update="") for row in VIEW.rows))
        assert "release" not in await header(none)
        assert "release" in await header(VIEW)
        assert "✗ 2026.11 rolled back" in text_of(app)
        await pilot.press("e")
        order = [row.release for row in table_of(app).rows]
        assert order == ["2026.11"] * 5 + ["2026.12"] * 2 + [""] * 7
        await run(app, pilot, "filter release:2026.12")
        assert {row.device for row in table_of(app).rows} == {"gate-north"}
        assert "release" not in await header(none)

    drive(act, size=(150, 40))


def test_a_device_that_tells_nothing_but_its_release_shows_nothing_of_another() -> None:
    stray = Ship(reported=report(Step.FAILED, running="r1", reason="no space"))
    view = replace(VIEW, releases={**VIEW.releases, ("lab", "a-stray"): stray})

    async def act(app: Console, pilot: Pilot[None]) -> None:
        for device, words in (("line-2-cam", "latency of ocr-detector"), ("a-stray", "nothing but its release")):
            site = next(site for site, name in view.releases if name == device)
            app.go((Place(places.RELEASES), Place(places.DEVICE, (site, device, ""))))
            await pilot.pause()
            assert words in text_of(app)
        text = text_of(app)
        assert "lab › a-stray" in text
        assert "runs r1  ✗ failed" in text
        assert "no space" in text
        assert "ocr" not in text

    drive(act, start="releases", view=view)


def test_before_any_release_the_screen_says_so_and_what_to_do() -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        assert "no release was wished for" in text_of(app)
        assert "edgekit rollout start RELEASE" in text_of(app)
        app.post_message(Folded(VIEW))
        await pilot.pause()
        assert "rolled back" in text_of(app)
        assert "no release was wished for" not in text_of(app)

    drive(act, start="releases", view=replace(VIEW, releases={}))


def test_once_tells_programs_of_releases() -> None:
    told = {one["device"]: one for one in json.loads(once.as_json(VIEW))["releases"]}
    assert told["line-2-cam"]["reported"]["step"] == "rolled_back"
    assert told["line-2-cam"]["desired"]["release"] == "2026.12"
    assert told["lobby-mic"]["reported"] is None
