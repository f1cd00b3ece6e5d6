"""Carries out a model's declared steps: `preprocess`, `postprocess`, and `run` for the whole way with its times."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.errors import CatalogError, InputError
from edgekit.manifest import Model, TensorSpec
from edgekit.pipeline import audio, boxes, content, image, text
from edgekit.pipeline.answers import Answer, Boxes, Label, Labels, Segments, Tensors, TensorSummary, Text
from edgekit.pipeline.stateful import Run, run_prepared
from edgekit.steps import (
    ContentType,
    Ctc,
    DbBoxes,
    DecodeImage,
    DecodeWav,
    Frames,
    Invert,
    Layout,
    Normalize,
    PreStep,
    Resize,
    Softmax,
    SpeechSegments,
    TopK,
)

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the postprocessing must know of the input. None: the input is of another kind."""

    placement: image.Placement | None = None
    content: content.Content | None = None
    frame_s: float | None = None
    duration_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Input tensors by name. A stateful model's have a leading frame axis; its state and constants are left out."""

    inputs: dict[str, Array]
    context: Context = field(default_factory=Context)
    axes: Mapping[str, int] = field(default_factory=dict)
    "The named axes as bound for this input."


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """An answer and where its time went."""

    answer: Answer
    outputs: dict[str, Array]
    inferences: int
    preprocess_ms: float
    infer_ms: float
    postprocess_ms: float


class Pipeline:
    """The declared steps of one model, with its label files read."""

    def __init__(self, model: Model) -> None:
        self.model = model
        names = {step.labels for step in model.postprocess if isinstance(step, TopK | ContentType)}
        names |= {step.alphabet for step in model.postprocess if isinstance(step, Ctc)}
        if any(isinstance(step, DecodeImage) for step in model.preprocess):
            image.load_pillow()
        self._lines = {name: read_lines(model.folder / name) for name in names}

    def preprocess(self, raw: bytes | Path, *, axes: Mapping[str, int] | None = None) -> Prepared:
        """A file, or its bytes -> tensors. An axis that `axes` leaves free takes its bucket, else its default.

        Raises InputError: not what the model takes.
        """
        data = _read(raw) if isinstance(raw, Path) else raw
        if not self.model.preprocess:
            raise InputError("file", f"{self.model.name} declares no preprocessing: give its tensors as an .npz")
        bound = dict(axes or {})
        value: Any = data
        context = Context()
        for step in self.model.preprocess:
            value, context, bound = self._apply(step, value, context, bound)
        target = next(spec for spec in self.model.inputs if spec.name not in self._own_inputs)
        inputs = {target.name: _as_dtype(value, target)}
        return Prepared(inputs=inputs, context=context, axes=self.model.default_axes | bound)

    def postprocess(self, outputs: Mapping[str, Array], context: Context) -> Answer:
        """Outputs by name -> the answer. For a stateful model each output has a leading frame axis."""
        steps = self.model.postprocess
        if not steps:
            return Tensors(outputs=tuple(_summary(name, value) for name, value in outputs.items()))
        value = np.asarray(outputs[self.model.outputs[0].name], np.float32)
        for step in steps[:-1]:
            if not isinstance(step, Softmax):
                raise CatalogError(self.model.folder / "model.toml", "postprocess", "only the last step may answer")
            value = softmax(value)
        return self._answer(steps[-1], value, context)

    @property
    def _own_inputs(self) -> set[str]:
        return set(self.model.constants) | set(self.model.state)

    def _apply(
        self, step: PreStep, value: Any, context: Context, axes: dict[str, int]
    ) -> tuple[Any, Context, dict[str, int]]:
        """One step; what it learns about the input goes into the context, a chosen bucket into the axes."""
        if isinstance(step, DecodeImage):
            value = image.decode_image(value, step)
            context = Context(placement=image.Placement(width=value.shape[1], height=value.shape[0]))
        elif isinstance(step, Resize):
            axes = self._bind(step, value, axes)
            width, height = (axes[s] if isinstance(s, str) else s for s in (step.width, step.height))
            value, placement = image.resize(value, step, width=width, height=height)
            context = Context(placement=placement)
        elif isinstance(step, Invert):
            value = 255 - value
        elif isinstance(step, Normalize):
            value = image.normalize(value, step)
        elif isinstance(step, Layout):
            value = image.layout(value, step)
        elif isinstance(step, DecodeWav):
            value = audio.decode_wav(value, step.rate_hz)
            context = Context(duration_s=len(value) / step.rate_hz)
        elif isinstance(step, Frames):
            assert context.duration_s is not None
            frame_s = step.size * context.duration_s / len(value)
            context = Context(duration_s=context.duration_s, frame_s=frame_s)
            value = audio.frames(value, step)
        else:
            value, known = content.byte_features(value, step)
            context = Context(content=known)
        return value, context, axes

    def _bind(self, step: Resize, pixels: Array, axes: dict[str, int]) -> dict[str, int]:
        if step.bucket:
            return image.bucket_axes(step, self.model.axes, axes, width=pixels.shape[1], height=pixels.shape[0])
        return self.model.default_axes | axes

    def _answer(self, step: Any, value: Array, context: Context) -> Answer:
        if isinstance(step, Softmax):
            value = softmax(value)
            return Tensors(outputs=(_summary(self.model.outputs[0].name, value),))
        if isinstance(step, TopK):
            names, scores = self._lines[step.labels], value.reshape(-1)
            best = np.argsort(scores)[::-1][: step.k]
            return Labels(labels=tuple(Label(name=names[i], score=float(scores[i])) for i in best))
        if isinstance(step, ContentType):
            assert context.content is not None
            return Labels(
                labels=content.content_type(value.reshape(-1), step, self._lines[step.labels], context.content)
            )
        if isinstance(step, DbBoxes):
            at = context.placement
            assert at is not None
            found = boxes.db_boxes(value.reshape(value.shape[-2:]), step, at)
            return Boxes(width=at.width, height=at.height, boxes=found)
        if isinstance(step, Ctc):
            read, score = text.ctc(value.reshape(value.shape[-2:]), self._lines[step.alphabet])
            return Text(text=read, score=round(score, 4))
        assert isinstance(step, SpeechSegments)
        assert context.frame_s is not None
        assert context.duration_s is not None
        found_speech = audio.speech_segments(
            value.reshape(-1).tolist(), step, frame_s=context.frame_s, duration_s=context.duration_s
        )
        return Segments(duration_s=round(context.duration_s, 3), segments=tuple(found_speech))


