"""The command line behind `:`: words, their aliases, and what each does. Pure."""

from __future__ import annotations

import difflib
import shlex
from dataclasses import dataclass

from edgekit.errors import UsageError
from edgekit_tui.places import ALERTS, ALIASES, DEVICES, EVENTS, MODELS, OVERVIEW, RELEASES

PLACES = (OVERVIEW, DEVICES, MODELS, EVENTS, RELEASES, ALERTS)


@dataclass(frozen=True, slots=True)
class Word:
    """One word of the command line."""

    name: str
    what: str
    argument: str = ""
    "Its name for people; empty: it takes none. In brackets: it may be left out."
    aliases: tuple[str, ...] = ()


WORDS = (
    *(Word(name, f"go to {name}", aliases=tuple(a for a, to in ALIASES.items() if to == name)) for name in PLACES),
    Word("device", "open a device", "NAME"),
    Word("model", "open a model", "NAME"),
    Word("filter", "filter the devices", "TERMS"),
    Word("back", "where one was before"),
    Word("ping", "ask for a sign of life; 'all' asks every device that is listed", "[all]"),
    Word("rebirth", "have a device introduce itself again", "[all]"),
    Word("send", "any verb that the device's birth allows", "VERB [all] [key=value ...]"),
    Word("ack", "acknowledge every alert"),
    Word("pause", "stand still, or go on with the present"),
    Word("ago", "look at the fleet as it was", "90s, 10m or 2h"),
    Word("scale", "latency plots: linear or logarithmic"),
    Word("export", "write the listed devices as .csv or .json", "FILE"),
    Word("screenshot", "write this screen as a picture", "FILE.svg"),
    Word("theme", "change the colours", "NAME"),
    Word("help", "keys, filter and symbols", aliases=("h", "?")),
    Word("quit", "leave the console", aliases=("q", "q!")),
)


@dataclass(frozen=True, slots=True)
class Request:
    """One command line, understood."""

    name: str
    rest: str = ""


def parse_command(text: str) -> Request:
    """The request. Raises UsageError for an unknown word, or an argument missing or too many."""
    name, _, rest = text.strip().removeprefix(":").strip().partition(" ")
    rest = rest.strip()
    known = {alias: word for word in WORDS for alias in (word.name, *word.aliases)}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(word.name for word in WORDS)}"
        raise UsageError(f"no command '{name}'; {hint}")
    word = known[name]
    if word.argument and not rest and not word.argument.startswith("["):
        raise UsageError(f"{word.name}: write  :{word.name} {word.argument}")
    if rest and not word.argument:
        raise UsageError(f"{word.name} takes no argument")
    return Request(word.name, rest)


def parse_send(rest: str) -> tuple[str, bool, dict[str, str]]:
    """Verb, whether every listed device is meant, and arguments. Raises UsageError."""
    try:
        verb, *words = shlex.split(rest)
    except ValueError as e:
        raise UsageError("send: write  :send VERB [all] [key=value ...]") from e
    args: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if word == "all":
            continue
        if not equals or not key:
            raise UsageError(f"send: '{word}' is neither all nor key=value")
        args[key] = value
    return verb, "all" in words, args


def suggestions() -> list[str]:
    """What the command line completes to."""
    return [word.name for word in WORDS]
