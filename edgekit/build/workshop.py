"""What the recipes of one build share, made once and only when asked for; and how a draft becomes an artifact."""

from __future__ import annotations

import importlib.metadata
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import onnx

import edgekit
from edgekit.artifact import Accuracy, Artifact, ArtifactRecord, sha256_of
from edgekit.build import accuracy, graph, inspect, store
from edgekit.build.calibrate import Sample as Feed
from edgekit.build.calibrate import fingerprint
from edgekit.build.quantize import Target, target_of
from edgekit.build.race import race
from edgekit.build.samples import Options, Samples, data_key, gather, settings_for, with_options
from edgekit.build.store import Refusal as Refusal
from edgekit.config import Home
from edgekit.device.cpu import Cpu, read_cpu, usable_cores
from edgekit.device.memory import available_bytes
from edgekit.device.tree import Tree
from edgekit.errors import ArtifactError, UsageError
from edgekit.manifest import Model
from edgekit.pipeline.data import example
from edgekit.runtimes.session import SessionSettings, open_session

Progress = Callable[[str, float], None]
"""Called with what is being done and the share of the whole that is done, 0..1."""
MIB = 1024 * 1024
RUNTIME = "onnxruntime"
NOT_SLOWER = 1.02
"""The noise of a short race."""
AS_WRITTEN = {"session.disable_quant_qdq": "1"}
"""Q/DQ stay nodes of their own and everything between them float. Source: onnxruntime_session_options_config_keys.h."""
RULES = "9"
"""Raised when a recipe makes something else from the same things, so that what was built before is built again."""


class Speed(NamedTuple):
    """Median latency of the standard and of what was made from it, one thread, run in turns on this machine."""

    standard_ms: float
    own_ms: float

    def __str__(self) -> str:
        ratio = self.standard_ms / self.own_ms
        return f"{ratio:.2f}× the standard's here ({self.own_ms:.2f} against {self.standard_ms:.2f} ms, one thread)"


class Draft(NamedTuple):
    """A model about to become an artifact."""

    model: onnx.ModelProto
    recipe: Mapping[str, str]
    calibrated: bool = False
    accuracy: Accuracy | None = None
    "If it has been measured already."
    speed: Speed | None = None
    "If it has been timed already."
    bound_to: Mapping[str, str] = {}
    plan: Mapping[str, str] = {}
    "Both as in the record."


