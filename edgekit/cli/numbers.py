"""Numbers of the command line: what is no number, or makes no sense, is refused in one line before any work."""

from __future__ import annotations

from collections.abc import Sequence

from edgekit.errors import UsageError


def above_zero(**flags: float | None) -> None:
    """Each is None (not given) or a finite number above zero. Raises UsageError naming the flag."""
    for name, value in flags.items():
        if value is not None and not 0 < value < float("inf"):
            raise UsageError(f"{_flag(name)} {value:g}: must be a finite number, and more than zero")


def not_below_zero(**flags: float | None) -> None:
    """Each is None (not given) or a finite number of zero or more. Raises UsageError naming the flag."""
    for name, value in flags.items():
        if value is not None and not 0 <= value < float("inf"):
            raise UsageError(f"{_flag(name)} {value:g}: must be a finite number, zero or more")


def within(low: float, high: float, **flags: float | None) -> None:
    """Each is None (not given) or from `low` to `high`. Raises UsageError naming the flag."""
    for name, value in flags.items():
        if value is not None and not low <= value <= high:
            raise UsageError(f"{_flag(name)} {value:g}: must be from {low:g} to {high:g}")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def parse_axes(pairs: Sequence[str]) -> dict[str, int]:
    """`["side=640", "x[0]=1"]` -> {"side": 640, "x[0]": 1}. Raises UsageError."""
    axes = {}
    for pair in pairs:
        name, _, size = pair.rpartition("=")
        if not name or not size.isdecimal() or int(size) < 1:
            raise UsageError(f"--axis {pair}: expected NAME=SIZE with a size of 1 or more, such as side=640")
        axes[name] = int(size)
    return axes
