"""`edgekit infer`: one answer for one file, in this process or from a daemon."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from edgekit.artifact import Artifact
    from edgekit.manifest import Model
    from edgekit.pipeline.answers import Answer
    from edgekit.pipeline.pipeline import Prepared

    Infer = Callable[[Mapping[str, np.ndarray[Any, Any]]], dict[str, np.ndarray[Any, Any]]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a model of the catalog, or your own .onnx or .tflite file")
    parser.add_argument("--input", type=Path, required=True, help="an image, a WAV, any file, or an .npz of tensors")
    parser.add_argument("--output", type=Path, help="image: the boxes drawn; .npz: the output tensors")
    parser.add_argument("--artifact", help="which artifact to run here (default: standard)")
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
    axes = parse_axes(args.axis, model)
    check_output(args.output, model)
    pipeline = open_pipeline(model)
    started = time.perf_counter()
    prepared = _prepare(model, args.input, axes)
    preprocess_ms = (time.perf_counter() - started) * 1000
    if args.url:
        outputs, facts = _ask_daemon(model, prepared, args.url, args.token_file)
    else:
        outputs, facts = _run_here(model, prepared, args, axes)
    started = time.perf_counter()
    answer = pipeline.postprocess(outputs, prepared.context)
    facts |= {"preprocess_ms": preprocess_ms, "postprocess_ms": (time.perf_counter() - started) * 1000}
    facts = {name: round(value, 3) if isinstance(value, float) else value for name, value in facts.items()}
    if args.output:
        _write(args.output, args.input, answer, outputs)
    if args.json:
        value = {"model": model.name, "answer": msgspec.to_builtins(answer), **facts}
        print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
        return 0
    print(describe(answer))
    print(times(facts), file=sys.stderr)
    return 0


def parse_axes(pairs: list[str], model: Model) -> dict[str, int]:
    """`["side=640"]` -> {"side": 640}. Raises UsageError for what the manifest does not allow."""
    from edgekit.errors import UsageError

    axes = {}
    for pair in pairs:
        name, _, size = pair.rpartition("=")
        if not name or not size.isdigit() or int(size) < 1:
            raise UsageError(f"--axis {pair}: expected NAME=SIZE with a size of 1 or more, such as side=640")
        axes[name] = int(size)
        if model.inputs and int(size) not in model.axes.get(name, ()):
            allowed = "; ".join(f"{axis}: {', '.join(map(str, sizes))}" for axis, sizes in model.axes.items())
            raise UsageError(f"--axis {pair}: {model.name} has {allowed or 'no dynamic axes'}")
    return axes


def check_output(path: Path | None, model: Model) -> None:
    """Raises UsageError before any work is done for nothing."""
    from edgekit.errors import UsageError
    from edgekit.steps import DbBoxes

    if path is None or path.suffix == ".npz":
        return
    if not (model.postprocess and isinstance(model.postprocess[-1], DbBoxes)):
        raise UsageError(f"--output {path}: {model.name} finds no boxes to draw; an .npz takes its output tensors")
    if path.suffix.lower() not in (".png", ".jpg", ".jpeg", ".bmp", ".webp"):
        raise UsageError(f"--output {path}: expected .png, .jpg, .bmp, .webp or .npz")


def _prepare(model: Model, path: Path, axes: Mapping[str, int]) -> Prepared:
    """The file through the declared steps; an .npz as the tensors that it holds."""
    from edgekit.errors import CatalogError, InputError, UsageError
    from edgekit.pipeline.data import read_npz
    from edgekit.pipeline.pipeline import Prepared, open_pipeline

    if path.suffix == ".npz":
        try:
            arrays = read_npz(path)
        except CatalogError as e:
            raise UsageError(f"--input {path}: {e.problem}") from e
        return Prepared(inputs=arrays, axes=axes)
    try:
        return open_pipeline(model).preprocess(path, axes=axes)
    except InputError as e:
        raise UsageError(f"--input {path}: {e.problem}") from e


def _run_here(
    model: Model, prepared: Prepared, args: argparse.Namespace, axes: Mapping[str, int]
) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
    """(outputs, what ran and how long it took)."""
    from edgekit.bench.candidates import candidates
    from edgekit.cli.progress import bytes_bar
    from edgekit.config import home
    from edgekit.device.cpu import usable_cores
    from edgekit.errors import RuntimeUnavailable, UsageError
    from edgekit.fetch import all_artifacts
    from edgekit.pipeline.stateful import run_prepared
    from edgekit.runtimes.session import open_session

    with bytes_bar(f"fetching {model.name}") as bar:
        artifacts = all_artifacts(model, home(), offline=args.offline, progress=bar)
    wanted = args.artifact or "standard"
    artifact = next((a for a in artifacts if a.record.name == wanted), None)
    if artifact is None:
        raise UsageError(f"--artifact {wanted}: {model.name} has {', '.join(a.record.name for a in artifacts)}")
    _check_names(args.input, prepared, model, artifact)
    cores = usable_cores()
    found = candidates(model, [artifact], cores=cores, threads=[cores], axes=_session_axes(model, prepared, axes))
    if not found:
        mend = f"pip install {'onnxruntime' if artifact.record.format == 'onnx' else 'ai-edge-litert'}"
        raise RuntimeUnavailable(artifact.record.format, f"no installed runtime reads {artifact.path.name}", mend)
    settings = found[0].settings
    started = time.perf_counter()
    session = open_session(artifact.path, settings)
    load_ms = (time.perf_counter() - started) * 1000
    try:
        started = time.perf_counter()
        if prepared.inputs.keys() == {spec.name for spec in session.inputs}:
            outputs, count = session.run(prepared.inputs), 1
        else:
            outputs, count = run_prepared(model, session.run, prepared.inputs)
        infer_ms = (time.perf_counter() - started) * 1000
    finally:
        session.close()
    facts = {"artifact": wanted, "runtime": settings.runtime, "threads": cores, "inferences": count}
    return outputs, {**facts, "load_ms": load_ms, "infer_ms": infer_ms}


def _check_names(path: Path, prepared: Prepared, model: Model, artifact: Artifact) -> None:
    """An .npz with other names fails here and not as an axis that does not exist. Raises UsageError."""
    from edgekit.errors import UsageError
    from edgekit.runtimes.onnx_header import read_header

    if path.suffix != ".npz" or artifact.record.format != "onnx":
        return
    names = {spec.name for spec in read_header(artifact.path).inputs}
    given = set(prepared.inputs)
    if given not in (names, names - set(model.constants) - set(model.state)):
        takes = ", ".join(sorted(names))
        raise UsageError(f"--input {path}: holds {', '.join(sorted(given)) or 'nothing'}; {model.name} takes {takes}")


def _session_axes(model: Model, prepared: Prepared, axes: Mapping[str, int]) -> dict[str, int]:
    """The axes that the prepared tensors have; for tensors from an .npz, what their shapes say."""
    if model.inputs:
        return dict(prepared.axes)
    sizes = {f"{name}[{i}]": size for name, value in prepared.inputs.items() for i, size in enumerate(value.shape)}
    return sizes | dict(axes)


def _ask_daemon(
    model: Model, prepared: Prepared, url: str, token_file: Path | None
) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
    from edgekit.errors import UsageError
    from edgekit.pipeline.stateful import run_prepared
    from edgekit.serve.client import Client

    try:
        token = token_file.read_text(encoding="utf-8").strip() if token_file else None
    except OSError as e:
        raise UsageError(f"--token-file {token_file}: cannot be read: {e.strerror}") from e
    facts: dict[str, Any] = {"url": url}
    with Client(url, token=token) as client:

        def infer(inputs: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
            outputs, parameters = client.infer(model.name, inputs)
            facts.update(parameters)
            return outputs

        started = time.perf_counter()
        outputs, facts["inferences"] = run_prepared(model, infer, prepared.inputs)
        facts["round_trip_ms"] = (time.perf_counter() - started) * 1000
    return outputs, facts


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


def describe(answer: Answer) -> str:
    """The answer as a person reads it."""
    from edgekit.pipeline.answers import Boxes, Labels, Segments, Text

    if isinstance(answer, Boxes):
        rows = [f"{len(answer.boxes)} boxes in {answer.width} x {answer.height} pixels"]
        for box in answer.boxes:
            corners = "  ".join(f"{x:6.1f},{y:6.1f}" for x, y in box.polygon)
            rows.append(f"  {box.score:.2f}  {corners}")
        return "\n".join(rows)
    if isinstance(answer, Text):
        return f"{answer.text}  ({answer.score:.2f})" if answer.text else "(no text)"
    if isinstance(answer, Labels):
        likely = [label for i, label in enumerate(answer.labels) if i == 0 or label.score >= 0.001]
        return "\n".join(f"{label.score:7.1%}  {label.name}" for label in likely)
    if isinstance(answer, Segments):
        spoken_s = sum(s.end_s - s.start_s for s in answer.segments)
        rows = [f"{spoken_s:.2f} s of speech in {answer.duration_s:.2f} s"]
        return "\n".join(rows + [f"  {s.start_s:8.2f} s - {s.end_s:8.2f} s" for s in answer.segments])
    return "\n".join(
        f"{o.name}: {o.dtype} {list(o.shape)}"
        + ("" if o.minimum is None else f", {o.minimum:.6g} to {o.maximum:.6g}, largest at {o.argmax}")
        for o in answer.outputs
    )


def times(facts: Mapping[str, Any]) -> str:
    """One line: what ran, and where the time went."""
    where = (
        f"{facts['artifact']} on {facts['runtime']}, {facts['threads']} threads" if "runtime" in facts else facts["url"]
    )
    if "url" in facts and "artifact" in facts:
        where = f"{facts['artifact']} at {facts['url']}"
    names = ("load_ms", "preprocess_ms", "round_trip_ms", "infer_ms", "postprocess_ms")
    parts = [f"{name.removesuffix('_ms').replace('_', ' ')} {facts[name]:.1f} ms" for name in names if name in facts]
    count = facts["inferences"]
    note = f"{count} inferences" if count > 1 else "a first run, not warmed up" if "load_ms" in facts else ""
    return f"{where}: {', '.join(parts)}" + (f" ({note})" if note else "")
