"""Is a difference of 5 % decided the same way each time, with a busy neighbour or without?

An artificial pair: one model, and a copy of it with so many more multiplications. Each run of `bench` starts new
processes; a busy loop on the other core is switched on and off between runs. Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import onnx
from onnx import helper, numpy_helper

from edgekit.bench.candidates import Candidate, candidates
from edgekit.bench.run import Plan, bench
from edgekit.bench.stats import speed_up
from edgekit.catalog import load_model
from edgekit.config import Home
from edgekit.fetch import all_artifacts
from edgekit.manifest import Model
from edgekit.selection import Limits, select

STEPS = 100
"""Multiplications of the faster one; the standard has 5 % more."""


def write_burner(path: Path, steps: int) -> Path:
    nodes = [helper.make_node("MatMul", [f"x{i}" if i else "x", "w"], [f"x{i + 1}"]) for i in range(steps)]
    nodes.append(helper.make_node("Identity", [f"x{steps}"], ["y"]))
    x, y = (helper.make_tensor_value_info(name, 1, (96, 96)) for name in ("x", "y"))
    weight = numpy_helper.from_array(np.eye(96, dtype=np.float32), "w")
    graph = helper.make_graph(nodes, "burner", [x], [y], initializer=[weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def make_pair(folder: Path, percent: float) -> tuple[Model, list[Candidate]]:
    """The standard, and a flash that is `percent` faster."""
    found = []
    for name, steps in (("standard", round(STEPS * (1 + percent / 100))), ("flash", STEPS)):
        model = load_model(str(write_burner(folder / f"{name}.onnx", steps)))
        (artifact,) = all_artifacts(model, Home(folder))
        precision = "float32" if name == "standard" else "int8"
        record = msgspec.structs.replace(artifact.record, name=name, precision=precision)
        named = msgspec.structs.replace(artifact, record=record)
        found += candidates(model, [named], cores=1, runtimes=["onnxruntime"])
    return model, found


def busy(core: int) -> subprocess.Popen[bytes]:
    os_code = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    return subprocess.Popen([sys.executable, "-c", os_code])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each candidate in a run")
    parser.add_argument("--percent", type=float, default=5.0, help="how far apart the two are")
    args = parser.parse_args()
    core = max(os.sched_getaffinity(0))
    decided: list[str] = []
    with tempfile.TemporaryDirectory(prefix="edgekit-repeat-") as folder:
        model, found = make_pair(Path(folder), args.percent)
        for i in range(args.runs):
            neighbour = busy(core) if i % 2 else None
            try:
                rows = bench(model, found, Plan(seconds=args.seconds))
            finally:
                if neighbour is not None:
                    neighbour.kill()
                    neighbour.wait()
            standard, flash = (msgspec.structs.replace(row, accuracy_ratio=1.0) for row in rows)
            decided.append(select([standard, flash], Limits()).artifact)
            times, least, most = speed_up(standard, flash)
            when = "busy " if neighbour else "quiet"
            print(f"run {i + 1:2} {when} {times:.3f}x ({least:.3f} to {most:.3f}): {decided[-1]}")
            sys.stdout.flush()
    ((winner, count),) = Counter(decided).most_common(1)
    print(json.dumps({"runs": len(decided), "same": count, "decided": winner, "percent": args.percent}))


if __name__ == "__main__":
    main()
