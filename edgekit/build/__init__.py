"""From a standard artifact to flash artifacts, each measured against it. `build(model, home=…)` is the way in."""

from edgekit.build.recipes import Report, build, report
from edgekit.build.samples import Options

__all__ = ["Options", "Report", "build", "report"]
