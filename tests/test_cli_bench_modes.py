"""`edgekit bench` beyond its table, drawn from made-up results: scenarios, soak, batches, mixes; and what is shared."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from edgekit.bench.candidates import Candidate, candidates
from edgekit.bench.record import Latency, Measurement, Settings, Start
from edgekit.bench.scenarios import Scenario, ScenarioResult
from edgekit.bench.soak import Soak, Together, Window
from edgekit.catalog import load_model
from edgekit.cli import bench_modes as modes
from edgekit.cli.main import main
from edgekit.config import Home
from edgekit.fetch import all_artifacts

pytest.importorskip("onnxruntime", reason="elsewhere: the standard artifacts are ONNX")

Capture = pytest.CaptureFixture[str]
DIGITS = load_model("digits")


def drawn(draw: Any, *values: Any) -> list[str]:
    console = Console(width=120, color_system=None)
    with console.capture() as taken:
        draw(console, *values)
    return [line.rstrip() for line in taken.get().splitlines()]


def result(name: str = "single-stream", **more: Any) -> ScenarioResult:
    scenario = Scenario(name=name, qps=more.pop("qps", None), bound_ms=more.pop("bound_ms", None))
    blank: dict[str, Any] = {
        "scenario": scenario,
        "candidate": "standard · onnxruntime CPU 1t",
        "query_count": 1000,
        "p50_ms": 2.0,
        "percentile": 0.9,
        "estimate_ms": 2.5,
        "queries_needed": 64,
        "over_bound_count": None,
        "holds": None,
        "samples_per_s": 512.34,
        "achieved_qps": 500.0,
    }
    return ScenarioResult(**(blank | more))


# Scenarios


def test_a_scenario_is_a_row_with_its_claim() -> None:
    lines = drawn(modes._draw_scenarios, DIGITS, [result(), result("offline", percentile=None, estimate_ms=None)])
    assert lines[0] == "digits: standard · onnxruntime CPU 1t"
    assert lines[2].split() == ["single-stream", "1000", "2.00", "p90", "≤", "2.50", "ms", "512.3"]
    assert lines[3].split() == ["offline", "1000", "2.00", "–", "512.3"]
    assert len(lines) == 4


def test_a_claim_that_the_queries_do_not_support_says_how_many_would() -> None:
    assert modes._said_of(result(estimate_ms=None, query_count=20)) == [
        "single-stream: p90 not supported (20 queries, 64 needed); --samples 64 goes on until it is"
    ]


@pytest.mark.parametrize(
    ("holds", "words"), [(True, "kept"), (False, "not kept"), (None, "neither kept nor broken for sure")]
)
def test_a_bound_is_kept_or_not_or_undecided_with_its_counts(holds: bool | None, words: str) -> None:
    (line,) = modes._said_of(result("server", qps=50.0, bound_ms=12.5, over_bound_count=3, holds=holds))
    assert line == f"server: 12.5 ms at 50 queries/s is {words}: 3 of 1000 were slower"


# Soak


def window(at_s: float, **more: Any) -> Window:
    return Window(**({"at_s": at_s, "query_count": 10, "p50_ms": 2.0, "temperature_c": None, "throttled": None} | more))


def test_a_soak_shows_heat_and_throttling_where_there_are_sensors() -> None:
    found = Soak(
        candidate="flash [x]",
        windows=(window(60), window(120, temperature_c=71.6, throttled=True), window(180, throttled=False)),
        first_p50_ms=2.0,
        sustained_p50_ms=2.4,
        sustained_p99_ms=None,
        finding="20 % slower when warm",
    )
    lines = drawn(modes._draw_soak, DIGITS, found)
    assert lines[0] == "digits: flash [x]"
    assert [line.split() for line in lines[2:5]] == [
        ["60", "s", "10", "2.00", "–", "–"],
        ["120", "s", "10", "2.00", "72", "yes"],
        ["180", "s", "10", "2.00", "–", "no"],
    ]
    assert lines[5] == "sustained (second half): p50 2.40 ms, p99 not supported; 20 % slower when warm"


# Batches


def measured(p50_ms: float | None, **more: Any) -> Measurement:
    latency = None
    if p50_ms is not None:
        latency = Latency(
            sample_count=100, mean_ms=p50_ms, min_ms=p50_ms, p50_ms=p50_ms, p50_low_ms=p50_ms, p50_high_ms=p50_ms,
            p90_ms=None, p99_ms=None, max_ms=p50_ms,
        )  # fmt: skip
    blank: dict[str, Any] = {
        "model": "digits",
        "artifact": "standard",
        "artifact_sha256": "a" * 64,
        "precision": "float32",
        "size_bytes": 1,
        "settings": Settings(runtime="onnxruntime", runtime_version="1", threads=1, spinning=False),
        "latency": latency,
        "start": Start(import_ms=1, load_ms=1, first_ms=1),
        "peak_memory_bytes": 50 << 20,
        "throughput_qps": 1.0,
        "accuracy_value": 1.0,
        "accuracy_ratio": 1.0,
        "taken_at_unix_ms": 1,
    }
    return Measurement(**(blank | more))


@pytest.fixture(scope="module")
def candidate() -> Candidate:
    artifacts = all_artifacts(DIGITS, Home(Path("/nowhere")))
    return candidates(DIGITS, artifacts[:1], cores=1, runtimes=["onnxruntime"], threads=[1])[0]


def test_a_batch_is_told_by_the_sample_and_a_failure_by_its_reason(candidate: Candidate) -> None:
    rows = {1: measured(2.0), 8: measured(4.0, peak_memory_bytes=None), 64: measured(None, failure="out of memory")}
    lines = drawn(modes._draw_batches, DIGITS, candidate, rows)
    assert [line.split() for line in lines[2:4]] == [
        ["1", "2.00", "2.00", "500.0", "50"], ["8", "4.00", "0.500", "2000.0", "–"],
    ]  # fmt: skip
    assert lines[4].split(maxsplit=1) == ["64", "out of memory"]


# Mixes


def test_a_mix_tells_how_much_slower_each_is_and_the_sums() -> None:
    rows = [
        Together(model="a", candidate="standard", alone_p50_ms=2.0, together_p50_ms=3.0, slowdown=1.5),
        Together(model="b", candidate="flash", alone_p50_ms=4.0, together_p50_ms=5.0, slowdown=1.25),
    ]
    lines = drawn(modes._draw_mix, rows)
    assert [line.split()[-3:] for line in lines[2:4]] == [["2.00", "3.00", "1.50x"], ["4.00", "5.00", "1.25x"]]
    assert lines[4] == "alone they sum to 6.00 ms, together to 8.00 ms"


def test_as_json_nothing_is_drawn(capsys: Capture) -> None:
    modes._show(argparse.Namespace(json=True), [result()], lambda console: pytest.fail("drawn"))
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["scenario"]["name"], told["query_count"], told["estimate_ms"]) == ("single-stream", 1000, 2.5)


# Modes that make no sense


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--scenario", "server"], "the server scenario needs --qps and --latency-ms"),
        (["--scenario", "server", "--qps", "5"], "the server scenario needs --qps and --latency-ms"),
        (["--scenario", "all", "--latency-ms", "5"], "the server scenario needs --qps and --latency-ms"),
        (["--batch", "0"], "--batch must be 1 or more"),
        (["--batch", "2"], "--batch: digits takes one item at a time: the first axis of its inputs is fixed"),
    ],
)
def test_a_mode_without_what_it_needs_is_one_line(
    words: list[str], problem: str, capsys: Capture, edgekit_home: Path
) -> None:
    assert main(["bench", "digits", *words]) == 2
    assert capsys.readouterr().err == f"edgekit bench: {problem}\n"


# What one device measured for the next


def export(folder: Path, rows: list[Measurement]) -> Path:
    import msgspec

    path = folder / "rows.json"
    path.write_bytes(msgspec.json.encode(rows))
    return path


def test_measurements_travel_from_one_home_to_another(edgekit_home: Path, tmp_path: Path, capsys: Capture) -> None:
    rows = [measured(2.0), measured(None, failure="crashed")]
    assert main(["bench", "digits", "--merge", str(export(tmp_path, rows)), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"merged": 1, "serve_here": 0}
    assert main(["bench", "digits", "--export", str(tmp_path / "out.json")]) == 0
    assert capsys.readouterr().out == f"digits: 1 written to {tmp_path / 'out.json'}\n"
    (told,) = json.loads((tmp_path / "out.json").read_text())
    assert told["latency"]["p50_ms"] == 2.0
    assert main(["bench", "digits", "--merge", str(tmp_path / "out.json")]) == 0
    assert capsys.readouterr().out.startswith("digits: 0 merged; 0 were taken on a machine like this one")


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (None, 2, "No such file or directory"),
        (b"not json", 3, "not the export of edgekit bench: "),
        (b"[{}]", 3, "not the export of edgekit bench: "),
        (b"{}", 3, "not the export of edgekit bench: "),
    ],
)
def test_a_file_that_is_no_export_is_one_line(
    content: bytes | None, code: int, words: str, tmp_path: Path, capsys: Capture, edgekit_home: Path
) -> None:
    path = tmp_path / "rows.json"
    if content is not None:
        path.write_bytes(content)
    assert main(["bench", "digits", "--merge", str(path)]) == code
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1


def test_measurements_of_another_model_are_refused(tmp_path: Path, capsys: Capture, edgekit_home: Path) -> None:
    path = export(tmp_path, [measured(2.0, model="other")])
    assert main(["bench", "digits", "--merge", str(path)]) == 3
    assert "model: holds measurements of other, not of digits" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: Capture, edgekit_home: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert main(["bench", "digits", "--export", str(tmp_path / "file" / "out.json")]) == 2
    assert capsys.readouterr().err.startswith(f"edgekit bench: --export {tmp_path / 'file' / 'out.json'}: ")
