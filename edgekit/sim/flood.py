"""Windows of many devices over one connection, as fast as asked: for ceilings, never to show that nothing is lost."""

from __future__ import annotations

import random
import secrets
import socket
import time
from dataclasses import dataclass

from edgekit.config import MqttConfig
from edgekit.errors import BrokerError
from edgekit.sim.device import MODELS, SimDevice, lane_library
from edgekit.telemetry import packets
from edgekit.telemetry.connection import CONNACK_S, CONNECT_S, describe
from edgekit.telemetry.messages import LaneMetrics
from edgekit.telemetry.outbox import NOTHING

_BATCH_S = 0.02
_SEQ = b'"seq":0,'


@dataclass(frozen=True, slots=True, kw_only=True)
class Flooded:
    """What a flood sent."""

    devices: int
    windows: int
    seconds: float


def flood(config: MqttConfig, *, devices: int, windows_per_s: float, seconds: float, seed: int = 1) -> Flooded:
    """Send windows of `devices` devices with QoS 0, in turn. Raises BrokerError when the broker hangs up."""
    endpoint = f"{config.host}:{config.port}"
    library = lane_library(random.Random(seed))
    messages = [_template(i, library) for i in range(devices)]
    try:
        with socket.create_connection((config.host or "", config.port), timeout=CONNECT_S) as broker:
            broker.settimeout(CONNACK_S)
            broker.sendall(packets.connect(f"edgekit-flood-{secrets.token_hex(4)}", keepalive_s=60))
            answer = packets.Parser().feed(broker.recv(1024))
            if why := packets.refusal(answer[0]) if answer else "hung up before it had answered":
                raise BrokerError(endpoint, why)
            sent, began_s = 0, time.monotonic()
            while (now_s := time.monotonic()) - began_s < seconds:
                due = int((now_s - began_s) * windows_per_s) - sent
                batch = bytearray()
                unix_ms = b"%d" % int(time.time() * 1000)
                for n in range(sent, sent + due):
                    name, before, after = messages[n % devices]
                    batch += packets.publish(name, b"".join((before, b"%d" % (n // devices), after, unix_ms, b"}")))
                broker.sendall(batch)
                sent += due
                time.sleep(max(0.0, _BATCH_S - (time.monotonic() - now_s)))
            seconds = time.monotonic() - began_s
            broker.sendall(packets.disconnect())
    except OSError as e:
        raise BrokerError(endpoint, describe(e)) from e
    return Flooded(devices=devices, windows=sent, seconds=seconds)


def _template(i: int, library: list[list[LaneMetrics]]) -> tuple[str, bytes, bytes]:
    """Topic, and a window's bytes before its sequence number and after it, up to its time."""
    model = i % len(MODELS)
    device = SimDevice("flood", f"flood-{i:05d}", library[model], model, None, 10.0, random.Random(i))
    device.epoch = int(time.time())
    device.close_window(unix_s=0.0, mono_s=0.0)
    payload = device.outbox.after(NOTHING, 1)[0].payload
    before, after = payload.split(_SEQ, 1)
    return device.topic("metrics"), before + _SEQ[:-2], b"," + after[:-1] + b',"t_unix_ms":'
