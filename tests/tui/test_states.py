"""What the screens show when there is little, old or hostile data, and that they repaint no more than they must."""

from __future__ import annotations

from textual.pilot import Pilot
from textual.widgets import Input

from edgekit.fleet import Fleet
from edgekit_tui.app import Console
from edgekit_tui.news import Folded
from tests.tui.changed import replace
from tests.tui.simulated import NOW_S, drive, lived_view, table_of, text_of

VIEW = lived_view()


def test_before_any_data_the_screen_says_what_it_waits_for() -> None:
    link = replace(VIEW.link, connected=False, was_connected=False, state="connection refused", since_s=NOW_S - 7)
    totals = replace(VIEW.totals, devices=0, states={}, last_seen_s=None)
    waiting = replace(VIEW, fleet=Fleet(), rows=(), totals=totals, link=link)

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
            await pilot.pause()
        assert "日本語の長" in text_of(app)
        assert "[bold]markup[/]" in text_of(app)
        app.screen.query_one(Input).value = "[b]|markup [/red] [x"
        await pilot.pause()
        app.screen.query_one(Input).value = "device=[bold]markup[/]"
        await pilot.pause()
        assert "1 of 6  /device=[bold]markup[/]" in text_of(app)
        await pilot.press("enter")
        await pilot.pause()
        assert "latency of ]/[pukram]dlob[, ms" in text_of(app)
        await pilot.press("escape", "escape")
        assert "\x1b" not in text_of(app)
        app.post_message(Folded(VIEW))
        await pilot.pause()
        app.open_named("gate-north")
        for size in ((10, 3), (1, 1), (250, 70), (80, 24)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
        assert "gate-north" in text_of(app)

    devices = {(name, name): VIEW.fleet.devices["berlin", "gate-north"] for name in names}
    drive(act, view=replace(VIEW, rows=rows, fleet=replace(VIEW.fleet, devices=devices)))


def test_the_console_starts_in_the_theme_that_was_asked_for() -> None:
    """test_pictures compares every theme."""

    async def act(app: Console, pilot: Pilot[None]) -> None:
        assert app.theme == "edgekit-light"
        app.theme = "edgekit"
        await pilot.pause()
        assert "gate-north" in text_of(app)

    drive(act, theme="edgekit-light")
