"""A device as Home Assistant discovers it over MQTT: is it there, its latency, its temperature.

One retained description for each device (device-based discovery, Home Assistant 2024.11 and newer), and with every
window a `summary` of plain numbers, since Home Assistant cannot read a histogram. Source: home-assistant.io, MQTT
integration, "MQTT discovery" and "Sensor".
"""

from __future__ import annotations

import json
from collections import deque
from typing import Any

from edgekit.telemetry import histogram
from edgekit.telemetry.access import DISCOVERY
from edgekit.telemetry.connection import Outgoing
from edgekit.telemetry.messages import Birth, Histogram, Metrics, Summary, topic

SPAN_WINDOWS = 60
"""A summary tells the latency over the last so many windows: ten minutes as windows are by default."""
P50_SAMPLES, P99_SAMPLES = 8, 662
"""So many support a quantile with 99 % confidence; with fewer it is unknown rather than a guess."""
EXPIRES_WINDOWS = 3


class Summaries:
    """The summary of a device's last windows."""

    def __init__(self) -> None:
        self._latencies: deque[Histogram | None] = deque(maxlen=SPAN_WINDOWS)

    def after(self, window: Metrics) -> Summary:
        """With one more window."""
        self._latencies.append(histogram.merge_all(lane.infer_ms for lane in window.lanes if lane.infer_ms is not None))
        latency = histogram.merge_all(found for found in self._latencies if found is not None)
        samples = latency.count if latency else 0
        return Summary(
            t_unix_ms=window.t_unix_ms,
            samples=samples,
            p50_ms=round(histogram.quantile(latency, 0.50), 3) if latency and samples >= P50_SAMPLES else None,
            p99_ms=round(histogram.quantile(latency, 0.99), 3) if latency and samples >= P99_SAMPLES else None,
            temperature_c=window.system.temperature_c,
        )


def discovery(site: str, device: str, birth: Birth, version: str) -> Outgoing:
    """What Home Assistant is told of a device; retained, so that it is found whichever starts first."""
    name, status = f"edgekit_{site}_{device}", topic(site, device, "status")
    numbers: dict[str, Any] = {
        "state_topic": topic(site, device, "summary"),
        "state_class": "measurement",
        "availability_topic": status,
        "availability_template": "{{ value_json.state }}",
        "expire_after": max(1, EXPIRES_WINDOWS * birth.window_ms // 1000),
    }
    latency = {"device_class": "duration", "unit_of_measurement": "ms", "suggested_display_precision": 2}
    warmth = {"device_class": "temperature", "unit_of_measurement": "°C"}

    def number(key: str, label: str, kind: dict[str, Any]) -> dict[str, Any]:
        read = f"{{{{ value_json.get('{key}') }}}}"  # "None", where it is missing, is unknown to Home Assistant
        own = {"platform": "sensor", "name": label, "unique_id": f"{name}_{key}", "value_template": read}
        return {**own, **numbers, **kind}

    there = {
        "platform": "binary_sensor",
        "name": "Status",
        "unique_id": f"{name}_status",
        "device_class": "connectivity",
        "entity_category": "diagnostic",
        "state_topic": status,
        "value_template": "{{ value_json.state }}",
        "payload_on": "online",
        "payload_off": "offline",
    }
    found = {
        "device": {
            "identifiers": [name],
            "name": f"{site}/{device}",
            "model": birth.board,
            "sw_version": version,
            "suggested_area": site,
        },
        "origin": {"name": "edgekit", "sw_version": version},
        "components": {
            "status": there,
            "p50": number("p50_ms", "Latency p50", latency),
            "p99": number("p99_ms", "Latency p99", latency),
            "temperature": number("temperature_c", "Temperature", warmth),
        },
        "qos": 1,
    }
    return Outgoing(f"{DISCOVERY}/{site}/{device}/config", json.dumps(found).encode(), retain=True)
