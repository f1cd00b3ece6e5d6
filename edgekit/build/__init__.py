"""From a standard artifact to flash artifacts, each measured against it. `build(model, home=…)` is the way in.

Loaded on first use: `edgekit.build.accuracy` must work on a device that has no `onnx` package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgekit.errors import RuntimeUnavailable

if TYPE_CHECKING:
    from edgekit.build.recipes import Report, build, report
    from edgekit.build.samples import Options

__all__ = ["Options", "Report", "build", "report"]


def __getattr__(name: str) -> Any:
    """The public names. Raises RuntimeUnavailable when the `build` extra is not installed."""
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    try:
        import onnx  # noqa: F401 - here, so that what is missing is said once and not by whichever module comes first
    except ImportError as e:
        raise RuntimeUnavailable("onnx", f"building needs it: {e}", "pip install 'edgekit-deploy[build]'") from e
    from edgekit.build import recipes, samples

    return getattr(samples if name == "Options" else recipes, name)
