"""The command line as a contract: exit codes by kind of error, one line for a person, a traceback only with --debug."""

from __future__ import annotations

import importlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edgekit import __version__, errors
from edgekit.cli.main import EXTRAS, VERBS, build_parser, exit_code, install, main
from edgekit.toml import read_table

Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).resolve().parent.parent
SAMPLES: dict[type[errors.EdgekitError], tuple[tuple[object, ...], dict[str, object], int]] = {
    errors.EdgekitError: (("something",), {}, 5),
    errors.UsageError: (("--this with --that",), {}, 2),
    errors.ConfigError: (("edgekit.toml", "http.port", "is taken"), {}, 3),
    errors.CatalogError: (("model.toml", None, "not TOML"), {}, 3),
    errors.ProbeError: (("/proc/meminfo", "empty"), {}, 5),
    errors.NoUsableArtifact: (("digits", [("int8", "too slow")]), {}, 1),
    errors.ArtifactError: (("a.onnx", "cut short"), {}, 5),
    errors.InputError: (("image", "is int64"), {}, 5),
    errors.RequestError: ((400, "no such input"), {}, 5),
    errors.FetchError: (("https://example.org/a", "404"), {}, 4),
    errors.RuntimeUnavailable: (("onnxruntime", "not installed"), {}, 5),
    errors.BrokerError: (("127.0.0.1:1883", "refused"), {}, 4),
    errors.UnreachableError: (("pi", "no route"), {}, 4),
    errors.ReleaseError: (("r1", "not signed"), {}, 5),
    errors.SlotError: (("b", "cannot be written"), {"rolled_back": True}, 5),
}
"""Kind -> arguments, keywords, exit code (design: Command line)."""


def kinds(of: type[errors.EdgekitError] = errors.EdgekitError) -> set[type[errors.EdgekitError]]:
    return {of}.union(*(kinds(below) for below in of.__subclasses__() if below.__module__ == "edgekit.errors"))


