"""From a model to a stored choice, with real files, real workers and a real store."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edgekit.bench.run import Plan
from edgekit.catalog import load_model
from edgekit.choose import Space, choose, find_candidates, guess, load_selection, measure, save_selection
from edgekit.cli.main import main
from edgekit.config import Home
from edgekit.device.probe import probe
from edgekit.errors import ConfigError, NoUsableArtifact, RuntimeUnavailable
from edgekit.selection import Limits

pytest.importorskip("onnxruntime")

ONE = Space(runtimes=["onnxruntime"], threads=[1])
SECONDS = 0.05


@pytest.fixture(scope="module")
def facts():
    return probe()


@pytest.fixture(scope="module")
def chosen_home(tmp_path_factory, facts) -> Home:
    """A state folder in which digits was measured and selected once."""
    home = Home(tmp_path_factory.mktemp("state"))
    choose(load_model("digits"), Limits(), home=home, facts=facts, seconds=SECONDS, space=ONE)
    return home


def _count_bench(monkeypatch) -> list[int]:
    """How many candidates each call measures; the real bench still runs."""
    import edgekit.choose as module

    calls: list[int] = []
    real = module.bench

    def counting(model, found, plan, **more):
        calls.append(len(found))
        return real(model, found, plan, **more)

    monkeypatch.setattr(module, "bench", counting)
    return calls


def test_the_choice_is_stored_where_the_daemon_looks(chosen_home):
    selection = load_selection(chosen_home, "digits")
    assert selection is not None
    assert selection.model == "digits"
    assert selection.settings.runtime == "onnxruntime"
    assert selection.p50_ms
    assert selection.reasons
    assert not selection.is_prior


def test_what_was_measured_is_not_measured_again(chosen_home, facts, monkeypatch):
    calls = _count_bench(monkeypatch)
    choose(load_model("digits"), Limits(objective="memory"), home=chosen_home, facts=facts, seconds=SECONDS, space=ONE)
    assert calls == []


def test_fresh_measures_all_again(chosen_home, facts, monkeypatch):
    calls = _count_bench(monkeypatch)
    choose(load_model("digits"), Limits(), home=chosen_home, facts=facts, seconds=SECONDS, space=ONE, fresh=True)
    assert calls == [2]


def test_only_what_is_missing_is_measured(chosen_home, facts, monkeypatch):
    calls = _count_bench(monkeypatch)
    two = Space(runtimes=["onnxruntime"], threads=[1, 2], artifacts=["standard"])
    choose(load_model("digits"), Limits(), home=chosen_home, facts=facts, seconds=SECONDS, space=two)
    assert calls == [1]


def test_the_accuracy_of_a_shipped_int8_file_is_measured_here(chosen_home, facts):
    model = load_model("digits")
    found = find_candidates(model, chosen_home, facts, ONE)
    rows = measure(model, found, home=chosen_home, plan=Plan(seconds=SECONDS))
    int8 = next(row for row in rows if row.precision == "int8")
    assert int8.accuracy_ratio is not None
    assert 0.97 < int8.accuracy_ratio <= 1.01
    assert "360 samples in onnxruntime on this CPU" in (int8.accuracy_note or "")
    assert list((chosen_home.measurements("digits") / "accuracy").glob("*.json"))


def test_an_artifact_that_lost_its_accuracy_is_unfit_whatever_its_speed(tmp_path, facts):
    """The standard's weights scrambled: it runs, it is fast, and it is wrong."""
    onnx = pytest.importorskip("onnx")
    source = load_model("digits")
    folder = tmp_path / "digits"
    folder.mkdir()
    for name in ("labels.txt", "calibration.npz", "evaluation.npz", "digits.onnx"):
        (folder / name).write_bytes((source.folder / name).read_bytes())
    broken = onnx.load(folder / "digits.onnx")
    for weight in broken.graph.initializer:
        values = onnx.numpy_helper.to_array(weight)
        if values.dtype == np.float32 and values.ndim > 1:
            noise = np.random.default_rng(0).standard_normal(values.shape).astype(np.float32)
            weight.CopyFrom(onnx.numpy_helper.from_array(noise, weight.name))
    onnx.save(broken, folder / "broken.onnx")
    from edgekit.artifact import sha256_of
    from edgekit.manifest import PrebuiltArtifact

    path = folder / "broken.onnx"
    bad = PrebuiltArtifact(
        name="broken",
        file="broken.onnx",
        format="onnx",
        precision="int8",
        sha256=sha256_of(path),
        size_bytes=path.stat().st_size,
    )
    model = msgspec.structs.replace(source, folder=folder, artifacts=(bad,))
    selection = choose(model, Limits(), home=Home(tmp_path / "home"), facts=facts, seconds=SECONDS, space=ONE)
    assert selection.artifact == "standard"
    (rejection,) = selection.rejections
    assert rejection.candidate.startswith("broken")
    assert "unfit" in rejection.reason


