"""One model as its `model.toml` declares it: tensors, steps, source, data, metric. Frozen values, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from edgekit.steps import PostStep, PreStep

Dimension = int | str
"""A fixed size, or the name of a dynamic axis."""


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class TensorSpec(_Table, kw_only=True):
    """A named tensor: numpy dtype name (`float32`, `uint8`, `int64`, …) and shape; a text entry is a dynamic axis."""

    name: str
    dtype: str
    shape: tuple[Dimension, ...]


class Source(_Table, kw_only=True):
    """Where the standard artifact comes from: exactly one of file, url, wheel (+ member)."""

    file: str | None = None
    "Relative to the manifest's folder."
    url: str | None = None
    wheel: str | None = None
    'A pinned requirement, "package==1.2.3".'
    member: str | None = None
    "Path of the file inside the wheel."
    sha256: str
    size_bytes: int
    format: str = "onnx"
    licence: str = ""


class PrebuiltArtifact(_Table, kw_only=True):
    """A further artifact that lies beside the manifest: a float LiteRT twin, a vendor-compiled file."""

    name: str
    file: str
    format: str
    precision: str
    sha256: str
    size_bytes: int
    requires: tuple[str, ...] = ()
    'Shared libraries a delegate needs, "libedgetpu.so.1".'


class Data(_Table, kw_only=True):
    """Calibration and evaluation data: `generator:NAME` (built in), a folder or an .npz beside the manifest."""

    calibration: str | None = None
    evaluation: str | None = None
    calibration_count: int = 32
    evaluation_count: int = 64


class Model(_Table, kw_only=True):
    """A manifest. `inputs` and `outputs` are empty for a user's bare file: the session then says what they are."""

    name: str
    version: str
    task: str
    summary: str = ""
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    axes: Mapping[str, tuple[int, ...]] = {}
    "Allowed values of each named axis; the first is the default. All of them are warmed up."
    state: Mapping[str, str] = {}
    "For stateful models: input tensor -> the output tensor that feeds it at the next step."
    source: Source
    artifacts: tuple[PrebuiltArtifact, ...] = ()
    preprocess: tuple[PreStep, ...] = ()
    postprocess: tuple[PostStep, ...] = ()
    data: Data = Data()
    metric: str | None = None
    accuracy_floor: float = 0.99
    "The least share of the standard's metric that a flash artifact must keep."
    folder: Path = Path()
    "Where the manifest lies; set by the catalog, never in the file."

    def bound_shape(self, spec: TensorSpec, axes: Mapping[str, int] | None = None) -> tuple[int, ...]:
        """`spec.shape` with every named axis bound to `axes`, else to its default.

        Raises KeyError naming an axis that has neither.
        """
        chosen = {name: values[0] for name, values in self.axes.items()} | dict(axes or {})
        return tuple(size if isinstance(size, int) else chosen[size] for size in spec.shape)