class Workshop:
    """One build of one model. Everything costly is a cached property."""

    def __init__(
        self, model: Model, standard: Artifact, home: Home, cpu: Cpu | None, options: Options, progress: Progress | None
    ) -> None:
        self.model = with_options(model, options)
        self.standard, self.home, self.options = standard, home, options
        own = read_cpu(Tree("/"))
        self.target: Target = target_of(cpu or own)
        self.here = target_of(own).isa
        self._cores = usable_cores()
        self._progress, self._what, self._from, self._to = progress, "", 0.0, 0.0
        self._check_axes()

    def __enter__(self) -> Workshop:
        self._folder = tempfile.TemporaryDirectory(prefix="edgekit-build-")
        self.scratch = Path(self._folder.name)  # goes away with the workshop
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def step(self, what: str, start: float, end: float) -> None:
        """What is being done now, and which part of the whole it is."""
        self._what, self._from, self._to = what, start, end
        self.advance(0.0)

    def advance(self, share: float, what: str | None = None) -> None:
        """`share` of the current step is done; `what` from now on, if it is given."""
        self._what = what or self._what
        if self._progress:
            self._progress(self._what, self._from + share * (self._to - self._from))

    def name(self, recipe: str) -> str:
        """The artifact's name: fixed axes are part of it, since it then serves no other size."""
        fixed = "".join(f"-{axis}{size}" for axis, size in sorted(self.options.axes.items()))
        return recipe + "".join(c if c.isalnum() or c in "_-" else "_" for c in fixed)

    def folder(self, recipe: str) -> Path:
        """Where the artifact of `recipe` lies, or will lie."""
        return self.home.artifacts(self.model.name) / self.name(recipe)

    def _check_axes(self) -> None:
        """Raises UsageError for an axis that the model does not have or that is not dynamic."""
        declared = graph.inputs_of(self.standard.path, self.model.inputs)
        there = sorted({axis for spec in declared for axis in spec.shape if isinstance(axis, str)})
        for axis in self.options.axes:
            if axis not in there:
                raise UsageError(f"--axis {axis}: {self.model.name} has {', '.join(there) or 'no dynamic axes'}")

    @cached_property
    def _key_parts(self) -> dict[str, str]:
        options = self.options
        return {
            "edgekit": edgekit.__version__,
            "standard": self.standard.record.sha256,
            "data": data_key(self.model.data, self.model.folder),
            "labels": sha256_of(options.labels) if options.labels else "",
            "judged": f"{self.model.metric} {self.model.accuracy_floor}",
            "axes": str(sorted(options.axes.items())),
            "method": str(options.method),
            "search": str(options.search_s),
            "target": f"{self.target.isa} {self.target.types}",
            "rules": RULES,
            **tools(),
        }

    def key(self, recipe: str) -> str:
        """The hash of everything that the artifact of `recipe` depends on."""
        return store.key_of({**self._key_parts, "recipe": recipe})

    @cached_property
    def settings(self) -> SessionSettings:
        """How the standard is opened."""
        return settings_for(self.model, self.standard.path, self.options.axes)

    @cached_property
    def _cleaned(self) -> tuple[onnx.ModelProto, dict[str, int], dict[str, str]]:
        size = self.standard.record.size_bytes
        needed, free = 6 * size + 300 * MIB, available_bytes(Tree("/"))
        if free is not None and needed > free:
            problem = f"building needs about {needed // MIB} MiB of memory, {free // MIB} MiB are available"
            raise ArtifactError(self.standard.path, problem)
        notes: list[str] = []
        cleaned, done = self._clean(notes)
        recipe = {"graph": ", ".join(f"{name} ×{count}" for name, count in done.items()) or "nothing to rewrite"}
        if notes:
            recipe["not done"] = "; ".join(notes)
        return cleaned, done, recipe

    def _clean(self, notes: list[str], *, gates: bool = True) -> tuple[onnx.ModelProto, dict[str, int]]:
        model = graph.read_model(self.standard.path)
        places = {
            f"{spec.name}[{i}]": axis if isinstance(axis, int) else self.options.axes.get(axis)
            for spec in graph.inputs_of(self.standard.path, self.model.inputs)
            for i, axis in enumerate(spec.shape)
        }
        axes = {place: size for place, size in places.items() if size is not None}
        return graph.clean(model, self.standard.path, axes, notes, gates=gates)

    @cached_property
    def spelled_out(self) -> onnx.ModelProto:
        """The clean float graph with its gates as they were: for runtimes that recognise them so."""
        return self._clean([], gates=False)[0]

    @property
    def graph(self) -> onnx.ModelProto:
        """The clean float graph. Copy it before changing it."""
        return self._cleaned[0]

    @property
    def graph_recipe(self) -> dict[str, str]:
        """How the clean graph came to be, to start an artifact's recipe with."""
        return dict(self._cleaned[2])

    @property
    def rewrites(self) -> dict[str, int]:
        """What the clean graph differs in from the standard: kind of rewrite -> count."""
        return self._cleaned[1]

    @cached_property
    def samples(self) -> Samples:
        return gather(self.model, self.standard.path, self.options)

    @cached_property
    def calibration_sha256(self) -> str | None:
        return fingerprint(self.samples.feeds) if self.samples.feeds else None

    @cached_property
    def reference(self) -> accuracy.Reference | None:
        """The standard on the evaluation samples; None when there are none."""
        if not self.samples.judged:
            return None
        return accuracy.refer(self.model, self.standard.path, self.quick(self.settings), self.samples.judged)

    @cached_property
    def feed(self) -> Feed:
        """One realistic feed, for timing and for comparing outputs; noise when there is no data at all."""
        if self.samples.feeds:
            return self.samples.feeds[0]
        session = open_session(self.standard.path, self.settings)
        try:
            return example(self.model, session.inputs, self.options.axes)
        finally:
            session.close()

    def on_disk(self, model: onnx.ModelProto, name: str) -> Path:
        """A draft as a file that goes away with the workshop."""
        path = self.scratch / f"{name}.onnx"
        store.write_model(path, model)
        return path

    def opened_as(self, path: Path) -> SessionSettings:
        """How an artifact made here is opened: an axis that it fixes needs no size any more."""
        return settings_for(self.model, path, self.options.axes)

    def measure(self, path: Path, runtime: str = RUNTIME, *, as_written: bool = False) -> Accuracy | None:
        """The artifact at `path` against the standard; None without evaluation data.

        `as_written`: quantised and read back in float, node by node, for artifacts that are not for this CPU: where it
        has no dot product its own integer kernels saturate, which no accelerator's do.
        """
        if self.reference is None:
            return None
        settings = replace(self.quick(self.opened_as(path)), runtime=runtime)
        if as_written:
            settings = replace(settings, session_options={**settings.session_options, **AS_WRITTEN})
        return accuracy.measure(self.reference, path, settings, self.here)

    def time(self, path: Path, runtime: str = RUNTIME) -> Speed:
        """A short race of the artifact at `path` against the standard in onnxruntime, both at the size of the feed."""
        sizes = {f"{name}[{i}]": size for name, value in self.feed.items() for i, size in enumerate(value.shape)}
        settings = [replace(self.settings, axes=sizes), replace(self.settings, axes=sizes, runtime=runtime)]
        return Speed(*race([self.standard.path, path], self.feed, settings, bound=NOT_SLOWER))

    def quick(self, settings: SessionSettings) -> SessionSettings:
        """The same with every usable core: for answers, not for timing."""
        return replace(settings, threads=self._cores)

    def finish(self, recipe: str, precision: str, draft: Draft, key: str) -> Artifact:
        """Write the draft, look at what it holds, measure it, and write its record last."""
        folder, name = self.folder(recipe), self.name(recipe)
        path = folder / f"{name}-{key[:8]}.onnx"
        store.write_model(path, draft.model)
        found = inspect.contents(path, replace(self.opened_as(path), runtime=draft.bound_to.get("runtime", RUNTIME)))
        if precision != "float32":
            inspect.check_int8(path, found)
        measured = draft.accuracy or self.measure(path)
        why = accuracy.why_unfit(measured, self.model.accuracy_floor) if measured else None
        if measured is None and precision != "float32":
            why = "no data to measure its accuracy with: give --calibration FILE.npz"
        size = path.stat().st_size
        speed = draft.speed or self.time(path)
        notes = inspect.findings(found, size_bytes=size, standard_bytes=self.standard.record.size_bytes)
        if speed.own_ms > NOT_SLOWER * speed.standard_ms:
            notes += (f"slower than the standard here: {speed.own_ms:.3g} against {speed.standard_ms:.3g} ms",)
        if self.target.isa != self.here:
            notes += (f"for {self.target.isa}, but its accuracy was measured on {self.here}",)
        record = ArtifactRecord(
            model=self.model.name,
            name=name,
            file=path.name,
            format="onnx",
            precision=precision,
            sha256=sha256_of(path),
            size_bytes=size,
            made_from_sha256=self.standard.record.sha256,
            recipe={store.KEY: key, **draft.recipe, "speed": str(speed)},
            tools=tools(),
            calibration_sha256=self.calibration_sha256 if draft.calibrated else None,
            axes=dict(self.options.axes),
            node_counts=found.node_counts,
            accuracy=measured,
            bound_to=draft.bound_to,
            plan=draft.plan,
            fit=why is None,
            why_unfit=why,
            notes=notes,
        )
        return store.save(folder, record)


def tools() -> dict[str, str]:
    """The distributions that shape an artifact, with their versions."""
    return {name: importlib.metadata.version(name) for name in ("onnx", "onnxruntime")}
