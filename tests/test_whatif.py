"""What would change the decision, with the number that it takes."""

from __future__ import annotations

import msgspec
import pytest

from edgekit.bench.record import Measurement, Settings, Start
from edgekit.bench.stats import latency
from edgekit.limits import Limits
from edgekit.whatif import what_if

MIB = 2**20


def _row(
    artifact: str, p50: float, *, runtime: str = "onnxruntime", ratio: float = 1.0, peak: int = 100
) -> Measurement:
    return Measurement(
        model="m",
        artifact=artifact,
        artifact_sha256=artifact,
        precision="float32" if artifact == "standard" else "int8",
        size_bytes=1000,
        settings=Settings(runtime=runtime, runtime_version="1", threads=1, spinning=False),
        latency=latency([[p50] * 60] * 12),
        start=Start(import_ms=1, load_ms=1, first_ms=1),
        peak_memory_bytes=peak * MIB,
        throughput_qps=1000 / p50,
        accuracy_ratio=ratio,
        taken_at_unix_ms=1,
    )


STANDARD = "standard · onnxruntime 1t"


def test_a_lower_accuracy_floor_brings_the_faster_flash():
    rows = [_row("standard", 20), _row("flash", 8, ratio=0.9784)]
    assert "with 97.8% of the accuracy instead of 99.0%: flash · onnxruntime 1t" in what_if(rows, Limits(), STANDARD)


def test_a_wider_bound_brings_the_smaller_one_and_the_number_is_rounded_up():
    rows = [_row("standard", 20, peak=200), _row("flash", 38.2, runtime="openvino", peak=50)]
    limits = Limits(latency_ms=25, objective="memory")
    assert "with 39 ms instead of 25 ms: flash · openvino 1t" in what_if(rows, limits, STANDARD)


def test_more_memory_brings_the_faster_one():
    rows = [_row("standard", 20, peak=100), _row("flash", 5, peak=150)]
    limits = Limits(memory_bytes=120 * MIB)
    assert "with 150 MiB instead of 120 MiB: flash · onnxruntime 1t" in what_if(rows, limits, STANDARD)


def test_another_objective_brings_another_candidate():
    rows = [_row("standard", 5, peak=200), _row("flash", 20, peak=50)]
    assert "for memory instead of latency: flash · onnxruntime 1t" in what_if(rows, Limits(), STANDARD)


def test_nothing_changes_what_is_best_in_every_way():
    rows = [_row("standard", 5, peak=50), _row("flash", 20, peak=200)]
    assert what_if(rows, Limits(), STANDARD) == ()


@pytest.mark.parametrize("bound", [0.5, 3.0])
def test_when_nothing_fits_it_says_what_would(bound):
    rows = [_row("standard", 12.34)]
    assert what_if(rows, Limits(latency_ms=bound), None) == (f"with 13 ms instead of {bound:g} ms: {STANDARD}",)


def test_what_was_stopped_early_is_said_to_be():
    rows = [_row("standard", 5, peak=200), msgspec.structs.replace(_row("flash", 20, peak=50), rough=True)]
    (line,) = what_if(rows, Limits(), STANDARD)
    assert line == "for memory instead of latency: flash · onnxruntime 1t, by its first queries"


@pytest.mark.parametrize(("qps", "told"), [(100.0, 83), (1e6, 83), (83.0, None)])
def test_a_lower_rate_brings_the_next_slower_one_and_the_number_is_rounded_down(qps, told):
    rows = [_row("standard", 12.0), _row("flash", 30.0)]
    words = () if told is None else (f"with {told} items/s instead of {qps:.10g}: {STANDARD}",)
    assert what_if(rows, Limits(qps=qps), STANDARD if told is None else None) == words


def test_a_rate_that_nothing_was_measured_for_promises_nobody():
    rows = [msgspec.structs.replace(_row("standard", 12.0), throughput_qps=None)]
    assert what_if(rows, Limits(qps=5.0), None) == ()
