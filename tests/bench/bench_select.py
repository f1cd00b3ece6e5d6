"""The search of `select` against an exhaustive sweep over real models: how much worse is its choice, how much less does
it cost?

Both sides start from nothing but the artifacts, those of onnxruntime's own quantisers among them: no measurement, no
accuracy known. Then the chosen candidate and the best of the sweep are measured afresh, in turns. Takes twenty minutes
on two quiet cores; a model that is done is kept in the work folder, so that the next call goes on after it. Ends with
one line of JSON; null: not measured.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median

import msgspec
import numpy as np
import onnx

from edgekit.artifact import Artifact, ArtifactRecord, save_record, sha256_of
from edgekit.bench.candidates import Candidate
from edgekit.bench.record import Measurement
from edgekit.bench.run import Plan, bench
from edgekit.build import Options, build
from edgekit.build.graph import read_model
from edgekit.build.workshop import Workshop
from edgekit.catalog import load_model
from edgekit.choose import Space, choose, find_candidates, measure
from edgekit.config import Home, home
from edgekit.device.probe import Facts, probe
from edgekit.errors import EdgekitError, FetchError
from edgekit.fetch import standard_artifact
from edgekit.files import write_atomic
from edgekit.manifest import Model, PrebuiltArtifact
from edgekit.selection import Limits, why_not

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("EDGEKIT_TEST_DATA", ROOT.parent / "shared/data"))
CATALOG = ("digits", "file-type", "voice-activity", "ocr-detector", "ocr-classifier", "ocr-recognizer")
FILES: Mapping[str, Mapping[str, int]] = {
    "mnist/mnist.onnx": {},
    "efficientnet_lite0/efficientnet_lite0_f32.onnx": {"N": 1},
    "minilm/minilm_l6_f32.onnx": {"batch": 1, "sequence": 64},
}
PAIRS = (
    ("mlperf_tiny/kws_ref_model_float32.tflite", "mlperf_tiny/kws_ref_model.tflite"),
    ("mlperf_tiny/pretrainedResnet_large_float.tflite", "mlperf_tiny/pretrainedResnet_large_int8.tflite"),
)
PEERS = Path(__file__).with_name("make_peers.py")
CALIBRATION = 16
MEASURING = ("candidates", "contender", "inputs", "process", "run", "search", "stats", "waits", "worker")
CHOOSING = ("choose", "judged", "measured", "selection", "score")
FRESH_S = 4.0


@dataclass
class Job:
    """One model with the axes it is measured at."""

    model: Model
    space: Space = field(default_factory=Space)

    @property
    def limits(self) -> Limits:
        """Where nothing can tell the accuracy, it is no limit."""
        return Limits(accuracy_floor=self.model.accuracy_floor if self.model.data.evaluation else 0.0)


class Result(msgspec.Struct, frozen=True):
    """What came out for one model; `revision` tells of which code."""

    revision: str
    name: str
    candidates: int
    sweep_s: float
    search_s: float
    best: str
    chosen: str
    regret: float


def make_jobs(only: Sequence[str] | None) -> list[Job]:
    jobs = [Job(load_model(name)) for name in CATALOG]
    for name, axes in FILES.items():
        if (DATA / name).is_file():
            jobs.append(Job(load_model(str(DATA / name)), Space(axes=axes)))
    for standard, int8 in PAIRS:
        if (DATA / standard).is_file():
            model, path = load_model(str(DATA / standard)), DATA / int8
            twin = PrebuiltArtifact(
                name="int8",
                file=path.name,
                format="tflite",
                precision="int8",
                sha256=sha256_of(path),
                size_bytes=path.stat().st_size,
            )
            jobs.append(Job(msgspec.structs.replace(model, artifacts=(twin,))))
    return [job for job in jobs if not only or job.model.name in only]


def prepare(job: Job, place: Home, facts: Facts) -> bool:
    """Flash artifacts of ours, and a peer's beside them. False when the standard cannot be had."""
    try:
        standard = standard_artifact(job.model, place)
    except FetchError as e:
        print(f"left out: {job.model.name} cannot be fetched: {e}", file=sys.stderr)
        return False
    if job.model.source.format == "onnx" and not place.artifacts(job.model.name).exists():
        try:
            build(job.model, home=place, facts=facts)
        except EdgekitError as e:
            print(f"{job.model.name}: build made nothing: {e}", file=sys.stderr)
        add_peers(job.model, standard, place)
    return True


def add_peers(model: Model, standard: Artifact, place: Home) -> None:
    """onnxruntime's own quantisation with its defaults: dynamic, and static where there is calibration data."""
    scratch = place.root / "peers" / model.name
    scratch.mkdir(parents=True, exist_ok=True)
    source, feeds = scratch / "standard.onnx", scratch / "feeds"
    onnx.save(read_model(standard.path), str(source))
    feeds.mkdir(exist_ok=True)
    with Workshop(model, standard, place, None, Options(), None) as shop:
        for i, feed in enumerate(shop.samples.feeds[:CALIBRATION]):
            np.savez(feeds / f"{i:04}.npz", **feed)
    for kind, precision in (("ort-dynamic", "int8-dynamic"), ("ort-static", "int8")):
        folder = place.artifacts(model.name) / f"peer-{kind}"
        path = folder / f"peer-{kind}.onnx"
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(PEERS), kind, str(source), str(feeds), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            why = (done.stderr.strip().splitlines() or ["failed without a word"])[-1]
            print(f"{model.name}: {kind} made nothing: {why}", file=sys.stderr)
            shutil.rmtree(folder)
            continue
        record = ArtifactRecord(
            model=model.name,
            name=f"peer-{kind}",
            file=path.name,
            format="onnx",
            precision=precision,
            sha256=sha256_of(path),
            size_bytes=path.stat().st_size,
            made_from_sha256=model.source.sha256,
        )
        save_record(folder, record)


