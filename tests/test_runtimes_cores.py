"""The threads of a session keep off the core of whoever asks it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgekit.errors import ArtifactError, RuntimeUnavailable
from edgekit.runtimes import cores
from edgekit.runtimes.cores import Helpers, Opening
from edgekit.runtimes.session import Session, SessionSettings, open_session

if not sys.platform.startswith("linux"):
    pytest.skip("elsewhere: only Linux lets a thread be moved from outside", allow_module_level=True)
CORES = sorted(os.sched_getaffinity(0))
if len(CORES) < 2:
    pytest.skip("elsewhere: one core leaves no choice", allow_module_level=True)

DIGITS = Path(__file__).resolve().parent.parent / "models/digits"
FILES = {"onnxruntime": DIGITS / "digits.onnx", "litert": DIGITS / "digits.tflite"}


def opened(runtime: str, threads: int = len(CORES)) -> Session:
    try:
        return open_session(FILES[runtime], SessionSettings(runtime=runtime, threads=threads))
    except RuntimeUnavailable as e:
        pytest.skip(f"no {runtime} here: {e}")


def ask_from(core: int, session: Session) -> None:
    """One inference by a thread that may run on `core` alone."""

    def ask() -> None:
        os.sched_setaffinity(0, {core})
        session.run({spec.name: np.zeros(spec.shape, spec.dtype) for spec in session.inputs})

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()


def helpers(session: Session) -> Helpers:
    return session._helpers  # type: ignore[attr-defined, no-any-return]


class Sleepers:
    """Threads that stand for a runtime's, by their numbers."""

    def __init__(self) -> None:
        self._wake = threading.Event()
        self._threads: list[threading.Thread] = []

    def add(self, count: int) -> list[int]:
        new = [threading.Thread(target=self._wake.wait) for _ in range(count)]
        for thread in new:
            thread.start()
        self._threads += new
        return [thread.native_id or 0 for thread in new]

    def stop(self) -> None:
        self._wake.set()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def sleepers() -> Iterator[Sleepers]:
    made = Sleepers()
    yield made
    made.stop()


@pytest.mark.parametrize("runtime", FILES)
def test_every_other_core_has_one_wherever_the_caller_is(runtime: str):
    session = opened(runtime)
    before = os.sched_getaffinity(0)
    for core in (*CORES, CORES[0]):
        ask_from(core, session)
        where = [os.sched_getaffinity(thread) for thread in helpers(session)._threads]
        assert sorted(where, key=min) == [{other} for other in CORES if other != core]
    assert os.sched_getaffinity(0) == before, "the caller stays free"
    session.close()


@pytest.mark.parametrize("threads", [1, len(CORES) + 1])
def test_with_another_number_of_threads_than_cores_the_kernel_chooses(threads: int):
    session = opened("onnxruntime", threads)
    assert not helpers(session)
    ask_from(CORES[0], session)


def test_sessions_that_are_opened_at_once_go_without():
    with Opening(len(CORES)) as outer:
        first = opened("onnxruntime")
    assert not outer.helpers
    assert not helpers(first), "its threads could be those of the outer one"
    assert helpers(opened("onnxruntime")), "and alone they are known again"


def test_an_opening_that_fails_is_over(tmp_path: Path):
    (tmp_path / "broken.onnx").write_bytes(FILES["onnxruntime"].read_bytes()[:-500])
    with pytest.raises(ArtifactError):
        open_session(tmp_path / "broken.onnx", SessionSettings(threads=len(CORES)))
    assert helpers(opened("onnxruntime"))


def test_threads_of_python_are_not_the_runtimes(sleepers: Sleepers):
    with Opening(len(CORES)) as opening:
        sleepers.add(len(CORES) - 1)
    assert not opening.helpers


def test_a_thread_that_is_gone_frees_the_others(
    sleepers: Sleepers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    (alive,) = sleepers.add(1)
    three = [CORES[0], CORES[1], CORES[0]]
    gone = Helpers([alive, 2**22 - 1], three)
    monkeypatch.setattr(cores, "CURRENT_CORE", lambda: CORES[0])
    with caplog.at_level("WARNING"):
        gone.make_way()
    assert not gone
    assert "wake where the kernel puts them" in caplog.text
    assert os.sched_getaffinity(alive) == set(CORES)


def test_a_caller_on_a_core_that_was_not_there_frees_them(sleepers: Sleepers, monkeypatch: pytest.MonkeyPatch):
    threads = sleepers.add(len(CORES) - 1)
    here = Helpers(threads, CORES)
    monkeypatch.setattr(cores, "CURRENT_CORE", lambda: CORES[0])
    here.make_way()
    assert os.sched_getaffinity(threads[0]) == {CORES[1]}
    monkeypatch.setattr(cores, "CURRENT_CORE", lambda: max(CORES) + 1)
    here.make_way()
    assert not here
    assert os.sched_getaffinity(threads[0]) == set(CORES)
    here.make_way()
