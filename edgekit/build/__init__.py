"""From a standard artifact to flash artifacts, each measured against it. `build(model, home=…)` is the way in."""

from edgekit.errors import RuntimeUnavailable

try:
    import onnx  # noqa: F401 - here, so that what is missing is said once and not by whichever module comes first
except ImportError as e:
    raise RuntimeUnavailable("onnx", f"building needs it: {e}", "pip install 'edgekit-deploy[build]'") from e

from edgekit.build.recipes import Report, build, report
from edgekit.build.samples import Options

__all__ = ["Options", "Report", "build", "report"]
