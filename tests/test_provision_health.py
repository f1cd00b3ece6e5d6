"""The health gate: what is measured and compared, and a real daemon that is committed, too slow, or wrong."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from edgekit.config import Home
from edgekit.errors import ConfigError, ReleaseError, RequestError
from edgekit.provision import slots, stage
from edgekit.provision.health import judge, peak_memory_bytes, read_samples, write_samples
from edgekit.provision.pack import Order, pack, this_machine
from edgekit.provision.release import Library, Objective, Stored, seal
from tests.torture.small import Guarded

FEEDS = [{"x": np.full((1, 4), i, np.float32)} for i in range(8)]
ANSWERS = [{"y": np.eye(8, dtype=np.float32)[i : i + 1]} for i in range(8)]


class Clock:
    """Time that passes only when told."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_samples(tmp_path / "health/m.npz", FEEDS, ANSWERS)
    return tmp_path


def answer(clock: Clock, latencies_ms: Iterator[float], *, wrong: int = 0):
    def infer(_model: str, feed: Mapping[str, Any]) -> dict[str, Any]:
        clock.now_s += next(latencies_ms) / 1e3
        i = int(feed["x"][0, 0])
        return ANSWERS[(i + 1) % 8] if i < wrong else ANSWERS[i]

    return infer


def steady(ms: float) -> Iterator[float]:
    while True:
        yield ms


def bursts(every: int, ms: float, slow_ms: float) -> Iterator[float]:
    i = 0
    while True:
        i += 1
        yield slow_ms if i % every == 0 else ms


def verdict(folder: Path, latencies_ms: Iterator[float], *, wrong: int = 0, seconds: float = 60.0, **asked: Any):
    clock = Clock()
    objective = Objective(model="m", samples="health/m.npz", **asked)
    infer = answer(clock, latencies_ms, wrong=wrong)
    return judge([objective], folder, infer, daemon=None, seconds=seconds, clock=clock)


def test_an_objective_that_is_met_is_healthy_and_told_with_its_sample_counts(folder: Path):
    found = verdict(folder, steady(2.0), p99_ms=3.0, p50_ms=3.0)
    assert found.healthy
    (figures,) = found.figures
    assert (figures.sample_count, figures.agreement, figures.agreement_count) == (662, 1.0, 8)
    assert figures.p99_ms == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("latencies", "asked", "reason"),
    [
        (steady(41.0), {"p99_ms": 10.0}, "m: p99 is 41.0 ms of 662 samples, the objective is 10.0 ms"),
        (bursts(50, 2.0, 90.0), {"p99_ms": 10.0}, "m: p99 is 90.0 ms of 662 samples, the objective is 10.0 ms"),
        (steady(6.0), {"p50_ms": 5.0}, "m: p50 is 6.00 ms of 64 samples, the objective is 5.00 ms"),
        (steady(500.0), {"p99_ms": 900.0}, "m: p99 needs 662 samples, there was time for 102"),
        (steady(1.0), {"memory_bytes": 1 << 20}, "m: its memory cannot be read here"),
    ],
)
def test_a_missed_objective_is_told_with_both_figures(folder: Path, latencies, asked, reason: str):
    assert verdict(folder, latencies, **asked).reason == reason


def test_one_slow_answer_in_two_hundred_does_not_spoil_a_p99(folder: Path):
    assert verdict(folder, bursts(200, 2.0, 90.0), p99_ms=3.0).healthy


def test_wrong_answers_are_found_before_anything_is_timed(folder: Path):
    found = verdict(folder, steady(1.0), wrong=2, accuracy=0.9, p99_ms=5.0)
    assert found.reason == "m: agrees with 75.0% of 8 shipped samples, the objective is 90.0%"


def test_a_daemon_that_refuses_is_unhealthy_with_its_own_words(folder: Path):
    def refuse(_model: str, _feed: Mapping[str, Any]) -> dict[str, Any]:
        raise RequestError(404, "there is no model 'm'")

    objective = Objective(model="m", samples="health/m.npz")
    found = judge([objective], folder, refuse, daemon=None, seconds=1.0)
    assert found.reason == "m: there is no model 'm'"


def test_other_output_names_are_a_reason_and_no_crash(folder: Path):
    objective = Objective(model="m", samples="health/m.npz")
    found = judge([objective], folder, lambda _m, _f: {"z": np.zeros(8)}, daemon=None, seconds=1.0)
    assert "other names" in found.reason


def test_memory_is_the_peak_of_the_daemon(folder: Path):
    import os

    peak = peak_memory_bytes(os.getpid())
    assert peak is not None
    assert 10 << 20 < peak < 8 << 30
    assert peak_memory_bytes(None) is None
    assert peak_memory_bytes(2**22 + 1) is None


def test_samples_come_back_as_they_were_written_and_are_the_same_bytes_each_time(tmp_path: Path):
    write_samples(tmp_path / "a.npz", FEEDS, ANSWERS)
    write_samples(tmp_path / "b.npz", FEEDS, ANSWERS)
    feeds, answers = read_samples(tmp_path / "a.npz")
    np.testing.assert_array_equal(feeds[3]["x"], FEEDS[3]["x"])
    np.testing.assert_array_equal(answers[7]["y"], ANSWERS[7]["y"])
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


