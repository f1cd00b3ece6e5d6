"""How a slot says that it is to be started: `launch.json`, written when it is staged. Standard library only."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NamedTuple

SCHEMA = 1
FILE = "launch.json"


class Launch(NamedTuple):
    """How a release is started: `launch.json` in its slot.

    In `run`, `check` and the values of `env`, {root}, {slot} and {python} stand for those paths; in `check` {pid}
    for the daemon's process.
    """

    run: list[str]
    check: list[str] | None
    env: dict[str, str]
    ready_s: float
    check_s: float
    soak_s: float
    stop_s: float


def read_launch(root: Path, slot: str) -> Launch:
    """Raises OSError, ValueError, KeyError or TypeError when the slot does not say how."""
    table = json.loads((root / slot / FILE).read_text(encoding="utf-8"))
    if table["schema"] > SCHEMA:
        raise ValueError(f"launch.json has schema {table['schema']}, this guard reads {SCHEMA}")
    paths = {"{root}": str(root), "{slot}": str(root / slot), "{python}": sys.executable}

    def filled(word: str) -> str:
        for name, path in paths.items():
            word = word.replace(name, path)
        return word

    return Launch(
        [filled(word) for word in table["run"]],
        [filled(word) for word in table["check"]] if table.get("check") else None,
        {name: filled(value) for name, value in table.get("env", {}).items()},
        float(table["ready_s"]),
        float(table["check_s"]),
        float(table["soak_s"]),
        float(table["stop_s"]),
    )
