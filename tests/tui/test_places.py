"""Places, the way back, and the words of the command line."""

from __future__ import annotations

import pytest

from edgekit.errors import UsageError
from edgekit_tui.command import Request, parse_command, parse_send
from edgekit_tui.places import DEVICE, DEVICES, EVENTS, KEPT, MODEL, Place, Trail

LIST, OPEN = (Place(DEVICES),), (Place(DEVICES), Place(DEVICE, ("lab", "one", "m")))


def test_back_and_forward_walk_where_one_was() -> None:
    trail = Trail()
    trail.go(LIST)
    trail.go(OPEN)
    trail.go(OPEN)
    assert (trail.step(-1), trail.step(-1), trail.step(-1)) == (LIST, (), None)
    assert trail.step(1) == LIST
    trail.go((Place(EVENTS),))
    assert trail.step(1) is None, "what was ahead is forgotten by going elsewhere"
    assert trail.step(-1) == LIST


def test_the_trail_is_bounded_and_ends_where_one_is() -> None:
    trail = Trail()
    for n in range(3 * KEPT):
        trail.go((Place(DEVICE, ("s", str(n), "")),))
    assert len(trail.paths) == KEPT
    assert trail.here[0].title == str(3 * KEPT - 1)


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        (":q", Request("quit")), ("dev", Request("devices")), ("  events ", Request("events")),
        ("device gate-north", Request("device", "gate-north")), (":ping all", Request("ping", "all")),
        ("filter board:orin !state:online", Request("filter", "board:orin !state:online")),
    ],
)  # fmt: skip
def test_words_and_aliases_are_understood(text: str, request_: Request) -> None:
    assert parse_command(text) == request_


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("devics", "did you mean 'devices'"), ("xyzzy", "there are overview"), ("device", "write  :device NAME"),
        ("quit now", "quit takes no argument"), ("", "there are overview"),
    ],
)  # fmt: skip
def test_a_wrong_line_says_what_would_be_right(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_command(text)


def test_a_verb_takes_arguments_and_all() -> None:
    assert parse_send("select all latency_ms=40 objective='least memory'") == (
        "select", True, {"latency_ms": "40", "objective": "least memory"},
    )  # fmt: skip
    for wrong in ("reload now", "reload =1", "", "reload 'open"):
        with pytest.raises(UsageError, match="send: "):
            parse_send(wrong)


def test_a_place_is_called_by_its_subject() -> None:
    assert Place(DEVICES).title == "devices"
    assert Place(DEVICE, ("lab", "one", "m")).title == "one"
    assert Place(MODEL, ("digits",)).title == "digits"


def test_a_neighbour_takes_the_place_of_where_one_is() -> None:
    trail = Trail()
    trail.go(LIST)
    trail.go(OPEN)
    trail.replace((*LIST, Place(DEVICE, ("lab", "two", "m"))))
    assert trail.here[-1].title == "two"
    assert trail.step(-1) == LIST
    assert trail.step(1) is not None
    assert trail.here[-1].title == "two"
    assert (trail.step(2), trail.step(-3), trail.at) == (None, None, 2)
