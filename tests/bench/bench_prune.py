"""What 2:4 pruning keeps and gains: standard, INT8, pruned by magnitude and as edgekit prunes, in one run, one thread.

EfficientNet-Lite0 and MiniLM from the shared data; labels judge and nothing else, other samples than the judged ones
calibrate. `kept`: share of the standard's metric. `zeros`: share of all weights, measured from the file. `speed`: the
standard's median latency over the side's own, in turns, in onnxruntime on this CPU, which has no kernel for zeros.
Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

import msgspec
import numpy as np
import onnx
import shared_models
from contenders import DATA
from PIL import Image

from edgekit.artifact import Artifact
from edgekit.build import Options, further, prune, prune_recipe
from edgekit.build.prune_pattern import sparsity_of
from edgekit.build.race import race
from edgekit.build.workshop import Refusal, Workshop
from edgekit.catalog import load_model
from edgekit.config import Home
from edgekit.fetch import standard_artifact
from edgekit.manifest import Data, Model

FLOOR = 0.98
Source = tuple[Path, str, dict[str, np.ndarray], np.ndarray, np.ndarray]
"""The model's file, the metric, inputs by name, a label for each sample, and which samples calibrate."""


class Row(NamedTuple):
    """One side of a model. None: not measured."""

    name: str
    path: Path
    kept: float | None
    zeros: float
    proven: str
    "Layers that are 2:4, of those that a sparse kernel takes."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["efficientnet-lite0", "minilm"])
    parser.add_argument("--samples", type=int, default=128, help="to prune with, at most")
    parser.add_argument("--judged", type=int, default=400, help="samples to judge with, at most")
    options = parser.parse_args()
    if not DATA.is_dir():
        print(f"no shared data at {DATA}; set EDGEKIT_TEST_DATA")
        return 1
    told = {}
    for name in options.models:
        with tempfile.TemporaryDirectory(prefix="edgekit-bench-") as folder:
            told[name] = compare(name, Path(folder), options)
    print(json.dumps(told))
    return 0


def compare(name: str, folder: Path, options: argparse.Namespace) -> dict[str, float | None]:
    """Build, judge, time and print one model; its headline figures."""
    model = prepared(name, folder, options)
    home = Home(folder / "home")
    with Workshop(model, standard_artifact(model, home), home, None, Options(prune=True, search_s=0.0), None) as shop:
        print(f"\n{name}: pruning with {len(shop.samples.pruning)} samples, judging with {len(shop.samples.judged)}")
        float_model = shop.spelled_out
        quantize = prune_recipe.quantizer(shop, float_model)
        rows = [Row("standard", shop.standard.path, 1.0, 0.0, "")]
        rows.append(judged(shop, "int8", quantize(float_model)))
        rows.append(judged(shop, "int8, 2:4 by magnitude, all layers", quantize(prune.by_magnitude(float_model))))
        solutions = prune_recipe.solved(shop)
        every = prune.with_solutions(float_model, solutions, list(solutions))
        rows.append(judged(shop, "int8, 2:4, all layers", quantize(every)))
        artifact = made(shop, solutions)
        if artifact is not None:
            record = artifact.record
            rows.append(
                row_of(f"{record.name} (floor {FLOOR:.0%})", artifact.path, record.accuracy and record.accuracy.ratio)
            )
        times = race([row.path for row in rows], shop.feed, [shop.opened_as(row.path) for row in rows], budget_s=6.0)
        show(rows, times)
    last = rows[-1] if artifact is not None else None
    return {
        "metric_kept_all_layers": max(
            r.kept or 0.0 for r in rows if "all layers" in r.name and "magnitude" not in r.name
        ),
        "metric_kept": last and last.kept,
        "zeros": last and round(last.zeros, 3),
        "latency_ratio_to_int8": last and round(times[1] / times[-1], 3),
    }