def test_nothing_that_fits_is_an_error_with_all_reasons_and_changes_no_stored_choice(chosen_home, facts):
    before = chosen_home.selection("digits").read_bytes()
    with pytest.raises(NoUsableArtifact) as error:
        choose(
            load_model("digits"),
            Limits(latency_ms=1e-6),
            home=chosen_home,
            facts=facts,
            seconds=SECONDS,
            space=ONE,
        )
    assert len(error.value.rejections) == 2
    assert chosen_home.selection("digits").read_bytes() == before


def test_a_selection_of_another_runtime_version_or_machine_no_longer_holds(chosen_home, tmp_path):
    selection = load_selection(chosen_home, "digits")
    assert selection is not None
    home = Home(tmp_path)
    newer = msgspec.structs.replace(selection.settings, runtime_version="0.0.1")
    save_selection(home, msgspec.structs.replace(selection, settings=newer))
    assert load_selection(home, "digits") is None
    save_selection(home, msgspec.structs.replace(selection, device={"cpu": "another"}))
    assert load_selection(home, "digits") is None
    save_selection(home, selection)
    assert load_selection(home, "digits") == selection


def test_a_selection_that_cannot_be_read_is_made_again_not_obeyed(tmp_path):
    home = Home(tmp_path)
    assert load_selection(home, "digits") is None
    home.selection("digits").parent.mkdir(parents=True)
    home.selection("digits").write_text('{"model": "digits"')
    assert load_selection(home, "digits") is None


def test_without_measuring_the_store_answers_else_a_prior(chosen_home, tmp_path, facts):
    model = load_model("digits")
    assert not guess(model, Limits(), home=chosen_home, facts=facts, space=ONE).is_prior
    assert guess(model, Limits(), home=Home(tmp_path), facts=facts, space=ONE).is_prior
    assert load_selection(Home(tmp_path), "digits") is None


def test_an_artifact_that_is_not_there_names_those_that_are(tmp_path, facts):
    with pytest.raises(ConfigError, match=r"no 'flash-x' here, only standard"):
        find_candidates(load_model("digits"), Home(tmp_path), facts, Space(artifacts=["flash-x"]))


@pytest.mark.parametrize(("cores", "threads"), [(1, {1}), (4, {1, 4}), (None, {1})])
def test_threads_follow_what_this_process_may_use(tmp_path, facts, cores, threads):
    limited = dataclasses.replace(facts, cpu=dataclasses.replace(facts.cpu, cores_usable=cores))
    found = find_candidates(load_model("digits"), Home(tmp_path), limited, Space(runtimes=["onnxruntime"]))
    assert {candidate.settings.threads for candidate in found} == threads


def test_formats_that_nothing_reads_say_what_to_install(tmp_path, facts):
    with pytest.raises(RuntimeUnavailable, match="pip install ai-edge-litert"):
        find_candidates(
            load_model("digits"), Home(tmp_path), facts, Space(artifacts=["litert"], runtimes=["onnxruntime"])
        )


def test_a_bare_file_is_its_own_standard(tmp_path, facts):
    path = tmp_path / "mine.onnx"
    path.write_bytes((load_model("digits").folder / "digits.onnx").read_bytes())
    model = load_model(str(path))
    selection = choose(model, Limits(), home=Home(tmp_path / "home"), facts=facts, seconds=SECONDS, space=ONE)
    assert selection.artifact == "standard"
    assert selection.accuracy_ratio == 1.0


# The commands, as typed.


@pytest.fixture
def state(chosen_home, monkeypatch) -> Home:
    monkeypatch.setenv("EDGEKIT_HOME", str(chosen_home.root))
    return chosen_home


WHICH = ["digits", "--runtime", "onnxruntime", "--threads", "1"]