@pytest.mark.parametrize(
    "arrays",
    [
        {"input:x": np.zeros(3)},
        {"x": np.zeros(3), "output:y": np.zeros(3)},
        {"input:x": np.zeros(3), "output:y": np.zeros(4)},
        {"input:x": np.zeros(0), "output:y": np.zeros(0)},
        {"input:x": np.float32(1), "output:y": np.zeros(1)},
    ],
)
def test_samples_that_do_not_hold_together_are_refused(tmp_path: Path, arrays):
    np.savez(tmp_path / "s.npz", **arrays)
    with pytest.raises(ReleaseError, match=r"s\.npz"):
        read_samples(tmp_path / "s.npz")


# --- with the real daemon ---


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def packed(tmp_path: Path):
    """Makes releases of the digits model for one device."""
    library, home, port = Library(tmp_path / "library"), Home(tmp_path / "home"), free_port()

    def make(name: str, *, config: str = "", **how: Any) -> Stored:
        text = f'device = "d1"\n[http]\nport = {port}\n[[model]]\nname = "digits"\nartifact = "int8"\n{config}'
        (tmp_path / "edgekit.toml").write_text(text)
        order = Order(
            name=name,
            sequence=1,
            config=tmp_path / "edgekit.toml",
            target=this_machine(),
            **({"soak_s": 0.2, "ready_s": 60.0} | how),
        )
        return pack(order, library, home, lambda _text, _share: None)

    make.library = library  # type: ignore[attr-defined]
    return make


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere: devices run Linux")
def test_a_real_daemon_is_committed_when_it_holds_and_rolled_back_when_slow_or_wrong(packed, tmp_path: Path):
    root, library = tmp_path / "device", packed.library
    slots.prepare(root)
    fetch = stage.from_folder(library.blob)
    stage.install(root, packed("1.0", p99_ms={"digits": 2000.0}), fetch)
    with Guarded(root) as guarded:
        now = guarded.wait("a", "good", 90)
        (figures,) = now.slots[0].verdict["figures"]
        assert figures["sample_count"] >= 662
        assert 0 < figures["p50_ms"] <= figures["p99_ms"]
        assert figures["memory_bytes"] > 20 << 20

        stage.install(root, packed("2.0", p99_ms={"digits": 0.001}), fetch)
        now = guarded.wait("b", "bad", 90)
        assert "digits: p99 is" in now.slots[1].reason
        assert "the objective is 0.0010 ms" in now.slots[1].reason

        stage.install(root, wrong(packed("3.0"), library, tmp_path), fetch)
        now = guarded.wait("b", "bad", 90)
        assert "shipped samples" in now.slots[1].reason
        assert now.slots[0].release == "1.0"


def wrong(stored: Stored, library: Library, folder: Path) -> Stored:
    """The release with samples whose right answers are others: as if the device answered wrongly."""
    old = next(file for file in stored.release.files if file.path == "health/digits.npz")
    feeds, answers = read_samples_of(library.blob(old.sha256), folder)
    write_samples(folder / "wrong.npz", feeds, answers[1:] + answers[:1])
    import hashlib

    data = (folder / "wrong.npz").read_bytes()
    new = msgspec.structs.replace(old, sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))
    files = tuple(new if file is old else file for file in stored.release.files)
    changed = seal(msgspec.structs.replace(stored.release, name="3.1", files=files))
    sources = {file.sha256: library.blob(file.sha256) for file in files} | {new.sha256: folder / "wrong.npz"}
    library.save(changed, sources)
    return changed


def read_samples_of(blob: Path, folder: Path):
    (folder / "samples.npz").write_bytes(blob.read_bytes())
    return read_samples(folder / "samples.npz")


def test_a_release_ships_the_chosen_artifact_the_samples_and_how_to_judge(packed):
    stored = packed("1.0", config="latency_ms = 20\nmemory_mb = 300\n")
    assert {file.path for file in stored.release.files} == {"edgekit.toml", "health/digits.npz"}
    (objective,) = stored.release.objectives
    assert (objective.p99_ms, objective.memory_bytes) == (20.0, 300 << 20)
    assert 0.9 < objective.accuracy < 1.0
    assert stored.release.launch.check_s > 662 * 2 * 0.02
    assert stored.digest == packed("1.0", config="latency_ms = 20\nmemory_mb = 300\n").digest


def test_what_cannot_work_on_a_device_is_refused_when_packed(packed, tmp_path: Path):
    for config, problem in (
        ('[mqtt]\npassword_file = "secret"\n', "must be absolute"),
        ('[[model]]\nname = "/tmp/x.onnx"\n', "must lie below the folder"),
        ('[[model]]\nname = "../x.onnx"\n', "must lie below the folder"),
        ('[[model]]\nname = "file-typ"\n', "did you mean"),
    ):
        with pytest.raises(ConfigError, match=problem):
            packed("1.0", config=config)
    (tmp_path / "edgekit.toml").write_text('[http]\nport = 0\n[[model]]\nname = "digits"\n')
    order = Order(name="1", sequence=1, config=tmp_path / "edgekit.toml", target=this_machine())
    with pytest.raises(ConfigError, match="needs a fixed TCP port"):
        pack(order, packed.library, Home(tmp_path), lambda _t, _s: None)
