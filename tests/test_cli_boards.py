"""`edgekit boards`: every profile on a line, the one that fits and why, one board in full; as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgekit.board import Board
from edgekit.catalog import load_boards
from edgekit.cli.boards import Fit, table
from edgekit.cli.main import main

Capture = pytest.CaptureFixture[str]
TREES = Path(__file__).resolve().parent / "boards"
BOARDS = load_boards()
ORIN = TREES / "orin-nano-super-lost-nuls/root"
FITS = (
    Fit(id="rpi-5", why="compatible 'raspberrypi,5-model-*' matches 'raspberrypi,5-model-b'"),
    Fit(id="generic-arm64", why="machine 'aarch64' matches 'aarch64'"),
)


def shown(capsys: Capture, *arguments: str | Path) -> str:
    assert main(["boards", *map(str, arguments)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def loaded(capsys: Capture, *arguments: str | Path) -> Any:
    return json.loads(shown(capsys, *arguments, "--json"))


# The list


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal_and_no_board_is_missing(width: int) -> None:
    lines = table(BOARDS, FITS, width).splitlines()
    assert max(map(len, lines)) <= width
    for board in BOARDS:
        (line,) = [line for line in lines if f" {board.id} " in line and board.support in line and "fits" not in line]
        assert board.name[:8] in line


def test_where_it_is_narrow_the_accelerators_go_first_and_then_the_ends_of_names() -> None:
    wide, middle, narrow = (table(BOARDS, FITS, width) for width in (120, 80, 60))
    assert "accelerators" in wide
    assert "cuda_igpu" in wide
    assert "…" not in wide
    assert "accelerators" not in middle + narrow
    assert "Raspberry Pi Zero 2 W" in middle
    assert "Raspberry Pi Zer…" in narrow


def test_the_board_that_fits_best_is_marked_alone() -> None:
    text = table(BOARDS, FITS, 120)
    (marked,) = [line for line in text.splitlines() if line.startswith("▶")]
    assert marked.split()[1] == "rpi-5"
    assert f"This machine is rpi-5: {FITS[0].why}." in text
    assert f"  generic-arm64 fits as well, less closely: {FITS[1].why}" in text


def test_a_machine_that_nothing_fits_is_told_so() -> None:
    text = table(BOARDS, (), 60)
    assert "▶" not in text
    assert "No profile fits this machine" in text


def test_optional_accelerators_are_not_shown_as_there() -> None:
    with_extra = next(board for board in BOARDS if board.accelerator and all(a.optional for a in board.accelerator))
    (line,) = [line for line in table(BOARDS, (), 200).splitlines() if f" {with_extra.id} " in line]
    assert line.endswith("–")


def test_a_pipe_has_no_width_so_nothing_is_cut(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert "…" not in shown(capsys, "--root", ORIN)


# What fits


def test_a_captured_tree_is_matched_by_its_own_files(capsys: Capture, tmp_path: Path) -> None:
    text = shown(capsys, "--root", ORIN)
    assert "This machine is jetson-orin-nano-8gb-super: " in text
    assert "jetson-orin-nano-8gb fits as well, less closely" in text
    assert "No profile fits this machine" in shown(capsys, "--root", tmp_path)


def test_json_lists_the_boards_and_what_fits_best_first(capsys: Capture, tmp_path: Path) -> None:
    answer = loaded(capsys, "--root", ORIN)
    assert [board["id"] for board in answer["boards"]] == [board.id for board in BOARDS]
    assert [fit["id"] for fit in answer["fits"]][:2] == ["jetson-orin-nano-8gb-super", "jetson-orin-nano-8gb"]
    assert all(fit.keys() == {"id", "why"} and fit["why"] for fit in answer["fits"])
    assert loaded(capsys, "--root", tmp_path)["fits"] == []


# One board in full


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.id)
def test_one_board_in_full_says_support_reason_and_how_to_run(board: Board, capsys: Capture) -> None:
    text = shown(capsys, board.id)
    assert text.startswith(f"{board.name} ({board.id})\n")
    assert f"  support   {board.support}: {board.support_reason}" in text
    assert f"  reserve   {board.memory_reserve_bytes // 2**20} MiB" in text
    assert ("GiB declared" in text) == bool(board.memory_bytes)
    assert text.count("\n  run ") == len(board.runtime)
    for preference in board.runtime:
        assert preference.runtime in text
        assert all(f"{key} = {value}" in text for key, value in preference.options.items())
    for entry in board.accelerator:
        assert f"  has       {entry.kind}{' (an extra)' if entry.optional else ''}: " in text
    assert all(f"  note      {note}" in text for note in board.notes)


def test_one_board_as_json_is_its_profile(capsys: Capture) -> None:
    value = loaded(capsys, "jetson-orin-nx-16gb")
    (listed,) = [board for board in loaded(capsys)["boards"] if board["id"] == "jetson-orin-nx-16gb"]
    assert value == listed
    assert value["memory_bytes"] == 16 * 2**30
    assert value["support"] == "daemon"


# Refusals


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("rpi5", "did you mean rpi-5"),
        ("jetson-orin-nano", "did you mean jetson-orin-nano-"),
        ("zzzz", "`edgekit boards` lists them"),
        ("RPI-5", "no such board"),
        ("", "no such board"),
    ],
)
def test_an_unknown_board_is_exit_3_with_the_nearest(name: str, words: str, capsys: Capture) -> None:
    for form in ((), ("--json",)):
        assert main(["boards", name, *form]) == 3
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        assert words in err


@pytest.mark.parametrize("root", ["/nowhere/at/all", __file__])
def test_a_root_that_is_no_folder_is_exit_2(root: str, capsys: Capture) -> None:
    assert main(["boards", "--root", root]) == 2
    assert capsys.readouterr() == ("", f"edgekit boards: --root {root}: no such folder\n")
