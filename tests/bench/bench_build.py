"""What `edgekit build` gains, model by model, against onnxruntime's own quantisers with their defaults: one run.

Every side of a model is timed in turns, one thread, in onnxruntime. A pick counts only if it keeps the accuracy floor;
the standard itself is always a pick. Ends with one line of JSON; null: not measured in this version.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_dynamic, quantize_static

from edgekit.build import Options, report
from edgekit.build.graph import read_model
from edgekit.build.race import race
from edgekit.build.workshop import Workshop
from edgekit.catalog import load_model
from edgekit.config import Home, home
from edgekit.errors import EdgekitError
from edgekit.runtimes.onnx import FAILURES

MODELS = ("ocr-detector", "ocr-recognizer", "ocr-classifier", "file-type", "voice-activity", "digits")
FLOOR = 0.99
BUDGET_S = 4.0


@dataclass
class Side:
    """One way to run a model. `kept` is the share of the standard's metric; None: it does not run."""

    name: str
    path: Path
    kept: float | None
    p50_ms: float = math.inf


class Feeds(CalibrationDataReader):
    """Calibration feeds as onnxruntime's quantiser wants them."""

    def __init__(self, feeds):
        self._feeds = iter(feeds)

    def get_next(self):
        return next(self._feeds, None)


def peers(shop: Workshop, folder: Path) -> list[Side]:
    """onnxruntime's static and dynamic quantisers, as its documentation calls them; what fails is left out."""
    source = folder / "standard.onnx"
    onnx.save(read_model(shop.standard.path), str(source))
    sides = []
    for name in ("ort static", "ort dynamic"):
        path = folder / f"{name.replace(' ', '-')}.onnx"
        try:
            if name == "ort static":
                quantize_static(source, path, Feeds(list(shop.samples.feeds)), quant_format=QuantFormat.QDQ)
            else:
                quantize_dynamic(source, path)
            measured = shop.measure(path)
        except (EdgekitError, *FAILURES, KeyError, AttributeError, TypeError, AssertionError) as e:
            print(f"  {name}: fails: {' '.join(str(e).split())[:120]}")
            continue
        sides.append(Side(name, path, measured.ratio if measured else None))
    return sides


def measure(name: str, state: Home) -> list[Side]:
    """All sides of one model, the standard first, timed in turns."""
    model = load_model(name)
    made = report(model, home=state)
    with (
        tempfile.TemporaryDirectory() as folder,
        Workshop(model, made.artifacts[0], state, None, Options(), None) as shop,
    ):
        own = [
            Side(a.record.name, a.path, a.record.accuracy.ratio if a.record.accuracy else None) for a in made.artifacts
        ]
        others = peers(shop, Path(folder))
        sides = own + others
        kept_axes = {"standard", *(side.name for side in others)}
        settings = [shop.settings if side.name in kept_axes else shop.opened_as(side.path) for side in sides]
        for side, p50_ms in zip(
            sides, race([s.path for s in sides], shop.feed, settings, budget_s=BUDGET_S), strict=True
        ):
            side.p50_ms = p50_ms
    return sides


def fastest(sides: list[Side]) -> Side | None:
    fit = [side for side in sides if side.kept is not None and side.kept >= FLOOR]
    return min(fit, key=lambda side: side.p50_ms, default=None)


def geomean(values: list[float]) -> float | None:
    return round(math.exp(sum(map(math.log, values)) / len(values)), 3) if values else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # the peers advise on steps that they do not take themselves
    speedups, against, slower, below = [], [], 0, 0
    print(f"{'model':16} {'side':20} {'p50 ms':>8} {'speed':>7} {'kept':>8}")
    for name in arguments.models:
        sides = measure(name, home())
        standard = sides[0]
        for side in sides:
            kept = "-" if side.kept is None else f"{100 * side.kept:.1f} %"
            print(f"{name:16} {side.name:20} {side.p50_ms:8.3f} {standard.p50_ms / side.p50_ms:6.2f}× {kept:>8}")
        pick = fastest([side for side in sides if not side.name.startswith("ort ")])
        peer = fastest([standard, *(side for side in sides if side.name.startswith("ort "))])
        if pick is None or peer is None:
            below += 1
            continue
        speedups.append(standard.p50_ms / pick.p50_ms)
        against.append(peer.p50_ms / pick.p50_ms)
        slower += pick.p50_ms > 1.02 * standard.p50_ms
    print(
        json.dumps(
            {
                "models": len(speedups),
                "geomean_speedup": geomean(speedups),
                "slower_than_standard": slower,
                "below_accuracy_floor": below,
                "geomean_vs_best_peer": geomean(against),
                "balanced_geomean_speedup": None,
                "balanced_violations": None,
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
