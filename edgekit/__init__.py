"""edgekit: one model, many small machines, measured and chosen with reasons."""

from __future__ import annotations

import os
from typing import Any

# From 1.29 on, onnxruntime for Linux keeps a database of what it runs in the user's cache and sends it to its vendor.
# A device reports to its own fleet and to nobody else; who wants the other sets it to 0. Here, since it is read once,
# when onnxruntime is first imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__version__ = "0.1.0"
__all__ = ["Engine", "__version__"]


def __getattr__(name: str) -> Any:
    """`Engine`, loaded when it is asked for: importing edgekit loads neither numpy nor a runtime."""
    if name == "Engine":
        from importlib import import_module

        return import_module("edgekit.serve.embed").Engine
    raise AttributeError(f"module 'edgekit' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
