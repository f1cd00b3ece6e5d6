"""The command line's words: what each understands, and what it says when it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.pilot import Pilot
from textual.widgets import Static

from edgekit.errors import UsageError
from edgekit_tui import requests
from edgekit_tui.app import Console
from edgekit_tui.command import PLACES, WORDS, parse_command, parse_send, suggestions
from edgekit_tui.command_screen import CommandScreen
from edgekit_tui.past import KEEP_S
from tests.tui.changed import replace
from tests.tui.simulated import drive, lived_view, text_of

VIEW = lived_view()


def test_every_word_does_something_and_nothing_else_is_done() -> None:
    assert {word.name for word in WORDS} == {*PLACES, *requests.WORDS}
    assert suggestions() == [word.name for word in WORDS]
    known = [name for word in WORDS for name in (word.name, *word.aliases)]
    assert len(set(known)) == len(known), "no alias means two things"


@pytest.mark.parametrize("word", WORDS, ids=lambda word: word.name)
def test_each_word_takes_what_it_says(word: object) -> None:
    name, argument = word.name, word.argument  # type: ignore[attr-defined]
    optional = not argument or argument.startswith("[")
    if optional:
        assert parse_command(f" :{name} ").name == name
    else:
        with pytest.raises(UsageError, match=f"{name}: write  :{name} "):
            parse_command(name)
    if argument:
        assert parse_command(f"{name}   some  thing ").rest == "some  thing"
    else:
        with pytest.raises(UsageError, match="takes no argument"):
            parse_command(f"{name} thing")
    for alias in word.aliases:  # type: ignore[attr-defined]
        assert parse_command(f"{alias} x" if not optional else alias).name == name


@pytest.mark.parametrize(
    ("typed", "near"),
    [("devcies", "devices"), ("overveiw", "overview"), ("relases", "releases"), ("pnig", "ping"), ("exprot", "export")],
)
def test_a_mistyped_word_is_answered_with_the_nearest(typed: str, near: str) -> None:
    with pytest.raises(UsageError, match=f"no command '{typed}'; did you mean '{near}'"):
        parse_command(typed)


@given(st.text(max_size=80))
def test_whatever_is_typed_is_understood_or_refused_in_words(text: str) -> None:
    try:
        request = parse_command(text)
    except UsageError:
        return
    assert request.name in {word.name for word in WORDS}


@pytest.mark.parametrize(
    ("text", "verb", "everyone", "args"),
    [
        ("ping", "ping", False, {}),
        ("ping all", "ping", True, {}),
        ("bench all model=digits seconds=2", "bench", True, {"model": "digits", "seconds": "2"}),
        ("select latency_ms=20 all", "select", True, {"latency_ms": "20"}),
        ("reload 'model=two words'", "reload", False, {"model": "two words"}),
        ("reload model=a=b", "reload", False, {"model": "a=b"}),
        ("reload model=", "reload", False, {"model": ""}),
    ],
)
def test_a_command_to_devices_has_a_verb_a_reach_and_arguments(
    text: str, verb: str, everyone: bool, args: dict[str, str]
) -> None:
    assert parse_send(text) == (verb, everyone, args)


@pytest.mark.parametrize("text", ["", "ping everyone", "ping =x", "reload 'model=a", "ping all now"])
def test_what_is_no_command_to_devices_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="send: "):
        parse_send(text)


LINES = (
    ("device nobody", "no device 'nobody'"),
    ("model none", "no model 'none'; there are digits"),
    ("filter p99:50", "p99 is a number; write p99>50"),
    ("theme plaid", "no theme 'plaid'; there are edgekit,"),
    ("ago soon", "'soon' is not 90s, 10m or 2h"),
    ("export rows.xls", "must end in .csv or .json"),
    ("export /no/such/folder/rows.csv", "cannot be written"),
    ("screenshot now.png", "must end in .svg"),
    ("ping", "this console only reads"),
    ("send reload all", "this console only reads"),
    ("send reload every", "'every' is neither all nor key=value"),
)


def test_each_word_says_in_one_line_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []

    async def act(app: Console, pilot: Pilot[None]) -> None:
        app.notify = lambda text, **_: said.append(text)  # type: ignore[assignment, method-assign]
        for line, says in LINES:
            app.action_run(line)
            assert says in said[-1], line
            assert "\n" not in said[-1]
        app.action_run("nonsense")
        assert "no command 'nonsense'" in said[-1]
        app.action_run(None)
        assert len(said) == len(LINES) + 1, "a line that was left says nothing"
        assert app.error is None

    drive(act)
    assert list(tmp_path.iterdir()) == []


def test_words_before_any_data_say_that_nothing_is_known() -> None:
    said: list[str] = []

    async def act(app: Console, pilot: Pilot[None]) -> None:
        app.notify = lambda text, **_: said.append(text)  # type: ignore[assignment, method-assign]
        app.set_reactive(Console.view, None)  # type: ignore[arg-type]
        for line in ("ping", "export x.csv", "device gate-north", "model digits", "ack", "pause", "ago 10m", "scale"):
            app.action_run(line)
        assert [words for words in said if "no device is known yet" in words or "nothing is known yet" in words]
        assert app.error is None

    drive(act, send=lambda *_: True)


def test_the_line_tells_what_a_word_does_while_it_is_typed() -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        await pilot.press("colon", *"ago")
        await pilot.pause()
        assert isinstance(app.screen, CommandScreen)
        hint = app.screen.query_one("#problem", Static)
        assert "look at the fleet as it was" in str(hint.render())
        await pilot.press(*"x")
        await pilot.pause()
        assert str(hint.render()) == ""
        await pilot.press("enter")
        await pilot.pause()
        assert "no command 'agox'" in text_of(app)
        await pilot.press("escape", "colon", "enter")
        await pilot.pause()
        assert not isinstance(app.screen, CommandScreen), "an empty line is left"

    drive(act)


def test_ago_looks_as_far_back_as_is_kept() -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        for step in range(1, 5):
            app.view = replace(VIEW, now_s=VIEW.now_s + step * KEEP_S)
        app.action_run("ago 2h")
        assert app.timeline.looking is app.timeline.past.views[0]
        app.action_run("pause")
        assert app.timeline.looking is None
        app.action_run("ago 15s")
        assert app.timeline.looking is not None
        assert app.now_s == app.timeline.looking.now_s

    drive(act)
