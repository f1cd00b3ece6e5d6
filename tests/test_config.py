"""The daemon's settings: every key's default and kind, what is refused and how it is said, and where state lies."""

from __future__ import annotations

import os
import sys
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edgekit.config import (
    DaemonConfig,
    Home,
    HttpConfig,
    ModelConfig,
    MqttConfig,
    Supervisor,
    check_daemon_config,
    home,
    load_daemon_config,
    supervisor,
)
from edgekit.errors import ConfigError

NAME_IT = '[[model]]\nname = "digits"\n'
DEFAULTS: dict[str, object] = {
    "site": "default",
    "device": None,
    "http.host": "127.0.0.1",
    "http.port": 8080,
    "http.unix_socket": None,
    "http.token_file": None,
    "http.max_request_bytes": 64 * 1024 * 1024,
    "http.max_connections": 64,
    "mqtt.host": None,
    "mqtt.port": 1883,
    "mqtt.username": None,
    "mqtt.password_file": None,
    "mqtt.tls": False,
    "mqtt.ca_file": None,
    "mqtt.certificate_file": None,
    "mqtt.key_file": None,
    "mqtt.keepalive_s": 15,
    "mqtt.window_s": 10.0,
    "mqtt.allowed_commands": ("ping", "rebirth"),
    "mqtt.outbox_bytes": 64 * 1024 * 1024,
    "mqtt.commit_s": 10.0,
    "mqtt.history_per_s": 5.0,
    "mqtt.collector": None,
    "mqtt.home_assistant": False,
    "cache.mb": 0.0,
    "cache.ttl_s": 300.0,
    "model.artifact": None,
    "model.objective": "latency",
    "model.latency_ms": None,
    "model.memory_mb": None,
    "model.accuracy_floor": 0.99,
    "model.threads": None,
    "model.axes": {},
    "model.tolerant": None,
    "model.batch": None,
    "model.cache": True,
}
"""What stands when nothing is said: changing one changes devices in the field."""


def at(config: DaemonConfig, dotted: str) -> Any:
    value: Any = config
    for name in dotted.split("."):
        value = getattr(value, name)
        if name == "model":
            (value,) = value
    return value


def written(folder: Path, text: str) -> Path:
    path = folder / "edgekit.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refused(folder: Path, text: str) -> ConfigError:
    path = written(folder, text)
    with pytest.raises(ConfigError) as caught:
        load_daemon_config(path)
    assert caught.value.path == path
    assert "\n" not in str(caught.value)
    return caught.value


def keys(kind: type = DaemonConfig, prefix: str = "") -> list[str]:
    """Every key that the file may hold, as dotted text."""
    found = []
    for field in msgspec.structs.fields(kind):
        inner = [t for t in (field.type, *typing.get_args(field.type)) if isinstance(t, type)]
        sections = [t for t in inner if issubclass(t, msgspec.Struct)]
        found += keys(sections[0], f"{prefix}{field.name}.") if sections else [prefix + field.name]
    return found


# Keys and defaults


@pytest.mark.parametrize("key", DEFAULTS)
def test_what_stands_when_nothing_is_said(key: str, tmp_path: Path) -> None:
    assert at(load_daemon_config(written(tmp_path, NAME_IT)), key) == DEFAULTS[key]


def test_a_file_may_set_every_key(tmp_path: Path) -> None:
    text = """
site = "lab"
device = "cam-1"
[http]
host = "0.0.0.0"
port = 0
unix_socket = "/run/edgekit.sock"
token_file = "/etc/edgekit/token"
max_request_bytes = 1
max_connections = 1
[mqtt]
host = "broker.example"
port = 8883
username = "lab/cam-1"
password_file = "/etc/edgekit/password"
tls = true
ca_file = "ca.pem"
certificate_file = "c.pem"
key_file = "k.pem"
keepalive_s = 60
window_s = 2.5
allowed_commands = []
[cache]
mb = 16
ttl_s = 1
[[model]]
name = "digits"
artifact = "int8"
objective = "balanced"
latency_ms = 5
memory_mb = 64
accuracy_floor = 0
threads = 2
axes = {side = 640}
cache = false
[model.tolerant]
artifact = "standard"
threads = 4
[model.batch]
max = 4
preferred = 2
window_ms = 0
[[model]]
name = "ocr-detector"
"""
    config = load_daemon_config(written(tmp_path, text))
    first, second = config.model
    assert (config.site, config.device, config.http.port, config.http.host) == ("lab", "cam-1", 0, "0.0.0.0")
    assert config.mqtt == MqttConfig(
        host="broker.example",
        port=8883,
        username="lab/cam-1",
        password_file="/etc/edgekit/password",
        tls=True,
        ca_file="ca.pem",
        certificate_file="c.pem",
        key_file="k.pem",
        keepalive_s=60,
        window_s=2.5,
        allowed_commands=(),
    )
    assert (first.latency_ms, first.accuracy_floor, dict(first.axes), first.cache) == (5.0, 0.0, {"side": 640}, False)
    assert first.tolerant is not None
    assert (first.tolerant.artifact, first.tolerant.threads, first.tolerant.objective) == ("standard", 4, "throughput")
    assert first.batch is not None
    assert (first.batch.max, first.batch.preferred, first.batch.window_ms) == (4, 2, 0.0)
    assert second == ModelConfig(name="ocr-detector")


