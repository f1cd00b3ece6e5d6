"""Flash is compared with the standard on a share of real requests, unseen by whoever asks."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edgekit.config import DaemonConfig, Home, ModelConfig, TolerantConfig
from edgekit.device.probe import probe
from edgekit.serve.engine import Engine
from edgekit.serve.job import Job
from edgekit.serve.loader import Loader
from edgekit.serve.shadow import Shadow
from edgekit.telemetry.recorder import Recorder
from tests.waiting import until

pytest.importorskip("onnxruntime", reason="the artifacts of these tests run in onnxruntime")

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def facts():
    return probe()


@pytest.fixture
def load(facts, tmp_path: Path) -> Iterator[Callable[..., Loader]]:
    loaders: list[Loader] = []

    def begin(artifact: str = "int8", **model: object) -> Loader:
        loader = Loader(engine=Engine(), home=Home(tmp_path), facts=facts, recorder=Recorder())
        loaders.append(loader)
        change(loader, artifact, **model)
        return loader

    yield begin
    for loader in loaders:
        assert loader.engine.close()


def change(loader: Loader, artifact: str = "int8", **model: object) -> None:
    wanted = ModelConfig(name="digits", artifact=artifact, threads=1, **model)
    loader.apply(DaemonConfig(model=(wanted,)), "edgekit.toml")


def ask(loader: Loader, count: int) -> None:
    """Slow enough for the shadow to follow."""
    for _ in range(count):
        answer = loader.engine.infer("digits", {"image": RNG.random((1, 8, 8, 1), np.float32)})
        assert (answer.lane, answer.artifact) == ("realtime", "int8")
        time.sleep(0.003)


def compared(loader: Loader) -> tuple[int, int, int]:
    """(requests, agreed, total) of the real-time lane's window; no other lane has any."""
    time.sleep(0.05)
    (window,) = loader.recorder.take()
    assert window.lane == "realtime"
    return window.requests, window.shadow_agreed, window.shadow_total


def test_answers_are_compared_with_the_standards_and_counted_once(load):
    loader = load(shadow=1.0)
    counted = loader.engine.find("digits").ready_lane().counts
    asked = 0
    while counted.shadow_total < 20:  # one is compared at a time: what comes meanwhile is left out
        ask(loader, 1)
        asked += 1
        assert asked < 5000, "hardly any answer is compared"
    requests, agreed, total = compared(loader)
    assert requests == asked
    assert 20 <= total <= asked
    assert 0.5 * total <= agreed <= total
    counts = loader.engine.find("digits").ready_lane().counts
    assert (counts.shadow_agreed, counts.shadow_total) == (agreed, total)


def test_without_being_asked_for_it_costs_no_memory(load):
    loader = load()
    assert loader.engine.find("digits").standard is None
    ask(loader, 5)
    assert compared(loader) == (5, 0, 0)


def test_a_tolerant_lane_that_has_the_standard_is_what_is_compared_with(load):
    loader = load(tolerant=TolerantConfig(artifact="standard"), shadow=1.0)
    assert loader.engine.find("digits").standard is None
    ask(loader, 10)
    counted = loader.engine.find("digits").ready_lane().counts
    assert until(lambda: counted.shadow_total > 0), "one at least is compared, in its own time"
    assert compared(loader)[2] > 0


def test_the_standard_is_not_compared_with_itself_and_memory_comes_first(load):
    loader = load(shadow=1.0)
    assert loader.engine.find("digits").standard is not None
    loader.level = 1
    change(loader, shadow=1.0)
    assert loader.engine.find("digits").standard is None
    ask(loader, 3)
    assert compared(loader) == (3, 0, 0)
    loader.level = 0
    change(loader, "standard", shadow=1.0)
    assert loader.engine.find("digits").standard is None
    assert loader.engine.find("digits").ready_lane().on_answer is None


def test_a_hot_device_and_chance_spare_it(load):
    loader = load(shadow=1.0)
    loader.engine.is_hot = True
    ask(loader, 5)
    assert compared(loader) == (5, 0, 0)
    loader.engine.is_hot = False
    served = loader.engine.find("digits")
    assert served.standard is not None
    told: list[bool] = []
    shadow = Shadow(
        served.standard, 0.25, tell=lambda _, agreed: told.append(agreed), is_quiet=lambda: False, rng=random.Random(1)
    )
    served.ready_lane().on_answer = shadow.offer
    ask(loader, 100)
    time.sleep(0.1)
    assert 10 <= len(told) <= 40


def test_a_collapsed_flash_is_seen(load):
    loader = load(shadow=1.0)
    served = loader.engine.find("digits")
    told: list[bool] = []
    assert served.standard is not None
    shadow = Shadow(served.standard, 1.0, tell=lambda _, agreed: told.append(agreed), is_quiet=lambda: False)
    inputs = {"image": RNG.random((1, 8, 8, 1), np.float32)}
    shadow.offer(served.ready_lane(), Job(inputs=inputs, done=lambda _: None), {"logits": np.full((1, 10), np.nan)})
    until = time.monotonic() + 5
    while not told and time.monotonic() < until:
        time.sleep(0.01)
    assert told == [False]
    assert msgspec.json.encode(loader.recorder.take()) == b"[]"
