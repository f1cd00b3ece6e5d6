"""Re-selection under strain: how long is long enough, what is faster here, and the way back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edgekit.bench import store
from edgekit.bench.candidates import to_record
from edgekit.bench.conditions import this_device
from edgekit.bench.record import Latency, Measurement
from edgekit.catalog import load_model
from edgekit.config import DaemonConfig, HealthConfig, Home, ModelConfig
from edgekit.device.probe import probe
from edgekit.fetch import all_artifacts
from edgekit.serve.alternatives import faster_plan
from edgekit.serve.engine import Engine
from edgekit.serve.loader import Loader
from edgekit.serve.plan import pinned_plan
from edgekit.serve.strain import CALM, Strain, is_beyond, why_strained
from edgekit.serve.upkeep import Upkeep

pytest.importorskip("onnxruntime", reason="the artifacts of these tests run in onnxruntime")


@pytest.mark.parametrize(
    ("requests", "late", "beyond"),
    [
        (0, 0, False),
        (10, 0, False),
        (10, 1, True),
        (100, 3, False),
        (100, 4, True),
        (1000, 17, False),
        (1000, 18, True),
    ],
)
def test_a_p99_is_beyond_its_bound_when_chance_does_not_explain_the_late_ones(requests, late, beyond):
    assert is_beyond(requests, late) is beyond


@pytest.mark.parametrize(
    ("throttled", "requests", "late", "bound_ms", "wanted"),
    [
        (False, 100, 0, 10.0, None),
        (False, 100, 50, 10.0, "50 of 100 requests took longer than 10 ms"),
        (False, 100, 50, None, None),
        (True, 100, 0, 10.0, "the device is throttled"),
        (True, 100, 50, 10.0, "50 of 100 requests took longer than 10 ms"),
        (True, 0, 0, None, None),
    ],
)
def test_strain_is_told_in_words(throttled, requests, late, bound_ms, wanted):
    assert why_strained(throttled=throttled, requests=requests, late=late, bound_ms=bound_ms) == wanted


def test_a_moment_is_not_long_enough_and_a_break_begins_anew():
    strain = Strain(60.0)
    assert not strain.see(0, "hot")
    assert not strain.see(59, "hot")
    assert not strain.see(59.5, None)
    assert not strain.see(60, "hot")
    assert not strain.see(119, "hot")
    assert strain.see(120, "hot")
    assert not strain.see(121, "hot"), "what was changed gets its time too"
    assert strain.see(181, "hot")


def test_it_is_over_after_ten_times_as_long():
    strain = Strain(60.0)
    assert not strain.is_over(1e9), "nothing was seen yet"
    strain.see(0, "hot")
    strain.see(100, None)
    assert not strain.is_over(100 + CALM * 60 - 1)
    assert strain.is_over(100 + CALM * 60)
    strain.see(1000, "hot")
    assert not strain.is_over(1000 + CALM * 60)


# What is faster


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def put(home: Home, **typical_ms: float | tuple[float, float | None]) -> None:
    """Measurements of digits' artifacts with one thread: ms, or (ms, accuracy ratio)."""
    model = load_model("digits")
    rows = []
    for at, (name, figures) in enumerate(typical_ms.items()):
        took_ms, ratio = figures if isinstance(figures, tuple) else (figures, 1.0)
        config = ModelConfig(name="digits", artifact=name.replace("_", "-"))
        plan = pinned_plan(model, config, all_artifacts(model, home), threads=1)
        record = plan.artifact.record
        latency = Latency(
            sample_count=1000, mean_ms=took_ms, min_ms=took_ms, p50_ms=took_ms, p50_low_ms=took_ms,
            p50_high_ms=took_ms, p90_ms=took_ms, p99_ms=took_ms, max_ms=took_ms,
        )  # fmt: skip
        rows.append(
            Measurement(
                model="digits",
                artifact=record.name,
                artifact_sha256=record.sha256,
                precision=record.precision,
                size_bytes=record.size_bytes,
                settings=to_record(plan.settings),
                latency=latency,
                accuracy_ratio=ratio,
                device=this_device(),
                taken_at_unix_ms=1000 + at,
            )
        )
    store.save(home.measurements("digits"), rows)


@pytest.mark.parametrize(
    ("measured", "wanted"),
    [
        ({"standard": 10.0, "int8": 5.0}, "int8"),
        ({"standard": 10.0, "int8": 5.0, "litert_int8": 3.0}, "litert-int8"),
        ({"standard": 10.0, "int8": 9.5}, None),
        ({"standard": 10.0, "int8": 12.0}, None),
        ({"standard": 10.0, "int8": (5.0, 0.95)}, None),
        ({"standard": 10.0, "int8": (5.0, None)}, None),
        ({"int8": 5.0}, None),
        ({}, None),
    ],
    ids=["faster", "fastest", "hardly", "slower", "inaccurate", "accuracy unknown", "own not measured", "nothing"],
)
def test_the_fastest_measured_one_that_is_accurate_enough(home, measured, wanted):
    put(home, **measured)
    model = load_model("digits")
    config = ModelConfig(name="digits", artifact="standard")
    plan = pinned_plan(model, config, all_artifacts(model, home), threads=1)
    found = faster_plan(plan, home=home, threads=1)
    assert (None if found is None else found.artifact.record.name) == wanted
    if found is not None:
        assert (found.lane, found.wanted) == (plan.lane, plan.wanted)
        assert "takes 10 ms" in found.reasons[0]


