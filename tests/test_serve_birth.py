"""What a daemon says of itself and of the system it runs on."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from edgekit import __version__
from edgekit.config import DaemonConfig, ModelConfig, MqttConfig
from edgekit.device.probe import probe
from edgekit.errors import ConfigError
from edgekit.serve.birth import birth, describe, device_name
from edgekit.serve.readings import SystemMeter
from edgekit.telemetry.messages import ModelState, decode, encode

CONFIG = DaemonConfig(model=(ModelConfig(name="digits"),))


@pytest.fixture(scope="module")
def facts():
    return probe()


def test_the_birth_survives_the_wire_with_facts_and_versions(facts):
    model = ModelState(model="digits", artifact="int8", precision="int8", runtime="onnxruntime", reasons=("fast",))
    said = birth(7, CONFIG, facts, [model])
    heard = decode("birth", encode(said))
    assert heard.epoch == 7
    assert heard.models == (model,)
    assert heard.versions["edgekit"] == __version__
    assert heard.facts["cpu"]["cores_usable"] == facts.cpu.cores_usable
    assert heard.window_ms == 10_000


def test_a_name_is_configured_or_the_hardwares_or_an_error_where_a_fleet_would_see_it(facts):
    nameless = replace(facts, device_id=None)
    named = DaemonConfig(device="bench-1", model=CONFIG.model)
    assert device_name(named, facts, "x") == "bench-1"
    assert device_name(CONFIG, replace(facts, device_id="soc-1"), "x") == "soc-1"
    assert device_name(CONFIG, nameless, "x") == "unnamed"
    reporting = DaemonConfig(mqtt=MqttConfig(host="broker"), model=CONFIG.model)
    with pytest.raises(ConfigError, match="give the device a name"):
        device_name(reporting, nameless, "edgekit.toml")


def test_the_machine_fits_in_one_line_also_where_nothing_is_known(facts, tmp_path):
    assert "usable core" in describe(facts)
    unknown = describe(probe(tmp_path))
    assert "free memory unknown" in unknown
    assert "\n" not in unknown


def write_tree(root: Path, stat: str) -> None:
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/stat").write_text(stat)
    (root / "proc/self/statm").write_text("5000 1000 300 1 0 900 0\n")


def test_cpu_percent_is_of_the_time_between_two_readings(tmp_path):
    write_tree(tmp_path, "cpu  100 0 100 700 100 0 0 0 50 0\ncpu0 1 1\n")
    meter = SystemMeter(memory_total_bytes=1 << 30, root=tmp_path)
    write_tree(tmp_path, "cpu  130 0 120 740 110 0 0 0 50 0\ncpu0 1 1\n")
    reading = meter.read()
    assert reading.cpu_percent == 50.0  # 50 busy ticks of 100; waiting for a disk is idle
    assert reading.rss_bytes == 1000 * os.sysconf("SC_PAGE_SIZE")
    assert reading.memory_total_bytes == 1 << 30
    assert reading.temperature_c is None
    assert meter.read().cpu_percent is None  # no time has passed


@pytest.mark.parametrize("stat", ["", "cpu\n", "cpu a b c d e f\n", "intr 1 2 3 4 5 6\n"])
def test_a_machine_that_does_not_tell_gives_none(tmp_path, stat):
    write_tree(tmp_path, stat)
    meter = SystemMeter(memory_total_bytes=None, root=tmp_path)
    assert meter.read().cpu_percent is None


def test_this_machine_tells():
    meter = SystemMeter(memory_total_bytes=None)
    sum(range(2_000_000))
    reading = meter.read()
    assert reading.rss_bytes > 1_000_000
    assert reading.cpu_percent is None or 0 <= reading.cpu_percent <= 100
