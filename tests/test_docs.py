"""What the documents promise exists: commands parse, links lead somewhere, targets, extras and verbs are real."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from edgekit import __version__
from edgekit.cli.main import VERBS, build_parser
from edgekit.toml import read_table

ROOT = Path(__file__).resolve().parent.parent
DOCS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [*DOCS, *sorted((ROOT / "models").glob("*/README.md"))]
PROJECT = read_table(ROOT / "pyproject.toml")["project"]
VERB_NAMES = [verb for verb, _ in VERBS]
COMMANDS = ("edgekit", "edgekit-console", "make")
PLACEHOLDER = re.compile(r"[A-Z][A-Z_]*(\.[a-z]+)?\Z|<[a-z ]+>\Z")


class Line(NamedTuple):
    """A command as a document shows it."""

    page: str
    words: tuple[str, ...]
    is_mention: bool
    "In running text, where `edgekit bench` may name the verb alone."

    @property
    def id(self) -> str:
        return f"{self.page}: {' '.join(self.words)}"


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def fenced(text: str) -> Iterator[str]:
    """The lines of code blocks; one that goes on after a backslash is one line."""
    for block in re.findall(r"^```[a-z]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield from block.replace("\\\n", " ").splitlines()


def spans(text: str) -> list[str]:
    """What stands between backquotes in running text."""
    outside = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return [re.sub(r"\s+", " ", span) for span in re.findall(r"`([^`]+)`", outside)]


def commands(line: str) -> Iterator[tuple[str, ...]]:
    """Each of our commands in a line of shell: comments, pipes and the commands of others are left out."""
    words = shlex.split(line.removeprefix("$ ").replace("&&", " | ").replace(";", " | "), comments=True)
    part: list[str] = []
    for word in [*words, "|"]:
        if word not in ("|", "&"):
            part.append(word)
            continue
        while part and ("=" in part[0] or part[0] in ("sudo", "exec")):
            part.pop(0)
        if part and Path(part[0]).name in COMMANDS:
            end = next((i for i, one in enumerate(part) if one in (">", "<", "2>", "2>&1", "&")), len(part))
            yield (Path(part[0]).name, *part[1:end])
        part = []


def shown() -> Iterator[Line]:
    for page in DOCS:
        name, text = str(page.relative_to(ROOT)), text_of(page)
        for code, is_mention in ((fenced(text), False), (spans(text), True)):
            for line in code:
                if re.match(rf"(\$ |sudo |[A-Z_]+=\S+ )*\S*({'|'.join(COMMANDS)})( |$)", line):
                    for words in commands(line):
                        yield Line(name, words, is_mention)


SHOWN = sorted(set(shown()))
OURS = [line for line in SHOWN if line.words[0] == "edgekit"]
CONSOLE = [line for line in SHOWN if line.words[0] == "edgekit-console"]
MAKE = [line for line in SHOWN if line.words[0] == "make"]


def parses(parser: object, words: list[str]) -> str:
    """Empty when the words parse (or ask for help), else what the parser says."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            parser.parse_args(words)  # type: ignore[attr-defined]
        except SystemExit as left:
            return said.getvalue() or "" if left.code else ""
    return ""


def with_values(words: tuple[str, ...]) -> list[str]:
    """NAME, FILE.npz and <id> stand for something of the reader's; a digit is a value of every kind."""
    return ["1" if PLACEHOLDER.match(word) else word for word in words]


# Commands


def test_the_documents_show_commands_at_all() -> None:
    """Guards the search itself: were it blind, every test below would pass."""
    assert len(OURS) >= 8
    assert len(CONSOLE) >= 4
    assert {line.words[1] for line in MAKE if len(line.words) > 1} >= {"demo", "test"}
    assert list(commands("FOO=1 sudo edgekit probe --json | jq . && make test # why")) == [
        ("edgekit", "probe", "--json"),
        ("make", "test"),
    ]


@pytest.mark.parametrize("line", OURS, ids=lambda line: line.id)
def test_every_edgekit_command_parses(line: Line) -> None:
    words = with_values(line.words[1:])
    wanted = next((word for word in words if word in VERB_NAMES), None)
    if line.is_mention and ("…" in words or "..." in words):
        assert wanted == words[0]
        return
    problem = parses(build_parser(wanted), words)
    # Running text may name a verb or an action alone, without what it takes.
    assert problem == "" or (line.is_mention and "the following arguments are required" in problem)


@pytest.mark.parametrize("line", CONSOLE, ids=lambda line: line.id)
def test_every_console_command_parses(line: Line) -> None:
    from edgekit_tui.main import build_parser as console_parser

    assert parses(console_parser(), with_values(line.words[1:])) == ""


