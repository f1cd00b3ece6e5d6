"""One model as its `model.toml` declares it: tensors, steps, source, data, metric. Frozen values, no I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from edgekit.steps import PostStep, PreStep

METRICS = ("top1", "text", "boxes", "auc", "spearman", "agreement")
"""Each is higher-is-better with 1.0 as perfect; `pipeline.metrics` says how each is computed."""

_PINNED = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.+!_-]+$")
_SHA256 = re.compile(r"^[0-9a-f]{64}$")

Dimension = int | str
"""A fixed size, or the name of a dynamic axis."""


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class TensorSpec(_Table, frozen=True, kw_only=True):
    """A named tensor: numpy dtype name (`float32`, `uint8`, `int64`, …) and shape; a text entry is a dynamic axis.

    An input's axes have their sizes in the manifest's `axes`; an output may name further ones that follow from them.
    """

    name: str
    dtype: str
    shape: tuple[Dimension, ...]


class Source(_Table, frozen=True, kw_only=True):
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
    precision: str = "float32"
    licence: str = ""


class PrebuiltArtifact(_Table, frozen=True, kw_only=True):
    """A further artifact that lies beside the manifest: a float LiteRT twin, a vendor-compiled file."""

    name: str
    file: str
    format: str
    precision: str
    sha256: str
    size_bytes: int
    requires: tuple[str, ...] = ()
    'Shared libraries a delegate needs, "libedgetpu.so.1".'


class Data(_Table, frozen=True, kw_only=True):
    """Calibration and evaluation data: `generator:NAME` (built in), an .npz or a folder, relative to the manifest.

    An .npz holds one array per input with a leading sample axis, and optionally `labels`. A folder holds files as
    `infer` takes them: `<label>/<file>`, or unlabelled files directly.
    """

    calibration: str | None = None
    evaluation: str | None = None
    calibration_count: int = 32
    evaluation_count: int = 64


class Model(_Table, frozen=True, kw_only=True):
    """A manifest. `inputs` and `outputs` are empty for a user's bare file: the session then says what they are."""

    name: str
    version: str
    task: str
    summary: str = ""
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    axes: Mapping[str, tuple[int, ...]] = {}
    "Allowed values of each named axis; the first is the default. All of them are warmed up."
    constants: Mapping[str, int | float] = {}
    "Inputs that are always the same: name -> value."
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
        chosen = self.default_axes | dict(axes or {})
        return tuple(size if isinstance(size, int) else chosen[size] for size in spec.shape)

    @property
    def default_axes(self) -> dict[str, int]:
        """The first allowed value of every named axis."""
        return {name: values[0] for name, values in self.axes.items()}

    @property
    def is_stateful(self) -> bool:
        """True when an answer takes many inferences, each fed with the state that the one before left."""
        return bool(self.state)


def problem_in(model: Model) -> tuple[str, str] | None:
    """What the types of a manifest cannot say: the (key, problem) of the first fault, or None."""
    places = [name for name in ("file", "url", "wheel") if getattr(model.source, name) is not None]
    if len(places) != 1:
        found = " and ".join(places) or "none"
        return "source", f"needs exactly one of file, url, wheel; has {found}"
    if (model.source.wheel is None) != (model.source.member is None):
        return "source.member", "wheel and member go together"
    if model.source.url is not None and not _is_address(model.source.url):
        return "source.url", f"'{model.source.url}' is not an address such as https://host/model.onnx"
    if model.source.wheel is not None and not _PINNED.match(model.source.wheel):
        return "source.wheel", f"'{model.source.wheel}' is not a pinned requirement such as package==1.2.3"
    hashes = (("source.sha256", model.source.sha256), *((f"artifacts.{a.name}", a.sha256) for a in model.artifacts))
    for key, sha256 in hashes:
        if not _SHA256.match(sha256):
            return key, "sha256 must be 64 lower-case hexadecimal digits"
    if model.metric is not None and model.metric not in METRICS:
        return "metric", f"'{model.metric}' is unknown; edgekit knows {', '.join(METRICS)}"
    return _tensor_problem(model)


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.scheme and parts.hostname) and (parts.port or 1) > 0 and url.isprintable() and " " not in url
    except ValueError:  # a port or an IPv6 address that is none
        return False


def _tensor_problem(model: Model) -> tuple[str, str] | None:
    for spec in model.inputs:
        for size in spec.shape:
            if isinstance(size, str) and size not in model.axes:
                return f"axes.{size}", f"required: input '{spec.name}' has this named axis"
    for name, values in model.axes.items():
        if not values or min(values) < 1:
            return f"axes.{name}", "needs at least one size, each 1 or more"
    inputs = {spec.name for spec in model.inputs}
    outputs = {spec.name for spec in model.outputs}
    for key, names, known in (
        ("constants", model.constants.keys(), inputs),
        ("state", model.state.keys(), inputs),
        ("state", model.state.values(), outputs),
    ):
        for name in names:
            if name not in known:
                return key, f"no tensor '{name}' is declared; there are {', '.join(sorted(known)) or 'none'}"
    return None
