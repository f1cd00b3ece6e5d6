"""`edgekit release`: make, list, show and compare releases of the smallest configuration, as a user types it."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgekit.cli import release as verb
from edgekit.cli.main import main
from edgekit.errors import UsageError
from edgekit.provision.release import (
    Diff,
    LaunchSpec,
    Library,
    Objective,
    Release,
    ReleaseFile,
    Target,
    seal,
)

pytest.importorskip("onnxruntime", reason="elsewhere: the standard artifacts are ONNX")

Capture = pytest.CaptureFixture[str]
CONFIG = '[[model]]\nname = "digits"\nartifact = "standard"\n'


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with 1.0, and 2.0 of another bound; packing runs the model for its samples, so it is done once."""
    folder = tmp_path_factory.mktemp("releases")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEKIT_HOME", str(folder / "home"))
        (folder / "edgekit.toml").write_text(CONFIG)
        (folder / "faster.toml").write_text(CONFIG + "latency_ms = 5.0\nmemory_mb = 64\n")
        library = ["--library", str(folder / "library")]
        for name, config, sequence in (("1.0", "edgekit.toml", "10"), ("2.0", "faster.toml", "20")):
            words = ["create", name, "--config", str(folder / config), "--sequence", sequence, "--soak", "1"]
            assert main(["release", *words, *library]) == 0
    return folder


@pytest.fixture
def typed(made: Path, capsys: Capture) -> Callable[..., str]:
    """What a step prints, exit 0."""

    def run(step: str, *words: str) -> str:
        capsys.readouterr()
        assert main(["release", step, *words, "--library", str(made / "library")]) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def refused(made: Path, capsys: Capture, edgekit_home: Path) -> Callable[..., tuple[int, str]]:
    """(exit code, the one line on stderr)."""

    def run(step: str, *words: str) -> tuple[int, str]:
        code = main(["release", step, *words, "--library", str(made / "library")])
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1, err
        return code, err

    return run


def test_a_release_says_what_it_holds_and_asks(typed: Callable[..., str]) -> None:
    lines = typed("show", "1.0").splitlines()
    assert lines[0].startswith("release 1.0  ")
    assert lines[0].endswith("sequence 10  for any machine")
    files = [line.split()[0] for line in lines[1:-2]]
    assert files == ["edgekit.toml", "health/digits.npz"]
    assert lines[-2] == "  healthy when digits: agrees with 96.9% of the samples"
    assert lines[-1] == "  ready within 120 s, then healthy for 1 s"


def test_bounds_of_the_configuration_are_bounds_of_the_release(typed: Callable[..., str]) -> None:
    line = next(line for line in typed("show", "2.0").splitlines() if "healthy when" in line)
    assert line == "  healthy when digits: p99 <= 5 ms, agrees with 96.9% of the samples, memory <= 64 MiB"


def test_a_release_as_json_is_its_manifest_and_digest(typed: Callable[..., str], made: Path) -> None:
    told = json.loads(typed("show", "1.0", "--json"))
    stored = Library(made / "library").load("1.0")
    assert told["digest"] == stored.digest
    assert told["name"] == "1.0"
    assert told["launch"]["soak_s"] == 1.0
    at = told["launch"]["run"].index("--config")
    assert told["launch"]["run"][at + 1] == "edgekit.toml"


def test_the_list_is_oldest_first_with_sizes(typed: Callable[..., str]) -> None:
    rows = [line.split() for line in typed("list").splitlines()]
    assert [row[0] for row in rows] == ["1.0", "2.0"]
    assert [row[2:4] for row in rows] == [["2", "files"]] * 2
    assert [told["name"] for told in json.loads(typed("list", "--json"))] == ["1.0", "2.0"]


