"""`edgekit sim` on a real broker: what it makes, counts and writes, and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgekit.cli import sim as verb
from edgekit.cli.main import main
from edgekit.errors import UsageError
from edgekit.telemetry.broker import Broker, start_broker

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with start_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def simulated(broker: Broker, capsys: Capture) -> Callable[..., tuple[int, str]]:
    def run(*words: str) -> tuple[int, str]:
        where = ["--host", broker.host, "--port", str(broker.port)]
        code = main(["sim", *where, "--for", "1", "--window", "0.3", "--drain", "0", *words])
        return code, capsys.readouterr().out

    return run


def test_devices_make_windows_and_every_one_is_written_down(simulated: Callable[..., Any], tmp_path: Path) -> None:
    code, out = simulated("--devices", "3", "--sites", "2", "--made", str(tmp_path / "made.json"), "--json")
    told = json.loads(out)
    assert told.keys() == {"devices", "windows", "connections", "drops", "deaths", "waiting", "lost"}
    assert (told["devices"], told["connections"], told["drops"], told["deaths"]) == (3, 3, 0, 0)
    made = json.loads((tmp_path / "made.json").read_text())
    assert len(made) == 3
    assert len({name.split("/")[0] for name in made}) == 2
    assert sum(count for epochs in made.values() for count in epochs.values()) == told["windows"] > 0
    assert code == (0 if not told["waiting"] else 1), "without a collector nothing is acknowledged"


def test_for_people_it_is_one_sentence(simulated: Callable[..., Any]) -> None:
    _, out = simulated("--devices", "2")
    assert out.startswith("2 devices made ")
    assert out.count("\n") == 1


def test_cheap_windows_come_over_one_connection(simulated: Callable[..., Any]) -> None:
    code, out = simulated("--devices", "50", "--cheap", "100", "--json")
    told = json.loads(out)
    assert code == 0
    assert told["devices"] == 50
    assert told["windows"] > 20


@pytest.mark.parametrize("flag", [["--tls"], ["--ca-file", "x"], ["--certificate-file", "x"]])
def test_the_simulator_knows_no_tls_and_says_so(flag: list[str], capsys: Capture) -> None:
    assert main(["sim", *flag]) == 2
    assert "speaks to a broker on this machine and knows no TLS" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("limits", "devices", "asked"),
    [((1024, 4096), 100, None), ((1024, 4096), 2000, (2100, 4096)), ((64, -1), 100, (200, -1))],
)
def test_the_limit_of_open_files_is_raised_as_far_as_the_system_allows(
    limits: tuple[int, int], devices: int, asked: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import resource

    made: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, value: made.append(value))
    monkeypatch.setattr(resource, "RLIM_INFINITY", -1)
    verb._raise_file_limit(devices)
    assert made == ([] if asked is None else [asked])


def test_more_devices_than_the_system_allows_files_are_refused_with_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    with pytest.raises(UsageError, match="5000 devices need 5100 open files, this system allows 4096: ulimit -n 5100"):
        verb._raise_file_limit(5000)
