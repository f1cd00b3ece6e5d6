"""The probe as a whole: the captured boards, the trees the project wrote, the JSON's shape, and what a run costs."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edgekit.cli.main import main
from edgekit.device.probe import as_json, probe
from edgekit.profiles import board_tables
from edgekit.toml import read_table

Plant = Callable[[dict[str, str | bytes]], Path]
OWN_BOARDS = Path(__file__).parent / "boards"
PROBE = [sys.executable, "-m", "edgekit.cli.main", "probe"]


@pytest.fixture(scope="module")
def score(boards_dir: Path) -> ModuleType:
    """The scorer that lies beside the captured boards, as a module."""
    if sys.version_info < (3, 11):
        sys.modules.setdefault("tomllib", importlib.import_module("tomli"))
    spec = importlib.util.spec_from_file_location("score", boards_dir / "score.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.board
def test_every_check_of_every_captured_board_holds(boards_dir: Path, score: ModuleType) -> None:
    profiles = board_tables()
    cases = sorted(boards_dir.glob("*/facts.toml"))
    assert len(cases) >= 66
    misses = []
    for case in cases:
        got = as_json(probe(case.parent / "root", profiles))
        results = score.checks(read_table(case)["expected"], json.loads(json.dumps(got)))
        misses += [
            f"{case.parent.name}: {name}: {want!r}, got {seen!r}" for name, want, seen in results if want != seen
        ]
    assert misses == []


def holds(expected: Any, got: Any, where: str = "") -> list[str]:
    """Where `got` lacks what `expected` says; keys that are not expected may be anything; "unknown" is None."""
    if isinstance(expected, dict) and isinstance(got, dict):
        return [miss for key, value in expected.items() for miss in holds(value, got.get(key), f"{where}.{key}")]
    if isinstance(expected, list) and isinstance(got, list) and expected and isinstance(expected[0], dict):
        if len(expected) != len(got):
            return [f"{where}: {len(expected)} wanted, got {len(got)}"]
        return [m for n, (a, b) in enumerate(zip(expected, got, strict=True)) for m in holds(a, b, f"{where}[{n}]")]
    wanted = None if expected == "unknown" else expected
    return [] if wanted == got else [f"{where}: wanted {wanted!r}, got {got!r}"]


@pytest.mark.parametrize("case", sorted(path.name for path in OWN_BOARDS.iterdir()))
def test_the_projects_own_trees_give_what_they_say(case: str) -> None:
    expected = read_table(OWN_BOARDS / case / "expected.toml")
    assert expected.pop("trap")
    got = json.loads(json.dumps(as_json(probe(OWN_BOARDS / case / "root", board_tables()))))
    assert holds(expected, got) == []


def test_the_json_has_the_agreed_shape(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert {"board", "memory", "cpu", "accelerators", "runtimes", "os", "power", "storage", "notes"} <= facts.keys()
    assert {"id", "name", "soc", "profile"} <= facts["board"].keys()
    assert {"total_bytes", "usable_bytes", "available_bytes", "model", "limits", "notes"} <= facts["memory"].keys()
    cpu = {"architecture", "cores_usable", "quota_cores", "features", "clusters", "userland_bits", "kernel_machine"}
    assert cpu <= facts["cpu"].keys()


def test_an_accelerator_has_the_agreed_keys(plant: Plant, capsys: pytest.CaptureFixture[str]) -> None:
    root = plant({"proc/device-tree/compatible": "x,y\0nvidia,tegra234\0"})
    assert main(["probe", "--root", str(root), "--json"]) == 0
    (accelerator,) = json.loads(capsys.readouterr().out)["accelerators"]
    wanted = {"kind", "name", "present", "usable", "why_not_usable", "compute_capability", "int8", "sparsity_2_4"}
    assert wanted | {"dla_cores", "memory_bytes", "evidence"} <= accelerator.keys()


def test_nothing_of_this_machine_leaks_into_a_captured_tree(tmp_path: Path) -> None:
    facts = as_json(probe(tmp_path))
    assert facts["memory"]["total_bytes"] is None
    assert facts["cpu"]["kernel_machine"] is None
    assert facts["cpu"]["userland_bits"] is None
    assert facts["os"] == dict.fromkeys(facts["os"])
    assert facts["storage"]["total_bytes"] is None
    assert facts["runtimes"] == ()
    assert facts["device_id"] is None


def test_the_table_says_what_how_much_how_known_and_what_is_wrong(
    plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    root = plant(
        {
            "proc/meminfo": "MemTotal: 6636144 kB\nMemAvailable: 5000000 kB\n",
            "proc/device-tree/compatible": "nvidia,p3768-0000+p3767-0005\0nvidia,tegra234\0",
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": "1073741824\n",
            "sys/module/nvgpu/refcnt": "0",
        }
    )
    assert main(["probe", "--root", str(root)]) == 0
    text = capsys.readouterr().out
    for piece in ("Jetson Orin Nano 8 GB", "6.33 GiB", "1.00 GiB (limited by sys/fs/cgroup/memory.max)", "cuda_igpu"):
        assert piece in text
    assert "✗ cuda_igpu" in text
    assert "driver nvgpu is loaded" in text
    assert "Worth knowing" in text
    assert max(map(len, text.splitlines())) <= 120


def test_a_root_that_is_no_folder_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "--root", "/nowhere/at/all"]) == 2
    assert capsys.readouterr().err.strip().count("\n") == 0


def test_a_terminal_that_knows_ascii_alone_still_gets_the_table() -> None:
    run = subprocess.run(PROBE, capture_output=True, check=True, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert run.stdout.isascii()
    assert b"total" in run.stdout


def test_a_probe_loads_nothing_heavy() -> None:
    code = (
        "import sys; from edgekit.cli.main import main; main(['probe', '--json']);"
        "heavy = ('numpy', 'onnxruntime', 'textual', 'rich', 'msgspec', 'paho', 'openvino', 'subprocess', 'ctypes');"
        "sys.stderr.write(' '.join(name for name in heavy if name in sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    own = {"subprocess"} if sys.version_info < (3, 11) else set()  # Python 3.10's own platform module loads it
    assert set(run.stderr.split()) <= own


def test_a_probe_peaks_under_25_mib() -> None:
    code = (
        "import sys; from edgekit.cli.main import main; main(['probe']);"
        "sys.stderr.write([line for line in open('/proc/self/status') if line.startswith('VmHWM')][0].split()[1])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(run.stderr) <= 25 * 1024
