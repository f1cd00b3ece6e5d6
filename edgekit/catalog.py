"""The boards and models edgekit knows: finds `devices/` and `models/`, in a checkout first, else in the installed copy."""

from __future__ import annotations

from pathlib import Path


def data_folder(name: str) -> Path:
    """The folder `devices` or `models`: beside the package in a checkout, else inside the installed wheel."""
    package = Path(__file__).resolve().parent
    checkout = package.parent / name
    return checkout if (package.parent / "pyproject.toml").is_file() and checkout.is_dir() else package / "_data" / name
