"""Manifests and settings: every rule with a value that keeps it and one that breaks it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.catalog import FORMATS, load_model, load_models
from edgekit.config import (
    BatchConfig,
    CacheConfig,
    DaemonConfig,
    HealthConfig,
    Home,
    HttpConfig,
    MemoryConfig,
    ModelConfig,
    MqttConfig,
    TolerantConfig,
    check_daemon_config,
    home,
    load_daemon_config,
    supervisor,
)
from edgekit.errors import ArtifactError, CatalogError, ConfigError
from edgekit.manifest import METRICS, Model, PrebuiltArtifact, Source, TensorSpec, problem_in

SHA = "a" * 64


def source(**more: Any) -> Source:
    return Source(**({"file": "m.onnx", "sha256": SHA, "size_bytes": 1} | more))


def model(**more: Any) -> Model:
    blank: dict[str, Any] = {"name": "m", "version": "1", "task": "t", "source": source()}
    return Model(**(blank | more))


X = TensorSpec(name="x", dtype="float32", shape=(1, "side"))
Y = TensorSpec(name="y", dtype="float32", shape=(1, "other"))


# Manifests


@pytest.mark.parametrize(
    ("more", "key", "words"),
    [
        ({"source": source(file=None)}, "source", "has none"),
        ({"source": source(url="https://x/m.onnx")}, "source", "has file and url"),
        ({"source": source(wheel="p==1", member="m")}, "source", "has file and wheel"),
        ({"source": source(file=None, wheel="p==1")}, "source.member", "wheel and member go together"),
        ({"source": source(member="m")}, "source.member", "wheel and member go together"),
        ({"source": source(file=None, wheel="p", member="m")}, "source.wheel", "'p' is not a pinned requirement"),
        ({"source": source(file=None, wheel="p>=1", member="m")}, "source.wheel", "is not a pinned requirement"),
        ({"source": source(file=None, wheel="p==1 ; x", member="m")}, "source.wheel", "is not a pinned"),
        ({"source": source(file=None, wheel="-e==1", member="m")}, "source.wheel", "is not a pinned"),
        ({"source": source(sha256="A" * 64)}, "source.sha256", "64 lower-case hexadecimal digits"),
        ({"source": source(sha256="a" * 63)}, "source.sha256", "64 lower-case"),
        ({"metric": "accuracy"}, "metric", "'accuracy' is unknown; edgekit knows top1"),
        ({"inputs": (X,)}, "axes.side", "required: input 'x' has this named axis"),
        ({"inputs": (X,), "axes": {"side": ()}}, "axes.side", "needs at least one size, each 1 or more"),
        ({"inputs": (X,), "axes": {"side": (4, 0)}}, "axes.side", "each 1 or more"),
        ({"constants": {"z": 1}}, "constants", "no tensor 'z' is declared; there are none"),
        ({"inputs": (X,), "axes": {"side": (1,)}, "state": {"z": "y"}}, "state", "there are x"),
        ({"inputs": (X,), "axes": {"side": (1,)}, "outputs": (Y,), "state": {"x": "z"}}, "state", "there are y"),
    ],
)
def test_a_manifest_that_does_not_hold_names_key_and_problem(more: dict[str, Any], key: str, words: str) -> None:
    found = problem_in(model(**more))
    assert found is not None
    assert (found[0], words in found[1]) == (key, True), found


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"source": source(file=None, url="https://x/m.onnx")},
        {"source": source(file=None, wheel="pkg-a.b==1.2.3rc1+cpu", member="a/m.onnx")},
        *({"metric": metric} for metric in METRICS),
        {"inputs": (X,), "axes": {"side": (640, 320)}},
        {"outputs": (Y,)},
        {"inputs": (X,), "axes": {"side": (1,)}, "outputs": (Y,), "state": {"x": "y"}},
        {"inputs": (X,), "axes": {"side": (1,)}, "constants": {"x": 1}},
    ],
)
def test_a_manifest_that_holds_has_no_problem(more: dict[str, Any]) -> None:
    assert problem_in(model(**more)) is None


def test_a_prebuilt_artifact_needs_its_hash_too() -> None:
    bad = PrebuiltArtifact(name="twin", file="m.tflite", format="tflite", precision="int8", sha256="x", size_bytes=1)
    assert problem_in(model(artifacts=(bad,))) == ("artifacts.twin", "sha256 must be 64 lower-case hexadecimal digits")


@given(st.lists(st.one_of(st.integers(1, 9), st.sampled_from(["a", "b"])), max_size=4), st.integers(1, 99))
def test_a_bound_shape_has_a_number_for_every_axis(shape: list[int | str], size: int) -> None:
    spec = TensorSpec(name="x", dtype="float32", shape=tuple(shape))
    made = model(axes={"a": (5, 7), "b": (3,)})
    wanted = {"a": size, "b": 3}
    assert made.bound_shape(spec, {"a": size}) == tuple(d if isinstance(d, int) else wanted[d] for d in shape)
    assert made.default_axes == {"a": 5, "b": 3}


# The catalog


@pytest.mark.parametrize("name", [found.name for found in load_models()])
def test_every_model_loads_by_name_and_by_its_folder_alike(name: str) -> None:
    by_name = load_model(name)
    assert load_model(str(by_name.folder)) == by_name
    assert by_name.name == name == by_name.folder.name
    assert problem_in(by_name) is None


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("My Model (v2).onnx", "my-model-v2"), ("UPPER.ONNX", "upper"), ("---.onnx", "model"), ("ü.tflite", "model"),
        ("a_b-c.tflite", "a_b-c"), ("x" * 80 + ".onnx", "x" * 63),
    ],
)  # fmt: skip
def test_a_users_file_gets_a_name_that_fits_into_a_topic(file: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / file
    path.write_bytes(b"x")
    found = load_model(str(path))
    assert (found.name, found.inputs, found.metric) == (name, (), "agreement")
    assert found.source.format == FORMATS[path.suffix.lower()]
    assert found.version == found.source.sha256[:12]


@pytest.mark.parametrize(
    ("make", "words"),
    [(lambda path: None, "no such file"), (lambda path: path.mkdir(), "cannot be read: Is a directory")],
)
def test_a_users_file_that_is_none_says_so(make: Any, words: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    make(path)
    with pytest.raises(ArtifactError, match=words):
        load_model(str(path))


@pytest.mark.parametrize(
    ("name", "near"), [("digist", "digits"), ("ocr-detecter", "ocr-detector"), ("filetype", "file-type")]
)
def test_a_slip_in_a_name_is_answered_with_the_nearest(name: str, near: str) -> None:
    with pytest.raises(CatalogError, match=f"no such model; did you mean {near}"):
        load_model(name)


# Settings


def config(**more: Any) -> DaemonConfig:
    blank: dict[str, Any] = {"model": (ModelConfig(name="digits"),)}
    return DaemonConfig(**(blank | more))


def one(**more: Any) -> dict[str, Any]:
    return {"model": (ModelConfig(name="digits", **more),)}


BOUNDS = [
    ("cache.mb", lambda v: {"cache": CacheConfig(mb=v)}, 0, 512),
    ("cache.ttl_s", lambda v: {"cache": CacheConfig(ttl_s=v)}, 0, 60),
    ("memory.limit_mb", lambda v: {"memory": MemoryConfig(limit_mb=v)}, 1, 900),
    ("memory.pressure_percent", lambda v: {"memory": MemoryConfig(pressure_percent=v)}, 0, 100),
    ("health.stuck_s", lambda v: {"health": HealthConfig(stuck_s=v)}, 0.1, 60),
    ("health.probe_s", lambda v: {"health": HealthConfig(probe_s=v)}, 1, 60),
    ("health.failures", lambda v: {"health": HealthConfig(failures=v)}, 1, 9),
    ("health.minutes", lambda v: {"health": HealthConfig(minutes=v)}, 0, 9),
    ("http.max_request_bytes", lambda v: {"http": HttpConfig(max_request_bytes=v)}, 1, 10**9),
    ("http.max_connections", lambda v: {"http": HttpConfig(max_connections=v)}, 1, 1000),
    ("model.latency_ms", lambda v: one(latency_ms=v), 0.001, 1e6),
    ("model.memory_mb", lambda v: one(memory_mb=v), 1, 1e6),
    ("model.shadow", lambda v: one(shadow=v), 0, 1),
    ("model.accuracy_floor", lambda v: one(accuracy_floor=v), 0, 1),
    ("model.threads", lambda v: one(threads=v), 1, 64),
    ("model.axes.side", lambda v: one(axes={"side": v}), 1, 4096),
    ("model.batch.max", lambda v: one(batch=BatchConfig(max=v)), 1, 64),
    ("model.batch.window_ms", lambda v: one(batch=BatchConfig(window_ms=v)), 0, 50),
    ("model.batch.preferred", lambda v: one(batch=BatchConfig(preferred=v)), 1, 64),
    ("model.tolerant.threads", lambda v: one(tolerant=TolerantConfig(threads=v)), 1, 64),
]


@pytest.mark.parametrize(("key", "make", "low", "high"), BOUNDS, ids=[key for key, *_ in BOUNDS])
def test_a_number_of_the_settings_has_ends_that_are_allowed_and_neighbours_that_are_not(
    key: str, make: Any, low: float, high: float
) -> None:
    for value in (low, high):
        check_daemon_config(config(**make(value)), "edgekit.toml")
    for value in (low - 0.01 if low < 1 else low - 1, float("nan"), float("inf")):
        with pytest.raises(ConfigError) as error:
            check_daemon_config(config(**make(value)), "edgekit.toml")
        assert error.value.key == key
        assert f"{value:g} must be " in error.value.problem


@pytest.mark.parametrize(("key", "value"), [("model.shadow", 1.1), ("model.accuracy_floor", 1.01)])
def test_a_share_ends_at_one(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{key}: {value:g} must be from 0 to 1"):
        check_daemon_config(config(**one(**{key.split(".")[1]: value})), "edgekit.toml")


@pytest.mark.parametrize(
    ("low", "is_fine"),
    [((0.1, 0.1, 0.1), True), ((0.3, 0.2, 0.1), True), ((0.1, 0.2, 0.05), False), ((0.3, 0.1, 0.2), False)],
)
def test_the_guards_steps_go_down(low: tuple[float, float, float], is_fine: bool) -> None:
    if is_fine:
        check_daemon_config(config(memory=MemoryConfig(low=low)), "x")
        return
    with pytest.raises(ConfigError, match=r"memory\.low: each share must be at most the one before"):
        check_daemon_config(config(memory=MemoryConfig(low=low)), "x")


@given(st.text(max_size=70))
def test_a_site_is_accepted_exactly_when_it_fits_into_a_topic(name: str) -> None:
    fits = 1 <= len(name) <= 63 and set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-") and name != "_all"
    for key in ("site", "device"):
        if fits:
            check_daemon_config(config(**{key: name}), "x")
        else:
            with pytest.raises(ConfigError):
                check_daemon_config(config(**{key: name}), "x")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "pi.local", "127.0.0.2"])
def test_whoever_listens_beyond_this_machine_needs_a_token(host: str) -> None:
    with pytest.raises(ConfigError, match=r"http\.token_file: required when http\.host is"):
        check_daemon_config(config(http=HttpConfig(host=host)), "x")
    check_daemon_config(config(http=HttpConfig(host=host, token_file="/t")), "x")
    check_daemon_config(config(http=HttpConfig(host=host, unix_socket="/s")), "x")


def test_a_files_mqtt_section_reaches_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "edgekit.toml"
    path.write_text('[mqtt]\nhost = "b"\nwindow_s = 2\ncollector = true\n[[model]]\nname = "digits"\n')
    found = load_daemon_config(path)
    assert found.mqtt == MqttConfig(host="b", window_s=2.0, collector=True)
    assert found.model == (ModelConfig(name="digits"),)


def test_homes_of_two_kinds_never_share_a_place() -> None:
    root = Home(Path("/r"))
    places = [root.cache, root.artifacts("m"), root.measurements("m"), root.selection("m"), root.daemon("m")]
    assert len(set(places)) == 5
    assert all(place.is_relative_to(root.root) for place in places)
    assert home({"EDGEKIT_HOME": "/x"}).root == Path("/x")


@pytest.mark.parametrize(
    ("environ", "watchdog_s"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 30.0), ({"WATCHDOG_USEC": "0"}, None), ({"WATCHDOG_USEC": "-5"}, None),
        ({"WATCHDOG_USEC": "x"}, None), ({}, None), ({"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}, None),
    ],
)  # fmt: skip
def test_systemds_watchdog_is_ours_or_none(environ: dict[str, str], watchdog_s: float | None) -> None:
    assert supervisor(environ).watchdog_s == watchdog_s
