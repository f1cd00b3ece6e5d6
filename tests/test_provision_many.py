"""Many devices from a list: what is refused before any starts, what each is told, and what one's failure does."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgekit.cli.main import main
from edgekit.cli.provision_many import print_table
from edgekit.errors import ConfigError
from edgekit.provision import slots
from edgekit.provision.inventory import Entry, Many, Result, _read, read_inventory, words_for
from edgekit.provision.release import Library
from tests.torture.small import make

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere: devices run Linux")


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "device"),
        ("device = []\n", "the list is empty"),
        ('[[device]]\ntarget = ""\n', "is not user@host"),
        ('[[device]]\ntarget = "-oProxyCommand=x"\n', "is not user@host"),
        ('[[device]]\ntarget = "a"\n[[device]]\ntarget = "a"\n', "'a' is there twice"),
        ('[[device]]\ntarget = "a"\nmodel = "x"\nrelease = "y"\n', "only one of release, config and model"),
        ('[[device]]\ntarget = "a"\ndevice = "d"\n[[device]]\ntarget = "b"\ndevice = "d"\n', "'d' is given to two"),
        ('[[device]]\ntarget = "a"\nsitee = "x"\n', "sitee"),
        ('[[devices]]\ntarget = "a"\n', "devices"),
        ("[[device]\n", "fleet.toml"),
    ],
)
def test_a_list_that_does_not_hold_starts_nothing(tmp_path, text, problem):
    with pytest.raises(ConfigError, match=problem):
        read_inventory(write(tmp_path, text))


def test_the_same_name_on_two_sites_is_two_devices(tmp_path):
    text = "".join(f'[[device]]\ntarget = "{s}"\nsite = "{s}"\ndevice = "d"\n' for s in ("north", "south"))
    assert [entry.site for entry in read_inventory(write(tmp_path, text))] == ["north", "south"]


@pytest.mark.parametrize(
    ("entry", "wanted"),
    [
        (Entry(target="a"), ["--model=digits", "--json", "--", "a"]),
        (Entry(target="a", release="2.0"), ["--release=2.0", "--json", "--", "a"]),
        (
            Entry(target="a", site="lab", device="d", group="canary"),
            ["--model=digits", "--site=lab", "--device=d", "--group=canary", "--json", "--", "a"],
        ),
        (Entry(target="a", config="x/edgekit.toml"), ["--config=/fleet/x/edgekit.toml", "--json", "--", "a"]),
        (
            Entry(target="a", ssh_options=("-p2222", "-oUser=pi")),
            ["--model=digits", "--ssh-option=-p2222", "--ssh-option=-oUser=pi", "--json", "--", "a"],
        ),
        (
            Entry(target="a", interpreter="python3.11", service="user", requirements="pi.lock"),
            ["--model=digits", "--interpreter=python3.11", "--service=user", "--requirements=/fleet/pi.lock",
             "--json", "--", "a"],
        ),
    ],
)  # fmt: skip
def test_a_devices_own_words_win_over_the_common_ones(entry, wanted):
    assert words_for(entry, ["--model=digits"], folder=Path("/fleet")) == wanted


@pytest.mark.parametrize(
    ("code", "answer", "talk", "wanted"),
    [
        (0, {"release": "1.0", "slot": {"slot": "a", "state": "good"}}, [], ("committed", "1.0", "")),
        (
            1,
            {"release": "2.0", "slot": {"slot": "b", "state": "bad", "reason": "p99 is 41 ms"}},
            [],
            ("rolled back", "2.0", "p99 is 41 ms"),
        ),
        (
            0,
            {"active": "b", "slots": [{"slot": "a", "release": "0.9"}, {"slot": "b", "release": "1.0"}]},
            [],
            ("already there", "1.0", ""),
        ),
        (
            0,
            [{"what": "copy", "is_needed": True}, {"what": "trust", "is_needed": False}],
            [],
            ("planned", None, "copy"),
        ),
        (0, [{"what": "copy", "is_needed": False}], [], ("planned", None, "nothing to do")),
        (4, None, ["looking", "edgekit provision: pi: it does not answer"], ("failed", None, "pi: it does not answer")),
        (-9, None, [], ("failed", None, "it ended with -9 without a word")),
    ],
)
def test_a_devices_answer_is_read(code, answer, talk, wanted):
    text = "" if answer is None else json.dumps(answer)
    assert _read(code, text, talk) == wanted


def test_two_good_devices_one_bad_one_and_one_that_is_not_there(tmp_path, edgekit_home, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    library = Library(tmp_path / "library")
    make(library, "1.0")
    make(library, "bad", daemon="import")
    lines = [f'[[device]]\ntarget = "local:{name}"\n' for name in ("one", "two")]
    lines += ['[[device]]\ntarget = "local:three"\nrelease = "bad"\n']
    lines += ['[[device]]\ntarget = "nobody@no-such-host.invalid"\nssh_options = ["-F/dev/null"]\n']
    path = write(tmp_path, "".join(lines))
    words = ["provision", "--inventory", str(path), "--library", str(library.folder), "--service", "none"]
    assert main([*words, "--release", "1.0", "--parallel", "2"]) == 1
    said = capsys.readouterr()
    assert re.search(r"local:one\s+committed\s+1\.0", said.out)
    assert re.search(r"local:two\s+committed\s+1\.0", said.out)
    assert re.search(r"local:three\s+rolled back\s+bad", said.out)
    assert re.search(r"invalid\s+failed", said.out)
    assert "2 of 4 devices have it" in said.out
    log = Path(said.err.strip().splitlines()[-1].removeprefix("each device's talk: "))
    assert len(list(log.iterdir())) == 4
    assert slots.status(tmp_path / "one").active == "a"

    path.write_text("".join(lines[:2]))
    assert main([*words, "--release", "1.0", "--json"]) == 0
    assert [row["outcome"] for row in json.loads(capsys.readouterr().out)] == ["already there", "already there"]


def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str) -> None:
    """The process of each device runs `body` in its place; `target` is there."""
    program = tmp_path / "fake.py"
    program.write_text(f"import json, sys, time\ntarget = sys.argv[-1]\n{body}\n")
    real = subprocess.Popen

    def start(words, **how):
        return real([sys.executable, "-I", "-S", str(program), *words[4:]], **how)

    monkeypatch.setattr(subprocess, "Popen", start)


GOOD = 'print(json.dumps({"release": "1.0", "slot": {"slot": "a"}}))'


def test_after_some_failures_no_more_are_started(tmp_path, monkeypatch):
    fake(
        monkeypatch, tmp_path, 'sys.exit("edgekit provision: " + target + ": no") if target != "d1" else None\n' + GOOD
    )
    said = []
    many = Many(tmp_path / "logs", parallel=1, max_failures=2, say=lambda target, text: said.append((target, text)))
    entries = [Entry(target=f"d{i}") for i in range(5)]
    results = many.run([(entry, [entry.target]) for entry in entries])
    assert [r.outcome for r in results] == ["failed", "committed", "failed", "not started", "not started"]
    assert results[0].reason == "d0: no"
    assert results[4].reason == "2 devices failed before its turn"
    assert ("d0", "edgekit provision: d0: no") in said
    assert ("d4", "not started") in said
    assert not results[4].is_good
    assert "no" in Path(results[0].log).read_text()


def test_an_interrupt_ends_those_that_run_and_starts_no_more(tmp_path):
    code = (
        "import sys, signal, edgekit.provision.inventory as i, subprocess, pathlib\n"
        "real = subprocess.Popen\n"
        "subprocess.Popen = lambda words, **how: real([sys.executable, '-c', 'import time; time.sleep(60)'], **how)\n"
        "entries = [i.Entry(target=f'd{n}') for n in range(3)]\n"
        "def say(target, text): print(f'{target} {text}\\n', end='', flush=True)\n"
        "many = i.Many(pathlib.Path(sys.argv[1]), parallel=2, max_failures=3, say=say)\n"
        "print('on', flush=True)\n"
        "try: many.run([(e, [e.target]) for e in entries])\n"
        "except KeyboardInterrupt: print('interrupted')\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "on\n"
    end_s = time.monotonic() + 20
    while len(list(tmp_path.iterdir())) < 2:
        assert time.monotonic() < end_s
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    said = child.communicate(timeout=20)[0]
    assert "interrupted" in said
    assert "d2 not started" in said


def test_the_table_says_what_a_reader_looks_for(capsys):
    rows = [
        Result(target="pi@a", device="a", outcome="committed", release="1.0", reason="", seconds=61.4, log="x"),
        Result(target="pi@b", device=None, outcome="failed", release=None, reason="disk full", seconds=2.0, log="y"),
    ]
    print_table(rows)
    said = capsys.readouterr().out
    assert re.search(r"pi@a\s+committed\s+1\.0\s+61", said)
    assert re.search(r"pi@b\s+failed\s+-\s+2\s+disk full", said)
    assert "1 of 2 devices have it" in said


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--device", "d"], "--device is one device's"),
        (["--own", "x"], "--own is one device's"),
        (["--mqtt-password-file", "x"], "--mqtt-password-file is one device's"),
        ([], "say what to install on local:"),
        (["local:/tmp/x"], "one of TARGET, --inventory and --offline-image at a time"),
        (["--parallel", "0"], "parallel"),
        (["--max-failures", "0"], "max-failures"),
    ],
)
def test_flags_that_make_no_sense_for_many_are_one_line(tmp_path, capsys, edgekit_home, words, problem):
    path = write(tmp_path, f'[[device]]\ntarget = "local:{tmp_path}/one"\n')
    assert main(["provision", "--inventory", str(path), *words]) == 2
    assert problem in capsys.readouterr().err


def test_a_dry_run_of_many_changes_nothing(tmp_path, edgekit_home, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    library = Library(tmp_path / "library")
    make(library, "1.0")
    path = write(tmp_path, '[[device]]\ntarget = "local:one"\nservice = "none"\n')
    words = ["--library", str(library.folder), "--release", "1.0", "--dry-run"]
    assert main(["provision", "--inventory", str(path), *words]) == 0
    said = capsys.readouterr().out
    assert re.search(r"local:one\s+planned", said)
    assert "1 of 1 devices could have it" in said
    assert not (tmp_path / "one").exists()