def test_settings_do_not_change_once_read(tmp_path: Path) -> None:
    config = load_daemon_config(written(tmp_path, NAME_IT))
    with pytest.raises(AttributeError):
        config.site = "other"  # type: ignore[misc]


@pytest.mark.parametrize("key", keys())
def test_every_key_is_strict_about_its_kind(key: str, tmp_path: Path) -> None:
    """A value of a kind that no key takes is refused by its name; nothing is quietly turned into something else."""
    *sections, name = key.split(".")
    wrong = "1979-05-27"  # a date
    lines = [] if sections[:1] == ["model"] else [NAME_IT]
    if sections[:1] == ["model"]:
        lines = ["[[model]]\n"] + (['name = "digits"\n'] if key != "model.name" else [])
        lines += [f"[model.{sections[1]}]\n"] if len(sections) > 1 else []
        text = "".join(lines) + f"{name} = {wrong}\n"
    elif sections:
        text = f"[{sections[0]}]\n{name} = {wrong}\n" + "".join(lines)
    else:
        text = f"{name} = {wrong}\n" + "".join(lines)
    error = refused(tmp_path, text)
    assert error.key is not None
    assert name in error.key
    assert "expected" in error.problem


# What is refused


@pytest.mark.parametrize(
    ("text", "key", "near"),
    [
        ('sight = "lab"\n' + NAME_IT, "sight", "site"),
        ("[htp]\nport = 1\n" + NAME_IT, "htp", "http"),
        ("[http]\nprot = 1\n" + NAME_IT, "http.prot", "port"),
        ('[mqtt]\npasword_file = "x"\n' + NAME_IT, "mqtt.pasword_file", "password_file"),
        ("[cache]\nttl = 3\n" + NAME_IT, "cache.ttl", "ttl_s"),
        (NAME_IT + "latency = 5\n", "model[0].latency", "latency_ms"),
        (NAME_IT + "[model.batch]\nmaxi = 5\n", "model[0].batch.maxi", "max"),
        (NAME_IT + "[model.tolerant]\nthread = 5\n", "model[0].tolerant.thread", "threads"),
    ],
)
def test_a_typing_slip_is_named_with_the_nearest_known_key(text: str, key: str, near: str, tmp_path: Path) -> None:
    error = refused(tmp_path, text)
    assert (error.key, error.problem) == (key, f"unknown key; did you mean '{near}'?")


@pytest.mark.parametrize("key", ["site", "device"])
@pytest.mark.parametrize("name", ["cam\n", "_all", "", "a/b", "Cam", "+", "x" * 64])
def test_a_name_that_could_be_taken_for_more_than_itself_is_refused(key: str, name: str) -> None:
    config = DaemonConfig(model=(ModelConfig(name="digits"),), **{key: name})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"edgekit.toml: {key}: .* must be 1 to 63 of a-z") as caught:
        check_daemon_config(config, "edgekit.toml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["cam-1", "a", "0_0", "x" * 63])
def test_an_ordinary_name_is_accepted(name: str) -> None:
    config = DaemonConfig(model=(ModelConfig(name="digits"),), device=name, site=name)
    assert check_daemon_config(config, "edgekit.toml") is config


@pytest.mark.parametrize("text", ["", "[http]\nport = 1\n", "model = []\n"])
def test_without_a_model_there_is_nothing_to_serve(text: str, tmp_path: Path) -> None:
    error = refused(tmp_path, text)
    assert (error.key, error.problem) == ("model", "at least one [[model]] is required")


def test_a_model_needs_its_name(tmp_path: Path) -> None:
    error = refused(tmp_path, "[[model]]\nthreads = 1\n")
    assert (error.key, error.problem) == ("model[0].name", "this key is required")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "camera.local"])
