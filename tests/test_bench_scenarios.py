"""MLPerf's scenarios: counts and claims as in its rules, loads as LoadGen issues them."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.bench import load
from edgekit.bench.scenarios import Scenario, estimate, judge, needed, over_allowed, run_scenario
from edgekit.catalog import load_model
from edgekit.choose import Space, find_candidates
from edgekit.cli.main import main
from edgekit.config import Home
from edgekit.device.probe import probe
from edgekit.errors import ArtifactError


@pytest.mark.parametrize(
    ("q", "count", "allowed"),
    [
        (0.9, 43, None),
        (0.9, 44, 0),
        (0.9, 63, 0),
        (0.9, 64, 1),
        (0.99, 458, None),
        (0.99, 459, 0),
        (0.99, 661, 0),
        (0.99, 662, 1),
        (0.999, 4604, 0),
        (0.999, 6636, 1),
    ],
)
def test_early_stopping_has_the_counts_of_the_rules(q, count, allowed):
    assert over_allowed(count, q) == allowed


@pytest.mark.parametrize(("q", "count"), [(0.9, 44), (0.99, 459), (0.999, 4603)])
def test_the_fewest_queries_for_a_claim(q, count):
    assert abs(needed(q) - count) <= 1
    assert over_allowed(needed(q), q) == 0
    assert over_allowed(needed(q) - 1, q) is None


@given(st.lists(st.floats(0.01, 1000), min_size=44, max_size=300))
def test_the_estimate_is_never_below_the_percentile_of_the_samples(times):
    found = estimate(times, 0.9)
    assert found is not None
    assert sum(t <= found for t in times) >= 0.9 * len(times)


def _judged(times, **more):
    return judge(Scenario(name="server", qps=10, bound_ms=5, **more), "c", times, 10.0)


def test_a_bound_is_kept_broken_or_not_decided():
    assert _judged([1.0] * 459).holds is True
    assert _judged([1.0] * 458).holds is None  # too few to say
    assert _judged([1.0] * 458 + [9.0]).holds is None  # 0.2 % slower, but not for sure
    assert _judged([1.0] * 450 + [9.0] * 50).holds is False
    assert _judged([1.0] * 450 + [9.0] * 50).over_bound_count == 50


def test_the_rate_of_multi_stream_counts_samples_and_its_latency_whole_queries():
    result = judge(Scenario(name="multi-stream", streams=8), "c", [4.0] * 500, 2.0)
    assert result.samples_per_s == 2000
    assert result.achieved_qps == 250
    assert result.estimate_ms == 4.0


def test_offline_makes_no_claim_about_a_percentile():
    result = judge(Scenario(name="offline"), "c", [1.0] * 10, 1.0)
    assert result.percentile is None
    assert result.estimate_ms is None
    assert result.samples_per_s == 10


def test_arrivals_come_at_random_at_the_asked_rate_and_latency_counts_from_arrival():
    """Each query takes 4 ms at 100 a second: some arrive while another is answered, and wait."""
    times = load.server(lambda: time.sleep(0.004), 1.0, 0, 100, 7)
    assert 60 <= len(times) <= 140
    assert min(times) >= 4.0
    assert max(times) > 6.0


def test_an_overloaded_server_falls_behind_more_and_more():
    times = load.server(lambda: time.sleep(0.01), 0.5, 0, 400, 1)
    assert times[-1] > 5 * times[0]


def test_the_queries_go_on_until_there_are_enough():
    assert len(load.single_stream(lambda: None, 0.0, 50)) == 50
    assert len(load.offline(lambda: None, 0.0, 1)) == 1


def test_a_multi_stream_query_is_all_of_its_samples():
    calls = []
    times = load.multi_stream(lambda: calls.append(1), 0.0, 5, 8)
    assert len(times) == 5
    assert len(calls) == 40


@pytest.fixture
def state(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("EDGEKIT_HOME", str(tmp_path))
    return Home(tmp_path)


ONE = ["digits", "--artifact", "standard", "--runtime", "onnxruntime", "--threads", "1"]


def test_every_scenario_runs_as_typed(state, capsys):
    arguments = ["bench", *ONE, "--scenario", "all", "--qps", "200", "--latency-ms", "50", "--seconds", "0.2", "--json"]
    assert main(arguments) == 0
    results = json.loads(capsys.readouterr().out)
    assert [r["scenario"]["name"] for r in results] == ["single-stream", "multi-stream", "server", "offline"]
    assert all(r["query_count"] >= 2 for r in results)
    assert results[0]["estimate_ms"] >= results[0]["p50_ms"]


def test_a_bound_that_is_broken_is_exit_code_1_with_the_counts(state, capsys):
    arguments = ["bench", *ONE, "--scenario", "server", "--qps", "500", "--latency-ms", "0.000001", "--seconds", "0.3"]
    assert main(arguments) == 1
    out = capsys.readouterr().out
    assert "is not kept" in out
    assert "were slower" in out


def test_too_few_queries_say_what_is_needed(state, capsys):
    assert main(["bench", *ONE, "--scenario", "server", "--qps", "50", "--latency-ms", "500", "--seconds", "0.2"]) == 0
    assert "459 needed); --samples 459" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--scenario", "server"], "needs --qps and --latency-ms"),
        (["--scenario", "server", "--qps", "-1", "--latency-ms", "5"], "more than zero"),
        (["--soak", "0"], "more than zero"),
        (["--batch", "2"], "takes one item at a time"),
        (["--batch", "0"], "1 or more"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_exit_code_2(state, capsys, more, words):
    assert main(["bench", *ONE, *more]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1


def test_a_candidate_that_cannot_be_loaded_has_its_reason(state, tmp_path):
    model = load_model("digits")
    space = Space(artifacts=["standard"], runtimes=["onnxruntime"], threads=[1])
    (candidate,) = find_candidates(model, state, probe(), space)
    broken = candidate.artifact.path.__class__(tmp_path / "broken.onnx")
    broken.write_bytes(b"nothing")
    import dataclasses

    import msgspec

    bad = dataclasses.replace(candidate, artifact=msgspec.structs.replace(candidate.artifact, path=broken))
    with pytest.raises(ArtifactError, match="single-stream failed"):
        run_scenario(model, bad, Scenario(name="single-stream", seconds=0.1))
