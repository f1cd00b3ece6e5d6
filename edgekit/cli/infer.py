"""`edgekit infer`: one answer for one file, in this process or from a daemon."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.cli.numbers import parse_axes

if TYPE_CHECKING:
    import numpy as np

    from edgekit.cli.infer_run import Facts
    from edgekit.manifest import Model
    from edgekit.pipeline.answers import Answer, Boxes, Text
    from edgekit.pipeline.pipeline import Pipeline, Prepared
    from edgekit.pipeline.stateful import Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a model of the catalog, or your own .onnx or .tflite file")
    parser.add_argument("--input", type=Path, required=True, help="an image, a WAV, any file, or an .npz of tensors")
    parser.add_argument("--output", type=Path, help="image: the boxes drawn; .npz: the output tensors")
    parser.add_argument("--read", metavar="MODEL", help="also read what is in each box, such as with ocr-recognizer")
    parser.add_argument(
        "--artifact", help="which artifact to run here (default: the one selected before, else the standard)"
    )
    parser.add_argument("--url", help="ask the daemon at this address, such as http://127.0.0.1:8080")
    parser.add_argument("--token-file", type=Path, help="the daemon's bearer token")
    parser.add_argument("--axis", action="append", default=[], metavar="NAME=SIZE", help="the size of a dynamic axis")
    parser.add_argument("--offline", action="store_true", help="never download the model")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def run(args: argparse.Namespace) -> int:
    import msgspec

    from edgekit.catalog import load_model
    from edgekit.errors import UsageError
    from edgekit.pipeline.pipeline import open_pipeline

    if args.url and args.artifact:
        raise UsageError("--artifact chooses for this process; with --url the daemon has chosen")
    model = load_model(args.model)
    axes = allowed_axes(args.axis, model)
    check_boxes(args.output, args.read, model)
    pipeline = open_pipeline(model)
    started = time.perf_counter()
    prepared = prepare(pipeline, args.input, axes)
    preprocess_ms = _since_ms(started)
    outputs, facts = _infer(args, model, prepared, axes)
    started = time.perf_counter()
    answer = pipeline.postprocess(outputs, prepared.context)
    facts |= {"preprocess_ms": preprocess_ms, "postprocess_ms": _since_ms(started)}
    texts = None
    if args.read:
        texts, facts["read_ms"] = _read_boxes(args, answer)  # type: ignore[arg-type]  # check_boxes saw to it
    if args.output:
        _write(args.output, args.input, answer, outputs)
    if args.json:
        value: dict[str, Any] = {"model": model.name, "answer": answer} | ({"texts": texts} if args.read else {})
        value |= {name: round(fact, 3) if isinstance(fact, float) else fact for name, fact in facts.items()}
        print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
        return 0
    from edgekit.cli.infer_text import describe, times

    print(describe(answer, texts))
    print(times(facts), file=sys.stderr)
    return 0


def allowed_axes(pairs: list[str], model: Model) -> dict[str, int]:
    """The sizes given with --axis. Raises UsageError also for what the manifest does not allow."""
    from edgekit.errors import UsageError

    axes = parse_axes(pairs)
    for name, size in axes.items():
        if model.inputs and size not in model.axes.get(name, ()):
            allowed = "; ".join(f"{axis}: {', '.join(map(str, sizes))}" for axis, sizes in model.axes.items())
            raise UsageError(f"--axis {name}={size}: {model.name} has {allowed or 'no dynamic axes'}")
    return axes


def check_boxes(output: Path | None, read: str | None, model: Model) -> None:
    """Drawing and reading need boxes. Raises UsageError before any work is done for nothing."""
    from edgekit.errors import UsageError
    from edgekit.steps import DbBoxes

    finds_boxes = bool(model.postprocess) and isinstance(model.postprocess[-1], DbBoxes)
    if read and not finds_boxes:
        raise UsageError(f"--read {read}: {model.name} finds no boxes to read")
    if output is None or output.suffix == ".npz":
        return
    if not finds_boxes:
        raise UsageError(f"--output {output}: {model.name} finds no boxes to draw; an .npz takes its output tensors")
    if output.suffix.lower() not in (".png", ".jpg", ".jpeg", ".bmp", ".webp"):
        raise UsageError(f"--output {output}: expected .png, .jpg, .bmp, .webp or .npz")


def prepare(pipeline: Pipeline, path: Path, axes: Mapping[str, int]) -> Prepared:
    """The file through the declared steps; an .npz as the tensors that it holds. Raises UsageError."""
    from edgekit.errors import CatalogError, InputError, UsageError
    from edgekit.pipeline.data import read_npz
    from edgekit.pipeline.pipeline import Prepared

    try:
        if path.suffix == ".npz":
            return Prepared(inputs=read_npz(path), axes=axes)
        return pipeline.preprocess(path, axes=axes)
    except (CatalogError, InputError) as e:
        raise UsageError(f"--input {path}: {e.problem}") from e


def _infer(
    args: argparse.Namespace, model: Model, prepared: Prepared, axes: Mapping[str, int]
) -> tuple[dict[str, np.ndarray[Any, Any]], Facts]:
    from edgekit.errors import InputError, UsageError
    from edgekit.pipeline.stateful import run_prepared

    raw = prepared.inputs if args.input.suffix == ".npz" else None
    with _open(args, model, raw, prepared.axes or axes, args.artifact) as (infer, facts):
        started = time.perf_counter()
        try:
            if raw is not None and not raw.keys().isdisjoint(model.state):
                outputs, facts["inferences"] = infer(raw), 1  # one frame with its state, given whole
            else:
                outputs, facts["inferences"] = run_prepared(model, infer, prepared.inputs)
        except InputError as e:
            raise UsageError(f"--input {args.input}: {e.name}: {e.problem}") from e
        facts["round_trip_ms" if args.url else "infer_ms"] = _since_ms(started)
    return outputs, facts


def _open(
    args: argparse.Namespace, model: Model, raw: Any, axes: Mapping[str, int], artifact: str | None
) -> AbstractContextManager[tuple[Run, Facts]]:
    from edgekit.cli.infer_run import at_daemon, here

    if args.url:
        return at_daemon(model, args.url, args.token_file)
    return here(model, raw, artifact=artifact, axes=axes, offline=args.offline)


def _read_boxes(args: argparse.Namespace, answer: Boxes) -> tuple[list[Text], float]:
    """(the text in each box, the time for all of them in milliseconds). Raises UsageError."""
    from edgekit.catalog import load_model
    from edgekit.cli.infer_run import open_axes
    from edgekit.errors import UsageError
    from edgekit.pipeline import pipeline as pipelines
    from edgekit.pipeline.crop import crop_boxes
    from edgekit.steps import Ctc

    model = load_model(args.read)
    if not (model.postprocess and isinstance(model.postprocess[-1], Ctc)):
        raise UsageError(f"--read {args.read}: it reads no text; try ocr-recognizer")
    reader = pipelines.open_pipeline(model)
    with _open(args, model, None, open_axes(model), None) as (infer, _):
        started = time.perf_counter()
        lines = crop_boxes(args.input.read_bytes(), answer)
        texts: Any = [pipelines.run(reader, infer, line).answer for line in lines]
        return texts, _since_ms(started)


def _write(path: Path, source: Path, answer: Answer, outputs: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Raises UsageError when the file cannot be written."""
    import io

    from edgekit.errors import UsageError
    from edgekit.files import write_atomic

    if path.suffix == ".npz":
        import numpy as np

        buffer = io.BytesIO()
        np.savez(buffer, **outputs)  # type: ignore[arg-type]
        data = buffer.getvalue()
    else:
        from edgekit.pipeline.answers import Boxes
        from edgekit.pipeline.draw import draw_boxes

        assert isinstance(answer, Boxes)
        data = draw_boxes(source.read_bytes(), answer, path.suffix)
    try:
        write_atomic(path, data)
    except OSError as e:
        raise UsageError(f"--output {path}: cannot be written: {e.strerror or e}") from e


def _since_ms(started: float) -> float:
    return (time.perf_counter() - started) * 1000
