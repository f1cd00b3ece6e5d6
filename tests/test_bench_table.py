"""The table for people says what the samples support, and flags flash that is slower."""

from __future__ import annotations

import pytest

from edgekit.bench.record import Conditions, Measurement, Settings, Start, Usage
from edgekit.bench.stats import latency
from edgekit.catalog import load_model
from edgekit.cli.bench_table import baseline, findings, print_table


def _row(artifact: str, p50: float, *, precision: str = "float32", count: int = 60, **changes) -> Measurement:
    values = {
        "model": "digits",
        "artifact": artifact,
        "artifact_sha256": artifact,
        "precision": precision,
        "size_bytes": 4 * 2**20 if precision == "float32" else 2**20,
        "settings": Settings(runtime="onnxruntime", runtime_version="1", threads=1, spinning=False),
        "latency": latency([[p50 * 0.99, p50, p50 * 1.01] * (count // 3)]),
        "start": Start(import_ms=100, load_ms=20, first_ms=5),
        "peak_memory_bytes": 80 * 2**20,
        "accuracy_ratio": 1.0,
        "device": {"cpu": "Cortex-A76", "cores": "4"},
        "taken_at_unix_ms": 1,
    }
    return Measurement(**(values | changes))


FAILED = _row("broken", 1, precision="int8", latency=None, failure="killed (SIGKILL)", start=None)


def test_the_baseline_is_the_standard_at_its_fastest():
    rows = [_row("standard", 20), _row("standard", 12), _row("flash", 5, precision="int8"), FAILED]
    found = baseline(rows)
    assert found is rows[1]
    assert baseline([FAILED]) is None
    twin = _row("litert", 9)
    assert baseline([twin, FAILED]) is twin


def test_slower_flash_is_a_sentence_of_its_own():
    rows = [_row("standard", 12.5), _row("flash-dynamic", 72.9, precision="int8")]
    (line, *_) = findings(rows, rows[0])
    assert line.startswith("flash-dynamic is 5.83x slower than the standard")
    assert line.endswith("75% smaller")


def test_a_slower_rewrite_of_the_standard_is_no_flash():
    rows = [_row("standard", 10.0), _row("standard-optimized", 20.0)]
    assert findings(rows, rows[0])[0] == "standard-optimized is 2.00x slower than the standard"


def test_faster_flash_says_how_surely():
    rows = [_row("standard", 10), _row("flash", 5, precision="int8")]
    assert findings(rows, rows[0])[0].startswith("flash is 2.00x as fast as the standard (1.9")


def test_a_difference_within_the_noise_is_called_equal():
    rows = [_row("standard", 10.0), _row("flash", 10.01, precision="int8")]
    assert "equally fast as far as the samples tell" in findings(rows, rows[0])[0]


@pytest.mark.parametrize(("count", "words"), [(60, ("p90", "p99")), (66, ("p99",)), (663, ())])
def test_percentiles_without_their_samples_are_named_as_not_supported(count, words):
    rows = [_row("standard", 10, count=count)]
    lines = [line for line in findings(rows, rows[0]) if "not supported" in line]
    assert [line.split()[0] for line in lines] == list(words)
    assert all(f"({count} samples)" in line for line in lines)


def test_failures_unfit_artifacts_and_bad_conditions_are_told():
    unfit = _row("flash", 5, precision="int8", fit=False, why_unfit="keeps 80 % of top1")
    hot = _row("standard", 10, conditions=Conditions(judged_bad=("the clocks are throttled",)))
    text = "\n".join(findings([hot, unfit, FAILED], hot))
    assert "failed: broken · onnxruntime 1t: killed (SIGKILL)" in text
    assert "unfit: flash: keeps 80 % of top1" in text
    assert "doubtful conditions: the clocks are throttled" in text


def test_the_printed_table_has_every_row_fastest_first(capsys):
    rows = [_row("standard", 12.5), _row("flash", 8.0, precision="int8"), FAILED]
    print_table(load_model("digits"), rows)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("digits on Cortex-A76, 4 cores")
    assert [line.split()[0] for line in lines[2:5]] == ["flash", "standard", "broken"]
    assert "1.56x faster" in lines[2]
    assert "baseline" in lines[3]
    assert "failed" in lines[4]


def test_the_query_after_a_pause_has_its_column(capsys):
    print_table(load_model("digits"), [_row("standard", 12.5, after_idle_ms=31.25), _row("other", 20.0)])
    head, first, second, *_ = capsys.readouterr().out.splitlines()[1:]
    place = head.index("idle ms") + len("idle ms")
    assert [line[:place].split()[-1] for line in (first, second)] == ["31.2", "–"]


@pytest.mark.parametrize("energy_mj", [None, 41.5])
def test_energy_has_a_column_where_a_sensor_tells_it(energy_mj, capsys):
    rows = [
        _row("standard", 12.5, usage=Usage(cpu_ms=1, page_faults=0, context_switches=0, energy_mj=energy_mj)),
        FAILED,
    ]
    print_table(load_model("digits"), rows)
    head, first, *_ = capsys.readouterr().out.splitlines()[1:]
    assert ("mJ" in head) is (energy_mj is not None)
    assert (first.split()[-1] == "41.5") is (energy_mj is not None)
