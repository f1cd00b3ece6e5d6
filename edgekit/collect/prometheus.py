"""The fleet for Prometheus. What there is to count is bounded, whatever names devices invent.

A p99 of a group is read from its merged histogram and never averaged. `edgekit_infer_seconds` is an ordinary Prometheus
histogram with edges at powers of two milliseconds: those are edges of our buckets too, so nothing is interpolated, and
`histogram_quantile` over any sum of them is honest to a factor of two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from edgekit.collect.rollup import Rollup, merge
from edgekit.errors import UsageError
from edgekit.fleet import Device, Fleet, Presence
from edgekit.telemetry.histogram import quantile
from edgekit.telemetry.messages import Histogram

MOST_GROUPS, MOST_DEVICES = 500, 2_000
"""Series of groups and of single devices; what is more is poured into one, or left out and counted."""
_OTHER = ("_other", "_other", "_other", "_other")
_GROUP_LABELS = ("site", "model", "lane", "artifact")
_EDGES_LOG2 = range(-4, 18)
"""1/16 ms to 131 s."""

Group = tuple[str, str, str, str]
View = Callable[[], tuple[Fleet, Mapping[Group, Rollup], Mapping[str, Any]]]


class FleetCollector(Collector):
    """Asks for the state of the fleet whenever Prometheus does."""

    def __init__(self, view: View) -> None:
        self._view = view

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        fleet, groups, counts = self._view()
        yield from _of_collector(counts)
        yield from _of_presence(fleet)
        yield from _of_groups(_bounded(groups))
        yield from _of_devices(fleet)


def serve(view: View, host: str, port: int) -> int:
    """Answer on http://host:port/metrics from a thread; the port, if it was 0. Raises UsageError for one in use."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(FleetCollector(view))
    try:
        server, _ = start_http_server(port, addr=host, registry=registry)
    except OSError as e:
        raise UsageError(f"--prometheus {host}:{port}: {e.strerror}") from e
    return int(server.server_port)


def cumulative(histogram: Histogram) -> list[tuple[str, float]]:
    """Prometheus' cumulative buckets, edges in seconds, exact: our buckets are (low, high], as theirs are."""
    found, seen, i = [], histogram.zero_count, 0
    for edge in _EDGES_LOG2:
        # Bucket i ends at 2**((offset + i + 1) * 2**-scale); below scale 0 its end may lie above an edge.
        while i < len(histogram.counts) and (histogram.offset + i + 1) * 2.0**-histogram.scale <= edge:
            seen += histogram.counts[i]
            i += 1
        found.append((repr(2.0**edge / 1000), float(seen)))
    return [*found, ("+Inf", float(histogram.count))]


def _of_collector(counts: Mapping[str, Any]) -> Iterator[Metric]:
    for name, text in (
        ("windows", "windows stored"),
        ("historical", "windows that came late and say so"),
        ("duplicates", "windows that came again"),
        ("malformed", "messages that are not ours"),
    ):
        yield CounterMetricFamily(f"edgekit_collector_{name}", f"{text}, since the start", value=counts[name])
    delay_ms = counts["delay_p99_ms"]
    if delay_ms is not None:
        text = "from a live window's end to its being stored, p99 since the start"
        yield GaugeMetricFamily("edgekit_collector_delay_p99_seconds", text, value=delay_ms / 1000)
    connected = float(counts["state"] == "connected")
    yield GaugeMetricFamily("edgekit_collector_connected", "whether the broker is there", value=connected)


def _of_presence(fleet: Fleet) -> Iterator[Metric]:
    states: dict[tuple[str, str], int] = {}
    for device in fleet.devices.values():
        for presence in Presence:
            key = (device.site, presence.value)
            states[key] = states.get(key, 0) + (device.presence is presence)
    family = GaugeMetricFamily("edgekit_devices", "devices by site and state", labels=("site", "state"))
    for key, count in sorted(states.items())[: MOST_GROUPS * len(Presence)]:
        family.add_metric(key, count)
    yield family


def _of_groups(groups: Mapping[Group, Rollup]) -> Iterator[Metric]:
    counters = {
        name: CounterMetricFamily(f"edgekit_{name}", text, labels=_GROUP_LABELS)
        for name, text in (
            ("requests", "requests that arrived"),
            ("errors", "requests that failed"),
            ("rejected", "requests that were turned away"),
            ("cache_hits", "requests answered from the cache"),
        )
    }
    infer = HistogramMetricFamily("edgekit_infer_seconds", "inference latency", labels=_GROUP_LABELS)
    text = "inference latency since the collector's start, from merged histograms"
    quantiles = GaugeMetricFamily("edgekit_infer_quantile_seconds", text, labels=(*_GROUP_LABELS, "quantile"))
    for group, rollup in sorted(groups.items()):
        for name, counter in counters.items():
            counter.add_metric(group, getattr(rollup, name))
        if rollup.infer_ms is None:
            continue
        infer.add_metric(group, cumulative(rollup.infer_ms), rollup.infer_ms.sum / 1000)
        for q in (0.5, 0.9, 0.99):
            quantiles.add_metric((*group, str(q)), quantile(rollup.infer_ms, q) / 1000)
    yield from counters.values()
    yield infer
    yield quantiles


def _of_devices(fleet: Fleet) -> Iterator[Metric]:
    labels = ("site", "device")
    seen = GaugeMetricFamily("edgekit_device_last_seen_seconds", "Unix time of its last message", labels=labels)
    up = GaugeMetricFamily("edgekit_device_online", "1: online or late; 0: stale or offline", labels=labels)
    depth = GaugeMetricFamily("edgekit_device_outbox_depth", "messages that wait on the device", labels=labels)
    dropped = GaugeMetricFamily("edgekit_device_outbox_dropped", "messages its outbox gave up", labels=labels)
    hot = GaugeMetricFamily("edgekit_device_temperature_celsius", "its sensor", labels=labels)
    free = GaugeMetricFamily("edgekit_device_memory_available_bytes", "free memory", labels=labels)
    shown = sorted(fleet.devices)[:MOST_DEVICES]
    for key in shown:
        _of_device(fleet.devices[key], seen, up, depth, dropped, hot, free)
    yield from (seen, up, depth, dropped, hot, free)
    text = "devices without series of their own, beyond the limit"
    yield GaugeMetricFamily("edgekit_devices_without_series", text, value=len(fleet.devices) - len(shown))


def _of_device(device: Device, *families: GaugeMetricFamily) -> None:
    last = device.last_metrics
    values = (
        device.last_seen_s or None,
        float(device.presence in (Presence.ONLINE, Presence.LATE)),
        last.outbox.depth if last else None,
        sum(last.outbox.dropped.values()) if last else None,
        last.system.temperature_c if last else None,
        last.system.memory_available_bytes if last else None,
    )
    for family, value in zip(families, values, strict=True):
        if value is not None:
            family.add_metric(device.key, value)


def _bounded(groups: Mapping[Group, Rollup]) -> Mapping[Group, Rollup]:
    """At most `MOST_GROUPS`: those that got the most requests, and the rest together."""
    if len(groups) <= MOST_GROUPS:
        return groups
    order = sorted(groups, key=lambda group: -groups[group].requests)
    kept = {group: groups[group] for group in order[:MOST_GROUPS]}
    rest = Rollup()
    for group in order[MOST_GROUPS:]:
        rest = merge(rest, groups[group])
    return {**kept, _OTHER: rest}
