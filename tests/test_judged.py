"""Measurements on their way to a choice: who is checked when, and what is measured to the end before it is chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from edgekit.artifact import Artifact, ArtifactRecord
from edgekit.bench.candidates import Candidate, to_record
from edgekit.bench.record import Measurement
from edgekit.bench.stats import latency
from edgekit.errors import NoUsableArtifact
from edgekit.judged import Judged
from edgekit.limits import Limits
from edgekit.room import Room
from edgekit.runtimes.session import SessionSettings

MIB = 2**20


def _candidate(name: str) -> Candidate:
    record = ArtifactRecord(
        model="m", name=name, file="m.onnx", format="onnx", precision="int8", sha256=name, size_bytes=1
    )
    return Candidate(artifact=Artifact(record=record, path=Path("m.onnx")), settings=SessionSettings())


def _row(name: str, p50: float, samples: int = 1000, **changes: Any) -> Measurement:
    values: dict[str, Any] = {
        "model": "m",
        "artifact": name,
        "artifact_sha256": name,
        "precision": "int8",
        "size_bytes": 1,
        "settings": to_record(SessionSettings()),
        "latency": latency([[p50] * (samples // 10)] * 10),
        "peak_memory_bytes": 100 * MIB,
        "throughput_qps": 1000 / p50,
        "taken_at_unix_ms": 1,
    }
    return Measurement(**(values | changes))


class Judging:
    """A judge over rows whose accuracies are known to a verifier that counts whom it is asked about."""

    def __init__(self, ratios: dict[str, float | None], limits: Limits | None = None, room: Room | None = None) -> None:
        self.ratios, self.checked, self.finished, self.told = ratios, [], [], []
        candidates = [_candidate(name) for name in ratios]
        self.judged = Judged(self, candidates, limits or Limits(), lambda text, _: self.told.append(text), room)

    def judge(self, row: Measurement, candidate: Candidate) -> Measurement:
        """In the place of a Verifier."""
        name = candidate.artifact.record.name
        assert row.candidate == candidate.name
        self.checked.append(name)
        ratio = self.ratios[name]
        return msgspec.structs.replace(
            row,
            accuracy_ratio=ratio,
            fit=ratio is None or ratio >= 0.5,
            why_unfit=None if ratio is None or ratio >= 0.5 else "keeps nothing",
            accuracy_note="9 samples",
        )

    def finish(self, candidate: Candidate) -> Measurement:
        name = candidate.artifact.record.name
        self.finished.append(name)
        return _row(name, 1.0 + len(self.finished))

    def select(self, rows: list[Measurement]):
        return self.judged.select(rows, self.finish)


def _name(name: str) -> str:
    return _candidate(name).name


def test_only_who_leads_is_checked_and_whoever_fails_gives_way_to_the_next():
    judging = Judging({"slow": 1.0, "fast": 0.9, "broken": 0.1, "good": 1.0})
    selection = judging.select([_row("slow", 9.0), _row("fast", 2.0), _row("broken", 1.0), _row("good", 3.0)])
    assert selection.artifact == "good"
    assert judging.checked == ["broken", "fast", "good"]
    reasons = {r.candidate: r.reason for r in selection.rejections}
    assert reasons[_name("broken")] == "build marked it unfit: keeps nothing"
    assert reasons[_name("fast")] == "keeps 90.0% of the standard's accuracy, 99.0% required"
    assert selection.accuracy_ratio == 1.0
    assert judging.told == [f"checking the accuracy of {_name(name)}" for name in judging.checked]
    assert f"with 90.0% of the accuracy instead of 99.0%: {_name('fast')}" in selection.would_change


def test_when_all_fail_each_has_its_reason():
    judging = Judging({"a": 0.1, "b": 0.9})
    with pytest.raises(NoUsableArtifact) as error:
        judging.select([_row("a", 1.0), _row("b", 2.0)])
    assert judging.checked == ["a", "b"]
    assert len(error.value.rejections) == 2


def test_what_a_search_stopped_early_is_measured_to_the_end_once_before_it_is_chosen():
    judging = Judging({"rough": 1.0, "slow": 1.0})
    selection = judging.select([_row("rough", 1.0, rough=True), _row("slow", 9.0)])
    assert (selection.artifact, judging.finished, judging.checked) == ("rough", ["rough"], ["rough"])
    assert judging.told[-1] == f"measuring {_name('rough')} to the end"
    assert selection.p50_ms == 2.0


def test_the_inaccurate_are_not_measured_to_the_end():
    judging = Judging({"rough": 0.9, "slow": 1.0})
    assert judging.select([_row("rough", 1.0, rough=True), _row("slow", 9.0)]).artifact == "slow"
    assert judging.finished == []


def test_where_samples_for_the_percentile_are_all_that_is_missing_the_fastest_is_measured_on():
    limits = Limits(latency_ms=20.0)
    judging = Judging({"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0}, limits)
    rows = [
        _row("a", 5.0, samples=100, rough=True),
        _row("b", 3.0, samples=100, rough=True),
        _row("c", 1.0, samples=100),
        _row("d", 30.0, samples=100, rough=True),
    ]
    selection = judging.select(rows)
    assert (selection.artifact, judging.finished, judging.checked) == ("b", ["b"], ["b"])


@pytest.mark.parametrize(
    "changes", [{"samples": 1000, "p50": 21.0}, {"samples": 100, "failure": "died"}, {"samples": 100, "rough": False}]
)
def test_what_more_samples_would_not_save_is_not_measured_on(changes):
    judging = Judging({"a": 1.0}, Limits(latency_ms=20.0))
    with pytest.raises(NoUsableArtifact):
        judging.select([_row("a", **({"p50": 5.0, "rough": True} | changes))])
    assert judging.finished == []


def test_what_does_not_fit_the_machine_is_never_chosen_and_says_so():
    room = Room(usable_bytes=150 * MIB, reserve_bytes=10 * MIB)
    judging = Judging({"big": 1.0, "small": 1.0}, room=room)
    selection = judging.select([_row("big", 1.0, peak_memory_bytes=141 * MIB), _row("small", 9.0)])
    assert selection.artifact == "small"
    assert "140 MiB to give" in selection.rejections[0].reason
    assert judging.checked == ["small"]


def test_at_the_end_of_a_race_the_leader_is_checked_and_before_it_nobody_is():
    judging = Judging({"a": 0.9, "b": 1.0})
    rows = [_row("a", 1.0), _row("b", 2.0)]
    assert [s.candidate for s in judging.judged.standings(rows, False)] == [_name("a"), _name("b")]
    assert judging.checked == []
    assert [s.candidate for s in judging.judged.standings(rows, True)] == [_name("b")]
    assert judging.checked == ["a", "b"]
    assert [s.candidate for s in judging.judged.standings(rows, False)] == [_name("b")]
    assert judging.judged.standings([_row("a", 1.0)], True) == []
    assert judging.checked == ["a", "b"]


def test_all_are_checked_once_but_for_what_failed():
    judging = Judging({"a": 1.0, "b": 1.0, "c": 1.0})
    rows = [_row("a", 1.0), _row("b", 2.0, failure="died"), _row("c", 3.0)]
    judging.judged.check_all(rows)
    judging.judged.check_all(rows)
    assert judging.checked == ["a", "c"]


def test_an_accuracy_that_nobody_knows_stays_unknown():
    judging = Judging({"a": None})
    with pytest.raises(NoUsableArtifact) as error:
        judging.select([_row("a", 1.0)])
    ((_, reason),) = error.value.rejections
    assert reason == "its accuracy is not known (9 samples); an accuracy floor of 0 accepts that"
    assert Judging({"a": None}, Limits(accuracy_floor=0)).select([_row("a", 1.0)]).artifact == "a"
