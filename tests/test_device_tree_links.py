"""A captured tree may hold any links: whatever they point at, nothing outside its root is read, listed or named."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit.device.tree import _LINKS_LIMIT, TEXT_LIMIT, Tree, _parts

Plant = Callable[[dict[str, str | bytes]], Path]
SECRET = "of the machine that looks"
PLACES = ("a", "a/b", "c", "a/b/d", "e")


def resolved(links: dict[str, str], name: str) -> str | None:
    """Where `name` leads when the root is "/": the plainest walk, one link at a time; None for a loop."""
    parts, done, steps = name.split("/"), [], 0
    while parts:
        part = parts.pop(0)
        if part in ("", "."):
            continue
        if part == "..":
            done = done[:-1]
            continue
        target = links.get("/".join([*done, part]))
        if target is None:
            done.append(part)
            continue
        steps += 1
        if steps > _LINKS_LIMIT:
            return None
        done = [] if target.startswith("/") else done
        parts = target.split("/") + parts
    return "/".join(done)


TARGETS = st.lists(st.sampled_from(["..", ".", "a", "b", "c", "d", "e", "secret"]), min_size=1, max_size=5).flatmap(
    lambda parts: st.sampled_from(["/".join(parts), "/" + "/".join(parts)])
)


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from(["a", "a/b", "c", "e"]), TARGETS, max_size=3), st.sampled_from(PLACES))
def test_links_are_followed_as_if_the_root_were_all_there_is(links: dict[str, str], name: str) -> None:
    # A link whose folder is itself a link lies elsewhere: such trees do not exist on a disk.
    links = {at: target for at, target in links.items() if at.rpartition("/")[0] not in links}
    with tempfile.TemporaryDirectory() as folder:
        outside, root = Path(folder), Path(folder) / "root"
        (outside / "secret").write_text(SECRET)
        root.mkdir()
        for at, target in links.items():
            (root / at).parent.mkdir(parents=True, exist_ok=True)
            (root / at).symlink_to(target)
        tree = Tree(root)
        wanted = resolved(links, name)
        assert tree.path(name) == (None if wanted is None else os.path.join(tree.root, *_parts(wanted)))
        assert tree.text(name) is None
        assert "secret" not in tree.names(name)
        status = tree.status(name)
        assert status is None or os.path.realpath(tree.path(name) or "").startswith(str(root.resolve()))


@pytest.mark.parametrize("target", ["../secret", "/../secret", "../../../../../../etc/passwd", "/etc/passwd"])
def test_a_link_to_the_host_finds_nothing(target: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(target)
    tree = Tree(root)
    assert (tree.data("link"), tree.text("link"), tree.line("link"), tree.integer("link")) == (None,) * 4
    assert tree.exists("link"), "the link itself was captured"
    assert tree.target("link") == target.rpartition("/")[2]


@pytest.mark.parametrize("name", ["../secret", "a/../../secret", "/../secret", "..", "a/../.."])
def test_a_name_that_climbs_stays_at_the_root(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    tree = Tree(root)
    assert tree.text(name) is None
    path = tree.path(name)
    assert path is not None
    assert Path(path).is_relative_to(root)


def test_links_may_follow_links_up_to_the_kernels_own_limit(tmp_path: Path) -> None:
    (tmp_path / "l0").write_text("found")
    for i in range(1, _LINKS_LIMIT + 5):
        (tmp_path / f"l{i}").symlink_to(f"l{i - 1}")
    tree = Tree(tmp_path)
    assert tree.text(f"l{_LINKS_LIMIT}") == "found"
    assert tree.text(f"l{_LINKS_LIMIT + 1}") is None


@pytest.mark.parametrize("limit", [0, 1, 5, 4096, TEXT_LIMIT])
def test_no_more_is_read_than_was_asked_for(limit: int, plant: Plant) -> None:
    tree = Tree(plant({"big": b"x" * (TEXT_LIMIT + 100)}))
    assert len(tree.data("big", limit) or b"") == limit


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", None),
        (b"\n", None),
        (b"  one  \n two", "one"),
        (b"\0\0one\0two\0", "one two"),
        (b"\n\nsecond", "second"),
        (b"\xff", "\N{REPLACEMENT CHARACTER}"),
        (b"x" * 5000, "x" * 4096),
    ],
)
def test_a_line_is_the_first_that_says_something(content: bytes, line: str | None, plant: Plant) -> None:
    assert Tree(plant({"f": content})).line("f") == line


@settings(max_examples=40)
@given(st.binary(max_size=60))
def test_any_content_reads_as_text_a_line_and_a_number_or_none(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "f").write_bytes(content)
        tree = Tree(folder)
        text, line, number = tree.text("f"), tree.line("f"), tree.integer("f")
    assert text == content.decode("utf-8", "replace")
    assert line is None or (line == line.strip() and "\n" not in line)
    assert number is None or int(line or "") == number


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "a/" * 300, ""])
def test_a_name_that_no_system_takes_reads_as_nothing(name: str, tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    assert tree.data(name) is None
    assert tree.target(name) is None
    assert name == "" or tree.names(name) == ()
