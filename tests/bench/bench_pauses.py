"""Inferences after a pause, as a camera asks for them: on one thread, and on one for each core, two ways.

All sides in turns, in one process; the median of each. `left alone`: threads as the kernel wakes them. `kept off`: as
edgekit runs them (`edgekit.runtimes.cores`). Ends with one line of JSON: how much faster kept off is than left alone,
geometric mean over the artifacts.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import replace
from statistics import geometric_mean, median

import numpy as np

from edgekit.artifact import Artifact
from edgekit.catalog import load_model
from edgekit.config import home
from edgekit.errors import FetchError, RuntimeUnavailable
from edgekit.fetch import all_artifacts, standard_artifact
from edgekit.runtimes.session import SessionSettings, open_session

AXES = {"ocr-detector": {f"x[{i}]": size for i, size in enumerate((1, 3, 320, 320))}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=["ocr-detector", "digits"])
    parser.add_argument("--pauses-ms", type=float, nargs="*", default=[0, 2, 20, 100])
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    told: dict[str, list[float]] = {}
    for name in options.models:
        try:
            standard = standard_artifact(load_model(name), home())
        except FetchError as e:
            print(f"{name}: left out: {e}")
            continue
        made = {artifact.path: artifact for artifact in (standard, *all_artifacts(load_model(name), home()))}
        for artifact in made.values():
            for pause_ms, ratio in compare(name, artifact, options).items():
                told.setdefault(f"{name} {pause_ms:g} ms", []).append(ratio)
    print(json.dumps({what: round(geometric_mean(ratios), 2) for what, ratios in told.items()}))
    return 0


def compare(name: str, artifact: Artifact, options: argparse.Namespace) -> dict[float, float]:
    """One artifact in its runtime, printed; pause in ms -> left alone over kept off."""
    runtime = "litert" if artifact.record.format == "tflite" else "onnxruntime"
    if artifact.record.format not in ("onnx", "tflite") or artifact.record.bound_to.get("runtime", runtime) != runtime:
        return {}
    cores = len(os.sched_getaffinity(0))
    settings = SessionSettings(runtime=runtime, axes=AXES.get(name, {}) if runtime == "onnxruntime" else {})
    try:
        alone, free, kept = (
            open_session(artifact.path, replace(settings, threads=threads)) for threads in (1, cores, cores)
        )
    except RuntimeUnavailable as e:
        print(f"{name}, {artifact.record.name}: left out: {e}")
        return {}
    free._helpers.let_go()  # type: ignore[attr-defined]  nothing outside a benchmark should want this
    sides = {"1 thread": alone, "left alone": free, "kept off": kept}
    (spec,) = alone.inputs
    feed = {spec.name: np.random.default_rng(0).random(spec.shape, np.float32)}
    print(f"\n{name}, {artifact.record.name}, {runtime}, {cores} threads{'':8}" + "".join(f"{s:>12}" for s in sides))
    told = {}
    for pause_ms in options.pauses_ms:
        taken: dict[str, list[float]] = {side: [] for side in sides}
        for i in range(-3, options.rounds):
            for side, session in sides.items():
                time.sleep(pause_ms / 1e3)
                began = time.perf_counter()
                session.run(feed)
                if i >= 0:
                    taken[side].append((time.perf_counter() - began) * 1e3)
        figures = {side: median(times) for side, times in taken.items()}
        ratio = figures["left alone"] / figures["kept off"]
        told[pause_ms] = ratio
        print(
            f"  {pause_ms:5g} ms apart{'':30}"
            + "".join(f"{ms:>9.3f} ms" for ms in figures.values())
            + f"  {ratio:.2f}x"
        )
    return told


if __name__ == "__main__":
    sys.exit(main())
