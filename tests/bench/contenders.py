"""Each model of `bench-build` with all its sides: what edgekit built, in every runtime, and what the peers made."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import shared_models
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_dynamic, quantize_static
from sides import OWN, PEER, STANDARD, Feed, Side, opened

from edgekit.artifact import Artifact
from edgekit.build import Options, accuracy, report
from edgekit.build.graph import read_model
from edgekit.build.workshop import Workshop
from edgekit.catalog import load_model
from edgekit.config import Home
from edgekit.errors import EdgekitError
from edgekit.fetch import all_artifacts
from edgekit.pipeline.metrics import run_samples
from edgekit.runtimes.ahead import AS_SAVED, why_not_here
from edgekit.runtimes.onnx import FAILURES
from edgekit.runtimes.session import SessionSettings

ROOT = Path(__file__).resolve().parent.parent.parent
DATA = Path(os.environ.get("EDGEKIT_TEST_DATA", ROOT.parent / "shared/data"))
PEERS_PYTHON = ROOT / ".venv-peers/bin/python"
CATALOG = ("ocr-detector", "ocr-recognizer", "ocr-classifier", "file-type", "voice-activity", "digits")
ONNX = {"efficientnet-lite0": shared_models.efficientnet, "minilm": shared_models.minilm}
TFLITE = {"kws": shared_models.kws, "resnet": shared_models.resnet, "vww": shared_models.vww}
NAMES = (*CATALOG, *ONNX, *TFLITE)


@dataclass
class Case:
    """A model, its sides (the standard first), and one input as each side takes it."""

    name: str
    sides: list[Side]
    feeds: Mapping[Path, Feed]

    def feed_of(self, side: Side) -> Feed:
        return self.feeds[side.path]


def prepare(name: str, state: Home, folder: Path) -> Case | None:
    """Everything built and judged. None, with a note, when the shared data is not there."""
    if name in CATALOG:
        return _of_onnx(name, name, Options(), state, folder)
    if not DATA.is_dir():
        print(f"{name}: left out, no shared data at {DATA}")
        return None
    if name in TFLITE:
        return _of_tflite(name, TFLITE[name](DATA), folder)
    own = ONNX[name](DATA, folder)
    options = Options(calibration=own.calibration, labels=own.labels, metric=own.metric)
    return _of_onnx(name, str(own.path), options, state, folder)


def _of_onnx(name: str, what: str, options: Options, state: Home, folder: Path) -> Case:
    model = load_model(what)
    made = report(model, home=state, options=options)
    with Workshop(model, made.artifacts[0], state, None, options, None) as shop:
        axes = {f"{n}[{i}]": size for n, value in shop.feed.items() for i, size in enumerate(value.shape)}
        built = {a.record.name for a in made.artifacts}
        beside = [a for a in all_artifacts(model, state) if a.record.name not in built]
        sides = [side for artifact in (*made.artifacts, *beside) for side in _ways(artifact, axes)]
        sides += _peers(shop, axes, folder / name)
        standard = made.artifacts[0]
        sides[0].kind, sides[0].kept = STANDARD, 1.0
        usable = [sides[0], *(side for side in sides[1:] if _opens(name, side))]
        for side in usable[1:]:
            side.kept = 1.0 if side.path == standard.path else _kept(shop, side)
        return Case(name, usable, {side.path: shop.feed for side in usable})


def _ways(artifact: Artifact, axes: Mapping[str, int]) -> list[Side]:
    """One artifact in every runtime that reads it; OpenVINO also with bf16 where this CPU multiplies it."""
    record = artifact.record
    if why_not_here(record.bound_to) is not None:
        return []
    if record.format == "tflite":
        ways = {"litert": SessionSettings(runtime="litert", providers=())}
    elif record.twin_of:
        ways = {"onnxruntime": SessionSettings(axes=axes, session_options=AS_SAVED)}
    else:
        openvino = SessionSettings(runtime="openvino", providers=(), axes=axes)
        ways = {"onnxruntime": SessionSettings(axes=axes), "openvino": openvino}
        ways = {name: way for name, way in ways.items() if record.bound_to.get("runtime", name) == name}

    is_int8 = record.precision.startswith("int8")
    return [
        Side(f"{record.name}, {where}", OWN, artifact.path, settings, is_int8=is_int8, size_bytes=record.size_bytes)
        for where, settings in ways.items()
    ]


def _opens(name: str, side: Side) -> bool:
    """Whether its runtime takes the file at all; a note where it does not."""
    try:
        opened(side.path, side.settings)
    except EdgekitError as e:
        print(f"  {name}, {side.name}: does not open: {' '.join(str(e).split())[-120:]}")
        return False
    return True


def _kept(shop: Workshop, side: Side) -> float | None:
    """The share of the metric that is kept, in the side's own runtime; the note says why when it cannot run."""
    reference = shop.reference
    if reference is None:
        return None
    try:
        run = opened(side.path, side.settings)
        found = run_samples(reference.model, run, reference.samples)
        return accuracy.judge(reference, found, side.settings.runtime, shop.here).ratio
    except (EdgekitError, RuntimeError) as e:
        print(f"  {shop.model.name}, {side.name}: not judged: {' '.join(str(e).split())[:120]}")
        return None


