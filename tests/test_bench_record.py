"""A measurement as it is kept: what older and newer releases wrote is read, and each figure says what it is."""

from __future__ import annotations

import json

import msgspec
import pytest

from edgekit.bench.conditions import lasting
from edgekit.bench.record import Conditions, Latency, Measurement, Settings, Start, Usage
from edgekit.bench.stats import latency

SETTINGS = Settings(runtime="onnxruntime", runtime_version="1", threads=2, spinning=False)
OLD = {
    "model": "m",
    "artifact": "standard",
    "artifact_sha256": "0" * 64,
    "precision": "float32",
    "size_bytes": 1000,
    "settings": {"runtime": "onnxruntime", "runtime_version": "1.20.0", "threads": 1, "spinning": False},
    "latency": {
        "sample_count": 40,
        "mean_ms": 2.0,
        "min_ms": 1.0,
        "p50_ms": 2.0,
        "p50_low_ms": 1.9,
        "p50_high_ms": 2.1,
        "p90_ms": None,
        "p99_ms": None,
        "max_ms": 9.0,
    },
    "taken_at_unix_ms": 1,
}
"""The first release wrote so much and no more."""


def _decoded(table: dict[str, object]) -> Measurement:
    return msgspec.json.decode(json.dumps(table), type=Measurement)


def _changed(**changes: object) -> Settings:
    return msgspec.structs.replace(SETTINGS, **changes)


@pytest.mark.parametrize(
    ("settings", "label"),
    [
        (SETTINGS, "onnxruntime 2t"),
        (_changed(spinning=True), "onnxruntime 2t spinning"),
        (_changed(providers=(("CPUExecutionProvider", {}),)), "onnxruntime 2t"),
        (_changed(providers=(("CUDAExecutionProvider", {}), ("CPUExecutionProvider", {}))), "onnxruntime CUDA 2t"),
        (_changed(runtime="litert", delegate="libedgetpu.so.1"), "litert libedgetpu.so.1 2t"),
        (_changed(runtime="openvino", delegate="NPU"), "openvino NPU 2t"),
        (_changed(session_options={"b": "2", "a": "1"}), "onnxruntime 2t a=1 b=2"),
        (_changed(session_options={"graph_optimization_level": "0"}), "onnxruntime 2t"),
    ],
)
def test_a_label_names_what_is_not_the_plain_cpu(settings, label):
    assert settings.label == label


def test_a_candidate_is_its_artifact_and_its_settings():
    assert _decoded(OLD).candidate == "standard · onnxruntime 1t"


def test_what_the_first_release_wrote_is_read_and_what_it_did_not_know_is_none():
    row = _decoded(OLD)
    assert row.latency is not None
    assert (row.latency.round_p50_ms, row.latency.own_p50_ms, row.latency.paired_ms) == ((), None, None)
    assert (row.usage, row.after_idle_ms, row.start, row.rough, row.run_id) == (None, None, None, False, "")
    assert row.conditions == Conditions()
    assert lasting(row.conditions) == {}


def test_what_a_later_release_adds_is_passed_over():
    later = OLD | {"colour": "blue", "latency": {**OLD["latency"], "p999_ms": 8.0}}
    assert _decoded(later) == _decoded(OLD)


@pytest.mark.parametrize("missing", ["settings", "latency", "artifact_sha256", "taken_at_unix_ms"])
def test_what_lacks_an_essential_part_is_no_measurement(missing):
    table = {key: value for key, value in OLD.items() if key != missing}
    with pytest.raises(msgspec.ValidationError, match=missing):
        _decoded(table)


def test_nothing_is_lost_on_the_way_to_json_and_back():
    row = Measurement(
        model="m",
        artifact="flash",
        artifact_sha256="1" * 64,
        precision="int8",
        size_bytes=10,
        settings=_changed(axes={"x[0]": 1}, providers=(("CPUExecutionProvider", {"a": "b"}),)),
        latency=msgspec.structs.replace(latency([[1.0, 2.0, 3.0]] * 12), paired_ms=1.5),
        start=Start(import_ms=1, load_ms=2, first_ms=3, loaded_bytes=4, temporary_bytes=5),
        usage=Usage(cpu_ms=1, page_faults=2, context_switches=3, energy_mj=4),
        ops_by_provider={"CPUExecutionProvider": 7},
        partitions=1,
        conditions=Conditions(power_mode="15W", judged_bad=("a doubt",), quota_cores=0.5),
        device={"cpu": "x"},
        taken_at_unix_ms=9,
        run_id="r",
        rough=True,
    )
    assert msgspec.json.decode(msgspec.json.encode(row), type=Measurement) == row


@pytest.mark.parametrize(
    ("changes", "typical_ms"),
    [({}, 2.0), ({"own_p50_ms": 1.5}, 1.5), ({"own_p50_ms": 1.5, "paired_ms": 3.0}, 3.0), ({"paired_ms": 3.0}, 3.0)],
)
def test_a_comparison_looks_at_the_candidates_own_doing(changes, typical_ms):
    figures = msgspec.json.decode(json.dumps(OLD["latency"]), type=Latency)
    assert msgspec.structs.replace(figures, **changes).typical_ms == typical_ms


def test_a_cold_start_is_the_sum_of_its_parts():
    assert Start(import_ms=100, load_ms=20, first_ms=3).total_ms == 123


@pytest.mark.parametrize(
    ("conditions", "lasts"),
    [
        (Conditions(), {}),
        (Conditions(governor="performance", load_1min=3.0), {"governor": "performance"}),
        (Conditions(power_mode="MAXN", quota_cores=0.5), {"power_mode": "MAXN", "quota_cores": "0.5"}),
    ],
)
def test_what_lasts_of_the_conditions_is_what_somebody_set(conditions, lasts):
    assert lasting(conditions) == lasts
