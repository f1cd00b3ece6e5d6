"""edgekit: one model, many small machines, measured and chosen with reasons."""

from __future__ import annotations

from typing import Any

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
