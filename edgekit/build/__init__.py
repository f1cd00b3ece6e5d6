"""From a standard artifact to flash artifacts, each measured against it. `build(model, home=…)` is the way in."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgekit.build.recipes import Report, build, report
    from edgekit.build.samples import Options

__all__ = ["Options", "Report", "build", "report"]

_HOMES = {"Report": "recipes", "build": "recipes", "report": "recipes", "Options": "samples"}


def __getattr__(name: str) -> Any:
    """The names above, imported when asked for: a device verifies accuracy without the build extra's onnx."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