def test_an_empty_library_says_how_to_fill_it(tmp_path: Path, capsys: Capture) -> None:
    assert main(["release", "list", "--library", str(tmp_path)]) == 0
    assert capsys.readouterr().out == (
        f"no release in {tmp_path}; make one with: edgekit release create NAME --config edgekit.toml\n"
    )
    assert main(["release", "list", "--library", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_a_diff_ships_only_what_changed(typed: Callable[..., str]) -> None:
    lines = typed("diff", "1.0", "2.0").splitlines()
    assert lines[0].startswith("1.0 -> 2.0: 1 files unchanged, 0.1 KiB to ship")
    assert lines[1:] == ["  ~ edgekit.toml", "  ~ launch (settings)", "  ~ objectives (settings)"]
    told = json.loads(typed("diff", "1.0", "2.0", "--json"))
    assert (told["changed"], told["unchanged_count"]) == (["edgekit.toml"], 1)
    assert told["settings"] == ["launch", "objectives"]


def test_a_release_beside_itself_ships_nothing(typed: Callable[..., str]) -> None:
    assert typed("diff", "1.0", "1.0") == "1.0 -> 1.0: 2 files unchanged, 0.0 KiB to ship\n"


@pytest.mark.parametrize("step", [("show", "9.9"), ("diff", "1.0", "9.9"), ("diff", "9.9", "1.0"), ("show", "../x")])
def test_an_unknown_release_names_those_there_are(
    step: tuple[str, ...], refused: Callable[..., tuple[int, str]]
) -> None:
    code, line = refused(*step)
    assert code == 5
    assert "which holds: 1.0, 2.0" in line


@pytest.mark.parametrize(
    ("config", "code", "words"),
    [
        (None, 3, "no such file"),
        ("[[model]]\n", 3, "name: this key is required"),
        ("[[modle]]\n", 3, "did you mean 'model'?"),
        (CONFIG + "[http]\nport = 0\n", 3, "http.port: a release needs a fixed TCP port"),
        (CONFIG + '[http]\nunix_socket = "/run/x"\n', 3, "http.port: a release needs a fixed TCP port"),
        (CONFIG + '[http]\ntoken_file = "token"\n', 3, "http.token_file: 'token' must be absolute"),
        (CONFIG + '[mqtt]\npassword_file = "secret"\n', 3, "mqtt.password_file: 'secret' must be absolute"),
        ('[[model]]\nname = "digist"\n', 3, "did you mean digits?"),
        ('[[model]]\nname = "digits"\nartifact = "nope"\n', 3, "there is no 'nope' of digits, only standard"),
        ('[[model]]\nname = "../m.onnx"\n', 3, "must lie below the folder of edgekit.toml"),
        ('[[model]]\nname = "/m.onnx"\n', 3, "must lie below the folder of edgekit.toml"),
        ('[[model]]\nname = "m.onnx"\n', 5, "no such file"),
    ],
)
def test_a_configuration_that_makes_no_release_is_one_line(
    config: str | None, code: int, words: str, tmp_path: Path, refused: Callable[..., tuple[int, str]], made: Path
) -> None:
    path = tmp_path / "edgekit.toml"
    if config is not None:
        path.write_text(config)
    found, line = refused("create", "3.0", "--config", str(path))
    assert (found, words in line) == (code, True), line
    assert Library(made / "library").names() == ["1.0", "2.0"]


@pytest.mark.parametrize("name", ["a b", ".hidden", "x" * 64, "a/b", "é"])
def test_a_name_that_is_none_is_refused(name: str, made: Path, refused: Callable[..., tuple[int, str]]) -> None:
    code, line = refused("create", name, "--config", str(made / "edgekit.toml"))
    assert code == 5
    assert "its name must be 1 to 63 of letters, digits" in line


def test_a_name_is_given_once(made: Path, refused: Callable[..., tuple[int, str]]) -> None:
    code, line = refused("create", "1.0", "--config", str(made / "faster.toml"), "--sequence", "11")
    assert code == 5
    assert "is another release of this name; choose a new name" in line


@pytest.mark.parametrize(
    ("words", "found"),
    [(["digits=5"], {"digits": 5.0}), (["a=1", "b=2.5"], {"a": 1.0, "b": 2.5}), (["a=b=3"], {"a=b": 3.0}), ([], {})],
)
def test_bounds_are_words_of_model_and_milliseconds(words: list[str], found: dict[str, float]) -> None:
    assert verb.bounds(words) == found


@pytest.mark.parametrize("word", ["digits", "=5", "digits=", "digits=x", "digits=0", "digits=-1", "digits=nan"])
def test_a_bound_that_is_none_says_what_it_should_be(word: str) -> None:
    with pytest.raises(UsageError, match="expected MODEL=MS, such as digits=5"):
        verb.bounds([word])


# For people


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "     0.0 KiB"),
        (1536, "     1.5 KiB"),
        (2**20 - 1024, "  1023.0 KiB"),
        (2**20, "     1.0 MiB"),
        (2**30, "  1024.0 MiB"),
    ],
)
def test_a_size_has_the_unit_that_leaves_figures_to_read(size_bytes: int, text: str) -> None:
    assert verb._size(size_bytes) == text


def sealed(**more: Any) -> Any:
    wheel = ReleaseFile(path="a-1.0-py3-none-any.whl", sha256="a" * 64, size_bytes=2**20, is_wheel=True)
    blank: dict[str, Any] = {"name": "1.0", "sequence": 7, "launch": LaunchSpec(run=("x",)), "files": (wheel,)}
    return seal(Release(**(blank | more)))


def test_a_wheel_is_marked_and_a_target_named() -> None:
    lines = verb.describe(sealed(target=Target(machine="aarch64", python="3.11")))
    assert lines[0].endswith("sequence 7  for aarch64 with Python 3.11")
    assert lines[1].split() == ["a-1.0-py3-none-any.whl", "1.0", "MiB", "wheel"]
    assert lines[2] == "  ready within 120 s, then healthy for 30 s"


def test_an_objective_tells_only_what_is_asked() -> None:
    asked = Objective(model="m", samples="s.npz", accuracy=0.5, p99_ms=12.5, memory_bytes=3 << 20)
    assert "  healthy when m: p99 <= 12.5 ms, agrees with 50.0% of the samples, memory <= 3 MiB" in verb.describe(
        sealed(objectives=(asked,))
    )


def test_a_comparison_lists_added_removed_changed_in_this_order() -> None:
    change = Diff(
        added=("n",), removed=("o",), changed=("c",), unchanged_count=4, shipped_bytes=2048, settings=("launch",)
    )
    assert verb.describe_diff(change, "1", "2") == [
        "1 -> 2: 4 files unchanged, 2.0 KiB to ship", "  + n", "  - o", "  ~ c", "  ~ launch (settings)",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "target"),
    [
        ([], (platform.machine(), f"{sys.version_info.major}.{sys.version_info.minor}")),
        (["--machine", "armv7l"], ("armv7l", f"{sys.version_info.major}.{sys.version_info.minor}")),
        (["--machine", "aarch64", "--python", "3.12"], ("aarch64", "3.12")),
    ],
)
def test_the_board_is_this_machine_unless_it_is_named(words: list[str], target: tuple[str, str]) -> None:
    import argparse

    parser = argparse.ArgumentParser()
    verb.add_arguments(parser)
    found = verb._target(parser.parse_args(["lock", *words]))
    assert (found.machine, found.python) == target
