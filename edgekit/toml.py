"""TOML files as plain tables, with errors that name the file. Light: the probe starts with it on small boards."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from edgekit.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_table(path: Path, *, error: type[ConfigError] = ConfigError) -> dict[str, Any]:
    """The TOML file as it stands, unchecked. Raises `error` when it cannot be read or is no TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as e:
        raise error(path, None, "no such file") from e
    except (OSError, UnicodeDecodeError) as e:
        raise error(path, None, f"cannot be read: {e}") from e
    except RecursionError as e:
        raise error(path, None, "not TOML: nested too deeply") from e
    except ValueError as e:  # TOMLDecodeError, and what int() says of thousands of digits
        raise error(path, None, f"not TOML: {e}") from e
