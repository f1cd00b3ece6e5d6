"""`edgekit bench`: its flags, and its table of measurements where it is narrow and where it is wide."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
from rich.console import Console

from edgekit.bench.record import Measurement, Settings, Start
from edgekit.bench.stats import MIN_SAMPLES, SAMPLES_FOR_P90, SAMPLES_FOR_P99, latency
from edgekit.catalog import load_model
from edgekit.cli import bench_table
from edgekit.cli.bench import add_arguments, plan_of, space_of
from edgekit.cli.main import main
from edgekit.cli.numbers import parse_axes
from edgekit.device.probe import probe
from edgekit.errors import UsageError

Capture = pytest.CaptureFixture[str]
DIGITS = load_model("digits")


def row(artifact: str, p50: float = 10.0, *, count: int = SAMPLES_FOR_P99 + 1, **changes: Any) -> Measurement:
    """A measurement with its times from 1 % below to 1 % above `p50`."""
    values: dict[str, Any] = {
        "model": "digits",
        "artifact": artifact,
        "artifact_sha256": artifact,
        "precision": "float32" if artifact == "standard" else "int8",
        "size_bytes": 4 * 2**20 if artifact == "standard" else 2**20,
        "settings": Settings(runtime="onnxruntime", runtime_version="1", threads=1, spinning=False),
        "latency": latency([[p50 * 0.99, p50, p50 * 1.01] * (count // 3)]),
        "start": Start(import_ms=100, load_ms=20, first_ms=5),
        "peak_memory_bytes": 80 * 2**20,
        "accuracy_ratio": 1.0,
        "device": {"cpu": "Cortex-A76", "cores": "4"},
        "taken_at_unix_ms": 1,
    }
    return Measurement(**(values | changes))


def drawn(rows: list[Measurement], width: int) -> list[str]:
    """The table's lines on a terminal of `width` columns: title, headings, rows."""
    console = Console(width=width)
    base = bench_table.baseline(rows)
    with console.capture() as taken:
        console.print(bench_table._table(DIGITS, rows, base, wide=width >= bench_table._MIN_WIDTH))
    return taken.get().splitlines()


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(["digits", *arguments])


# The table


def test_a_wide_table_has_every_figure_in_its_column() -> None:
    lines = drawn([row("standard", 10.0), row("flash", 5.0, accuracy_ratio=0.9876)], 120)
    assert lines[1].split("  ")[0] == "artifact"
    for heading in ("runs in", "p50 ms", "p90", "p99", "vs standard", "cold ms", "peak MiB", "MiB", "kept"):
        assert heading in lines[1]
    assert lines[2].split() == [
        "flash", "onnxruntime", "1t", "5.00", "±0.0%", "5.05", "5.05", "2.00x", "faster", "125", "–", "80",
        "1.00", "98.8%",
    ]  # fmt: skip
    assert lines[3].split()[-7:] == ["10.1", "baseline", "125", "–", "80", "4.00", "100.0%"]


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_table_keeps_what_decides_and_its_lines_whole(width: int) -> None:
    lines = drawn([row("standard"), row("flash-int8-static", 20.0)], width)
    assert max(map(len, lines)) <= width
    assert lines[1].split("  ")[0] == "artifact"
    assert all(heading in lines[1] for heading in ("p50 ms", "p99", "vs standard", "peak MiB"))
    assert all(heading not in lines[1] for heading in ("p90", "cold", "kept"))
    (line,) = [line for line in lines if "2.00x slower" in line]
    assert {"20.0", "20.2", "80"} <= set(line.split()), "figures stay whole, names go on below"


def test_what_is_not_known_is_a_dash_or_a_question_mark_never_a_zero() -> None:
    bare = row("standard", count=60, start=None, peak_memory_bytes=None, accuracy_ratio=None)
    cells = drawn([bare], 120)[2].split()
    # p90, p99, vs, cold, after a pause, peak, size, kept
    assert cells[-8:] == ["–", "–", "baseline", "–", "–", "–", "4.00", "?"]


def test_the_title_says_where_it_was_measured() -> None:
    assert drawn([row("standard")], 120)[0].strip() == "digits on Cortex-A76, 4 cores"
    assert drawn([row("standard", device={})], 120)[0].strip() == "digits on this machine, ? cores"


def test_what_the_noise_hides_is_called_the_same() -> None:
    rows = [row("standard", 10.0), row("flash", 10.01)]  # proven by so many samples, yet less than is shown
    assert "the same" in drawn(rows, 120)[3]
    assert bench_table.findings(rows, rows[0])[0].startswith("flash and the standard are equally fast")