# In a daemon that runs


@pytest.fixture
def upkeep(home: Home) -> Iterator[tuple[Upkeep, Loader, list[str]]]:
    wanted = ModelConfig(name="digits", artifact="standard", threads=1, latency_ms=20.0)
    config = DaemonConfig(model=(wanted,), health=HealthConfig(strain_s=30.0))
    loader = Loader(engine=Engine(), home=home, facts=probe(), recorder=None)
    told: list[str] = []
    upkeep = Upkeep(
        loader,
        config,
        "edgekit.toml",
        reread=None,
        tell=lambda kind, text, **_: told.append(f"{kind}: {text}"),
        end=lambda why: told.append(f"end: {why}"),
    )
    loader.apply(config, "edgekit.toml")
    yield upkeep, loader, told
    upkeep.close()
    assert loader.engine.close()


def look(upkeep: Upkeep, times_s: list[float], *, late: int) -> None:
    """A hundred requests before each look, so many of them late."""

    async def looks() -> None:
        for at_s in times_s:
            lane = upkeep.engine.models["digits"].ready_lane()
            for i in range(100):
                lane.counts.observe(queue_ms=0.0, infer_ms=30.0 if i < late else 1.0)
            await upkeep._look_at_strain(at_s)

    asyncio.run(looks())


def artifact(loader: Loader) -> str:
    return loader.engine.infer("digits", {"image": np.zeros((1, 8, 8, 1), np.float32)}).artifact


def test_a_bound_that_is_missed_for_a_while_changes_the_artifact_and_calm_changes_it_back(upkeep, home):
    put(home, standard=10.0, int8=5.0)
    daemon, loader, told = upkeep
    look(daemon, [0, 15, 30], late=50)
    assert artifact(loader) == "standard", "the first look has nothing to compare with"
    look(daemon, [45, 60], late=50)
    assert artifact(loader) == "int8"
    assert len(told) == 1
    assert told[0].startswith("adapted: digits: 50 of 101 requests took longer than 20 ms, for 30 s; now int8")
    look(daemon, [75, 90, 75 + CALM * 30 - 1], late=0)
    assert artifact(loader) == "int8"
    look(daemon, [75 + CALM * 30], late=0)
    assert artifact(loader) == "standard"
    assert told[1] == "adapted: digits: calm again: back to what was selected"


def test_a_throttled_device_is_strain_too_but_not_while_nobody_asks(upkeep, home):
    put(home, standard=10.0, int8=5.0)
    daemon, loader, told = upkeep
    daemon.engine.is_hot = True
    asyncio.run(daemon._look_at_strain(0.0))
    asyncio.run(daemon._look_at_strain(100.0))
    assert told == []
    look(daemon, [115, 130, 145], late=0)
    assert artifact(loader) == "int8"


def test_where_nothing_is_faster_it_is_said_once(upkeep):
    daemon, loader, told = upkeep
    look(daemon, [15 * i for i in range(20)], late=50)
    assert artifact(loader) == "standard"
    assert told == [
        "adapted: digits: 50 of 100 requests took longer than 20 ms, for 30 s; "
        "nothing that was measured here is faster and accurate enough"
    ]


def test_another_configuration_is_not_overruled(upkeep, home):
    put(home, standard=10.0, int8=5.0)
    daemon, loader, _ = upkeep
    look(daemon, [0, 15, 30, 45], late=50)
    assert artifact(loader) == "int8"
    wanted = ModelConfig(name="digits", artifact="standard", threads=1)
    loader.apply(DaemonConfig(model=(wanted,)), "edgekit.toml")
    assert artifact(loader) == "standard"
    loader.apply(DaemonConfig(model=(msgspec.structs.replace(wanted, name="file-type"),)), "edgekit.toml")
    assert loader.strained == {}


def test_it_can_be_turned_off(upkeep, home):
    put(home, standard=10.0, int8=5.0)
    daemon, loader, told = upkeep
    daemon._config = msgspec.structs.replace(daemon._config, health=HealthConfig(strain_s=0.0))
    look(daemon, [0, 1000, 2000], late=100)
    assert (artifact(loader), told) == ("standard", [])


@pytest.mark.parametrize(
    ("keep_warm", "seconds", "asked"), [(True, 5.0, True), (True, 3.0, False), (False, 5.0, False)]
)
def test_a_lane_that_grows_cold_is_asked_before_that(upkeep, keep_warm, seconds, asked):
    daemon, _, _ = upkeep
    daemon._config = msgspec.structs.replace(daemon._config, health=HealthConfig(keep_warm=keep_warm))
    lane = daemon.engine.models["digits"].ready_lane()
    for _ in range(10):
        lane.warmth.learn(10.0, 20.0, 10.0)  # after 8 s an inference takes twice as long
    silent_since_s = lane.answered_s = time.monotonic() - seconds
    daemon._look_at_lanes(time.monotonic())
    assert lane.close(5.0), "what was asked is answered before it closes"
    assert (lane.answered_s != silent_since_s) is asked
    assert lane.counts.requests == 0, "it is nobody's request"