def test_select_prints_the_choice_and_why_not_the_others(state, capsys):
    assert main(["select", *WHICH, "--explain"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("selected: ")
    assert any(line.startswith("  because  p50 ") for line in out)
    assert sum(line.startswith("  not      ") for line in out) == 1


def test_select_json_is_the_selection(state, capsys):
    assert main(["select", *WHICH, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["model"] == "digits"
    assert {"artifact", "settings", "reasons", "rejections", "limits", "is_prior"} <= set(value)


def test_select_says_no_with_each_reason_and_exit_code_1(state, capsys):
    assert main(["select", *WHICH, "--latency-ms", "0.000001"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("digits: nothing fits")
    assert out.count("1e-06 ms allowed") == 2
    assert main(["select", *WHICH, "--latency-ms", "0.000001", "--json"]) == 1
    value = json.loads(capsys.readouterr().out)
    assert len(value["rejections"]) == 2
    assert isinstance(value["would_change"], list)


def test_when_nothing_fits_it_says_which_bound_would(state, capsys):
    """The medians are known from before, and a wider bound lets the fastest pass."""
    assert main(["select", *WHICH, "--latency-ms", "0.000001", "--percentile", "p50", "--no-measure"]) == 1
    out = capsys.readouterr().out
    assert "  instead  with 0.0" in out
    assert " ms instead of 1e-06 ms: " in out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["select", *WHICH, "--objective", "speed"], 2, "latency, throughput, memory, balanced"),
        (["select", *WHICH, "--axis", "side"], 2, "expected NAME=SIZE"),
        (["bench", "digits", "--runtime", "tensorrt"], 2, "edgekit knows onnxruntime"),
        (["bench", "digits", "--threads", "0"], 2, "1 or more"),
        (["bench", "digits", "--seconds", "0"], 2, "more than zero"),
        (["bench", "digit"], 3, "did you mean digits"),
        (["bench", "digits", "--artifact", "nope"], 3, "only standard"),
    ],
)
def test_what_does_not_go_together_is_one_line(state, capsys, arguments, code, words):
    assert main(arguments) == code
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1


def test_bench_prints_a_row_a_candidate_and_what_it_means(state, capsys):
    assert main(["bench", *WHICH, "--seconds", "0.05"]) == 0
    out = capsys.readouterr().out
    assert "p50 ms" in out
    assert "baseline" in out
    assert "int8 " in out
    assert "not supported" in out or "p99 –" not in out


def test_bench_json_is_the_measurements(state, capsys):
    assert main(["bench", *WHICH, "--seconds", "0.05", "--artifact", "standard", "--samples", "64", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["artifact"] == "standard"
    assert row["latency"]["sample_count"] >= 64
    assert row["latency"]["p90_ms"] is not None
    assert row["latency"]["p99_ms"] is None


def test_a_file_that_nothing_can_open_is_one_line_and_exit_code_5(state, capsys, tmp_path):
    path: Path = tmp_path / "text.onnx"
    path.write_text("a text file with the wrong name, long enough to be looked at\n")
    for verb, flags in (("bench", ["--runtime", "onnxruntime", "--threads", "1"]), ("select", [])):
        assert main([verb, str(path), "--seconds", "0.05", "--json", *flags]) == 5
        out, err = capsys.readouterr()
        assert "is a text file, not an ONNX model" in err
        assert err.count("\n") == 1
        assert out == ""


def test_among_many_the_choice_is_searched_and_what_is_chosen_was_measured_to_the_end(tmp_path, facts):
    from edgekit.bench import store
    from edgekit.bench.conditions import conditions, lasting, this_device

    model, home = load_model("digits"), Home(tmp_path)
    space = Space(runtimes=["onnxruntime"], threads=[1, 2])
    selection = choose(model, Limits(), home=home, facts=facts, seconds=0.3, space=space, budget_s=1.0)
    found = find_candidates(model, home, facts, space)
    rows = store.load(home.measurements("digits"), found, this_device(), lasting(conditions()))
    chosen = rows[f"{selection.artifact} · {selection.settings.label}"].measurement
    assert len(rows) == len(found) == 4
    assert not chosen.rough
    assert chosen.latency.round_p50_ms
    assert len(selection.rejections) == 3


def test_what_a_search_stopped_early_is_measured_on_before_it_is_chosen(tmp_path, facts, monkeypatch):
    """Limits that only a dropped candidate keeps: it is measured then, not guessed from a few samples."""
    from edgekit.bench import store

    model, home = load_model("digits"), Home(tmp_path)
    only = Space(runtimes=["onnxruntime"], threads=[1], artifacts=["standard"])
    (row,) = measure(model, find_candidates(model, home, facts, only), home=home, plan=Plan(seconds=SECONDS))
    store.save(home.measurements("digits"), [msgspec.structs.replace(row, rough=True)])
    calls = _count_bench(monkeypatch)
    choose(model, Limits(), home=home, facts=facts, seconds=SECONDS, space=only)
    assert calls == [1]
    choose(model, Limits(), home=home, facts=facts, seconds=SECONDS, space=only)
    assert calls == [1]