class _Reader(CalibrationDataReader):
    """Calibration feeds as onnxruntime's quantiser wants them."""

    def __init__(self, feeds):
        self._feeds = iter(feeds)

    def get_next(self):
        return next(self._feeds, None)


def _peers(shop: Workshop, axes: Mapping[str, int], folder: Path) -> list[Side]:
    """The other quantisers, as their documentation calls them; what fails is left out with a note."""
    folder.mkdir(parents=True)
    source = folder / "standard.onnx"
    onnx.save(read_model(shop.standard.path), str(source))
    onnxruntime = SessionSettings(axes=axes)
    openvino = SessionSettings(runtime="openvino", providers=(), session_options={"INFERENCE_PRECISION_HINT": "f32"})
    makers = {
        "ort quantize_static": (folder / "static.onnx", onnxruntime, _ort_static),
        "ort quantize_dynamic": (folder / "dynamic.onnx", onnxruntime, _ort_dynamic),
        "nncf, openvino": (folder / "nncf.xml", openvino, _nncf),
    }
    sides = []
    for name, (path, settings, make) in makers.items():
        try:
            make(source, path, list(shop.samples.feeds))
            opened(path, settings)
        except (EdgekitError, *FAILURES, KeyError, AttributeError, TypeError, AssertionError, IndexError) as e:
            print(f"  {shop.model.name}, {name}: none: {' '.join(str(e).split())[-120:]}")
            continue
        size = path.stat().st_size + (path.with_suffix(".bin").stat().st_size if path.suffix == ".xml" else 0)
        sides.append(Side(name, PEER, path, settings, is_int8=True, size_bytes=size))
    return sides


def _ort_static(source: Path, path: Path, feeds: list[Feed]) -> None:
    quantize_static(source, path, _Reader(feeds), quant_format=QuantFormat.QDQ)


def _ort_dynamic(source: Path, path: Path, _feeds: list[Feed]) -> None:
    quantize_dynamic(source, path)


def _nncf(source: Path, path: Path, feeds: list[Feed]) -> None:
    _in_peers("nncf", source, path, feeds)


def _in_peers(kind: str, source: Path, path: Path, feeds: list[Feed]) -> None:
    """Raises RuntimeError with the last line of what went wrong."""
    if not PEERS_PYTHON.exists():
        raise RuntimeError("no .venv-peers here; `make .venv-peers` makes it")
    if not feeds:
        raise RuntimeError("no calibration data")
    folder = path.with_suffix(".feeds")
    folder.mkdir()
    for i, feed in enumerate(feeds):
        np.savez(folder / f"{i:04}.npz", **feed)
    script = Path(__file__).with_name("make_peers.py")
    command = [str(PEERS_PYTHON), str(script), kind, str(source), str(folder), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["failed without a word"])[-1])


def _of_tflite(name: str, pair: shared_models.Pair, folder: Path) -> Case:
    """A float LiteRT model, its INT8 twin as published, and what ai-edge-quantizer makes of it; all in LiteRT."""
    (folder / name).mkdir()
    litert = SessionSettings(runtime="litert", providers=())
    sides = [
        Side("standard, litert", STANDARD, pair.standard, litert, kept=1.0),
        Side("int8 as published, litert", OWN, pair.int8, litert, is_int8=True),
    ]
    path = folder / name / "aeq.tflite"
    try:
        _in_peers("aeq", pair.standard, path, pair.feeds(pair.standard)[:64])
        opened(path, litert)
        sides.append(Side("ai-edge-quantizer, litert", PEER, path, litert, is_int8=True))
    except (EdgekitError, RuntimeError) as e:
        print(f"  {name}, ai-edge-quantizer: none: {' '.join(str(e).split())[-120:]}")
    scores = {side.path: pair.score(side.path) for side in sides}
    for side in sides:
        side.size_bytes = side.path.stat().st_size
        side.kept = scores[side.path] / scores[pair.standard]
    return Case(name, sides, {side.path: pair.feeds(side.path)[0] for side in sides})
