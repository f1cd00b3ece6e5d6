"""Reads below a root: bounded, inside the root, and never an exception."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from edgekit.device.tree import NAMES_LIMIT, TEXT_LIMIT, Tree, span, to_int

Plant = Callable[[dict[str, str | bytes]], Path]


def test_a_missing_file_reads_as_none(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    assert tree.data("proc/meminfo") is None
    assert tree.text("proc/meminfo") is None
    assert tree.line("proc/meminfo") is None
    assert tree.integer("proc/meminfo") is None
    assert tree.names("proc") == ()
    assert not tree.exists("proc")
    assert tree.target("proc") is None


def test_line_takes_the_first_line_without_nuls_and_outer_space(plant: Plant) -> None:
    root = plant({"a": b"  Jetson\0Orin \nsecond\n", "b": b"\0", "c": b""})
    assert Tree(root).line("a") == "Jetson Orin"
    assert Tree(root).line("b") is None
    assert Tree(root).line("c") is None


def test_a_huge_file_is_read_up_to_the_limit(tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)  # sparse: a terabyte that takes no room
    assert len(Tree(tmp_path).data("huge") or b"") == TEXT_LIMIT
    assert Tree(tmp_path).line("huge") is None


def test_a_folder_where_a_file_should_be_reads_as_none(plant: Plant) -> None:
    assert Tree(plant({"proc/meminfo/x": ""})).text("proc/meminfo") is None


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for a writer
    assert Tree(tmp_path).data("pipe") is None


def test_a_character_device_is_not_read(tmp_path: Path) -> None:
    assert Tree("/").data("dev/zero") is None


def test_links_that_chase_each_other_read_as_none(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    (tmp_path / "deep").symlink_to("deep/deep")
    tree = Tree(tmp_path)
    assert tree.data("a") is None
    assert tree.data("deep/x") is None
    assert tree.names("a") == ()
    assert not tree.exists("deep/x")


def test_an_absolute_link_stays_inside_a_captured_tree(plant: Plant) -> None:
    root = plant({"etc/real": "captured"})
    (root / "etc/os-release").symlink_to("/etc/real")
    (root / "escape").symlink_to("../../../../etc/passwd")
    assert Tree(root).line("etc/os-release") == "captured"
    assert Tree(root).data("escape") is None


def test_a_link_is_there_and_named_though_its_target_was_not_captured(plant: Plant) -> None:
    root = plant({"sys/class/net/eth0/address": "x"})
    (root / "sys/class/net/eth0/device").symlink_to("../../../devices/platform/fd580000.ethernet")
    assert Tree(root).exists("sys/class/net/eth0/device")
    assert Tree(root).target("sys/class/net/eth0/device") == "fd580000.ethernet"
    assert Tree(root).data("sys/class/net/eth0/device") is None


def test_a_links_name_is_not_read_through_a_folder_outside_the_root(plant: Plant, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/driver").symlink_to("../secret")
    root = plant({"sys/x": ""})
    (root / "sys/card").symlink_to(tmp_path / "outside")
    assert Tree(root).target("sys/card/driver") is None


def test_a_relative_link_through_folders_is_followed(plant: Plant) -> None:
    root = plant({"sys/devices/pci0/0000:01:00.0/vendor": "0x1e60\n"})
    (root / "sys/bus").mkdir()
    (root / "sys/bus/dev").symlink_to("../devices/pci0/0000:01:00.0")
    assert Tree(root).integer("sys/bus/dev/vendor", 16) == 0x1E60


def test_an_unreadable_file_reads_as_none(plant: Plant) -> None:
    root = plant({"secret": "x"})
    (root / "secret").chmod(0)
    user = os.geteuid()
    if user == 0:  # root may read everything, so look as nobody
        os.seteuid(65534)
    try:
        assert Tree(root).data("secret") is None
        assert Tree(root).names("") == () or user != 0
    finally:
        os.seteuid(user)


def test_names_are_sorted_and_bounded(tmp_path: Path) -> None:
    for number in range(NAMES_LIMIT + 50):
        (tmp_path / f"n{number:05d}").touch()
    names = Tree(tmp_path).names("")
    assert len(names) == NAMES_LIMIT
    assert list(names) == sorted(names)


def test_bytes_that_are_no_text_become_replacement_characters(plant: Plant) -> None:
    assert Tree(plant({"model": b"\xff\xfeRock"})).line("model") == "��Rock"


def test_only_the_root_itself_is_live(tmp_path: Path) -> None:
    assert Tree("/").live
    assert not Tree(tmp_path).live


@pytest.mark.parametrize(
    ("text", "base", "value"),
    [
        ("42", 10, 42),
        ("0x1e60", 16, 0x1E60),
        ("18446744073709551615", 10, 2**64 - 1),
        ("max", 10, None),
        ("", 10, None),
        (None, 10, None),
        ("9" * 5000, 10, None),
    ],
)
def test_to_int_takes_numbers_and_nothing_else(text: str | None, base: int, value: int | None) -> None:
    assert to_int(text, base) == value


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0-3", (0, 1, 2, 3)),
        ("0-2,5", (0, 1, 2, 5)),
        ("7", (7,)),
        ("", ()),
        (None, ()),
        ("3-1", ()),
        ("a-b", ()),
        ("0-999999999999", ()),
        ("-5", ()),
    ],
)
def test_span_reads_the_kernels_lists_within_bounds(text: str | None, cpus: tuple[int, ...]) -> None:
    assert span(text) == cpus
