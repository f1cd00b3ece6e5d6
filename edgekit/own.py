"""What is the device's own in a configuration and not the release's: its name, its address, its broker and credentials.

One release serves many devices, so what tells them apart lies beside the slots and survives every update.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgekit.config import DaemonConfig, check_daemon_config
from edgekit.errors import ConfigError
from edgekit.strict import convert
from edgekit.toml import read_table

CONFIG, OWN = "edgekit.toml", "device.toml"
"""In a slot, and in the folder that both slots share."""
_KEYS = ("site", "device", "http", "mqtt")


def load_device_config(path: Path, own: Path | None) -> DaemonConfig:
    """The release's `path` with what the device's `own` file says of itself, if it has one; the device's word wins.

    Raises ConfigError naming the file at fault.
    """
    table = read_table(path)
    convert(table, DaemonConfig, path=path)
    if own is None or not own.exists():
        return check_daemon_config(convert(table, DaemonConfig, path=path), path)
    mine = read_table(own)
    if stranger := next((key for key in mine if key not in _KEYS), None):
        raise ConfigError(own, stranger, f"is the release's to say; a device's own are {', '.join(_KEYS)}")
    convert(mine, DaemonConfig, path=own)
    return check_daemon_config(convert(_over(table, mine), DaemonConfig, path=path), own)


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """`below` with the keys of `above`, section by section."""
    both = dict(below)
    for key, value in above.items():
        both[key] = {**below.get(key, {}), **value} if isinstance(value, dict) else value
    return both