def twin(place: Home, root: Path) -> Home:
    """A state folder with the same artifacts and nothing measured."""
    root.mkdir(parents=True)
    for name in ("cache", "artifacts"):
        (root / name).symlink_to(place.root / name)
    return Home(root)


def revision(seconds: float) -> str:
    """Same text for the same code of measuring and choosing, and the same time for it."""
    files = [ROOT / f"edgekit/{name}.py" for name in (*(f"bench/{name}" for name in MEASURING), *CHOOSING)]
    text = b"".join(path.read_bytes() for path in files) + f"{seconds}".encode()
    return hashlib.sha256(text).hexdigest()[:16]


def run_job(job: Job, place: Home, facts: Facts, seconds: float, *, search_first: bool) -> Result:
    with tempfile.TemporaryDirectory(prefix="edgekit-bench-select-") as folder:
        found = find_candidates(job.model, place, facts, job.space)
        plan = Plan(seconds=seconds, gain=None, memory_limit_bytes=facts.memory.available_bytes)

        def sweep() -> tuple[float, list[Measurement]]:
            began = time.monotonic()
            rows = measure(job.model, found, home=twin(place, Path(folder) / "sweep"), plan=plan)
            return time.monotonic() - began, rows

        def search() -> tuple[float, str]:
            began = time.monotonic()
            where = twin(place, Path(folder) / "search")
            chosen = choose(job.model, job.limits, home=where, facts=facts, seconds=seconds, space=job.space)
            return time.monotonic() - began, f"{chosen.artifact} · {chosen.settings.label}"

        if search_first:
            (search_s, chosen), (sweep_s, rows) = search(), sweep()
        else:
            (sweep_s, rows), (search_s, chosen) = sweep(), search()
        usable = [row for row in rows if row.latency and why_not(row, job.limits) is None]
        best = min(usable, key=lambda row: row.latency.p50_ms if row.latency else 0.0).candidate
        regret = afresh(job.model, {candidate.name: candidate for candidate in found}, chosen, best)
    return Result(revision(seconds), job.model.name, len(found), sweep_s, search_s, best, chosen, regret)


def afresh(model: Model, known: Mapping[str, Candidate], chosen: str, best: str) -> float:
    """How much slower the chosen one is than the best of the sweep, in turns; 0 when they are the same."""
    if chosen == best:
        return 0.0
    mine, its = bench(model, [known[chosen], known[best]], Plan(seconds=FRESH_S))
    assert mine.latency is not None
    assert its.latency is not None
    pairs = zip(mine.latency.round_p50_ms, its.latency.round_p50_ms, strict=False)
    return max(0.0, median(a / b for a, b in pairs) - 1)


def table(results: Sequence[Result]) -> None:
    print(f"{'model':34}{'cands':>6}{'sweep s':>9}{'search s':>9}{'share':>7}{'regret':>8}  chosen (best of the sweep)")
    for r in results:
        words = r.chosen if r.chosen == r.best else f"{r.chosen} ({r.best})"
        share = r.search_s / r.sweep_s
        print(f"{r.name:34}{r.candidates:6}{r.sweep_s:9.1f}{r.search_s:9.1f}{share:7.0%}{r.regret:8.1%}  {words}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", help="only these")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each candidate in the sweep")
    parser.add_argument("--work", type=Path, default=Path("build/bench-select"), help="where artifacts are built, once")
    parser.add_argument("--again", action="store_true", help="also models that were measured with this code before")
    args = parser.parse_args()
    facts, root = probe(), args.work.resolve()
    (root / "artifacts").mkdir(parents=True, exist_ok=True)
    (root / "results").mkdir(exist_ok=True)
    if not (root / "cache").exists():
        home().cache.mkdir(parents=True, exist_ok=True)
        (root / "cache").symlink_to(home().cache)
    results: list[Result] = []
    for i, job in enumerate(make_jobs(args.models)):
        file = root / "results" / f"{job.model.name}.json"
        known = msgspec.json.decode(file.read_bytes(), type=Result) if file.exists() and not args.again else None
        if known is not None and known.revision == revision(args.seconds):
            results.append(known)
            continue
        if not prepare(job, Home(root), facts):
            continue
        results.append(run_job(job, Home(root), facts, args.seconds, search_first=bool(i % 2)))
        write_atomic(file, msgspec.json.encode(results[-1]))
        table(results[-1:])
        sys.stdout.flush()
    print()
    table(results)
    print(json.dumps(headline(results)))


def headline(results: Sequence[Result]) -> dict[str, float | int | None]:
    if not results:
        return {"models": 0, "regret_max": None, "regret_mean": None, "search_share": None}
    return {
        "models": len(results),
        "regret_max": round(max(r.regret for r in results), 4),
        "regret_mean": round(mean(r.regret for r in results), 4),
        "search_share": round(sum(r.search_s for r in results) / sum(r.sweep_s for r in results), 4),
    }


if __name__ == "__main__":
    main()
