"""The project's promises about itself: light verbs, documented verbs, data that loads, nothing that misleads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgekit import catalog
from edgekit.cli.main import VERBS, build_parser

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("numpy", "onnxruntime", "textual", "ai_edge_litert", "onnx", "PIL")


def modules_loaded_by(*argv: str) -> set[str]:
    """Top-level modules that `edgekit ARGV` really loads, in a process of its own."""
    code = (
        "import sys\nfrom edgekit.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "print('\\n'.join(sorted({name.split('.')[0] for name in sys.modules})), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, timeout=60, check=True)
    return set(run.stderr.split())


@pytest.mark.parametrize("argv", [("--help",), ("probe",), ("probe", "--json"), ("run", "--help"), ("bench", "--help")])
def test_light_verbs_load_nothing_heavy(argv: tuple[str, ...]):
    assert modules_loaded_by(*argv).isdisjoint(HEAVY)


@pytest.mark.parametrize("verb", [verb for verb, _ in VERBS])
def test_every_verb_has_help_and_stands_in_the_readme(verb: str):
    assert build_parser(verb).format_help()
    assert f"`{verb}`" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("verb", [verb for verb, _ in VERBS])
def test_every_verb_answers_help_with_exit_0(verb: str):
    run = subprocess.run([sys.executable, "-m", "edgekit.cli.main", verb, "--help"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("usage: edgekit")


def test_an_unknown_verb_is_a_usage_error():
    run = subprocess.run([sys.executable, "-m", "edgekit.cli.main", "fly"], capture_output=True, text=True)
    assert run.returncode == 2
    assert "Traceback" not in run.stderr


def test_every_board_profile_and_model_manifest_loads():
    assert len(catalog.load_boards()) >= 30
    assert {"digits", "file-type", "ocr-detector", "ocr-recognizer", "voice-activity"} <= {
        model.name for model in catalog.load_models()
    }


def test_no_document_tells_anyone_to_install_the_unrelated_edgekit():
    unrelated = "pip install " + "edgekit"
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "edgekit").rglob("*.py")]:
        for line in path.read_text(encoding="utf-8").splitlines():
            assert f"{unrelated} " not in f"{line} ", path
            assert f"{unrelated}[" not in line, path
