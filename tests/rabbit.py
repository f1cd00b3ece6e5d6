"""RabbitMQ with its MQTT plugin as nodes of one cluster on this machine, without systemd, root or the system's own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from edgekit.telemetry.access import User
from edgekit.telemetry.access_rabbitmq import rabbitmq_definitions
from tests.network import free_port

SCRIPTS = Path("/usr/lib/rabbitmq/bin")
"""Debian's: those on the PATH insist on the system's own node."""
START_S = 90.0
CONFIG = """listeners.tcp = none
mqtt.listeners.tcp.1 = 127.0.0.1:{port}
mqtt.allow_anonymous = false
mqtt.durable_queue_type = quorum
load_definitions = {definitions}
cluster_formation.peer_discovery_backend = classic_config
{peers}
cluster_formation.target_cluster_size_hint = {count}
log.console = true
log.console.level = warning
log.file = false
"""


def is_installed() -> bool:
    return (SCRIPTS / "rabbitmq-server").exists() and shutil.which("epmd") is not None


class Cluster:
    """Nodes that run until `stop`."""

    def __init__(self, folder: Path, *, nodes: int, users: Sequence[User]) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        (folder / ".erlang.cookie").write_text("of-this-test-alone")
        (folder / ".erlang.cookie").chmod(0o400)
        (folder / "plugins").write_text("[rabbitmq_mqtt].\n")
        (folder / "definitions.json").write_text(rabbitmq_definitions(users))
        self.names = [f"edgekit{i}@localhost" for i in range(nodes)]
        self.ports = [free_port() for _ in self.names]
        finder = free_port()
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(finder),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            # One scheduler that does not spin: three nodes share this machine with everything else.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none",
        }
        command = ["epmd", "-port", str(finder), "-address", "127.0.0.1"]
        self._finder = subprocess.Popen(command, env=self._environment, stdout=subprocess.DEVNULL)
        # One after the other: nodes that boot together may each found a registry of client ids of their own, and the
        # one of three that dies may then be half of all that there is.
        self.nodes = list[subprocess.Popen[bytes]]()
        for i in range(nodes):
            self.nodes.append(self._start(i))
            self._await(i)

    def kill(self, i: int) -> None:
        """The node ends as if its machine had lost its power."""
        os.killpg(self.nodes[i].pid, signal.SIGKILL)
        self.nodes[i].wait()

    def registry_members(self) -> int:
        """How many nodes share the registry of client ids; it takes connections while most of them live."""
        ask = 'io:format("~b", [length(element(2, ra:members({mqtt_node, node()})))]).'
        words = [str(SCRIPTS / "rabbitmqctl"), "-n", self.names[0], "-q", "eval", ask]
        done = subprocess.run(words, env=self._environment, capture_output=True, text=True, check=True)
        return int(done.stdout[0])

    def stop(self) -> None:
        for i, node in enumerate(self.nodes):
            if node.poll() is None:
                self.kill(i)
        self._finder.kill()
        self._finder.wait()

    def _start(self, i: int) -> subprocess.Popen[bytes]:
        peers = "\n".join(
            f"cluster_formation.classic_config.nodes.{n} = {name}" for n, name in enumerate(self.names, 1)
        )
        config = self.folder / f"{i}.conf"
        definitions, count = self.folder / "definitions.json", len(self.names)
        config.write_text(CONFIG.format(port=self.ports[i], definitions=definitions, peers=peers, count=count))
        environment = {
            **self._environment,
            "RABBITMQ_NODENAME": self.names[i],
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_CONFIG_FILE": str(config),
            "RABBITMQ_MNESIA_BASE": str(self.folder / f"{i}"),
            "RABBITMQ_LOG_BASE": str(self.folder / f"{i}"),
            "RABBITMQ_PID_FILE": str(self.folder / f"{i}.pid"),
        }
        with (self.folder / f"{i}.log").open("ab") as log:
            command = [str(SCRIPTS / "rabbitmq-server")]
            return subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
            )

    def _await(self, i: int) -> None:
        deadline = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.ports[i]), timeout=1.0).close()
                return
            except OSError:
                if time.monotonic() > deadline or self.nodes[i].poll() is not None:
                    self.stop()
                    log = (self.folder / f"{i}.log").read_text(errors="replace")
                    raise AssertionError(f"node {i} did not start: {log[-2000:]}") from None
            time.sleep(0.1)