def open_pipeline(model: Model) -> Pipeline:
    """The model's declared steps, ready.

    Raises CatalogError (a label file is missing), RuntimeUnavailable (Pillow is missing).
    """
    return Pipeline(model)


def run(pipeline: Pipeline, infer: Run, raw: bytes | Path, *, axes: Mapping[str, int] | None = None) -> Result:
    """The whole way for one input, with the time of each part."""
    started = time.perf_counter()
    prepared = pipeline.preprocess(raw, axes=axes)
    ready = time.perf_counter()
    outputs, inferences = run_prepared(pipeline.model, infer, prepared.inputs)
    done = time.perf_counter()
    answer = pipeline.postprocess(outputs, prepared.context)
    return Result(
        answer=answer,
        outputs=outputs,
        inferences=inferences,
        preprocess_ms=(ready - started) * 1000,
        infer_ms=(done - ready) * 1000,
        postprocess_ms=(time.perf_counter() - done) * 1000,
    )


def softmax(logits: Array) -> Array:
    """Along the last axis; safe for large logits."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    result: Array = powers / powers.sum(axis=-1, keepdims=True)
    return result


def read_lines(path: Path) -> tuple[str, ...]:
    """A label file: one label a line, white space kept (an alphabet holds a space). Raises CatalogError."""
    try:
        return tuple(path.read_text(encoding="utf-8").removesuffix("\n").split("\n"))
    except (OSError, UnicodeDecodeError) as e:
        raise CatalogError(path, None, f"the label file cannot be read: {e}") from e


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as e:
        raise InputError(str(path), f"cannot be read: {e.strerror or e}") from e


def _as_dtype(value: Array, spec: TensorSpec) -> Array:
    dtype = np.dtype(spec.dtype)
    if value.dtype == dtype:
        return value
    if dtype.kind in "iu" and value.dtype.kind == "f":
        limits = np.iinfo(dtype)
        return np.rint(value).clip(limits.min, limits.max).astype(dtype)
    return value.astype(dtype)


def _summary(name: str, value: Array) -> TensorSummary:
    numeric = value.size > 0 and value.dtype.kind in "fiub"
    return TensorSummary(
        name=name,
        dtype=str(value.dtype),
        shape=tuple(value.shape),
        minimum=float(value.min()) if numeric else None,
        maximum=float(value.max()) if numeric else None,
        argmax=int(value.argmax()) if numeric else None,
    )