@pytest.mark.parametrize("line", MAKE, ids=lambda line: line.id)
def test_every_make_target_exists(line: Line) -> None:
    targets = set(re.findall(r"^([a-z.][\w./-]*):(?!=)", text_of(ROOT / "Makefile"), re.MULTILINE))
    wanted = [word for word in line.words[1:] if "=" not in word and not word.startswith("-")]
    assert set(wanted) <= targets


def test_every_make_target_for_people_says_what_it_does() -> None:
    makefile = text_of(ROOT / "Makefile")
    (phony,) = re.findall(r"^\.PHONY: (help .*)$", makefile, re.MULTILINE)
    for target in phony.split():
        assert re.search(rf"^{re.escape(target)}:.* ## \S", makefile, re.MULTILINE), f"{target} is not in `make help`"


# Links and paths


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_something(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if re.match(r"[a-z]+:", target):
            assert target.startswith("https://"), f"{target}: not encrypted"
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{target} does not exist"
        assert found.is_relative_to(ROOT)
        if anchor:
            headings = re.findall(r"^#+ (.+)$", text_of(found), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{target}: no such heading"


@pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_of_the_project_that_is_named_exists(page: Path) -> None:
    for span in spans(text_of(page)):
        if re.match(r"(edgekit|devices|docs|models|tests|tui|\.ci)/[\w./*-]+\Z", span):
            assert list(ROOT.glob(span.rstrip("/"))), f"{span} does not exist"


@pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_module_that_is_named_exists(page: Path) -> None:
    for span in spans(text_of(page)):
        if not re.match(r"edgekit(_tui)?(\.[a-z_]+)+\Z", span) or span.endswith((".toml", ".md")):
            continue
        base = ROOT / ("tui" if span.startswith("edgekit_tui") else ".")
        parts = span.split(".")
        module = next(
            path
            for length in range(len(parts), 0, -1)
            for path in (
                base.joinpath(*parts[:length]).with_suffix(".py"),
                base.joinpath(*parts[:length], "__init__.py"),
            )
            if path.is_file()
        )
        for name in parts[len(module.relative_to(base).with_suffix("").parts) :]:
            assert name in text_of(module) or (module.parent / f"{name}.py").is_file(), f"{span}: no {name}"


# Verbs, extras, versions


def test_every_verb_is_in_the_readme_and_no_other() -> None:
    table = text_of(ROOT / "README.md").partition("\n## Verbs\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)}
    assert named == set(VERB_NAMES)


@pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_extra_that_is_named_exists(page: Path) -> None:
    for named in re.findall(r"edgekit-deploy\[([a-z, ]+)\]", text_of(page)):
        for extra in named.split(","):
            assert extra.strip() in PROJECT["optional-dependencies"], f"{extra} is no extra"


def test_the_readmes_table_of_extras_is_true() -> None:
    rows = re.findall(r"^\| ((?:`[a-z]+`(?:, )?)+) \|", text_of(ROOT / "README.md"), re.MULTILINE)
    (start,) = [m.end() for m in re.finditer(r"^\| extra \| for \|$", text_of(ROOT / "README.md"), re.MULTILINE)]
    below = text_of(ROOT / "README.md")[start:].split("\n\n")[0]
    named = {name for row in rows if f"| {row} |" in below for name in re.findall(r"`([a-z]+)`", row)}
    assert len(named) >= 8
    assert named <= PROJECT["optional-dependencies"].keys()


def test_what_a_board_installs_is_what_the_readme_lists() -> None:
    wanted = {re.split(r"[>=<; \[]", line)[0] for line in PROJECT["dependencies"]}
    wanted |= {re.split(r"[>=<; \[]", line)[0] for line in PROJECT["optional-dependencies"]["serve"]}
    section = text_of(ROOT / "README.md").partition("## What a board install contains")[2].partition("| extra |")[0]
    for name in wanted | {PROJECT["name"]}:
        assert f"`{name}`" in section, f"{name} is installed and not listed"


def test_the_changelog_has_an_open_section_for_this_version() -> None:
    text = text_of(ROOT / "CHANGELOG.md")
    sections = re.findall(r"^## (\S+) \((.+)\)$", text, re.MULTILINE)
    assert sections, "sections are '## VERSION (DATE)'"
    assert sections[0] == (__version__, "unreleased")
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", date) for _, date in sections[1:])
    newest = text.partition(f"## {__version__} ")[2].partition("\n## ")[0]
    assert re.search(r"^- \S", newest, re.MULTILINE), "nothing is said of it"


def test_nobody_is_sent_to_a_strangers_package() -> None:
    """The name `edgekit` on the package index belongs to an unrelated project."""
    texts = [*PAGES, ROOT / "Makefile", *ROOT.glob(".ci/*"), *ROOT.glob("edgekit/**/*.py"), *ROOT.glob("tui/**/*.py")]
    for path in texts:
        found = re.search(r"pip install [^\n#]*?(?<![\w/-])edgekit(?!-deploy|[\w-])", text_of(path))
        assert not found, f"{path.relative_to(ROOT)}: {found and found[0]}"
