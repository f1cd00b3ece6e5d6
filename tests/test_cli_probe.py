"""`edgekit probe` as a person and as a program reads it, on trees that stand for real boards."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from edgekit.cli.main import main
from edgekit.cli.probe_table import render, size
from edgekit.device.accelerators import Accelerator
from edgekit.device.installed import InstalledRuntime
from edgekit.device.probe import Facts, as_json, probe
from edgekit.profiles import board_tables

Capture = pytest.CaptureFixture[str]
TREES = Path(__file__).resolve().parent / "boards"
NAMES = sorted(path.name for path in TREES.iterdir())
PROFILES = board_tables()
NUMBER, TEXT, FLAG = (int, float, type(None)), (str, type(None)), (bool, type(None))
SHAPE: dict[str, dict[str, tuple[type, ...]]] = {
    "board": {"id": TEXT, "name": TEXT, "soc": TEXT, "profile": TEXT},
    "memory": {
        "total_bytes": NUMBER,
        "usable_bytes": NUMBER,
        "available_bytes": NUMBER,
        "model": TEXT,
        "limits": (list,),
        "notes": (list,),
    },
    "cpu": {
        "architecture": TEXT,
        "cores_usable": NUMBER,
        "quota_cores": NUMBER,
        "features": (list, type(None)),
        "clusters": (list,),
        "userland_bits": NUMBER,
        "kernel_machine": TEXT,
    },
}
"""Keys that programs rely on -> what may stand there; null is "cannot tell"."""
ACCELERATOR: dict[str, tuple[type, ...]] = {
    "kind": (str,),
    "name": (str,),
    "present": FLAG,
    "usable": FLAG,
    "why_not_usable": TEXT,
    "compute_capability": TEXT,
    "int8": FLAG,
    "sparsity_2_4": FLAG,
    "dla_cores": NUMBER,
    "memory_bytes": NUMBER,
    "evidence": (str,),
}


def tree(name: str) -> Path:
    return TREES / name / "root"


def facts_of(name: str) -> Facts:
    return probe(tree(name), PROFILES)


def printed(capsys: Capture, *arguments: str | Path) -> Any:
    assert main(["probe", *map(str, arguments), "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


# --json


@pytest.mark.parametrize("name", NAMES)
def test_every_tree_gives_the_agreed_keys_and_types(name: str, capsys: Capture) -> None:
    facts = printed(capsys, "--root", tree(name))
    for part, keys in SHAPE.items():
        for key, types in keys.items():
            assert isinstance(facts[part][key], types), f"{part}.{key} is {facts[part][key]!r}"
    assert facts["memory"]["model"] in ("unified", "discrete", None)
    assert {"runtimes", "os", "power", "storage", "notes"} <= facts.keys()
    for accelerator in facts["accelerators"]:
        for key, types in ACCELERATOR.items():
            assert isinstance(accelerator[key], types), f"{accelerator['kind']}.{key} is {accelerator[key]!r}"


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_surely_usable_says_why_and_what_is_says_nothing(name: str, capsys: Capture) -> None:
    for accelerator in printed(capsys, "--root", tree(name))["accelerators"]:
        assert bool(accelerator["why_not_usable"]) == (accelerator["usable"] is not True), accelerator
        assert accelerator["evidence"], "how it is known"


@pytest.mark.parametrize("name", NAMES)
def test_usable_memory_is_never_more_than_there_is(name: str) -> None:
    memory = as_json(facts_of(name))["memory"]
    if memory["usable_bytes"] is not None and memory["total_bytes"] is not None:
        assert 0 < memory["usable_bytes"] <= memory["total_bytes"]
    for limit in memory["limits"]:
        assert limit["source"]
        assert limit["bytes"] >= memory["usable_bytes"]


def test_json_is_the_whole_of_the_facts(capsys: Capture) -> None:
    name = "xavier-nx-16gb"
    assert printed(capsys, "--root", tree(name)) == json.loads(json.dumps(as_json(facts_of(name))))


def test_this_machine_says_what_it_runs_with(capsys: Capture) -> None:
    facts = printed(capsys)
    assert facts["memory"]["total_bytes"] > 2**28
    assert 1 <= facts["cpu"]["cores_usable"] <= (os.cpu_count() or 1)
    assert "numpy" in [runtime["name"] for runtime in facts["runtimes"]]


# The table


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name", NAMES)
def test_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    lines = render(facts_of(name), width).splitlines()
    wider = [line for line in lines if len(line) > width]
    assert [line for line in wider if " " in line[19:].strip()] == [], "only a path too long for it may stand out"
    assert len(wider) <= 1
    assert lines == [line.rstrip() for line in lines]


@pytest.mark.parametrize(("asked", "drawn"), [(20, 60), (60, 60), (119, 119), (400, 120)])
def test_the_width_stays_readable_whatever_the_terminal(asked: int, drawn: int) -> None:
    assert len(render(facts_of("xavier-nx-16gb"), asked).splitlines()[0]) == drawn


@pytest.mark.parametrize("width", [60, 120])
@pytest.mark.parametrize("name", NAMES)
def test_the_table_holds_what_the_json_holds(name: str, width: int) -> None:
    facts = facts_of(name)
    text = " ".join(render(facts, width).split())
    for title in ("Board", "Memory", "CPU", "Accelerators", "Runtimes", "System"):
        assert f"── {title} ─" in text
    assert (facts.board.name or "neither device tree nor DMI names it") in text
    assert f"total {size(facts.memory.total_bytes)}" in text
    for accelerator in facts.accelerators:
        assert f"{accelerator.kind}"[:12] in text
        assert " ".join(accelerator.name.split()) in text
    for note in (*facts.board.notes, *facts.memory.notes, *facts.cpu.notes, *facts.notes):
        assert " ".join(note.split()) in text


def test_columns_of_the_terminal_decide_how_wide_it_is(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    for columns in ("60", "100"):
        monkeypatch.setenv("COLUMNS", columns)
        assert main(["probe", "--root", str(tree("rpi-cm4-32-bit"))]) == 0
        assert len(capsys.readouterr().out.splitlines()[0]) == int(columns)


def test_unknown_is_said_as_unknown_and_never_as_zero(tmp_path: Path) -> None:
    text = render(probe(tmp_path, PROFILES), 80)
    for line in ("total            unknown", "cores            unknown usable of unknown online", "none found"):
        assert line in text
    assert "0 MiB" not in text
    assert "none matches" in text
    assert "Worth knowing" not in text


@pytest.mark.parametrize(
    ("usable", "why", "mark", "words"),
    [
        (True, None, "✓ hailo", None),
        (False, "no permission for /dev/hailo0", "✗ hailo", "not usable: no permission for /dev/hailo0"),
        (None, "its driver does not show", "? hailo", "perhaps usable: its driver does not show"),
    ],
)
def test_an_accelerator_has_its_mark_its_abilities_and_its_reason(
    usable: bool | None, why: str | None, mark: str, words: str | None
) -> None:
    accelerator = Accelerator(
        kind="hailo",
        name="Hailo-8",
        present=True,
        usable=usable,
        why_not_usable=why,
        evidence="PCI 1e60:2864",
        int8=False,
        precisions=("int8", "int4"),
        sparsity_2_4=True,
        compute_capability="8.7",
        dla_cores=2,
        cores=3,
        memory_bytes=3 * 2**30,
    )
    text = render(dataclasses.replace(facts_of("rpi-cm4-32-bit"), accelerators=(accelerator,)), 120)
    assert f"  {mark:<15}  Hailo-8" in text
    abilities = (
        "compute capability 8.7 · int8, int4 · no fast INT8 · 2:4 sparsity · 2 DLA · 3 cores · 3.00 GiB of its own"
    )
    assert abilities in " ".join(text.split())
    assert "seen: PCI 1e60:2864" in text
    assert (words in text) if words else ("usable:" not in text)


@pytest.mark.parametrize(
    ("features", "words"),
    [
        (("asimd", "asimddp"), "✓ dot products in hardware (asimddp)"),
        (("avx2", "avx512_vnni", "amx_int8"), "✓ dot products in hardware (amx_int8, avx512_vnni)"),
        (("avx2",), "✗ no dot-product instruction: INT8 may well be slower than float here"),
        ((), "none that speeds inference up"),
    ],
)
def test_whether_int8_is_worth_it_is_said_of_the_cpu(features: tuple[str, ...], words: str) -> None:
    facts = facts_of("rpi-cm4-32-bit")
    facts = dataclasses.replace(facts, cpu=dataclasses.replace(facts.cpu, features=features))
    assert words in render(facts, 120)


def test_a_runtime_with_a_problem_is_marked_and_says_it() -> None:
    good = InstalledRuntime(name="onnxruntime", version="1.23.0", distribution="onnxruntime-gpu", module="onnxruntime")
    bad = dataclasses.replace(good, name="tflite", distribution="tflite-runtime", problems=("dies with numpy 2",))
    facts = facts_of("rpi-cm4-32-bit")
    text = render(dataclasses.replace(facts, runtimes=(good, bad)), 120)
    assert "✓ onnxruntime    1.23.0 (onnxruntime-gpu)" in text
    assert "✗ tflite         1.23.0 (tflite-runtime)" in text
    assert "dies with numpy 2" in text
    alone = dataclasses.replace(good, name="numpy", distribution="numpy")
    assert "no inference runtime is installed" in render(dataclasses.replace(facts, runtimes=(alone,)), 120)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "unknown"),
        (0, "0 MiB"),
        (64 * 2**20, "64 MiB"),
        (2**30 - 2**20, "1023 MiB"),
        (2**30, "1.00 GiB"),
        (8_457_814_016, "7.88 GiB"),
    ],
)
def test_sizes_are_binary_and_named_so(value: int | None, text: str) -> None:
    assert size(value) == text


# --print-script


def test_the_script_is_one_file_for_an_old_python(capsys: Capture) -> None:
    assert main(["probe", "--print-script"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    parsed = ast.parse(out, feature_version=(3, 8))
    wanted = {name.name for node in ast.walk(parsed) if isinstance(node, ast.Import) for name in node.names}
    assert not {name for name in wanted if name.partition(".")[0] in ("edgekit", "numpy", "msgspec", "rich")}
    assert "jetson-orin-nano-8gb-super" in out, "the profiles travel with it"


# Refusals


@pytest.mark.parametrize("root", ["/nowhere/at/all", __file__])
def test_a_root_that_is_no_folder_is_one_line_and_exit_2(root: str, capsys: Capture) -> None:
    for form in ((), ("--json",)):
        assert main(["probe", "--root", root, *form]) == 2
        assert capsys.readouterr() == ("", f"edgekit probe: --root {root}: no such folder\n")
