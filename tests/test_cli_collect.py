"""`edgekit collect`: what Prometheus is told, the counts in a line, and the verb without a broker."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.cli import collect as verb
from edgekit.cli.main import main
from edgekit.collect.rollup import Rollup
from edgekit.errors import UsageError
from edgekit.fleet import Device, Fleet, Presence
from edgekit.telemetry.histogram import HistogramBuilder
from edgekit.telemetry.messages import Histogram

prometheus = pytest.importorskip("edgekit.collect.prometheus", reason="elsewhere: the endpoint needs prometheus-client")

Capture = pytest.CaptureFixture[str]


def latency(*values_ms: float) -> Histogram:
    builder = HistogramBuilder(max_scale=6)
    builder.record_many(list(values_ms))
    found = builder.histogram()
    assert found is not None
    return found


# Prometheus


@given(st.lists(st.floats(0.001, 200_000), min_size=1, max_size=30))
def test_cumulative_buckets_never_fall_and_end_with_all(values: list[float]) -> None:
    buckets = prometheus.cumulative(latency(*values))
    counts = [count for _, count in buckets]
    assert counts == sorted(counts)
    assert buckets[-1] == ("+Inf", float(len(values)))
    for edge, count in buckets[:-1]:
        edge_ms = float(edge) * 1000
        assert (
            sum(value <= edge_ms / 1.02 for value in values)
            <= count
            <= sum(value <= edge_ms * 1.02 for value in values)
        )


def test_beyond_the_limit_the_busiest_groups_stay_and_the_rest_is_one() -> None:
    groups = {("s", f"m{i}", "r", "a"): Rollup(requests=i) for i in range(prometheus.MOST_GROUPS + 3)}
    kept = prometheus._bounded(groups)
    assert len(kept) == prometheus.MOST_GROUPS + 1
    assert kept[("_other",) * 4].requests == 0 + 1 + 2
    assert sum(r.requests for r in kept.values()) == sum(r.requests for r in groups.values())
    assert prometheus._bounded(dict(list(groups.items())[:5])) == dict(list(groups.items())[:5])


def test_every_presence_of_a_site_has_a_series_also_when_none_has_it() -> None:
    fleet = Fleet(devices={("hall", "a"): Device(site="hall", device="a", presence=Presence.LATE)})
    (family,) = prometheus._of_presence(fleet)
    values = {sample.labels["state"]: sample.value for sample in family.samples}
    assert values == {"online": 0, "late": 1, "stale": 0, "offline": 0}


def test_an_endpoint_in_use_is_a_usage_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"--prometheus 127.0.0.1:{port}: "):
            prometheus.serve(lambda: (Fleet(), {}, {}), "127.0.0.1", port)


# The verb


@pytest.mark.parametrize("where", ["", ":", "x", "host:", "1.2.3.4:x", ":70000", "-1", "9 9"])
def test_an_endpoint_that_is_no_address_is_one_line(where: str) -> None:
    with pytest.raises(UsageError, match="not PORT or HOST:PORT"):
        verb._serve(None, where)  # type: ignore[arg-type]


COUNTS = {"windows": 7, "devices": 2, "duplicates": 1, "malformed": 3}


@pytest.mark.parametrize(
    ("delay", "end"), [(None, "not ours"), (123.4, "; stored 123 ms after their end or sooner (p99)")]
)
def test_the_counts_in_one_line(delay: float | None, end: str) -> None:
    text = verb._as_text(COUNTS | {"delay_p99_ms": delay})
    assert text.startswith("7 windows of 2 devices, 1 sent again, 3 messages not ours")
    assert text.endswith(end)


@pytest.fixture
def signals() -> Iterator[None]:
    """The verb takes the signals of its process over; a test gives them back."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals")
def test_without_a_broker_it_tries_again_until_its_time_is_over(tmp_path: Path, capsys: Capture) -> None:
    words = ["--port", "9", "--for", "0.3", "--data", str(tmp_path / "h.db"), "--json"]
    assert main(["collect", *words]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["windows"] == 0
    assert err.startswith(f"edgekit collect: {tmp_path / 'h.db'}\nedgekit collect: broker: ")


def test_a_file_that_is_no_history_is_exit_3(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "h.db").write_text("not a database, but long enough to be looked at" * 30)
    assert main(["collect", "--port", "9", "--for", "0.1", "--data", str(tmp_path / "h.db")]) == 3
    err = capsys.readouterr().err
    assert "cannot be used as a history: " in err
    assert err.count("\n") == 1
