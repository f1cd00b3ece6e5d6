"""The loss claim over RabbitMQ as three nodes, with its users and rights, while a node is killed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgekit.config import MqttConfig
from edgekit.fleet import Presence
from edgekit.telemetry.access import Role, User
from edgekit.telemetry.connection import Outgoing
from edgekit.telemetry.link import Link, Opening
from edgekit.telemetry.messages import Received
from tests.loss import Field
from tests.network import QUICK
from tests.rabbit import Cluster, is_installed
from tests.waiting import until

pytestmark = [
    pytest.mark.rabbitmq,
    pytest.mark.skipif(not is_installed(), reason="rabbitmq-server is not installed"),
]
KEEPALIVE_S = 5
"""Three nodes that start or mourn another one take seconds to answer on a small machine."""
USERS = [
    User(name=name, role=Role.DEVICE if "/" in name else Role(name), password=f"{name} knows")
    for name in ("hall/cam-1", "hall/cam-2", "reader", "collector", "operator", "steward")
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("rabbit") / "nodes", nodes=3, users=USERS)
    yield made
    made.stop()


def test_rights_hold(cluster: Cluster, tmp_path: Path) -> None:
    heard: dict[str, list[Received]] = {}
    links: dict[str, Link] = {}

    def join(name: str, client_id: str, *reads: str) -> Link:
        user = next(user for user in USERS if user.name == name)
        secret = tmp_path / name.replace("/", "-")
        secret.write_text(user.password)
        config = MqttConfig(
            host="127.0.0.1", port=cluster.ports[0], username=name, password_file=str(secret), keepalive_s=5
        )
        heard[name] = []
        link = Link(
            config,
            client_id=client_id,
            subscriptions=[f"edgekit/v1/{topic}" for topic in reads],
            opening=Opening,
            on_message=heard[name].append,
            back_off=QUICK,
        )
        link.start()
        links[name] = link
        return link

    def say(name: str, topic: str) -> None:
        links[name].send(Outgoing(f"edgekit/v1/{topic}", name.encode()))

    try:
        join("reader", "edgekit-reader-aa", "#")
        join("hall/cam-1", "hall/cam-1", "hall/cam-1/command", "hall/cam-1/ack", "hall/_all/rebirth")
        join("collector", "edgekit-collector-aa", "+/+/metrics")
        join("operator", "edgekit-reader-bb")
        assert until(lambda: all(link.state.connected for link in links.values())), {
            n: x.state for n, x in links.items()
        }
        for name, topic in (
            ("hall/cam-1", "hall/cam-1/metrics"),
            ("operator", "hall/cam-1/command"),
            ("collector", "hall/cam-1/ack"),
            ("reader", "hall/_all/rebirth"),
        ):
            say(name, topic)
        assert until(
            lambda: len(heard["reader"]) == 4 and len(heard["hall/cam-1"]) == 3 and len(heard["collector"]) == 1
        )
        # RabbitMQ hangs up on who publishes what is not theirs; nobody hears it.
        for name, topic in (("hall/cam-1", "hall/cam-2/metrics"), ("collector", "hall/cam-1/status")):
            failures = links[name].failures
            say(name, topic)
            assert until(lambda n=name, f=failures: links[n].failures > f or not links[n].state.connected)
        eavesdropper = join("hall/cam-2", "hall/cam-2", "hall/cam-1/command")
        assert until(lambda: eavesdropper.failures > 0)
        assert not eavesdropper.state.connected
        thief = join("steward", "hall/cam-1", "#")
        assert until(lambda: thief.failures > 0)
        assert not thief.state.connected, "a queue is named after the client id, and this one is not its own"
        time.sleep(0.3)
        assert len(heard["reader"]) == 4
    finally:
        for link in links.values():
            link.stop(timeout_s=0.5)


def test_a_half_open_device_over_rabbitmq_is_seen_and_loses_nothing(cluster: Cluster, tmp_path: Path) -> None:
    field = Field(tmp_path, *cluster.ports, users=USERS, keepalive_s=KEEPALIVE_S)
    try:
        field.device_net.cut()
        began_s = time.monotonic()
        field.seconds_until(lambda: not field.reporter.state.connected)
        assert time.monotonic() - began_s < field.bound_s
        field.seconds_until(lambda: field.presence() is Presence.OFFLINE)
        assert time.monotonic() - began_s < field.bound_s
        field.device_net.heal()
        field.assert_nothing_lost()
    finally:
        field.close()


def test_a_node_killed_in_the_middle_costs_nothing_that_a_device_stored(cluster: Cluster, tmp_path: Path) -> None:
    assert cluster.registry_members() == 3
    field = Field(tmp_path, *cluster.ports, users=USERS, keepalive_s=KEEPALIVE_S)
    try:
        time.sleep(1.0)
        cluster.kill(0)  # to which device, collector and reader are connected
        assert until(lambda: not field.reporter.state.connected)
        assert until(lambda: field.collector.state == "connected", 60.0), field.states()
        assert until(lambda: field.reporter.state.connected, 60.0), field.states()
        time.sleep(1.0)
        field.assert_nothing_lost(timeout_s=60.0)
    finally:
        field.close()