def sample(kind: type[errors.EdgekitError]) -> errors.EdgekitError:
    arguments, keywords, _ = SAMPLES[kind]
    return kind(*arguments, **keywords)


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Make `edgekit boards` end with an error that cannot be brought about at will."""

    def arrange(error: BaseException) -> None:
        def run(args: object) -> int:
            raise error

        monkeypatch.setattr(importlib.import_module("edgekit.cli.boards"), "run", run)

    return arrange


# Exit codes


def test_every_kind_of_error_has_its_exit_code() -> None:
    missing = kinds() - SAMPLES.keys() - {getattr(errors, "Cancelled", errors.EdgekitError)}
    assert not missing, "a new kind of error needs its place in the table of exit codes"
    for kind, (_, _, code) in SAMPLES.items():
        assert exit_code(sample(kind)) == code, kind.__name__


@pytest.mark.parametrize("kind", SAMPLES, ids=lambda kind: kind.__name__)
def test_an_error_is_its_one_line_on_stderr_and_its_code(
    kind: type[errors.EdgekitError], fails: Callable[[BaseException], None], capsys: Capture
) -> None:
    error = sample(kind)
    fails(error)
    assert main(["boards"]) == SAMPLES[kind][2]
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"edgekit boards: {error}\n")


def test_a_kind_below_another_keeps_its_parents_code(fails: Callable[[BaseException], None]) -> None:
    class LateConfigError(errors.ConfigError):
        pass

    fails(LateConfigError("edgekit.toml", None, "changed"))
    assert main(["boards"]) == 3


def test_the_codes_in_the_help_are_those_of_the_readme(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    help_text = re.sub(r"\s+", " ", capsys.readouterr().out)
    readme = re.sub(r"\s+", " ", (ROOT / "README.md").read_text(encoding="utf-8"))
    for words in ("0 ok", "1 a truthful no", "2 usage", "3 config or catalog", "4 unreachable", "130 interrupted"):
        assert words in help_text
        assert words in readme


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["probe", "--root", "/nowhere/at/all"], 2),
        (["demo", "--seconds", "inf"], 2),
        (["demo", "--seconds", "-1"], 2),
        (["run", "--config", "/nowhere/edgekit.toml"], 3),
        (["boards", "nothing-like-it"], 3),
        (["fleet", "--port", "9"], 4),
        (["models", "/nowhere/model.onnx"], 5),
        (["infer", "ocr-detector", "--input", "x.png", "--offline"], 2),
    ],
)
def test_real_mistakes_end_in_one_line_and_their_code(
    edgekit_home: Path, capsys: Capture, arguments: list[str], code: int
) -> None:
    assert main(arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"edgekit {arguments[0]}: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err


# --debug


@pytest.mark.parametrize("arguments", [["--debug", "boards", "zzz"], ["boards", "zzz", "--debug"]])
def test_debug_shows_where_an_error_came_from(arguments: list[str]) -> None:
    with pytest.raises(errors.CatalogError, match="zzz: no such board"):
        main(arguments)


def test_an_error_that_is_nobodys_fault_but_ours_is_not_swallowed(fails: Callable[[BaseException], None]) -> None:
    fails(ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        main(["boards"])


# Parsing


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "the following arguments are required: VERB"),
        (["prob"], "invalid choice: 'prob'"),
        (["probe", "surplus"], "unrecognized arguments: surplus"),
        (["probe", "--rot", "x", "--nothing"], "unrecognized arguments: --rot x --nothing"),
        (["bench"], "the following arguments are required: model"),
        (["bench", "digits", "--seconds", "five"], "argument --seconds: invalid float value: 'five'"),
        (["infer", "digits"], "the following arguments are required: --input"),
    ],
)
def test_a_command_line_that_does_not_parse_is_exit_2(capsys: Capture, arguments: list[str], words: str) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err


def test_the_version_is_the_packages(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"edgekit {__version__}\n"


@pytest.mark.parametrize("verb", [verb for verb, _ in VERBS])
def test_every_verb_has_a_module_and_help_for_every_option(verb: str, capsys: Capture) -> None:
    module = importlib.import_module(f"edgekit.cli.{verb}")
    assert module.__doc__
    with pytest.raises(SystemExit) as left:
        main([verb, "--help"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: edgekit {verb}")
    assert "--debug" in text


def test_only_the_wanted_verb_is_imported() -> None:
    """What makes help fast: a verb's parser costs what that verb costs and no more."""
    code = (
        "import sys; from edgekit.cli.main import build_parser; build_parser('models');"
        "print(sorted(n for n in sys.modules if n.startswith('edgekit.cli.')))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "['edgekit.cli.main', 'edgekit.cli.models']"


def test_a_verb_is_found_behind_options_and_not_among_values() -> None:
    args = build_parser("boards").parse_args(["--debug", "boards", "rpi-5"])
    assert (args.verb, args.board, args.debug) == ("boards", "rpi-5", True)
    assert build_parser("boards").parse_args(["boards"]).debug is False


# What is not installed


@pytest.mark.parametrize("package", EXTRAS)
def test_a_missing_package_names_the_command_that_brings_it(
    package: str, fails: Callable[[BaseException], None], capsys: Capture
) -> None:
    fails(ModuleNotFoundError(f"No module named '{package}.inner'", name=f"{package}.inner"))
    assert main(["boards"]) == 5
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"edgekit boards: {package} is not installed; to mend it: {install(EXTRAS[package])}\n"


def test_every_extra_that_is_offered_exists() -> None:
    project = read_table(ROOT / "pyproject.toml")["project"]
    assert set(EXTRAS.values()) <= project["optional-dependencies"].keys()
    assert install("onnx").startswith(sys.executable)
    assert f"'{project['name']}[onnx]'" in install("onnx")
    for package, extra in EXTRAS.items():
        wanted = " ".join(project["optional-dependencies"][extra]).lower().replace("-", "_")
        assert {"PIL": "pillow"}.get(package, package) in wanted, f"{extra} does not bring {package}"


@pytest.mark.parametrize("error", [ModuleNotFoundError("edgekit.gone", name="edgekit.gone"), ModuleNotFoundError("?")])
def test_a_module_of_our_own_that_is_missing_is_a_bug_and_shown(
    error: ModuleNotFoundError, fails: Callable[[BaseException], None]
) -> None:
    fails(error)
    with pytest.raises(ModuleNotFoundError):
        main(["boards"])


def test_debug_shows_who_wanted_the_missing_package(fails: Callable[[BaseException], None]) -> None:
    fails(ModuleNotFoundError("onnx", name="onnx"))
    with pytest.raises(ModuleNotFoundError):
        main(["boards", "--debug"])


def test_an_image_without_pillow_is_one_line(
    edgekit_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (tmp_path / "x.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "PIL"] + ["PIL"]:
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("edgekit.pipeline.image", "edgekit.pipeline.draw"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert main(["infer", "digits", "--input", str(tmp_path / "x.png")]) == 5
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "pillow" in err.lower() or "edgekit-deploy[image]" in err


# Interruptions, pipes and poor terminals


def test_an_interruption_is_130_and_silent(fails: Callable[[BaseException], None], capsys: Capture) -> None:
    fails(KeyboardInterrupt())
    assert main(["boards"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["boards", "--json"],
        ["probe", "--print-script"],
        ["boards", "rpi-5"],
        ["models"],
        ["--help"],
        ["probe", "--help"],
    ],
)
def test_a_reader_that_went_away_is_no_fault(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "edgekit.cli.main", *arguments]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}  # as users have it
    try:
        run = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, env=environ)
    finally:
        os.close(writing)
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.parametrize("arguments", [["boards"], ["boards", "rpi-5"], ["models"], ["models", "digits"], ["probe"]])
def test_a_terminal_that_knows_ascii_alone_still_gets_the_answer(
    edgekit_home: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    taken = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(taken, encoding="ascii", write_through=True))
    assert main(arguments) == 0
    sys.stdout.flush()
    assert taken.getvalue().isascii()
    assert len(taken.getvalue()) > 200


def test_an_error_reaches_a_terminal_that_cannot_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = io.BytesIO()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(taken, encoding="ascii", write_through=True))
    assert main(["boards", "große-Platine"]) == 3
    assert taken.getvalue().startswith(b"edgekit boards: gro?e-Platine: no such board")
