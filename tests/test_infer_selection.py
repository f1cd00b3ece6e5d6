"""`edgekit infer` runs what was selected for this machine, says so, and says why where it cannot."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from edgekit.artifact import Artifact
from edgekit.bench.candidates import candidates, to_record
from edgekit.bench.conditions import this_device
from edgekit.catalog import load_model
from edgekit.choose import save_selection
from edgekit.cli.infer_run import _why_not
from edgekit.cli.main import main
from edgekit.config import Home, home
from edgekit.device.cpu import usable_cores
from edgekit.fetch import all_artifacts
from edgekit.limits import Limits
from edgekit.selection import Selection

pytest.importorskip("onnxruntime", reason="elsewhere: the standard artifacts are ONNX")

Capture = pytest.CaptureFixture[str]
DIGITS = load_model("digits")
INPUT = np.zeros((1, 8, 8, 1), np.float32)


@pytest.fixture
def blank(tmp_path: Path) -> Path:
    np.savez(tmp_path / "in.npz", image=INPUT)
    return tmp_path / "in.npz"


def selection_of(name: str, state: Home, *, threads: int = 1) -> Selection:
    """What `edgekit select` would have stored for this artifact."""
    artifact = next(a for a in all_artifacts(DIGITS, state) if a.record.name == name)
    (way, *_) = candidates(DIGITS, [artifact], cores=1, threads=[threads])
    return Selection(
        model="digits",
        artifact=name,
        artifact_sha256=artifact.record.sha256,
        precision=artifact.record.precision,
        settings=to_record(way.settings),
        reasons=(),
        rejections=(),
        p50_ms=None,
        p99_ms=None,
        peak_memory_bytes=None,
        accuracy_ratio=None,
        limits=Limits(),
        device=this_device(),
    )


@pytest.fixture
def ran(capsys: Capture, edgekit_home: Path, blank: Path) -> Callable[..., dict[str, Any]]:
    def infer(*flags: str) -> dict[str, Any]:
        assert main(["infer", "digits", "--input", str(blank), "--json", *flags]) == 0
        value: dict[str, Any] = json.loads(capsys.readouterr().out)
        return value

    return infer


NAMES = [a.name for a in DIGITS.artifacts if a.format == "onnx"]


def test_without_a_selection_the_standard_runs_and_says_that_nothing_was_selected(ran: Callable[..., Any]) -> None:
    told = ran()
    assert (told["artifact"], told["chosen_by"]) == ("standard", "nothing selected yet")
    assert told["threads"] == usable_cores()


@pytest.mark.parametrize("name", NAMES)
def test_what_was_selected_runs_with_the_threads_it_was_measured_with(name: str, ran: Callable[..., Any]) -> None:
    save_selection(home(), selection_of(name, home()))
    told = ran()
    assert (told["artifact"], told["chosen_by"], told["threads"]) == (name, "selection", 1)


def test_a_name_on_the_command_line_wins_over_the_selection(ran: Callable[..., Any]) -> None:
    save_selection(home(), selection_of(NAMES[0], home()))
    told = ran("--artifact", "standard")
    assert (told["artifact"], told["chosen_by"]) == ("standard", "--artifact")


def test_more_threads_than_this_process_may_use_are_not_started(ran: Callable[..., Any]) -> None:
    save_selection(home(), selection_of(NAMES[0], home(), threads=64))
    assert ran()["threads"] == usable_cores()


@pytest.mark.parametrize(
    ("change", "chosen_by"),
    [
        ({"artifact_sha256": "0" * 64}, "the selected artifact has gone or changed"),
        ({"device": {"id": "another"}}, "nothing selected yet"),
    ],
)
def test_a_selection_that_no_longer_holds_is_not_used_and_the_reason_is_told(
    change: dict[str, Any], chosen_by: str, ran: Callable[..., Any]
) -> None:
    stored = selection_of(NAMES[0], home())
    save_selection(home(), msgspec.structs.replace(stored, **change))
    told = ran()
    assert (told["artifact"], told["chosen_by"]) == ("standard", chosen_by)


def test_another_release_of_the_runtime_makes_the_selection_void(ran: Callable[..., Any]) -> None:
    stored = selection_of(NAMES[0], home())
    older = msgspec.structs.replace(stored.settings, runtime_version="0.0.1")
    save_selection(home(), msgspec.structs.replace(stored, settings=older))
    assert ran()["artifact"] == "standard"


def test_for_people_the_line_about_times_says_that_it_was_selected(
    capsys: Capture, edgekit_home: Path, blank: Path
) -> None:
    save_selection(home(), selection_of(NAMES[0], home()))
    assert main(["infer", "digits", "--input", str(blank)]) == 0
    assert capsys.readouterr().err.startswith(f"{NAMES[0]} (selected) on onnxruntime, 1 threads: load ")


def artifact(**record: Any) -> Artifact:
    found = all_artifacts(DIGITS, Home(Path("/nowhere")))[0]
    return msgspec.structs.replace(found, record=msgspec.structs.replace(found.record, **record))


@pytest.mark.parametrize(
    ("fixed", "axes", "why"),
    [
        ({}, {"side": 640}, None),
        ({"side": 640}, {}, None),
        ({"side": 640}, {"side": 640}, None),
        ({"side": 640}, {"side": 960}, "the selected artifact is fixed at side=640"),
        ({"side": 640, "width": 320}, {"side": 640, "width": -1}, "the selected artifact is fixed at width=320"),
    ],
)
def test_an_artifact_with_fixed_axes_takes_inputs_of_that_size_alone(
    fixed: dict[str, int], axes: dict[str, int], why: str | None
) -> None:
    assert _why_not(artifact(axes=fixed), axes) == why


def test_an_artifact_saved_by_another_release_of_its_runtime_is_not_opened() -> None:
    why = _why_not(artifact(bound_to={"runtime": "onnxruntime", "version": "0.0.1"}), {})
    assert why is not None
    assert why.startswith("the selected artifact was saved by onnxruntime 0.0.1, ")
    assert why.endswith("build it again")