def test_a_failed_candidate_stands_last_and_names_its_failure_below() -> None:
    failed = row("broken", latency=None, failure="killed (SIGKILL)", start=None)
    rows = [failed, row("standard")]
    assert drawn(rows, 120)[-1].split() == ["broken", "onnxruntime", "1t", "failed"]
    assert bench_table.findings(rows, rows[1])[0] == "failed: broken · onnxruntime 1t: killed (SIGKILL)"


def test_a_table_where_all_failed_still_stands() -> None:
    lines = drawn([row("a", latency=None, failure="x"), row("b", latency=None, failure="y")], 80)
    assert [line.split()[0] for line in lines[2:]] == ["a", "b"]


def test_only_an_artifact_that_is_clearly_smaller_is_called_smaller() -> None:
    rows = [row("standard"), row("flash", 5.0, size_bytes=4 * 2**20 - 100)]
    assert "smaller" not in bench_table.findings(rows, rows[0])[0]


def test_each_flash_artifact_gets_one_verdict_at_its_fastest() -> None:
    two = Settings(runtime="onnxruntime", runtime_version="1", threads=2, spinning=False)
    rows = [row("standard"), row("flash", 20.0), row("flash", 5.0, settings=two)]
    verdicts = [line for line in bench_table.findings(rows, rows[0]) if line.startswith("flash ")]
    assert len(verdicts) == 1
    assert "2.00x as fast" in verdicts[0]


# Flags


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seconds", "0"], "--seconds 0: must be a finite number, and more than zero"),
        (["--seconds", "-1"], "--seconds -1"),
        (["--seconds", "nan"], "--seconds nan"),
        (["--seconds", "inf"], "--seconds inf"),
        (["--samples", "0"], "--samples 0"),
        (["--memory-mb", "0"], "--memory-mb 0"),
        (["--memory-mb", "-3"], "--memory-mb -3"),
        (["--memory-mb", "nan"], "--memory-mb nan"),
        (["--threads", "2", "0"], "--threads must be 1 or more"),
        (["--runtime", "tensorrt"], "--runtime tensorrt: edgekit knows onnxruntime, openvino, litert, tflite"),
        (["--axis", "side"], "--axis side: expected NAME=SIZE"),
        (["--axis", "=3"], "expected NAME=SIZE"),
        (["--axis", "side=0"], "expected NAME=SIZE"),
        (["--axis", "side=²"], "expected NAME=SIZE"),
        (["--axis", "side=1.5"], "expected NAME=SIZE"),
        (["--compare", "standard", "absent"], "--compare: there is no 'absent' here, only standard"),
    ],
)
def test_a_flag_that_makes_no_sense_is_one_line_and_exit_2(
    arguments: list[str], words: str, edgekit_home: Any, capsys: Capture
) -> None:
    assert main(["bench", "digits", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert words in err
    assert not edgekit_home.exists(), "nothing was measured"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seconds", "five"], "invalid float value: 'five'"),
        (["--samples", "1.5"], "invalid int value: '1.5'"),
        (["--threads", "many"], "invalid int value: 'many'"),
        (["--threads"], "expected at least one argument"),
        (["--compare", "standard"], "expected 2 arguments"),
    ],
)
def test_a_flag_that_does_not_parse_says_which(arguments: list[str], words: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as left:
        main(["bench", "digits", *arguments])
    assert left.value.code == 2
    assert words in capsys.readouterr().err


def test_flags_become_the_space_of_candidates() -> None:
    space = space_of(parsed("--artifact", "int8", "--artifact", "standard", "--threads", "1", "4", "--axis", "x[0]=2"))
    assert (space.artifacts, space.runtimes, space.threads) == (["int8", "standard"], None, [1, 4])
    assert space.axes == {"x[0]": 2}
    assert space_of(parsed()).axes == {}


def test_a_sign_of_equality_may_stand_in_an_axis_name() -> None:
    assert parse_axes(["a=b=3", "side=640", "side=320"]) == {"a=b": 3, "side": 320}
    with pytest.raises(UsageError):
        parse_axes(["3"])


def test_asked_for_samples_it_measures_until_they_are_there() -> None:
    facts = probe()
    plan = plan_of(parsed("--samples", str(SAMPLES_FOR_P90), "--seconds", "0.1", "--memory-mb", "64"), facts)
    assert plan.min_samples == plan.max_samples == SAMPLES_FOR_P90
    assert plan.max_seconds == float("inf")
    assert plan.memory_limit_bytes == 64 * 2**20
    assert plan_of(parsed("--samples", "1"), facts).min_samples == MIN_SAMPLES


def test_without_a_limit_what_is_free_is_the_limit() -> None:
    facts = probe()
    plan = plan_of(parsed(), facts)
    assert plan.seconds == 5.0
    assert plan.memory_limit_bytes == facts.memory.available_bytes
