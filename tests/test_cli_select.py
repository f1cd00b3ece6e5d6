"""`edgekit select`: its flags, and its choice from stored measurements, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edgekit.bench import store
from edgekit.bench.candidates import Candidate, to_record
from edgekit.bench.conditions import this_device
from edgekit.bench.record import Measurement, Settings, Start
from edgekit.bench.stats import latency
from edgekit.catalog import load_model
from edgekit.choose import Space, find_candidates
from edgekit.cli.main import main
from edgekit.cli.select import describe, parse_weights
from edgekit.config import Home
from edgekit.device.probe import probe
from edgekit.selection import WEIGHTS, Limits, Rejection, Selection

pytest.importorskip("onnxruntime", reason="elsewhere: the artifacts of digits are ONNX")
Capture = pytest.CaptureFixture[str]
WHICH = ["select", "digits", "--runtime", "onnxruntime", "--threads", "1", "--no-measure"]
MIB = 2**20


def measurement(candidate: Candidate, p50_ms: float, *, mib: int, qps: float) -> Measurement:
    """What `bench` would have written for this candidate on this machine."""
    record = candidate.artifact.record
    return Measurement(
        model="digits",
        artifact=record.name,
        artifact_sha256=record.sha256,
        precision=record.precision,
        size_bytes=record.size_bytes,
        settings=to_record(candidate.settings),
        latency=latency([[p50_ms * 0.99, p50_ms, p50_ms * 1.01] * 300]),
        start=Start(import_ms=100, load_ms=20, first_ms=5),
        peak_memory_bytes=mib * MIB,
        throughput_qps=qps,
        device=this_device(),
        taken_at_unix_ms=1,
    )


@pytest.fixture(scope="module")
def found() -> dict[str, Candidate]:
    space = Space(runtimes=["onnxruntime"], threads=[1])
    candidates = find_candidates(load_model("digits"), Home(Path("/nowhere/at/all")), probe(), space)
    return {candidate.artifact.record.name: candidate for candidate in candidates}


@pytest.fixture
def measured(edgekit_home: Path, found: dict[str, Candidate]) -> Home:
    """A state folder where the standard is fast and large, and int8 slow and small."""
    home = Home(edgekit_home)
    rows = [
        measurement(found["standard"], 4.0, mib=90, qps=240.0),
        measurement(found["int8"], 8.0, mib=40, qps=120.0),
    ]
    store.save(home.measurements("digits"), rows)
    return home


@pytest.fixture
def chosen(measured: Home, capsys: Capture) -> Callable[..., dict[str, Any]]:
    def run(*arguments: str) -> dict[str, Any]:
        assert main([*WHICH, *arguments, "--json"]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        value: dict[str, Any] = json.loads(out)
        return value

    return run


# The choice


@pytest.mark.parametrize(
    ("arguments", "artifact"),
    [
        ([], "standard"),
        (["--objective", "throughput"], "standard"),
        (["--objective", "memory"], "int8"),
        (["--memory-mb", "64"], "int8"),
        (["--memory-mb", "64", "--latency-ms", "9"], "int8"),
        (["--latency-ms", "5"], "standard"),
        (["--qps", "200"], "standard"),
        (["--percentile", "p50", "--latency-ms", "4.02"], "standard"),
    ],
)
def test_limits_and_objective_decide(
    chosen: Callable[..., dict[str, Any]], arguments: list[str], artifact: str
) -> None:
    value = chosen(*arguments)
    assert value["artifact"] == artifact
    assert value["is_prior"] is False
    assert [r["candidate"].split(" · ")[0] for r in value["rejections"]] == [
        {"standard": "int8", "int8": "standard"}[artifact]
    ]


def test_json_is_the_selection_with_its_limits_and_figures(chosen: Callable[..., dict[str, Any]]) -> None:
    value = chosen("--latency-ms", "5", "--qps", "100", "--memory-mb", "100", "--accuracy-floor", "0.9")
    fields = {field.encode_name for field in msgspec.structs.fields(Selection)}
    assert value.keys() == fields
    limits = value["limits"]
    assert (limits["latency_ms"], limits["latency_percentile"], limits["qps"]) == (5.0, "p99", 100.0)
    assert (limits["memory_bytes"], limits["accuracy_floor"]) == (100 * MIB, 0.9)
    assert (value["p50_ms"], value["p99_ms"], value["peak_memory_bytes"]) == (4.0, 4.04, 90 * MIB)
    assert msgspec.convert(value, Selection).settings.threads == 1


def test_without_a_floor_of_ones_own_the_models_counts(chosen: Callable[..., dict[str, Any]]) -> None:
    assert chosen()["limits"]["accuracy_floor"] == load_model("digits").accuracy_floor


def test_explain_gives_every_other_its_reason_and_else_counts_them(measured: Home, capsys: Capture) -> None:
    assert main([*WHICH, "--memory-mb", "64", "--explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("selected: int8 · onnxruntime 1t (int8, peak 40 MiB, keeps ")
    assert "  not      standard · onnxruntime 1t: peaks at 90 MiB, 64 MiB allowed" in lines
    assert main([*WHICH, "--memory-mb", "64"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "  1 other rejected; --explain says why"


def test_nothing_that_fits_is_exit_1_with_each_reason(measured: Home, capsys: Capture) -> None:
    arguments = [*WHICH, "--latency-ms", "5", "--memory-mb", "64"]
    assert main(arguments) == 1
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines()[0] == "digits: nothing fits"
    assert "  not      standard · onnxruntime 1t: peaks at 90 MiB, 64 MiB allowed" in out
    assert "  not      int8 · onnxruntime 1t: p99 8.08 ms, 5 ms allowed" in out
    assert main([*arguments, "--json"]) == 1
    value = json.loads(capsys.readouterr().out)
    assert value["model"] == "digits"
    assert {r["candidate"]: r["reason"] for r in value["rejections"]}[
        "int8 · onnxruntime 1t"
    ] == "p99 8.08 ms, 5 ms allowed"


def test_looking_stores_no_choice_for_the_daemon(measured: Home, chosen: Callable[..., dict[str, Any]]) -> None:
    chosen()
    assert not measured.selection("digits").exists()


def test_without_a_measurement_a_rule_of_thumb_says_that_it_is_one(edgekit_home: Path, capsys: Capture) -> None:
    assert main(WHICH) == 0
    assert capsys.readouterr().out.startswith("prior (not measured): ")
    assert main([*WHICH, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["is_prior"] is True
    assert value["p50_ms"] is None


# The words


def selection(**changes: Any) -> Selection:
    values: dict[str, Any] = {
        "model": "digits",
        "artifact": "int8",
        "artifact_sha256": "0" * 64,
        "precision": "int8",
        "settings": Settings(runtime="litert", runtime_version="2", threads=2, spinning=False),
        "reasons": ("p50 1.00 ms, best for latency", "half the size"),
        "rejections": tuple(Rejection(candidate=f"c{i}", reason=f"r{i}") for i in range(3)),
        "p50_ms": 1.0,
        "p99_ms": None,
        "peak_memory_bytes": 50 * MIB,
        "accuracy_ratio": 0.9876,
        "limits": Limits(),
    }
    return Selection(**(values | changes))


def test_a_choice_is_a_headline_its_reasons_and_how_many_others() -> None:
    assert describe(selection(), explain=False) == [
        "selected: int8 · litert 2t (int8, peak 50 MiB, keeps 98.8% of the accuracy)",
        "  because  p50 1.00 ms, best for latency",
        "  because  half the size",
        "  3 others rejected; --explain says why",
    ]


def test_what_is_not_known_is_left_out_of_the_headline() -> None:
    bare = selection(peak_memory_bytes=None, accuracy_ratio=None, rejections=(), is_prior=True)
    lines = describe(bare, explain=False)
    assert lines[0] == "prior (not measured): int8 · litert 2t (int8)"
    assert len(lines) == 3, "no others, so no line about them"


def test_explained_every_rejection_is_a_line_in_its_order() -> None:
    assert describe(selection(), explain=True)[-3:] == [f"  not      c{i}: r{i}" for i in range(3)]


# Flags


@pytest.mark.parametrize(
    ("flag", "values"),
    [
        ("--latency-ms", ("0", "-1", "nan", "inf")),
        ("--qps", ("0", "-1", "nan", "inf")),
        ("--memory-mb", ("0", "-1", "nan", "inf")),
        ("--seconds", ("0", "-1", "nan")),
        ("--budget", ("0", "-1", "nan")),
        ("--accuracy-floor", ("-0.1", "1.1", "nan")),
        ("--objective", ("speed", "", "Latency")),
        ("--percentile", ("p95", "99", "P99")),
        ("--runtime", ("tensorrt",)),
        ("--axis", ("side", "side=", "side=-3")),
    ],
)
def test_a_flag_that_makes_no_sense_is_one_line_and_exit_2(
    flag: str, values: tuple[str, ...], measured: Home, capsys: Capture
) -> None:
    for value in values:
        assert main([*WHICH, f"{flag}={value}"]) == 2, value
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        assert flag in err or flag.removeprefix("--") in err
        assert value in err


@pytest.mark.parametrize("floor", ["0", "1", "0.5"])
def test_the_ends_of_the_accuracy_floor_are_allowed(floor: str, measured: Home, capsys: Capture) -> None:
    assert main([*WHICH, "--accuracy-floor", floor, "--json"]) in (0, 1)
    assert capsys.readouterr().err == ""


# The weighted score


@pytest.mark.parametrize(
    ("pairs", "weights"),
    [
        ([], {"throughput": 0.4, "memory": 0.3, "accuracy": 0.2, "deployability": 0.1}),
        (["memory=1"], {"throughput": 0.0, "memory": 1.0, "accuracy": 0.0, "deployability": 0.0}),
        (["throughput=0"], {"throughput": 0.0, "memory": 0.5, "accuracy": 1 / 3, "deployability": 1 / 6}),
        (
            ["throughput=0.1", "memory=0.2", "accuracy=0.3", "deployability=0.4"],
            {"throughput": 0.1, "memory": 0.2, "accuracy": 0.3, "deployability": 0.4},
        ),
    ],
)
def test_weights_that_are_not_named_share_the_rest(pairs: list[str], weights: dict[str, float]) -> None:
    found = parse_weights(pairs, WEIGHTS)
    assert found == pytest.approx(weights)
    assert sum(found.values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (["speed=0.5"], "with a term of throughput, memory"),
        (["memory"], "expected TERM=SHARE"),
        (["memory=much"], "expected TERM=SHARE"),
        (["memory=nan"], "expected TERM=SHARE"),
        (["memory=-0.1"], "expected TERM=SHARE"),
        (["memory=0.7", "accuracy=0.7"], "add up to 1.4"),
        (["throughput=0.1", "memory=0.1", "accuracy=0.1", "deployability=0.1"], "add up to 0.4"),
    ],
)
def test_weights_that_make_no_sense_are_refused_in_one_line(pairs: list[str], words: str, capsys: Capture) -> None:
    assert main([*WHICH, "--objective", "balanced", "--weights", *pairs]) == 2
    out, err = capsys.readouterr()
    assert words in err
    assert (out, err.count("\n")) == ("", 1)


def test_weights_without_the_balanced_objective_are_refused(capsys: Capture) -> None:
    assert main([*WHICH, "--weights", "memory=1"]) == 2
    assert "--weights are those of --objective balanced, not of latency" in capsys.readouterr().err


@pytest.mark.parametrize(("weights", "artifact"), [("throughput=1", "standard"), ("memory=1", "int8")])
def test_weights_decide(chosen: Callable[..., dict[str, Any]], weights: str, artifact: str) -> None:
    value = chosen("--objective", "balanced", "--weights", weights)
    assert value["artifact"] == artifact
    assert any(f"1 × 1.00 {weights.partition('=')[0]}" in reason for reason in value["reasons"])


# The rules of thumb


def test_years_unattended_ask_for_the_standard(edgekit_home: Path, capsys: Capture) -> None:
    assert main([*WHICH, "--qps", "20", "--long-term", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["is_prior"]
    assert any("the maintenance rule disagrees: it must stay stable for long" in r for r in value["reasons"])
    assert main([*WHICH, "--long-term", "--json"]) == 0
    memory_is_small = any("GiB of memory is less than 8" in r for r in json.loads(capsys.readouterr().out)["reasons"])
    assert main([*WHICH, "--long-term"]) == 0
    out = capsys.readouterr().out
    assert ("standard, because it must stay stable for long" in out) is not memory_is_small


def test_years_unattended_say_nothing_to_measurements(capsys: Capture) -> None:
    arguments = [argument for argument in WHICH if argument != "--no-measure"]
    assert main([*arguments, "--long-term"]) == 2
    assert "--long-term is for the rules of thumb of --no-measure" in capsys.readouterr().err
