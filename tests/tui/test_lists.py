"""The lines of the lists of alerts and of events."""

from __future__ import annotations

import pytest

from edgekit_tui import alerts_screen, events_screen
from edgekit_tui.alerts import Alert
from edgekit_tui.draw import ASCII, UNICODE, Glyphs, Line, width_of
from tests.tui.simulated import NOW_S, lived_view

VIEW = lived_view()


def plain(line: Line) -> str:
    return "".join(text for text, _ in line)


def alert(**changes: object) -> Alert:
    known = {"rule": "slow", "site": "lab", "device": "one", "model": "m", "since_s": NOW_S - 90, "text": "p99 9 ms"}
    return Alert(**{**known, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "says", "ink"),
    [
        (alert(), " !    90s  slow         one                  m  p99 9 ms", "bad"),
        (alert(ended=True), " !    90s  slow         one                  m  p99 9 ms  (it has ended)", "warn"),
        (alert(acknowledged=True, model=""), " ✓    90s  slow         one                  p99 9 ms", "faint"),
    ],
)
def test_an_alert_tells_whether_it_is_over_and_whether_somebody_knows(one: Alert, says: str, ink: str) -> None:
    header, ((key, line),) = alerts_screen._lines([one], 100, UNICODE, NOW_S)
    assert (plain(line), line[0][1], key) == (says, ink, one.id)
    assert plain(header).index("rule") == says.index("slow")
    assert plain(header).index("device") == says.index("one ")


def test_no_alert_is_told_as_such() -> None:
    assert alerts_screen._lines([], 80, UNICODE, NOW_S) == ((("✓ nothing to tell", "good"),), ())


def test_an_event_stands_under_its_titles_and_is_told_apart_by_its_time_and_device() -> None:
    header, items = events_screen._lines(list(VIEW.fleet.events), 120, UNICODE, NOW_S)
    assert len({key for key, _ in items}) == len(items) == len(VIEW.fleet.events)
    title, first = plain(header), plain(items[0][1])
    assert first == "  4m  berlin     line-2-cam               throttled   clock 1500 to 1000 MHz at 85.2 degrees"
    for word, text in (("site", "berlin"), ("device", "line-2-cam"), ("kind", "throttled"), ("what", "clock")):
        assert title.index(word) == first.index(text)
    assert items[0][1][3][1] == "warn"


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
@pytest.mark.parametrize("width", [5, 20, 60, 200])
def test_lists_keep_to_their_width(width: int, glyphs: Glyphs) -> None:
    for header, items in (
        alerts_screen._lines([alert(text="t" * 300, device="日本" * 40)], width, glyphs, NOW_S),
        events_screen._lines(list(VIEW.fleet.events), width, glyphs, NOW_S),
    ):
        assert all(width_of(line) <= width for line in (header, *(line for _, line in items)))
