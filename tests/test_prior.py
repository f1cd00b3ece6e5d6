"""The rules of thumb for a machine where nothing was measured: which one decides, and who disagreed."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgekit.artifact import Accuracy, Artifact, ArtifactRecord
from edgekit.bench.candidates import Candidate
from edgekit.errors import NoUsableArtifact, UsageError
from edgekit.prior import Machine, prior, votes
from edgekit.runtimes.session import SessionSettings
from edgekit.selection import Limits

GIB = 2**30
SMALL, LARGE = Machine(memory_bytes=4 * GIB), Machine(memory_bytes=64 * GIB)


def _candidate(name: str, precision: str, ratio: float | None = 1.0, threads: int = 1, **more) -> Candidate:
    accuracy = None
    if ratio is not None:
        accuracy = Accuracy(
            metric="top1", value=ratio, standard_value=1.0, sample_count=9, runtime="onnxruntime", isa="x"
        )
    record = ArtifactRecord(
        model="m",
        name=name,
        file="m.onnx",
        format="onnx",
        precision=precision,
        sha256=name.encode().hex().ljust(64, "0"),
        size_bytes=1,
        accuracy=accuracy,
        **more,
    )
    return Candidate(artifact=Artifact(record=record, path=Path("m.onnx")), settings=SessionSettings(threads=threads))


BOTH = [_candidate("standard", "float32"), _candidate("flash", "int8", 0.995)]


@pytest.mark.parametrize(
    ("machine", "limits", "chosen"),
    [
        (SMALL, Limits(), "flash"),
        (LARGE, Limits(), "standard"),
        (Machine(memory_bytes=None), Limits(), "standard"),
        (Machine(memory_bytes=64 * GIB, vram_bytes=8 * GIB), Limits(), "flash"),
        (Machine(memory_bytes=64 * GIB, vram_bytes=24 * GIB), Limits(), "standard"),
        (Machine(memory_bytes=64 * GIB, vram_bytes=40 * GIB), Limits(), "standard"),
        (LARGE, Limits(latency_ms=50), "standard"),
        (LARGE, Limits(latency_ms=900), "flash"),
        (LARGE, Limits(qps=500), "standard"),
        (LARGE, Limits(qps=5), "flash"),
        (Machine(memory_bytes=64 * GIB, long_term=True), Limits(), "standard"),
        (SMALL, Limits(latency_ms=50, qps=500), "flash"),
        (LARGE, Limits(latency_ms=50, qps=5), "standard"),
        (Machine(memory_bytes=64 * GIB, long_term=True), Limits(qps=5), "flash"),
    ],
)
def test_each_rule_and_their_order(machine, limits, chosen):
    selection = prior(BOTH, machine, limits)
    assert selection.artifact == chosen
    assert selection.is_prior


def test_the_rules_that_disagree_are_named():
    selection = prior(BOTH, SMALL, Limits(latency_ms=50, qps=500))
    disagreeing = [reason for reason in selection.reasons if "disagrees" in reason]
    assert len(disagreeing) == 2
    assert "latency" in disagreeing[0]
    assert "throughput" in disagreeing[1]


def test_it_says_that_it_is_a_prior_and_what_to_measure():
    reasons = prior(BOTH, SMALL, Limits()).reasons
    assert "nothing was measured here" in reasons[0]
    assert "edgekit bench m" in reasons[0]


def test_the_accuracy_floor_comes_before_latency_and_throughput():
    poor = [_candidate("standard", "float32"), _candidate("flash", "int8", 0.9)]
    selection = prior(poor, LARGE, Limits(latency_ms=900, qps=5))
    assert selection.artifact == "standard"
    assert selection.rejections[0].reason == "keeps 90.0% of the standard's accuracy, 99.0% required"
    assert any("no flash artifact that may be used" in reason for reason in selection.reasons)


def test_flash_of_unknown_accuracy_is_refused_unless_that_is_accepted():
    unknown = [_candidate("standard", "float32"), _candidate("flash", "int8", None)]
    assert prior(unknown, SMALL, Limits()).artifact == "standard"
    assert prior(unknown, SMALL, Limits(accuracy_floor=0)).artifact == "flash"


def test_an_unfit_artifact_is_never_the_answer():
    only = [_candidate("flash", "int8", fit=False, why_unfit="mAP 0")]
    with pytest.raises(NoUsableArtifact, match="mAP 0"):
        prior(only, SMALL, Limits())


def test_a_rule_without_its_fact_stays_silent():
    assert votes(Machine(memory_bytes=None), Limits()) == ()
    assert votes(LARGE, Limits(latency_ms=200, qps=70)) == ()


def test_limits_are_checked_as_for_measured_choices():
    with pytest.raises(UsageError):
        prior(BOTH, SMALL, Limits(objective="speed"))


@pytest.mark.parametrize(
    ("machine", "limits", "heard"),
    [
        ({"vram_bytes": 16 * GIB - 1}, {}, [("memory", "16 GiB of GPU memory is less than 16", "flash")]),
        ({"vram_bytes": 16 * GIB}, {}, []),
        ({"vram_bytes": 32 * GIB - 1}, {}, []),
        ({"vram_bytes": 32 * GIB}, {}, [("memory", "32 GiB of GPU memory is 32 or more", "standard")]),
        ({"vram_bytes": 24 * GIB, "memory_bytes": GIB}, {}, []),
        ({"memory_bytes": 8 * GIB - GIB // 2}, {}, [("memory", "7.5 GiB of memory is less than 8", "flash")]),
        ({"memory_bytes": 8 * GIB}, {}, []),
        ({}, {"latency_ms": 99.5}, [("latency", "99.5 ms is a bound below 100", "standard")]),
        ({}, {"latency_ms": 100}, []),
        ({}, {"latency_ms": 500}, []),
        ({}, {"latency_ms": 501}, [("latency", "501 ms is a bound above 500", "flash")]),
        ({}, {"qps": 101}, [("throughput", "101 queries/s is more than 100", "standard")]),
        ({}, {"qps": 100}, []),
        ({}, {"qps": 50}, []),
        ({}, {"qps": 49}, [("throughput", "49 queries/s is less than 50", "flash")]),
        ({"long_term": True}, {}, [("maintenance", "it must stay stable for long", "standard")]),
    ],
)
def test_each_rule_speaks_on_its_side_of_its_bound_alone(machine, limits, heard):
    found = votes(Machine(**({"memory_bytes": None} | machine)), Limits(**limits))
    assert [(vote.rule, vote.text, vote.wants) for vote in found] == heard


def test_the_decisive_rule_comes_first_whatever_is_required():
    everything = Machine(memory_bytes=GIB, long_term=True)
    assert [v.rule for v in votes(everything, Limits(latency_ms=1, qps=1))] == [
        "memory", "latency", "throughput", "maintenance",
    ]  # fmt: skip


def test_of_the_wanted_kind_the_int8_and_the_most_threads_are_taken():
    several = [
        _candidate("standard", "float32"),
        _candidate("half", "float16", threads=4),
        _candidate("flash", "int8", threads=1),
        _candidate("flash", "int8", threads=2),
    ]
    chosen = prior(several, SMALL, Limits())
    assert (chosen.artifact, chosen.settings.threads, chosen.accuracy_ratio) == ("flash", 2, 1.0)
    assert len(chosen.rejections) == 3
    assert {r.reason for r in chosen.rejections} == {"the rules point elsewhere"}
    assert [r for r in chosen.reasons if "no flash artifact" in r] == []


def test_without_a_word_from_any_rule_the_standard_is_safe():
    chosen = prior(BOTH, LARGE, Limits())
    assert chosen.reasons[1] == "no rule of thumb has anything to say; the standard is the safe choice"
    assert prior(BOTH, SMALL, Limits()).reasons[1] == "flash, because 4.0 GiB of memory is less than 8"


def test_an_accuracy_that_just_keeps_the_floor_is_kept():
    assert prior([_candidate("flash", "int8", 0.99)], SMALL, Limits()).artifact == "flash"


def test_a_file_of_unknown_precision_is_its_own_standard():
    assert prior([_candidate("standard", "unknown", None)], LARGE, Limits()).artifact == "standard"


@pytest.mark.parametrize(
    ("candidates", "model", "rejections"),
    [
        ([], "", []),
        (
            [_candidate("flash", "int8", fit=False)],
            "m",
            [("flash · onnxruntime 1t", "build marked it unfit: no reason given")],
        ),
    ],
)
def test_nothing_that_may_be_used_is_no_artifact(candidates, model, rejections):
    with pytest.raises(NoUsableArtifact) as error:
        prior(candidates, SMALL, Limits())
    assert (error.value.model, list(error.value.rejections)) == (model, rejections)
