"""Each model of `bench-build` with all its sides: what edgekit built, in every runtime, and what the peers made."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import shared_models
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
from edgekit.runtimes.session import SessionSettings

ROOT = Path(__file__).resolve().parent.parent.parent
DATA = Path(os.environ.get("EDGEKIT_TEST_DATA", ROOT.parent / "shared/data"))
PEERS_PYTHON = ROOT / ".venv-peers/bin/python"
CATALOG = ("ocr-detector", "ocr-recognizer", "ocr-classifier", "file-type", "voice-activity", "digits")
ONNX = {"efficientnet-lite0": shared_models.efficientnet, "minilm": shared_models.minilm}
TFLITE = {"kws": shared_models.kws, "resnet": shared_models.resnet, "vww": shared_models.vww}
PEERS = ("ort quantize_static", "ort quantize_dynamic", "nncf, openvino", "ai-edge-quantizer, litert")
NAMES = (*CATALOG, *ONNX, *TFLITE)
MOST_JUDGED = 400
"""Samples that a side is judged with, evenly taken: judging them all would take most of the run."""


@dataclass
class Case:
    """A model, its sides (the standard first), one input as each side takes it, and what peers could not make."""

    name: str
    sides: list[Side]
    feeds: Mapping[Path, Feed]
    judge: Callable[[Side], float | None]
    missing: Mapping[str, str]
    _kept: dict[tuple[Path, str], float | None] = field(default_factory=dict)

    def feed_of(self, side: Side) -> Feed:
        return self.feeds[side.path]

    def kept(self, side: Side) -> float | None:
        """The share of the standard's metric that it keeps in its own runtime, found once; None: it cannot run."""
        way = side.path, side.settings.runtime
        if way not in self._kept:
            self._kept[way] = self.judge(side)
        return self._kept[way]


def prepare(name: str, state: Home, folder: Path, peer_s: float) -> Case | None:
    """Everything built, peers included. None, with a note, when the shared data is not there."""
    if name in CATALOG:
        return _of_onnx(name, name, Options(), state, folder, peer_s)
    if not DATA.is_dir():
        print(f"{name}: left out, no shared data at {DATA}")
        return None
    if name in TFLITE:
        return _of_tflite(name, TFLITE[name](DATA), folder, peer_s)
    own = ONNX[name](DATA, folder)
    options = Options(calibration=own.calibration, labels=own.labels, metric=own.metric)
    return _of_onnx(name, str(own.path), options, state, folder, peer_s)


def _of_onnx(name: str, what: str, options: Options, state: Home, folder: Path, peer_s: float) -> Case:
    model = load_model(what)
    made = report(model, home=state, options=options)
    missing: dict[str, str] = {}
    with Workshop(model, made.artifacts[0], state, None, options, None) as shop:
        axes = {f"{n}[{i}]": size for n, value in shop.feed.items() for i, size in enumerate(value.shape)}
        built = {a.record.name for a in made.artifacts}
        beside = [a for a in all_artifacts(model, state) if a.record.name not in built]
        sides = [side for artifact in (*made.artifacts, *beside) for side in _ways(artifact, axes)]
        sides[0].kind, sides[0].kept = STANDARD, 1.0
        sides += _peers(shop, axes, folder / name, peer_s, missing)
        usable = [sides[0], *(side for side in sides[1:] if _opens(side, missing))]
        reference = _few(shop.reference) if shop.reference else None
        isa, feed, standard = shop.here, shop.feed, made.artifacts[0].path
    feeds = {side.path: feed for side in usable}

    def judge(side: Side) -> float | None:
        return 1.0 if side.path == standard else _share_kept(reference, side, isa) if reference else None

    return Case(name, usable, feeds, judge, missing)


