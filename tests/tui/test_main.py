"""The command line of the console: options, exit codes, and what it may import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import edgekit_tui
from edgekit_tui.main import main
from edgekit_tui.theme import THEMES

FOLDER = Path(edgekit_tui.__file__).parent
ALLOWED = {
    f"edgekit.{name}" for name in ("fleet", "points", "ships", "telemetry", "config", "errors", "strict")
}  # fmt: skip


def console(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edgekit_tui.main", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        ((), 2, "the live screen needs a terminal; --once prints the fleet"),
        (("--json",), 2, "--json needs --once"),
        (("--snapshot", "x.svg", "--size", "wide"), 2, "--size wide: write width x height in cells"),
        (("--once", "--site", "a/#"), 2, "--site a/#: a site is 1 to 63 of a-z"),
        (("--once", "--wait", "0"), 2, "--wait 0: must be more than 0 seconds"),
        (("--once", "--wait", "nan"), 2, "--wait nan: must be more than 0 seconds"),
        (("--exit-after", "-1"), 2, "--exit-after -1: must be more than 0 seconds"),
        (("--replay", "x", "--speed", "0"), 2, "--speed 0: must be more than 0"),
        (("--once", "--password-file", "/nowhere/secret"), 3, "/nowhere/secret: no such file (--password-file)"),
        (("--once", "--ca-file", "/nowhere/ca.pem"), 3, "/nowhere/ca.pem: no such file (--ca-file)"),
    ],
)
def test_wrong_options_give_one_line_and_the_right_code(
    args: tuple[str, ...], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(args) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("edgekit-console: ")
    assert says in said.err


def test_help_names_every_option_and_loads_no_textual() -> None:
    code = "import sys, edgekit_tui.main as m\ntry: m.main(['--help'])\nfinally: assert 'textual' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for option in ("--host", "--site", "--ascii", "--once", "--json", "--snapshot", "--wait", "--password-file"):
        assert option in done.stdout


def test_a_broker_that_is_not_there_is_exit_four_in_one_line() -> None:
    done = console("--once", "--port", "1", "--wait", "1.5")
    assert done.returncode == 4, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("edgekit-console: broker 127.0.0.1:1: no connection within 1.5 s")
    assert done.stderr.count("\n") == 1


def test_a_failing_handler_ends_the_console_without_a_traceback() -> None:
    code = (
        "from edgekit_tui.app import Console\n"
        "app = Console(clock=lambda: 1 / 0)\n"
        "app.run(headless=True, size=(80, 24))\n"
        "print(repr(app.error))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stdout + done.stderr
    assert done.stdout.strip().endswith("ZeroDivisionError('division by zero')")


def test_the_theme_names_of_the_command_line_are_those_that_exist() -> None:
    from edgekit_tui.main import THEME_NAMES

    assert tuple(theme.name for theme in THEMES) == THEME_NAMES


def test_the_console_imports_nothing_of_the_device_side() -> None:
    seen = set()
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            seen |= {".".join(name.split(".")[:2]) for name in names if name.split(".")[0] == "edgekit"}
    assert seen == ALLOWED


def test_a_running_console_loads_no_runtime_and_no_pipeline() -> None:
    code = (
        "import sys, edgekit_tui.main, edgekit_tui.app, edgekit_tui.once\n"
        "bad = [m for m in sys.modules if m.startswith(('onnxruntime', 'edgekit.runtimes', 'edgekit.pipeline',"
        " 'edgekit.bench', 'edgekit.serve', 'edgekit.device', 'edgekit.cli', 'edgekit.catalog', 'PIL'))]\n"
        "assert not bad, bad"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_styles_lie_beside_the_code() -> None:
    assert (FOLDER / "console.tcss").is_file()


def test_no_file_of_the_console_is_over_three_hundred_lines() -> None:
    assert all(len(path.read_text(encoding="utf-8").splitlines()) <= 300 for path in FOLDER.iterdir() if path.is_file())
