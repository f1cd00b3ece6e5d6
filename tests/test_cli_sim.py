"""`edgekit sim` as typed: what cannot work is said at once, and its exit codes."""

from __future__ import annotations

import pytest

from edgekit.cli.main import main


@pytest.mark.parametrize("flags", [[], ["--cheap", "10"]])
def test_a_broker_that_is_not_there_is_exit_4_at_once(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "--port", "9", *flags]) == 4
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "edgekit sim: broker 127.0.0.1:9: cannot be reached: Connection refused\n"


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--window", "nan"), ("--window", "0"), ("--devices", "0"), ("--sites", "-1"), ("--for", "inf"), ("--cheap", "0")],
)
def test_numbers_that_make_no_sense_are_usage_errors(flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "--port", "9", flag, value]) == 2
    assert capsys.readouterr().err.startswith(f"edgekit sim: {flag} {value}: must be a finite number")
