"""`edgekit run`: flags over file over default, what contradicts itself, and how it says that it is ready."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from edgekit.cli.main import main
from edgekit.cli.run import add_arguments, announce, announce_json, configured
from edgekit.config import DaemonConfig, HttpConfig, ModelConfig, MqttConfig, check_daemon_config, load_daemon_config
from edgekit.errors import ConfigError, UsageError
from edgekit.serve.birth import Ready

Capture = pytest.CaptureFixture[str]
FILE = """
site = "hall"
device = "cam-1"
[http]
port = 9000
token_file = "/etc/token"
[mqtt]
host = "broker.example"
port = 8883
window_s = 20
[[model]]
name = "digits"
artifact = "int8"
latency_ms = 5
threads = 2
axes = {side = 320}
objective = "memory"
"""


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


@pytest.fixture
def base(tmp_path: Path) -> DaemonConfig:
    path = tmp_path / "edgekit.toml"
    path.write_text(FILE)
    return load_daemon_config(path)


def at(config: DaemonConfig, dotted: str) -> Any:
    value: Any = config
    for name in dotted.split("."):
        value = value[0] if name == "0" else getattr(value, name)
    return dict(value) if dotted.endswith("axes") else value


# Flag over file over default

FLAGS: list[tuple[list[str], str, object, object, object]] = [
    (["--site", "lab"], "site", "default", "hall", "lab"),
    (["--device", "cam-9"], "device", None, "cam-1", "cam-9"),
    (["--host", "::1"], "http.host", "127.0.0.1", "127.0.0.1", "::1"),
    (["--port", "0"], "http.port", 8080, 9000, 0),
    (["--unix-socket", "/run/e"], "http.unix_socket", None, None, "/run/e"),
    (["--token-file", "/t"], "http.token_file", None, "/etc/token", "/t"),
    (["--mqtt-host", "10.0.0.2"], "mqtt.host", None, "broker.example", "10.0.0.2"),
    (["--artifact", "litert"], "model.0.artifact", None, "int8", "litert"),
    (["--latency-ms", "0.5"], "model.0.latency_ms", None, 5.0, 0.5),
    (["--threads", "4"], "model.0.threads", None, 2, 4),
    (["--axis", "side=640"], "model.0.axes", {}, {"side": 320}, {"side": 640}),
    (["--axis", "x[0]=2"], "model.0.axes", {}, {"side": 320}, {"side": 320, "x[0]": 2}),
]
"""Words, key, value by default, in the file, by the flag."""


@pytest.mark.parametrize(("words", "key", "default", "filed", "flagged"), FLAGS, ids=lambda value: str(value)[:24])
def test_a_flag_wins_over_the_file_and_the_file_over_the_default(
    words: list[str], key: str, default: object, filed: object, flagged: object, base: DaemonConfig
) -> None:
    assert at(configured(None, parsed("digits")), key) == default
    assert at(configured(base, parsed()), key) == filed
    assert at(configured(base, parsed(*words)), key) == flagged
    if "x[0]=2" not in words:
        assert at(configured(None, parsed("digits", *words)), key) == flagged


def test_a_flag_changes_its_own_key_and_no_other(base: DaemonConfig) -> None:
    plain = configured(base, parsed())
    assert plain == base
    changed = configured(base, parsed("--port", "0"))
    assert changed != base
    assert (changed.mqtt, changed.model, changed.http.token_file) == (base.mqtt, base.model, "/etc/token")


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [(["--mqtt-port", "1884"], "mqtt.port", 1884), (["--window", "2.5"], "mqtt.window_s", 2.5)],
)
def test_a_brokers_port_and_window_need_a_broker_from_flag_or_file(
    words: list[str], key: str, value: object, base: DaemonConfig
) -> None:
    assert at(configured(base, parsed(*words)), key) == value
    assert at(configured(None, parsed("digits", "--mqtt-host", "h", *words)), key) == value
    with pytest.raises(UsageError, match="name it with --mqtt-host"):
        configured(None, parsed("digits", *words))


def test_models_named_as_words_are_served_with_defaults() -> None:
    config = configured(None, parsed("digits", "ocr-detector", "--threads", "2", "--latency-ms", "9"))
    assert [model.name for model in config.model] == ["digits", "ocr-detector"]
    assert all((model.threads, model.latency_ms) == (2, 9.0) for model in config.model), "what fits all is for all"
    assert config.mqtt == MqttConfig()
    assert config.http == HttpConfig()


def test_a_file_says_for_each_model_what_flags_leave_alone(base: DaemonConfig) -> None:
    (model,) = configured(base, parsed("--threads", "3")).model
    assert (model.objective, model.artifact, model.threads) == ("memory", "int8", 3)


# What contradicts itself


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["a", "b", "--artifact", "int8"], "--artifact and --axis speak of one model"),
        (["a", "b", "--axis", "side=3"], "--artifact and --axis speak of one model"),
        (["a", "--unix-socket", "/s", "--port", "1"], "--unix-socket listens instead of --host and --port"),
        (["a", "--unix-socket", "/s", "--host", "::1"], "--unix-socket listens instead of --host and --port"),
        (["a", "--unix-socket", "/s", "--port", "0"], "--unix-socket listens instead of --host and --port"),
        (["a", "--mqtt-port", "1884"], "--mqtt-port and --window speak of a broker"),
        (["a", "--axis", "side"], "--axis side: expected NAME=SIZE"),
        (["a", "--axis", "side=0"], "--axis side=0: expected NAME=SIZE"),
        (["a", "--axis", "side=-1"], "--axis side=-1: expected NAME=SIZE"),
        (["a", "--axis", "side=²"], "--axis side=²: expected NAME=SIZE"),
        (["a", "--axis", "=3"], "--axis =3: expected NAME=SIZE"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(words: list[str], problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        configured(None, parsed(*words))
    assert problem in str(caught.value)


def test_one_artifact_for_a_file_of_two_models_is_refused() -> None:
    two = DaemonConfig(model=(ModelConfig(name="a"), ModelConfig(name="b")))
    with pytest.raises(UsageError, match="speak of one model"):
        configured(two, parsed("--artifact", "int8"))


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        ([], 2, "give the models to serve, or --config edgekit.toml, one of the two"),
        (["digits", "--config", "FILE"], 2, "one of the two"),
        (["--config", "/nowhere/edgekit.toml"], 3, "/nowhere/edgekit.toml: no such file"),
        (["--config", "EMPTY"], 3, "at least one [[model]] is required"),
        (["digits", "--host", "0.0.0.0"], 3, "the command line: http.token_file: required when http.host is '0.0.0.0'"),
        (["--config", "FILE", "--site", "No Way"], 3, "site: 'No Way' must be 1 to 63 of a-z"),
        (["digits", "--device", "_all"], 3, "the command line: device: '_all' must be"),
        (["digits", "--threads", "0"], 3, "the command line: model.threads: 0 must be a number of at least 1"),
        (["digits", "--latency-ms", "nan"], 2, "--latency-ms nan: must be a finite number"),
        (["digits", "--latency-ms", "0"], 2, "--latency-ms 0: must be a finite number"),
        (["digits", "--window", "5"], 2, "name it with --mqtt-host"),
    ],
)
def test_what_cannot_be_served_is_one_line_before_anything_is_loaded(
    words: list[str], code: int, problem: str, tmp_path: Path, capsys: Capture
) -> None:
    files = {"FILE": tmp_path / "edgekit.toml", "EMPTY": tmp_path / "empty.toml"}
    files["FILE"].write_text(FILE)
    files["EMPTY"].write_text("")
    assert main(["run", *(str(files.get(word, word)) for word in words)]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("edgekit run: ")
    assert problem in err


def test_a_mistake_in_a_flag_is_told_of_the_command_line_and_not_of_the_file(base: DaemonConfig) -> None:
    with pytest.raises(ConfigError) as caught:
        check_daemon_config(configured(None, parsed("digits", "--site", "A")), "the command line")
    assert caught.value.path == "the command line"


# Ready


def test_the_first_line_is_where_it_listens(capsys: Capture) -> None:
    ready = Ready(url="http://127.0.0.1:8080", site="hall", device="cam-1", models=(), ready_s=1.5)
    announce(ready)
    assert capsys.readouterr().out == "listening on http://127.0.0.1:8080\n"
    announce_json(ready)
    line = capsys.readouterr().out
    assert line.count("\n") == 1
    value = json.loads(line)
    assert value == {"url": "http://127.0.0.1:8080", "site": "hall", "device": "cam-1", "models": [], "ready_s": 1.5}
