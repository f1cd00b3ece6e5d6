"""The filter bar's little language: `board:orin !state:online p99>50 camera`. Pure.

Terms are joined by "and". A bare word is a regular expression searched in every text field; `field:regex` searches
one; `field>n` (also < >= <= =) compares a number; `!` before a term turns it round; quotes keep blanks together.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from edgekit.errors import UsageError
from edgekit.fleet import FleetEvent
from edgekit_tui.rows import Row

TEXT_FIELDS: Mapping[str, Callable[[Row], str]] = {
    "device": lambda row: row.device,
    "site": lambda row: row.site,
    "state": lambda row: row.state,
    "board": lambda row: row.board,
    "model": lambda row: row.model,
    "artifact": lambda row: row.artifact,
    "precision": lambda row: row.precision,
    "runtime": lambda row: row.runtime,
    "release": lambda row: row.release,
    "update": lambda row: row.update,
}
NUMBER_FIELDS: Mapping[str, Callable[[Row, float], float | None]] = {
    "p50": lambda row, _: row.p50_ms,
    "p99": lambda row, _: row.p99_ms,
    "n": lambda row, _: row.sample_count,
    "qps": lambda row, _: row.qps,
    "fail": lambda row, _: None if row.failed_ratio is None else row.failed_ratio * 100,
    "mem": lambda row, _: None if row.memory_ratio is None else row.memory_ratio * 100,
    "temp": lambda row, _: row.temperature_c,
    "age": lambda row, now_s: now_s - row.last_seen_s,
}
"p50 and p99 in ms, fail and mem in percent, temp in degrees Celsius, age in seconds."
ALIASES = {"name": "device", "req": "qps", "rate": "qps", "memory": "mem", "temperature": "temp", "seen": "age"}


@dataclass(frozen=True, slots=True)
class Fields:
    """What can be asked of one kind of value."""

    texts: Mapping[str, Callable[[Any], str]]
    numbers: Mapping[str, Callable[[Any, float], float | None]]
    aliases: Mapping[str, str] = field(default_factory=dict)


ROWS = Fields(TEXT_FIELDS, NUMBER_FIELDS, ALIASES)
EVENTS = Fields(
    texts={"device": lambda e: e.device, "site": lambda e: e.site, "kind": lambda e: e.event.kind,
           "text": lambda e: e.event.text},
    numbers={"age": lambda e, now_s: now_s - e.received_s},
    aliases={"name": "device"},
)  # fmt: skip

_TERM = re.compile(r"(?P<field>[A-Za-z_][A-Za-z_0-9]*)(?P<op>>=|<=|[:=<>])(?P<value>.*)\Z", re.DOTALL)
_NUMBER = re.compile(r"(?P<number>-?\d+(\.\d+)?)(?P<unit>ms|s|m|h|d|%|c)?\Z", re.IGNORECASE)
_AGE_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


@dataclass(frozen=True, slots=True)
class Query:
    """A parsed filter. `matches(value, now_s)` is true for what to keep; the empty filter keeps all."""

    text: str = ""
    tests: tuple[Callable[[Any, float], bool], ...] = ()

    def matches(self, value: Row | FleetEvent, now_s: float) -> bool:
        return all(test(value, now_s) for test in self.tests)


def parse_query(text: str, fields: Fields = ROWS) -> Query:
    """The filter. Raises UsageError that says which term is wrong and what would be right."""
    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace_split, lexer.commenters, lexer.escape = True, "", ""
    try:
        words = list(lexer)
    except ValueError as e:
        raise UsageError(f"filter: {text.strip()}: a quote is not closed") from e
    return Query(text.strip(), tuple(_test(word, fields) for word in words if word != "!"))


def _test(word: str, fields: Fields) -> Callable[[Any, float], bool]:
    if word.startswith("!"):
        inner = _test(word[1:], fields)
        return lambda value, now_s: not inner(value, now_s)
    term = _TERM.match(word)
    if term is None:
        pattern = _regex(word)
        return lambda value, _: any(pattern.search(read(value)) for read in fields.texts.values())
    name, op, value = _field(term["field"].lower(), fields), term["op"], term["value"]
    if name in fields.texts:
        return _text_test(name, fields.texts[name], op, value)
    return _number_test(name, fields.numbers[name], op, value)


def _field(name: str, fields: Fields) -> str:
    name = fields.aliases.get(name, name)
    known = [*fields.texts, *fields.numbers]
    if name not in known:
        near = difflib.get_close_matches(name, [*known, *fields.aliases], n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(known)}"
        raise UsageError(f"filter: no field '{name}'; {hint}")
    return name


def _text_test(field: str, read: Callable[[Any], str], op: str, value: str) -> Callable[[Any, float], bool]:
    if op not in ":=":
        raise UsageError(f"filter: {field} is text; write {field}:{value}")
    if op == "=":
        wanted = value.casefold()
        return lambda row, _: read(row).casefold() == wanted
    pattern = _regex(value)
    return lambda row, _: bool(pattern.search(read(row)))


def _number_test(
    field: str, read: Callable[[Any, float], float | None], op: str, value: str
) -> Callable[[Any, float], bool]:
    if op == ":":
        raise UsageError(f"filter: {field} is a number; write {field}>{value or '50'}")
    match = _NUMBER.match(value)
    if match is None:
        raise UsageError(f"filter: '{value}' after {field}{op} is not a number")
    bound = float(match["number"]) * _scale(field, (match["unit"] or "").lower())
    compare: Callable[[float], bool] = {
        ">": lambda x: x > bound,
        "<": lambda x: x < bound,
        ">=": lambda x: x >= bound,
        "<=": lambda x: x <= bound,
        "=": lambda x: x == bound,
    }[op]

    def test(row: Any, now_s: float) -> bool:
        number = read(row, now_s)
        return number is not None and compare(number)

    return test


def _scale(field: str, unit: str) -> float:
    if field == "age":
        return _AGE_UNITS.get(unit, 1.0)
    return 1000.0 if field in ("p50", "p99") and unit == "s" else 1.0


def _regex(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.IGNORECASE)
    except re.error as e:
        raise UsageError(f"filter: '{pattern}' is not a regular expression: {e}") from e
