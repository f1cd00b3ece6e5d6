"""Fixtures shared by the whole suite: where the real models and labelled data lie, and a private state folder."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from hypothesis import settings

from edgekit.artifact import Artifact
from edgekit.catalog import load_model
from edgekit.config import convert_environment, home
from edgekit.errors import FetchError
from edgekit.fetch import standard_artifact

ROOT = Path(__file__).resolve().parent.parent
# A shared machine pauses at will; time limits are the timeout's business.
settings.register_profile("edgekit", deadline=None, max_examples=int(os.environ.get("EDGEKIT_EXAMPLES", "100")))
settings.load_profile("edgekit")
# A shell that starts the tests in the background has them ignore interrupts, and what they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
gc.disable()  # until all is collected
HOME = home()  # the user's own, taken before any test points it elsewhere
CONVERT = convert_environment()
os.environ["EDGEKIT_CONVERT"] = "/nowhere"  # a conversion takes seconds: only the tests of it want one


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real models and labelled data made by others; never part of the project."""
    folder = Path(os.environ.get("EDGEKIT_TEST_DATA", ROOT.parent / "shared/data"))
    if not folder.is_dir():
        pytest.skip(f"no test data at {folder}; set EDGEKIT_TEST_DATA")
    return folder


@pytest.fixture(scope="session")
def convert_dir() -> Path:
    """The environment of the tools that convert to LiteRT."""
    if not (CONVERT / "bin/python").is_file():
        pytest.skip(f"no {CONVERT}; elsewhere: `make .venv-convert` where Python is 3.12 or newer")
    return CONVERT


@pytest.fixture(scope="session")
def boards_dir() -> Path:
    """The captured file trees of real boards."""
    folder = Path(os.environ.get("EDGEKIT_TEST_BOARDS", ROOT.parent / "shared/boards"))
    if not folder.is_dir():
        pytest.skip(f"no captured boards at {folder}; set EDGEKIT_TEST_BOARDS")
    return folder


@pytest.fixture(scope="session")
def standard() -> Callable[[str], Artifact]:
    """The standard artifact of a catalog model: from the user's cache, where it is put on the first use."""

    def fetch(name: str) -> Artifact:
        try:
            return standard_artifact(load_model(name), HOME)
        except FetchError as e:
            pytest.skip(f"{name} is not cached and cannot be fetched: {e}")

    return fetch


@pytest.fixture
def plant(tmp_path: Path) -> Callable[[dict[str, str | bytes]], Path]:
    """Writes files (path below the root -> content) into a tree that stands for a machine, and gives its root."""

    def write(files: dict[str, str | bytes]) -> Path:
        root = tmp_path / "root"
        root.mkdir(exist_ok=True)
        for name, content in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        return root

    return write


@pytest.fixture
def edgekit_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty state folder for this test alone."""
    monkeypatch.setenv("EDGEKIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def cached_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder for this test alone, but for the downloads: those are the user's."""
    root = tmp_path / "cached-home"
    root.mkdir()
    HOME.cache.mkdir(parents=True, exist_ok=True)
    (root / "cache").symlink_to(HOME.cache, target_is_directory=True)
    monkeypatch.setenv("EDGEKIT_HOME", str(root))
    return root


ALONE = (
    "test_bench_scenarios", "test_provision_health", "test_repeatability", "test_rollout_real",
    "test_serve_upkeep", "test_silence",
)  # fmt: skip
"""Modules that judge times, loads or idle moments: two tests at once would be each other's noise."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What the marks would take away again is not even read: collecting all of it costs as much as many a test."""
    wanted = str(config.getoption("markexpr"))
    if not collection_path.name.startswith("test_"):
        return None
    is_alone = collection_path.stem in ALONE
    is_other = is_alone if wanted.startswith("not alone") else not is_alone and wanted == "alone"
    return True if is_other else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what must run alone; `make test` runs the rest five at a time, since most tests wait."""
    for item in items:
        if item.path.stem in ALONE:
            item.add_marker(pytest.mark.alone)


def pytest_collection_finish() -> None:
    """Thousands of tests stay until the end: no walk of the garbage collector need visit them again."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Under `.ci/run` a skip is a failure, since CI installs every service: only "elsewhere: …" may skip.

    "elsewhere" marks what another environment of the same CI run covers.
    """
    report = yield
    if os.environ.get("EDGEKIT_CI") and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if "elsewhere:" not in reason:
            report.outcome = "failed"
            report.longrepr = f"skipped in CI: {reason}"
    return report