def test_who_listens_to_the_network_needs_a_token(host: str, tmp_path: Path) -> None:
    error = refused(tmp_path, f'[http]\nhost = "{host}"\n{NAME_IT}')
    assert error.key == "http.token_file"
    assert host in error.problem
    load_daemon_config(written(tmp_path, f'[http]\nhost = "{host}"\ntoken_file = "t"\n{NAME_IT}'))


@pytest.mark.parametrize("http", ['host = "127.0.0.1"', 'host = "::1"', 'host = "localhost"', 'unix_socket = "/run/e"'])
def test_this_machine_alone_needs_none(http: str, tmp_path: Path) -> None:
    assert load_daemon_config(written(tmp_path, f"[http]\n{http}\n{NAME_IT}")).http.token_file is None


@pytest.mark.parametrize(
    ("where", "key", "bad", "good"),
    [
        ("cache", "mb", ("-1", "nan", "inf"), ("0", "0.5")),
        ("cache", "ttl_s", ("-0.1", "nan", "inf"), ("0",)),
        ("http", "max_request_bytes", ("0", "-1"), ("1",)),
        ("http", "max_connections", ("0", "-1"), ("1",)),
        ("model", "latency_ms", ("0", "-5", "nan", "inf"), ("0.001", "1000")),
        ("model", "memory_mb", ("0", "-5", "nan", "inf"), ("1",)),
        ("model", "accuracy_floor", ("-0.1", "1.01", "nan", "inf"), ("0", "1")),
        ("model", "threads", ("0", "-1"), ("1", "64")),
        ("model", "axes.side", ("0", "-1"), ("1",)),
        ("model.batch", "max", ("0",), ("1",)),
        ("model.batch", "preferred", ("0",), ("1",)),
        ("model.batch", "window_ms", ("-1", "nan", "inf"), ("0",)),
        ("model.tolerant", "threads", ("0",), ("1",)),
    ],
)
def test_a_number_that_makes_no_sense_is_named(
    where: str, key: str, bad: tuple[str, ...], good: tuple[str, ...], tmp_path: Path
) -> None:
    def text(value: str) -> str:
        if where.startswith("model"):
            return NAME_IT + (f"[{where}]\n" if where != "model" else "") + f"{key} = {value}\n"
        return f"[{where}]\n{key} = {value}\n{NAME_IT}"

    for value in bad:
        error = refused(tmp_path, text(value))
        assert error.key == f"{where}.{key}"
        assert f"{float(value):g} must be" in error.problem
    for value in good:
        load_daemon_config(written(tmp_path, text(value)))


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda path: None, "no such file"),
        (lambda path: path.mkdir(), "cannot be read: "),
        (lambda path: path.write_bytes(b"\xff\xfe"), "cannot be read: "),
        (lambda path: path.write_text("site = \n"), "not TOML: "),
        (lambda path: path.write_text('site = "a"\nsite = "b"\n'), "not TOML: "),
    ],
)
def test_a_file_that_is_none_is_one_line(make: Any, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "edgekit.toml"
    make(path)
    with pytest.raises(ConfigError) as caught:
        load_daemon_config(path)
    assert str(caught.value).startswith(f"{path}: {problem}")
    assert "\n" not in str(caught.value)


# Anything at all

WORDS = st.sampled_from([*{name for key in keys() for name in key.split(".")}, "htp", "x"])
VALUES = st.one_of(
    st.integers(-5, 2**70), st.floats(), st.booleans(), st.text(max_size=8), st.just([]), st.just({}), st.none()
)


def as_toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + "".join(f"\\U{ord(c):08X}" for c in value if not 0xD800 <= ord(c) < 0xE000) + '"'
    return {"None": "1979-05-27"}.get(repr(value), repr(value))


LINES = st.one_of(
    st.builds(lambda word, value: f"{word} = {as_toml(value)}", WORDS, VALUES),
    st.builds(lambda word: f"[{word}]", WORDS),
    st.builds(lambda word: f"[[{word}]]", WORDS),
    st.sampled_from(["[model.batch]", "[model.tolerant]", "[[model]]\nname = 'digits'"]),
    st.text(max_size=12),
)


@settings(max_examples=250)
@given(st.lists(LINES, max_size=12).map("\n".join))
@example("[[model]]\nname = 'x'\nthreads = 99999999999999999999\n")
@example("site = " + "[" * 3000)
@example("a" + ".a" * 3000 + " = 1")
@example("site = " + "9" * 5000)
def test_any_text_is_settings_or_one_error_that_names_the_file(tmp_path_factory: Any, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text(text, encoding="utf-8", errors="replace", newline="")
    error = None
    try:
        assert load_daemon_config(path).model
    except ConfigError as caught:
        error = caught
    assert error is None or (error.path == path and str(path) in str(error))


@settings(max_examples=100)
@given(st.binary(max_size=60))
def test_any_bytes_are_settings_or_one_error_that_names_the_file(tmp_path_factory: Any, raw: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes.toml"
    path.write_bytes(raw)
    with pytest.raises(ConfigError) as caught:  # no model is named in sixty bytes of noise
        load_daemon_config(path)
    assert caught.value.path == path


# Secrets


def test_secrets_come_by_path_so_that_nothing_that_is_printed_can_hold_one() -> None:
    for key in keys():
        if any(word in key for word in ("password", "token", "secret", "key_")):
            assert key.endswith("_file"), f"{key} would hold the secret itself"


def test_what_is_printed_names_the_file_and_not_what_it_holds(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("swordfish")
    path = written(tmp_path, f'[mqtt]\nhost = "h"\npassword_file = "{secret}"\n{NAME_IT}')
    text = repr(load_daemon_config(path))
    assert str(secret) in text
    assert "swordfish" not in text


# Where state lies


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_a_chosen_home_wins_everywhere(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    environ = {"EDGEKIT_HOME": "/srv/edgekit", "XDG_DATA_HOME": "/xdg", "LOCALAPPDATA": "/local"}
    assert home(environ) == Home(Path("/srv/edgekit"))


@pytest.mark.parametrize(
    ("platform", "environ", "below"),
    [
        ("linux", {"XDG_DATA_HOME": "/xdg"}, "/xdg/edgekit"),
        ("linux", {}, "~/.local/share/edgekit"),
        ("linux", {"EDGEKIT_HOME": "", "XDG_DATA_HOME": ""}, "~/.local/share/edgekit"),
        ("darwin", {"XDG_DATA_HOME": "/xdg"}, "~/Library/Application Support/edgekit"),
        ("win32", {"LOCALAPPDATA": "/users/a/local"}, "/users/a/local/edgekit"),
        ("win32", {}, "~/AppData/Local/edgekit"),
    ],
)
def test_else_it_is_where_the_platform_keeps_data(
    platform: str, environ: dict[str, str], below: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert home(environ).root == Path(below).expanduser()


def test_home_reads_the_environment_of_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EDGEKIT_HOME", str(tmp_path))
    assert home().root == tmp_path


def test_each_kind_of_state_has_its_own_place() -> None:
    state = Home(Path("/h"))
    places = {
        state.cache: "/h/cache",
        state.artifacts("m"): "/h/artifacts/m",
        state.measurements("m"): "/h/measurements/m",
        state.selection("m"): "/h/selections/m.json",
        state.daemon("cam-1"): "/h/daemon/cam-1",
    }
    assert {str(place): text for place, text in places.items()} == {text: text for text in places.values()}


# The supervisor

OURS = str(os.getpid())


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, Supervisor()),
        ({"NOTIFY_SOCKET": ""}, Supervisor()),
        ({"NOTIFY_SOCKET": "@abstract"}, Supervisor(notify_socket="@abstract")),
        ({"NOTIFY_SOCKET": "/run/n", "WATCHDOG_USEC": "2000000"}, Supervisor(notify_socket="/run/n", watchdog_s=2.0)),
        ({"WATCHDOG_USEC": "1500000", "WATCHDOG_PID": OURS}, Supervisor(watchdog_s=1.5)),
        ({"WATCHDOG_USEC": "1500000", "WATCHDOG_PID": "1"}, Supervisor()),
        ({"WATCHDOG_USEC": "0"}, Supervisor()),
        ({"WATCHDOG_USEC": "-5"}, Supervisor()),
        ({"WATCHDOG_USEC": "soon"}, Supervisor()),
        ({"WATCHDOG_USEC": "²"}, Supervisor()),
    ],
)
def test_the_supervisor_is_what_systemd_says_to_this_process(environ: dict[str, str], expected: Supervisor) -> None:
    assert supervisor(environ) == expected


def test_loopback_is_the_default_and_needs_nothing() -> None:
    assert HttpConfig().host == "127.0.0.1"
    check_daemon_config(DaemonConfig(model=(ModelConfig(name="digits"),)), "edgekit.toml")
