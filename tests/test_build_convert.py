"""ONNX to LiteRT in a process of its own: what goes wrong is one line; where the tools are, the real thing."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import onnx
import pytest

from edgekit.build import Options, convert_recipe, further
from edgekit.build.convert import convert, python_of, reason, tools_of
from edgekit.build.convert_recipe import FLOAT, INT8, at_sizes_of
from edgekit.build.workshop import Workshop
from edgekit.catalog import data_folder, load_model
from edgekit.config import Home, convert_environment
from edgekit.errors import ArtifactError, RuntimeUnavailable
from edgekit.fetch import standard_artifact
from edgekit.manifest import TensorSpec
from edgekit.runtimes.session import open_session

DIGITS = data_folder("models") / "digits" / "digits.onnx"
FEEDS = [{"image": np.full((1, 8, 8, 1), i / 4, np.float32)} for i in range(4)]


@pytest.fixture
def stand_in(tmp_path):
    """Makes an interpreter that runs the given lines of Python instead of the real child; `job` is what it was told."""

    def make(body: str) -> Path:
        python = tmp_path / "env" / "bin" / "python"
        python.parent.mkdir(parents=True)
        lines = f"import json, os, pathlib, sys, time\njob = json.load(open(sys.argv[-1]))\n{textwrap.dedent(body)}"
        script = tmp_path / "child.py"
        script.write_text(lines)
        python.write_text(f'#!/bin/sh\nexec {sys.executable} {script} "$@"\n')
        python.chmod(0o755)
        return python

    return make


def attempt(tmp_path, python, **options):
    folder = tmp_path / "work"
    folder.mkdir()
    given = {"inputs": ["image"], "feeds": FEEDS, "log": tmp_path / "logs" / "convert.log", "python": python}
    return convert(DIGITS, folder, **{**given, **options})


WRITES = 'pathlib.Path(job["folder"], "float.tflite").write_bytes(b"f")'


def test_the_child_is_told_everything_and_its_files_come_back(tmp_path, stand_in):
    body = f"""
    {WRITES}
    pathlib.Path(job["folder"], "int8.tflite").write_bytes(b"i")
    pathlib.Path(job["folder"], "told.json").write_text(json.dumps({{"args": sys.argv[1:-1], "env": dict(os.environ)}}))
    """
    found = attempt(tmp_path, stand_in(body), memory_bytes=123)
    assert (found.floats.read_bytes(), found.int8.read_bytes()) == (b"f", b"i")
    job = json.loads((found.floats.parent / "job.json").read_text())
    assert (job["source"], job["inputs"], job["memory_bytes"]) == (str(DIGITS), ["image"], 123)
    assert job["parent"] == os.getpid()
    with np.load(job["samples"]) as samples:
        assert samples["image"].shape == (4, 1, 8, 8, 1)
    told = json.loads((found.floats.parent / "told.json").read_text())
    assert told["args"][0] == "-I"  # the builder's folder holds an `inspect.py`, which must not hide Python's own
    assert told["env"]["https_proxy"].endswith(":9")


def test_without_feeds_there_is_no_int8(tmp_path, stand_in):
    assert attempt(tmp_path, stand_in(WRITES), feeds=[]).int8 is None


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "sys.exit('ValueError: op Frobnicate is not supported')",
            "failed: ValueError: op Frobnicate is not supported;",
        ),
        ("print('working'); raise KeyError('weights')", "failed: KeyError: 'weights';"),
        ("raise MemoryError", "failed: it needs more memory than it may take;"),
        ("os.kill(os.getpid(), 9)", "failed: ended by signal 9;"),
        ("sys.exit(3)", "failed: exit code 3, and nothing was said;"),
        ("pass", "failed: exit code 0, and nothing was said;"),
        ("sys.exit('x' * 1000)", f"failed: {'x' * 200};"),
    ],
)
def test_whatever_goes_wrong_is_one_line_that_names_the_log(tmp_path, stand_in, body, said):
    with pytest.raises(ArtifactError) as caught:
        attempt(tmp_path, stand_in(body))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "logs" / "convert.log") in str(caught.value)
    assert (tmp_path / "logs" / "convert.log").is_file()


def test_a_child_that_hangs_is_stopped(tmp_path, stand_in):
    body = 'pathlib.Path(job["folder"], "pid").write_text(str(os.getpid())); time.sleep(60)'
    start = time.monotonic()
    with pytest.raises(ArtifactError, match=r"took over 3 s and was stopped"):
        attempt(tmp_path, stand_in(body), timeout_s=3)
    assert time.monotonic() - start < 30
    child = int((tmp_path / "work" / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_an_absent_environment_is_said_with_the_command_that_makes_it(tmp_path):
    with pytest.raises(RuntimeUnavailable, match=r"there is no .*nowhere; to mend it: make \.venv-convert"):
        python_of(tmp_path / "nowhere")


def test_where_the_environment_is_looked_for():
    assert convert_environment({"EDGEKIT_CONVERT": "/opt/tools"}) == Path("/opt/tools")
    assert convert_environment({}) == Path(sys.prefix).parent / ".venv-convert"


@pytest.mark.parametrize(
    ("body", "said"), [("#!/bin/sh\necho no onnx2tf >&2; exit 1\n", "no onnx2tf"), ("junk", "does not run")]
)
def test_an_incomplete_environment_is_said(tmp_path, body, said):
    python = tmp_path / "python"
    python.write_text(body)
    python.chmod(0o755)
    with pytest.raises(RuntimeUnavailable, match=said):
        tools_of(python)


def test_the_last_line_is_the_reason(tmp_path):
    (tmp_path / "log").write_text("Traceback\n  ...\nRuntimeError: shapes differ\n\n")
    assert reason(tmp_path / "log", 1) == "RuntimeError: shapes differ"


def test_open_axes_take_the_sizes_of_the_data():
    model = onnx.load(str(DIGITS))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    made = at_sizes_of(model, {"image": np.zeros((1, 8, 8, 1))})
    assert [d.dim_value for d in made.graph.input[0].type.tensor_type.shape.dim] == [1, 8, 8, 1]
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


def test_a_litert_file_fixes_every_named_axis_at_the_size_of_the_data():
    spec = TensorSpec(name="image", dtype="float32", shape=(1, "height", "width", 1))
    model = msgspec.structs.replace(load_model("digits"), inputs=(spec,))
    shop = SimpleNamespace(feed={"image": np.zeros((1, 8, 24, 1))}, model=model)
    assert convert_recipe._fixed(shop) == {"height": 8, "width": 24}


def make_all(home):
    model = load_model("digits")
    with Workshop(model, standard_artifact(model, home), home, None, Options(search_s=0.0), None) as shop:
        found, is_new = further.make_all(shop, convert_recipe.recipes(), refused := {})
    return {artifact.record.name: artifact for artifact in found}, refused, is_new


def test_absent_tools_are_reported_and_nothing_is_remembered(tmp_path):
    found, refused, is_new = make_all(Home(tmp_path))
    assert (found, is_new) == ({}, False)
    assert set(refused) == {FLOAT, INT8}
    assert "make .venv-convert" in refused[INT8]
    assert not (tmp_path / "artifacts").exists()


def test_a_failed_conversion_is_tried_once_and_refuses_both(tmp_path, stand_in, monkeypatch):
    count = tmp_path / "count"
    python = stand_in(f"open({str(count)!r}, 'a').write('.'); sys.exit('no such operator')")
    monkeypatch.setenv("EDGEKIT_CONVERT", str(python.parent.parent))
    monkeypatch.setattr(convert_recipe, "_tools", lambda: {"onnx2tf": "0"})
    monkeypatch.setattr(convert_recipe, "python_of", lambda: python)
    monkeypatch.setattr("edgekit.build.convert.python_of", lambda: python)
    for _ in range(2):
        found, refused, _ = make_all(Home(tmp_path / "home"))
        assert found == {}
        assert all(text.startswith("conversion to LiteRT failed: no such operator") for text in refused.values())
    assert count.read_text() == "."


@pytest.fixture(scope="module")
def converted(tmp_path_factory, convert_dir):
    """(home, artifacts) of a real conversion of the digits."""
    home = Home(tmp_path_factory.mktemp("home"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEKIT_CONVERT", str(convert_dir))
        found, refused, is_new = make_all(home)
        again, _, is_newer = make_all(home)
    assert refused == {}
    assert (is_new, is_newer) == (True, False)
    assert {name: a.record for name, a in again.items()} == {name: a.record for name, a in found.items()}
    return found


@pytest.mark.slow
def test_the_digits_come_out_in_float_and_in_int8(converted):
    floats, int8 = converted[FLOAT].record, converted[INT8].record
    assert (floats.format, floats.precision, int8.precision) == ("tflite", "float32", "int8")
    assert floats.fit
    assert int8.fit
    assert int8.accuracy.runtime == "litert"
    assert int8.accuracy.ratio >= 0.99
    assert int8.size_bytes < 0.5 * floats.size_bytes
    assert {"onnx2tf", "ai-edge-quantizer", "ai-edge-litert"} <= set(int8.tools)
    assert int8.node_counts["CONV_2D"] == 3
    assert floats.accuracy.per_output_sqnr_db["logits"] > 80


@pytest.mark.slow
def test_a_converted_file_takes_what_the_model_takes(converted):
    for artifact in converted.values():
        session = open_session(artifact.path, convert_recipe.SETTINGS)
        assert [(spec.name, spec.dtype, spec.shape) for spec in session.inputs] == [("image", "float32", (1, 8, 8, 1))]
        assert session.run(FEEDS[0])["logits"].shape == (1, 10)
        session.close()