def prepared(name: str, folder: Path, options: argparse.Namespace) -> Model:
    """The model with its data in two files: what calibrates, unlabelled, and what judges."""
    path, metric, inputs, labels, calibrating = SOURCES[name](folder)
    each = 2 if metric == "spearman" else 1
    parts = {"calibration": (calibrating, options.samples), "evaluation": (~calibrating, options.judged)}
    for file, (which, most) in parts.items():
        index = np.flatnonzero(which)
        index = index[:: max(1, len(index) // most)][:most] if each == 1 else index[:most]
        extra = {"labels": labels[index]} if file == "evaluation" else {}
        np.savez(folder / f"{file}.npz", **{key: value[index] for key, value in inputs.items()}, **extra)
    data = Data(
        calibration=str(folder / "calibration.npz"),
        evaluation=str(folder / "evaluation.npz"),
        calibration_count=options.samples,
        evaluation_count=options.judged,
    )
    return msgspec.structs.replace(load_model(str(path)), metric=metric, data=data, accuracy_floor=FLOOR)


def efficientnet(_folder: Path) -> Source:
    """All photographs; as their publisher asks, those of classes that end in 0 calibrate and no others."""
    photos = sorted((DATA / "imagenet_samples_224").glob("*.jp*g"))
    labels = np.array([int(photo.name.split("_")[0]) for photo in photos])
    images = np.stack([(np.asarray(Image.open(photo).convert("RGB"), np.float32) - 127) / 128 for photo in photos])
    path = DATA / "efficientnet_lite0/efficientnet_lite0_f32.onnx"
    return path, "top1", {"input": images.transpose(0, 3, 1, 2)}, labels, labels % 10 == 0


def minilm(folder: Path) -> Source:
    """Pairs of sentences that people scored; every seventh pair calibrates, without its score."""
    own = shared_models.minilm(DATA, folder)
    assert own.labels is not None
    with np.load(own.calibration) as arrays:
        inputs = {key: arrays[key] for key in arrays.files}
    labels = np.repeat(np.load(own.labels), 2)
    return own.path, own.metric, inputs, labels, np.arange(len(labels)) // 2 % 7 == 0


SOURCES: dict[str, Callable[[Path], Source]] = {"efficientnet-lite0": efficientnet, "minilm": minilm}


def made(shop: Workshop, solutions: dict[str, prune.Solution]) -> Artifact | None:
    """The artifact as `edgekit build --prune` makes it."""
    refused: dict[str, str] = {}
    try:
        found, _ = further.make_all(shop, (prune_recipe.recipe(solutions),), refused)
    except Refusal as e:
        refused["recipe"] = str(e)
        found = []
    for text in refused.values():
        print(f"  not built: {text}")
    return found[0] if found else None


def judged(shop: Workshop, name: str, model: onnx.ModelProto) -> Row:
    """One side as a file, judged; said at once, since the whole run takes minutes."""
    path = shop.on_disk(model, "".join(c if c.isalnum() else "-" for c in name))
    measured = shop.measure(path, as_written=True)
    row = row_of(name, path, measured.ratio if measured else None)
    print(f"  judged: {name}: {'-' if row.kept is None else f'{row.kept:.1%}'} kept", flush=True)
    return row


def row_of(name: str, path: Path, kept: float | None) -> Row:
    found = sparsity_of(path)
    weights = sum(layer.weights for layer in found.values())
    zeros = sum(layer.zeros * layer.weights for layer in found.values()) / max(weights, 1)
    eligible = [layer for layer in found.values() if layer.why_not_eligible is None]
    return Row(name, path, kept, zeros, f"{sum(layer.two_of_four for layer in eligible)}/{len(eligible)}")


def show(rows: list[Row], times: list[float]) -> None:
    print(f"  {'':44} {'kept':>8} {'zeros':>7} {'2:4':>7} {'size':>6} {'p50 ms':>8} {'speed':>7}")
    for row, p50_ms in zip(rows, times, strict=True):
        kept = "-" if row.kept is None else f"{row.kept:.1%}"
        size = row.path.stat().st_size / rows[0].path.stat().st_size
        print(
            f"  {row.name:44} {kept:>8} {row.zeros:>7.1%} {row.proven:>7} {size:>5.2f}× {p50_ms:8.3f}"
            f" {times[0] / p50_ms:6.2f}×"
        )
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
