"""How an alert leaves the screen: the terminal's bell, or the desktop's notification where the terminal makes one."""

from __future__ import annotations

from collections.abc import Sequence

from edgekit_tui import draw
from edgekit_tui.alerts import Alert
from edgekit_tui.draw import UNICODE

WAYS = ("bell", "osc9", "osc777", "none")
"osc9: iTerm2, Windows Terminal, kitty, WezTerm; osc777: urxvt, foot, Ghostty, VTE."
CELLS = 120
BELL, ESCAPE, END = "\a", "\x1b]", "\x1b\\"


def sequence(way: str, alerts: Sequence[Alert]) -> str:
    """What is written to the terminal for these new alerts; nothing for none."""
    if not alerts or way == "none":
        return ""
    if way == "bell":
        return BELL
    first, more = alerts[0], len(alerts) - 1
    text = f"{first.rule}: {first.device} {first.text}" + (f", and {more} more" if more else "")
    # a semicolon parts the fields of the sequence; what else could end it early is no text to `clean`
    text = draw.fit(text.replace(";", ","), CELLS, UNICODE).rstrip()
    return f"{ESCAPE}9;{text}{END}" if way == "osc9" else f"{ESCAPE}777;notify;edgekit;{text}{END}"
