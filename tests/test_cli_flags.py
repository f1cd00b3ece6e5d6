"""Every number of the command line, of every verb: what makes no sense is one line and exit 2, before any work."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgekit.cli.main import VERBS, build_parser, main

Capture = pytest.CaptureFixture[str]
NEEDED: dict[str, list[str]] = {
    "bench": ["digits"],
    "build": ["digits"],
    "rollout start": ["1.0"],
    "select": ["digits"],
    "run": ["digits", "--mqtt-host", "127.0.0.1"],
    "release create": ["1.0", "--config", "edgekit.toml"],
    "provision": ["local:device", "--model", "digits"],
}
"""What a verb cannot do without."""


def _parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for verb, _ in VERBS:
        top = build_parser(verb)
        (verbs,) = [a for a in top._actions if isinstance(a, argparse._SubParsersAction)]
        parser = verbs.choices[verb]
        steps = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
        if not steps:
            yield verb, parser
        for step in steps:
            yield from ((f"{verb} {name}", found) for name, found in step.choices.items())


PARSERS = tuple(_parsers())
"""Every verb and step with its parser."""


def numbers() -> list[tuple[str, str]]:
    return [
        (verb, action.option_strings[0])
        for verb, parser in PARSERS
        for action in parser._actions
        if action.type is float and action.option_strings
    ]


NUMBERS = numbers()


def test_there_are_many_and_each_is_found() -> None:
    assert len(NUMBERS) >= 30
    assert {("fleet", "--for"), ("bench", "--soak"), ("release create", "--ready"), ("sim", "--skew")} <= set(NUMBERS)


@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
@pytest.mark.parametrize(("verb", "flag"), NUMBERS)
def test_a_number_that_makes_no_sense_is_one_line_and_exit_2(
    verb: str,
    flag: str,
    value: str,
    capsys: Capture,
    edgekit_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code = main([*verb.split(), *NEEDED.get(verb, []), f"{flag}={value}"])
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    assert (code, f"{flag} {value}" in err) == (2, True), err
    assert not edgekit_home.exists(), "nothing was done for nothing"
    assert not (tmp_path / "device").exists()


@pytest.mark.parametrize(("verb", "flag"), NUMBERS)
def test_a_word_where_a_number_belongs_is_said_by_the_parser(verb: str, flag: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as left:
        main([*verb.split(), *NEEDED.get(verb, []), f"{flag}=soon"])
    assert left.value.code == 2
    assert f"argument {flag}: invalid float value: 'soon'" in capsys.readouterr().err


@pytest.mark.parametrize(("verb", "parser"), PARSERS, ids=[verb for verb, _ in PARSERS])
def test_no_option_has_two_names_or_hides_its_help(verb: str, parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        if not action.option_strings or action.option_strings == ["-h", "--help"]:
            continue
        assert len(action.option_strings) == 1, "long options only"
        assert action.option_strings[0].startswith("--")
        assert "_" not in action.option_strings[0]


@pytest.mark.parametrize(("verb", "parser"), PARSERS, ids=[verb for verb, _ in PARSERS])
def test_a_default_that_is_told_is_the_true_one(verb: str, parser: argparse.ArgumentParser) -> None:
    import re

    for action in parser._actions:
        told = re.search(r"\(default:? ([\d.]+)\)|^default ([\d.]+)$|; else ([\d.]+)$", action.help or "")
        if told and isinstance(action.default, int | float):
            text = next(filter(None, told.groups()))
            assert float(text) == float(action.default), (verb, action.option_strings)
