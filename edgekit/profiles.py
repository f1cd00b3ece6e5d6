"""Where the data files lie, and the board profiles as plain tables: all that the probe needs of the catalog."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgekit.errors import CatalogError
from edgekit.toml import read_table


def data_folder(name: str) -> Path:
    """The folder `devices` or `models`: beside the package in a checkout, else inside the installed wheel."""
    package = Path(__file__).resolve().parent
    checkout = package.parent / name
    return checkout if (package.parent / "pyproject.toml").is_file() and checkout.is_dir() else package / "_data" / name


def board_tables() -> tuple[dict[str, Any], ...]:
    """Every board profile as its file holds it, unchecked; `edgekit.catalog.load_boards` gives checked values.

    Raises CatalogError for a file that is no TOML.
    """
    return tuple(read_table(path, error=CatalogError) for path in sorted(data_folder("devices").glob("*.toml")))