def _few(reference: accuracy.Reference) -> accuracy.Reference:
    """The same on at most `MOST_JUDGED` samples; neighbours stay together, since they may be a pair."""
    pairs = [reference.samples[i : i + 2] for i in range(0, len(reference.samples), 2)]
    every = -(-len(pairs) // (MOST_JUDGED // 2))
    chosen = [sample for pair in pairs[::every] for sample in pair]
    outputs = {id(sample): output for sample, output in zip(reference.samples, reference.outputs, strict=True)}
    return accuracy.rate(reference.model, chosen, [outputs[id(sample)] for sample in chosen])


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


def _opens(side: Side, missing: dict[str, str]) -> bool:
    """Whether its runtime takes the file at all; the reason is noted where it does not."""
    try:
        opened(side.path, side.settings)
    except EdgekitError as e:
        missing[side.name] = f"does not open: {' '.join(str(e).split())[-100:]}"
        return False
    return True


def _share_kept(reference: accuracy.Reference, side: Side, isa: str) -> float | None:
    """The share of the metric that is kept, in the side's own runtime; a note says why when it cannot run."""
    try:
        found = run_samples(reference.model, opened(side.path, side.settings), reference.samples)
        return accuracy.judge(reference, found, side.settings.runtime, isa).ratio
    except (EdgekitError, RuntimeError) as e:
        print(f"  {reference.model.name}, {side.name}: not judged: {' '.join(str(e).split())[:120]}")
        return None


def _peers(shop: Workshop, axes: Mapping[str, int], folder: Path, peer_s: float, missing: dict[str, str]) -> list[Side]:
    """The other quantisers, as their documentation calls them; what fails is missing, with its reason."""
    folder.mkdir(parents=True)
    source = folder / "standard.onnx"
    onnx.save(read_model(shop.standard.path), str(source))
    onnxruntime = SessionSettings(axes=axes)
    openvino = SessionSettings(runtime="openvino", providers=(), session_options={"INFERENCE_PRECISION_HINT": "f32"})
    peers = {
        "ort quantize_static": ("ort-static", "static.onnx", onnxruntime),
        "ort quantize_dynamic": ("ort-dynamic", "dynamic.onnx", onnxruntime),
        "nncf, openvino": ("nncf", "nncf.xml", openvino),
    }
    sides = []
    for name, (kind, file, settings) in peers.items():
        side = _made_by(name, kind, source, folder / file, settings, shop.samples.feeds, peer_s, missing)
        if side is not None:
            sides.append(side)
    return sides


def _made_by(
    name: str,
    kind: str,
    source: Path,
    path: Path,
    settings: SessionSettings,
    feeds: Sequence[Feed],
    peer_s: float,
    missing: dict[str, str],
) -> Side | None:
    """What another quantiser makes of `source`, in a process of its own that gets `peer_s` seconds."""
    python = Path(sys.executable) if kind.startswith("ort") else PEERS_PYTHON
    if not python.exists():
        missing[name] = "no .venv-peers here; `make .venv-peers` makes it"
        return None
    if not feeds and kind != "ort-dynamic":
        missing[name] = "no calibration data"
        return None
    folder = source.with_suffix(".feeds")
    if not folder.exists():
        folder.mkdir()
        for i, feed in enumerate(feeds):
            np.savez(folder / f"{i:04}.npz", **feed)
    script = Path(__file__).with_name("make_peers.py")
    try:
        done = subprocess.run(
            [str(python), str(script), kind, str(source), str(folder), str(path)],
            capture_output=True,
            text=True,
            check=False,
            timeout=peer_s,
        )
    except subprocess.TimeoutExpired:
        missing[name] = f"not done after {peer_s:g} s"
        return None
    if done.returncode:
        missing[name] = (done.stderr.strip().splitlines() or ["failed without a word"])[-1][-100:]
        return None
    side = Side(name, PEER, path, settings, is_int8=True)
    side.size_bytes = path.stat().st_size + (path.with_suffix(".bin").stat().st_size if path.suffix == ".xml" else 0)
    return side


def _of_tflite(name: str, pair: shared_models.Pair, folder: Path, peer_s: float) -> Case:
    """A float LiteRT model, its INT8 twin as published, and what ai-edge-quantizer makes of it; all in LiteRT."""
    (folder / name).mkdir()
    litert, missing = SessionSettings(runtime="litert", providers=()), dict[str, str]()
    sides = [
        Side("standard, litert", STANDARD, pair.standard, litert, kept=1.0),
        Side("int8 as published, litert", OWN, pair.int8, litert, is_int8=True),
    ]
    source, path = folder / name / pair.standard.name, folder / name / "aeq.tflite"
    source.write_bytes(pair.standard.read_bytes())
    feeds = pair.feeds(pair.standard)[:64]
    peer = _made_by("ai-edge-quantizer, litert", "aeq", source, path, litert, feeds, peer_s, missing)
    if peer is not None and _opens(peer, missing):
        sides.append(peer)
    for side in sides:
        side.size_bytes = side.path.stat().st_size
    whole = pair.score(pair.standard)
    feeds_of = {side.path: pair.feeds(side.path)[0] for side in sides}
    return Case(name, sides, feeds_of, lambda side: pair.score(side.path) / whole, missing)
