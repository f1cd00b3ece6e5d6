"""Where a device looks for updates: `updater.json`, written when it is provisioned."""

from __future__ import annotations

from pathlib import Path

import msgspec

from edgekit.files import write_atomic
from edgekit.strict import read_json

FILE = "updater.json"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Unknown keys are of newer releases and are ignored."""

    repository: str | None = None
    "http(s):// or file://"
    group: str = "default"
    bytes_per_s: float | None = None
    jitter_s: float = 0.0
    "Wait up to so long first, so that a fleet does not come all at once."


def read_settings(root: Path) -> Settings:
    """The defaults when the device was given none. Raises ConfigError."""
    path = root / FILE
    return read_json(path, Settings) if path.exists() else Settings()


def write_settings(root: Path, settings: Settings) -> None:
    write_atomic(root / FILE, msgspec.json.format(msgspec.json.encode(settings), indent=1))
