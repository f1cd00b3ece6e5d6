"""`edgekit doctor` as a person and a program read it; what it checks is in test_doctor.py."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import msgspec
import pytest

from edgekit.cli import doctor
from edgekit.cli.main import main
from edgekit.runtimes.checkup import BROKEN, MISSING, OK, Check

Capture = pytest.CaptureFixture[str]
GOOD = Check(name="python", state=OK, detail="3.11.2 (/usr/bin/python3)")
ABSENT = Check(name="openvino", state=MISSING, detail="not installed", mend="pip install openvino")
DEAD = Check(name="tflite", state=BROKEN, detail="dies with numpy 2", mend="pip install 'numpy<2'")


def told(capsys: Capture, *checks: Check) -> list[str]:
    doctor._print(checks)
    return capsys.readouterr().out.splitlines()


def test_each_check_is_a_line_with_its_mark_and_its_command_below(capsys: Capture) -> None:
    assert told(capsys, GOOD, ABSENT, DEAD) == [
        "ok  python    3.11.2 (/usr/bin/python3)",
        "--  openvino  not installed",
        "              pip install openvino",
        "!!  tflite    dies with numpy 2",
        "              pip install 'numpy<2'",
        "1 broken: the commands above mend them",
    ]


def test_what_is_only_missing_is_not_broken(capsys: Capture) -> None:
    assert told(capsys, GOOD, ABSENT)[-1] == "nothing is broken"


def test_every_broken_thing_is_counted(capsys: Capture) -> None:
    assert told(capsys, DEAD, GOOD, DEAD)[-1].startswith("2 broken: ")


def test_a_command_stays_on_one_line_to_be_copied_whatever_the_width(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    long = msgspec.structs.replace(
        DEAD, mend="/a/very/long/path/to/a/python -m pip install 'edgekit-deploy[update]' now"
    )
    assert long.mend in [line.strip() for line in told(capsys, long)]


def test_square_brackets_are_shown_and_no_markup(capsys: Capture) -> None:
    odd = Check(name="x[0]", state=BROKEN, detail="a [/] of [red]fire[/red]", mend="pip install 'a[b]'")
    lines = told(capsys, odd)
    assert lines[0] == "!!  x[0]  a [/] of [red]fire[/red]"
    assert lines[1].strip() == "pip install 'a[b]'"


def test_json_is_every_field_of_every_check_and_the_code_tells(edgekit_home: Path, capsys: Capture) -> None:
    code = main(["doctor", "--json"])
    out, err = capsys.readouterr()
    assert err == ""
    checks = [msgspec.convert(check, Check) for check in json.loads(out)]
    assert all(check.keys() == {"name", "state", "detail", "mend"} for check in json.loads(out))
    assert code == int(any(check.state == BROKEN for check in checks))
    assert len({check.name for check in checks}) == len(checks), "a name stands for one check"
    assert all(check.detail for check in checks)
    for check in checks:
        if check.mend and check.state == MISSING:
            assert shlex.split(check.mend), "a shell must be able to read it"


def test_it_takes_no_words_of_its_own(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as left:
        main(["doctor", "please"])
    assert left.value.code == 2
    assert "unrecognized arguments: please" in capsys.readouterr().err
