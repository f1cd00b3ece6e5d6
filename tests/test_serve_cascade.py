"""Flash first, the standard when that is unsure: what is asked again, and what becomes of it when it cannot be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from edgekit.config import CacheConfig, DaemonConfig, Home, ModelConfig, TolerantConfig
from edgekit.device.probe import probe
from edgekit.errors import ConfigError
from edgekit.serve.certainty import margin
from edgekit.serve.engine import Engine
from edgekit.serve.guard import FRUGAL, NORMAL
from edgekit.serve.job import Answer
from edgekit.serve.loader import Loader
from edgekit.serve.pace import Pace
from edgekit.telemetry.recorder import Recorder

pytest.importorskip("onnxruntime", reason="the artifacts of these tests run in onnxruntime")

NEVER_SURE, ALWAYS_SURE = 2.0, 0.0


@pytest.fixture(scope="module")
def facts():
    return probe()


@pytest.fixture
def load(facts, tmp_path: Path) -> Iterator[Callable[..., Loader]]:
    loaders: list[Loader] = []

    def begin(artifact: str = "int8", *, cache_mb: float = 0.0, **model: object) -> Loader:
        loader = Loader(engine=Engine(), home=Home(tmp_path), facts=facts, recorder=Recorder())
        loaders.append(loader)
        change(loader, artifact, cache_mb=cache_mb, **model)
        return loader

    yield begin
    for loader in loaders:
        assert loader.engine.close()


def change(loader: Loader, artifact: str = "int8", *, cache_mb: float = 0.0, **model: object) -> None:
    wanted = ModelConfig(name="digits", artifact=artifact, threads=1, **({"policy": "cascade"} | model))
    loader.apply(DaemonConfig(model=(wanted,), cache=CacheConfig(mb=cache_mb)), "edgekit.toml")


def set_threshold(loader: Loader, value: float) -> None:
    loader.engine.models["digits"].cascade.threshold = value


def ask(loader: Loader, seed: int = 0, **how: object) -> Answer:
    image = np.random.default_rng(seed).random((1, 8, 8, 1), np.float32)
    return loader.engine.infer("digits", {"image": image}, **how)


def test_what_is_sure_is_answered_by_flash_and_what_is_not_by_the_standard(load):
    loader = load()
    model = loader.engine.models["digits"]
    assert 0 <= model.cascade.threshold < 1, "calibrated when it was loaded"
    set_threshold(loader, ALWAYS_SURE)
    flash = ask(loader)
    assert (flash.artifact, flash.lane) == ("int8", "realtime")
    set_threshold(loader, NEVER_SURE)
    careful = ask(loader)
    assert (careful.artifact, careful.lane) == ("standard", "careful")
    assert careful.infer_ms > 0
    assert not np.array_equal(careful.outputs["logits"], flash.outputs["logits"])
    rows = {window.lane: (window.artifact, window.requests) for window in loader.recorder.take()}
    assert rows == {"realtime": ("int8", 2), "careful": ("standard", 1)}


def test_the_margin_decides(load):
    loader = load()
    cascade = loader.engine.models["digits"].cascade
    set_threshold(loader, ALWAYS_SURE)
    answers = [ask(loader, seed) for seed in range(20)]
    margins = [margin(answer.outputs["logits"]) for answer in answers]
    set_threshold(loader, sorted(margins)[10])
    lanes = [ask(loader, seed).lane for seed in range(20)]
    assert lanes == ["realtime" if m >= cascade.threshold else "careful" for m in margins]
    assert lanes.count("careful") == 10


def test_an_unsure_answer_in_time_is_better_than_none(load):
    loader = load()
    set_threshold(loader, NEVER_SURE)
    model = loader.engine.models["digits"]
    model.careful.pace = Pace()
    model.careful.pace.learn(8 * 8 * 4, 1e6)  # the standard takes minutes
    assert ask(loader, deadline_ms=10_000.0).artifact == "int8"
    assert ask(loader).artifact == "standard", "without a deadline there is time"


def test_a_careful_lane_that_is_closed_costs_no_answer(load):
    loader = load()
    set_threshold(loader, NEVER_SURE)
    assert loader.engine.models["digits"].careful.close(5.0)
    assert ask(loader).artifact == "int8"


def test_both_answers_are_kept_under_the_artifact_that_gave_them(load):
    loader = load(cache_mb=1.0)
    set_threshold(loader, NEVER_SURE)
    first, second = ask(loader), ask(loader)
    assert (first.artifact, first.cached) == ("standard", False)
    assert (second.artifact, second.cached) == ("standard", True)
    set_threshold(loader, ALWAYS_SURE)
    third = ask(loader)
    assert (third.artifact, third.cached) == ("int8", True)
    assert len(loader.engine.cache) == 2


def test_tolerant_requests_have_their_own_lane_and_no_cascade(load):
    loader = load(tolerant=TolerantConfig(artifact="int8"), isolation="thread")
    set_threshold(loader, NEVER_SURE)
    assert ask(loader, priority="tolerant").lane == "tolerant"
    assert ask(loader).lane == "careful"


def test_memory_comes_first_and_it_comes_back(load):
    loader = load()
    loader.level = FRUGAL
    change(loader)
    model = loader.engine.models["digits"]
    assert (model.cascade, model.careful) == (None, None)
    assert ask(loader).artifact == "int8"
    loader.level = NORMAL
    change(loader)
    set_threshold(loader, NEVER_SURE)
    assert ask(loader).artifact == "standard"
    change(loader, policy="priority")
    assert (model.cascade, model.careful) == (None, None)


def test_without_a_compressed_artifact_there_is_none(load, caplog):
    loader = load("standard")
    assert loader.engine.models["digits"].cascade is None
    assert "no cascade: the standard is what was selected" in caplog.text
    assert ask(loader).artifact == "standard"


def test_an_agreement_without_the_data_for_it_is_refused_and_the_old_goes_on(load):
    loader = load()
    with pytest.raises(ConfigError, match="takes 9999"):
        change(loader, agreement=0.9999)
    assert ask(loader).artifact in ("int8", "standard")
