"""Which inputs count the items of a query along their first axis, and which batch sizes are worth measuring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgekit.artifact import Artifact
from edgekit.manifest import Dimension, Model, TensorSpec
from edgekit.runtimes.onnx_header import read_header

SIZES = (1, 2, 4, 8, 16, 32)
"""Few: what a larger batch gains shrinks with every doubling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAxis:
    """The first axis of some inputs."""

    inputs: tuple[str, ...]
    allowed: tuple[int, ...] | None = None
    "Sizes that the manifest declares. None: any."

    def sizes(self, wanted: Sequence[int]) -> tuple[int, ...]:
        """Those of `wanted` that may be, ascending."""
        return tuple(size for size in sorted(set(wanted)) if self.allowed is None or size in self.allowed)


def batch_axis(model: Model, artifact: Artifact, axes: Mapping[str, int] | None = None) -> BatchAxis | None:
    """The axis that counts the items of a query, where manifest and artifact leave it open; None: one item at a time.

    It is the first one, shared by every input that has axes. A manifest that fixes it at one does not speak against
    batches: it says what a request is. Whether several items at once are answered as each alone is for the run to
    show. A stateful model's next query needs its last answer, so it has none.

    Args:
        axes: sizes that the user gave; among them this axis is no longer open.

    Raises ArtifactError for a file that is damaged.
    """
    declared = _shared(model.inputs)
    if model.is_stateful or (model.inputs and declared is None) or declared in artifact.record.axes:
        return None
    specs = read_header(artifact.path).inputs if artifact.record.format == "onnx" else model.inputs
    own = _shared(specs)
    if not isinstance(own, str) or (isinstance(declared, int) and declared != 1):
        return None
    inputs = tuple(spec.name for spec in specs if spec.shape)
    if not {own, declared, *(f"{name}[0]" for name in inputs)}.isdisjoint(axes or ()):
        return None
    return BatchAxis(inputs=inputs, allowed=model.axes.get(declared) if isinstance(declared, str) else None)


def why_one_item(model: Model) -> str:
    """Of a model nothing of which takes batches here."""
    return "it keeps state from query to query" if model.is_stateful else "the first axis of its inputs is fixed"


def _shared(specs: Sequence[TensorSpec]) -> Dimension | None:
    """The first axis that all have which have any; None where they differ, or there are none."""
    leading = {spec.shape[0] for spec in specs if spec.shape}
    return leading.pop() if len(leading) == 1 else None
