"""The demo's parts in this process: what it fetches, what it says offline, who failed, what its children say."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from edgekit.catalog import load_model
from edgekit.cli import demo
from edgekit.config import Home
from edgekit.demo.children import Child
from edgekit.demo.stage import _daemon
from edgekit.errors import EdgekitError, FetchError

pytest.importorskip("httptools", reason="elsewhere: the demo serves, which needs httptools")
stage = pytest.importorskip("edgekit.demo.stage")


@pytest.fixture
def console() -> Console:
    return Console(width=100, color_system=None, record=True)


def test_models_that_are_here_are_fetched_by_name(console: Console, tmp_path: Path) -> None:
    assert [model.name for model in demo._fetched(console, ["digits"], Home(tmp_path))] == ["digits"]
    assert console.export_text() == ""


def test_without_a_network_the_model_that_needs_none_is_shown_and_said(
    console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(model: Any, state: Home, *, progress: Any) -> None:
        raise FetchError("rapidocr==1", "the package index is not reachable")

    monkeypatch.setattr("edgekit.fetch.standard_artifact", unreachable)
    assert [model.name for model in demo._fetched(console, None, Home(tmp_path))] == list(demo.OFFLINE_MODELS)
    text = " ".join(console.export_text().split())
    assert "the package index is not reachable; going on with digits, which needs no download" in text


def test_a_model_that_was_asked_for_by_name_is_not_replaced_by_another(
    console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(model: Any, state: Home, *, progress: Any) -> None:
        raise FetchError("x", "not reachable")

    monkeypatch.setattr("edgekit.fetch.standard_artifact", unreachable)
    with pytest.raises(FetchError):
        demo._fetched(console, ["digits"], Home(tmp_path))


def test_the_offline_models_need_no_download() -> None:
    assert all(load_model(name).source.file is not None for name in demo.OFFLINE_MODELS)
    assert set(demo.OFFLINE_MODELS).isdisjoint(demo.MODELS)


def test_real_inputs_of_a_model_fit_it() -> None:
    model = load_model("digits")
    inputs = demo._inputs(model)
    assert len(inputs) == demo.SAMPLES
    assert all(found["image"].shape == model.bound_shape(model.inputs[0]) for found in inputs)


def test_a_step_is_a_title_and_a_sentence_and_never_markup(console: Console) -> None:
    demo._step(console, "Build", "two of [them]")
    assert console.export_text() == "\n Build  two of [them]\n"


@pytest.mark.parametrize("artifact", [None, "standard"])
def test_a_daemons_file_names_site_device_broker_and_its_models(
    artifact: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgekit.config import load_daemon_config

    started: list[Any] = []
    monkeypatch.setattr(stage, "Child", lambda *words: started.append(words))

    class Broker:
        host, port = "127.0.0.1", 1999

    _daemon(tmp_path, "selected", ["digits", "file-type"], artifact, Broker())  # type: ignore[arg-type]
    ((name, verb, flag, path),) = started
    assert (name, verb, flag) == ("the daemon 'selected'", "run", "--config")
    config = load_daemon_config(path)
    assert (config.site, config.device, config.http.port) == ("demo", "selected", 0)
    assert (config.mqtt.host, config.mqtt.port, config.mqtt.window_s) == ("127.0.0.1", 1999, stage.WINDOW_S)
    assert [(model.name, model.artifact) for model in config.model] == [("digits", artifact), ("file-type", artifact)]


class Running:
    def __init__(self, name: str, *, is_running: bool = True, last_words: str = "") -> None:
        self.name, self.is_running, self.last_words = name, is_running, last_words


class Sent:
    def __init__(self, *failures: str) -> None:
        self.failures = list(failures)


def test_every_end_and_every_kind_of_failure_is_told_once() -> None:
    found = stage.Stage(
        broker=None,  # type: ignore[arg-type]
        daemons=(Running("the daemon 'a'"), Running("the daemon 'b'", is_running=False, last_words="out of memory")),
        loads=(Sent("m: refused", "m: refused"), Sent("n: late")),
    )
    assert found.failures == ["the daemon 'b' ended: out of memory", "m: refused", "n: late"]


# Children


def started(*words: str) -> Child:
    return Child("the child", *words)


def test_a_childs_words_are_kept_line_by_line_and_the_first_that_fits_is_found() -> None:
    with started("--version") as child:
        assert child.wait_for("edgekit ", 20.0).startswith("edgekit ")
        assert child.process.wait(20.0) == 0
        assert not child.is_running
        assert child.last_words.startswith("edgekit ")
        assert child.stop() == 0, "stopping twice is harmless"


def test_a_child_that_never_says_it_is_told_with_its_last_words() -> None:
    with started("fleet", "--for", "0") as child:
        with pytest.raises(EdgekitError, match=r"the child did not start within 20 s: edgekit fleet: --for 0: must be"):
            child.wait_for("listening", 20.0)
        assert child.stop() == 2


def test_a_child_that_takes_too_long_is_given_up_in_time() -> None:
    with started("collect", "--port", "9") as child:
        began_s = time.monotonic()
        with pytest.raises(EdgekitError, match="did not start within 0 s"):
            child.wait_for("never said", 0.05)
        assert time.monotonic() - began_s < 5.0
        assert child.is_running
    assert not child.is_running


def test_only_the_last_lines_are_kept() -> None:
    with started("--help") as child:
        child.process.wait(20.0)
        child.stop()
        assert 0 < len(child.lines) <= 50
        assert child.last_words.count(" / ") == 2


def test_children_run_this_very_python() -> None:
    with started("--version") as child:
        assert child.process.args[0] == sys.executable
