"""What is the device's own wins over the release, section by section; what is the release's to say is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgekit.config import HttpConfig, MqttConfig
from edgekit.errors import ConfigError
from edgekit.own import CONFIG, OWN, load_device_config

RELEASE = """
site = "hall"
[http]
port = 8080
max_connections = 7
[mqtt]
host = "broker.example"
window_s = 20
[[model]]
name = "digits"
latency_ms = 5
"""


@pytest.fixture
def release(tmp_path: Path) -> Path:
    (tmp_path / CONFIG).write_text(RELEASE)
    return tmp_path / CONFIG


def own(folder: Path, text: str) -> Path:
    (folder / OWN).write_text(text)
    return folder / OWN


def test_without_a_word_of_its_own_a_device_is_as_the_release_says(release: Path, tmp_path: Path):
    for path in (None, tmp_path / "missing.toml"):
        config = load_device_config(release, path)
        assert (config.site, config.device, config.http.port, config.mqtt.host) == (
            "hall",
            None,
            8080,
            "broker.example",
        )


def test_its_word_wins_key_by_key_and_leaves_the_rest_of_a_section(release: Path, tmp_path: Path):
    mine = own(tmp_path, 'device = "cam-1"\n[http]\nport = 9000\n[mqtt]\nusername = "hall/cam-1"\n')
    config = load_device_config(release, mine)
    assert config.device == "cam-1"
    assert config.site == "hall"
    assert config.http == HttpConfig(port=9000, max_connections=7)
    assert config.mqtt == MqttConfig(host="broker.example", window_s=20.0, username="hall/cam-1")
    assert config.model[0].latency_ms == 5


def test_a_section_that_the_release_lacks_is_added(tmp_path: Path):
    (tmp_path / CONFIG).write_text('[[model]]\nname = "digits"\n')
    config = load_device_config(tmp_path / CONFIG, own(tmp_path, 'site = "yard"\n[mqtt]\nhost = "b"\n'))
    assert (config.site, config.mqtt.host) == ("yard", "b")


@pytest.mark.parametrize(
    ("text", "key", "problem"),
    [
        (
            '[[model]]\nname = "other"\n',
            "model",
            "is the release's to say; a device's own are site, device, http, mqtt",
        ),
        ("[memory]\nlimit_mb = 5\n", "memory", "is the release's to say"),
        ("[http]\nprot = 9000\n", "http.prot", "did you mean 'port'"),
        ('[http]\nport = "9000"\n', "http.port", "expected `int`, got `str`"),
        ('http = "9000"\n', "http", "expected `object`"),
        ('device = "Cam 1"\n', "device", "must be 1 to 63 of a-z"),
        ('site = "_all"\n', "site", "and not '_all'"),
        ('[http]\nhost = "0.0.0.0"\n', "http.token_file", "required when http.host is '0.0.0.0'"),
    ],
)
def test_what_does_not_hold_names_the_devices_own_file(
    release: Path, tmp_path: Path, text: str, key: str, problem: str
):
    mine = own(tmp_path, text)
    with pytest.raises(ConfigError, match=problem) as told:
        load_device_config(release, mine)
    assert (Path(told.value.path), told.value.key) == (mine, key)


def test_a_fault_of_the_release_is_told_as_its_fault(tmp_path: Path):
    (tmp_path / CONFIG).write_text('sight = "hall"\n')
    with pytest.raises(ConfigError, match="did you mean 'site'") as told:
        load_device_config(tmp_path / CONFIG, own(tmp_path, 'site = "yard"\n'))
    assert told.value.path == tmp_path / CONFIG


def test_a_file_that_is_no_toml_is_said(release: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="not TOML"):
        load_device_config(release, own(tmp_path, "device = "))
