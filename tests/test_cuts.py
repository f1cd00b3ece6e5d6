"""Cut, stalled, half-open and emptied: nothing stored is lost, and the status is right within 1.5 keep-alives."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgekit.collect.collector import Collector
from edgekit.config import MqttConfig
from edgekit.fleet import Presence
from edgekit.sim.device import Behaviour
from edgekit.sim.fleet import SimFleet
from edgekit.telemetry.broker import Broker, find_mosquitto, start_broker
from tests.loss import GRAIN_S, Field
from tests.network import QUICK, Proxy
from tests.waiting import until

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed"),
]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with start_broker(tmp_path / "broker", kind="mosquitto") as made:
        yield made


@pytest.fixture
def field(broker: Broker, tmp_path: Path) -> Iterator[Field]:
    made = Field(tmp_path, broker.port)
    yield made
    made.close()


def test_a_half_open_device_is_offline_in_time_knows_it_and_loses_nothing(field: Field) -> None:
    field.device_net.cut()
    began_s = time.monotonic()
    field.seconds_until(lambda: field.presence() is not Presence.ONLINE)
    assert time.monotonic() - began_s < field.bound_s
    field.seconds_until(lambda: not field.reporter.state.connected)
    assert time.monotonic() - began_s < field.bound_s
    field.seconds_until(lambda: field.presence() is Presence.OFFLINE)
    assert time.monotonic() - began_s < field.bound_s + GRAIN_S
    field.device_net.heal()
    field.assert_nothing_lost()


def test_a_half_open_collector_and_reader_know_it_in_time_and_miss_nothing(field: Field) -> None:
    field.collector_net.cut()
    field.reader_net.cut()
    began_s = time.monotonic()
    field.seconds_until(lambda: not field.watcher.connected)
    assert time.monotonic() - began_s < field.bound_s
    field.seconds_until(lambda: field.collector.state != "connected")
    assert time.monotonic() - began_s < field.bound_s
    field.collector_net.heal()
    field.reader_net.heal()
    field.assert_nothing_lost()


def test_a_broker_that_stalls_is_left_in_time_and_nothing_is_lost(field: Field, broker: Broker) -> None:
    children = subprocess.run(["pgrep", "-P", str(broker.process.pid)], capture_output=True, text=True, check=True)
    os.kill(int(children.stdout), signal.SIGSTOP)
    try:
        assert field.seconds_until(lambda: not field.reporter.state.connected) < field.bound_s
    finally:
        os.kill(int(children.stdout), signal.SIGCONT)
    field.assert_nothing_lost()


def test_a_broker_that_restarts_empty_hears_everything_again(field: Field, broker: Broker, tmp_path: Path) -> None:
    children = subprocess.run(["pgrep", "-P", str(broker.process.pid)], capture_output=True, text=True, check=True)
    os.kill(int(children.stdout), signal.SIGKILL)
    broker.stop()
    assert until(lambda: not field.reporter.state.connected)
    with start_broker(tmp_path / "an-empty-one", kind="mosquitto", port=broker.port):
        field.assert_nothing_lost()


def test_connections_reset_all_the_time_lose_and_double_nothing(field: Field) -> None:
    dice = random.Random(3)
    for _ in range(20):
        dice.choice((field.device_net, field.collector_net)).reset()
        time.sleep(dice.uniform(0.02, 0.2))
    field.assert_nothing_lost()


def test_simulated_devices_notice_a_half_open_connection_and_lose_nothing(broker: Broker, tmp_path: Path) -> None:
    proxy = Proxy(broker.port)
    listens = MqttConfig(host="127.0.0.1", port=broker.port)
    collector = Collector(listens, tmp_path / "h.db", commit_s=0.05, back_off=QUICK)
    thread = threading.Thread(target=collector.run, daemon=True)
    thread.start()
    assert until(lambda: collector.state == "connected")
    config = MqttConfig(host="127.0.0.1", port=proxy.port, keepalive_s=2)
    fleet = SimFleet(config, Behaviour(window_s=0.1, history_per_s=500.0), devices=3)
    cut = threading.Timer(0.5, proxy.cut)
    heal = threading.Timer(3.5, proxy.heal)
    for timer in (cut, heal):
        timer.start()
    tally = fleet.run(3.6, drain_s=20.0)
    assert "no answer for 3 s" in fleet.problem
    assert (tally.waiting, tally.lost) == (0, 0)
    assert tally.connections >= 6
    assert until(lambda: collector.view()[2]["windows"] == sum(sum(made.values()) for made in tally.made.values()))
    collector.stop()
    thread.join()
    proxy.close()
