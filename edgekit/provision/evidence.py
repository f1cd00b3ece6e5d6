"""What telemetry says of devices while a release is rolled out: windows kept apart by device, for `compare`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from edgekit.telemetry.messages import Histogram, Metrics

KEPT_WINDOWS = 120
"""Of one device and lane; a device that reports every ten seconds is judged by its last twenty minutes."""

Lane = tuple[str, str, str]
"""Kind of board, model, lane: only like is compared with like."""


class Window(msgspec.Struct, frozen=True, omit_defaults=True):
    """One window of one model and lane of one device."""

    at: int
    "Which stretch of time it belongs to, by the reader's clock: windows of one stretch share its hardship."
    requests: int
    failed: int = 0
    "Errors and refusals."
    shadow_agreed: int = 0
    shadow_total: int = 0
    latency: Histogram | None = None
    "Of the inferences, in ms."

    @property
    def samples(self) -> int:
        return self.latency.count if self.latency else 0


class Evidence(msgspec.Struct, frozen=True):
    """Windows by model and lane of one device, newest last."""

    lanes: Mapping[str, tuple[Window, ...]] = {}
    "Key: MODEL/LANE, as JSON has no other keys."
    last: tuple[int, int] = (-1, -1)
    "Epoch and number of the newest window: a broker may deliver one twice."


NONE = Evidence()


def with_window(evidence: Evidence, metrics: Metrics, received_s: float) -> Evidence:
    """The evidence with one more window; one that is late or came before changes nothing."""
    number = (metrics.epoch, metrics.seq)
    if number <= evidence.last or metrics.historical:
        return evidence
    at = int(received_s * 1000 / metrics.window_ms)
    lanes = dict(evidence.lanes)
    for lane in metrics.lanes:
        key = f"{lane.model}/{lane.lane}"
        window = Window(
            at, lane.requests, lane.errors + lane.rejected, lane.shadow_agreed, lane.shadow_total, lane.infer_ms
        )
        lanes[key] = (*lanes.get(key, ()), window)[-KEPT_WINDOWS:]
    return Evidence(lanes, number)


def is_wholly_after(metrics: Metrics, received_s: float, since_s: float) -> bool:
    """Whether the window began after `since_s`: one that holds the switch or the self-bench judges nobody."""
    return received_s - metrics.window_ms / 1000 >= since_s


def pool(devices: Iterable[tuple[str, Evidence]]) -> dict[Lane, list[Window]]:
    """The windows of several devices, given with their kinds, by what may be compared."""
    pooled: dict[Lane, list[Window]] = {}
    for kind, evidence in devices:
        for key, windows in evidence.lanes.items():
            model, _, lane = key.rpartition("/")
            pooled.setdefault((kind, model, lane), []).extend(windows)
    return pooled


def sample_count(evidence: Evidence) -> int:
    """Inferences in the lane that has the fewest; 0 without any."""
    return min((sum(w.samples for w in windows) for windows in evidence.lanes.values()), default=0)


def stretch_count(evidence: Evidence) -> int:
    """Stretches of time with inferences, in the lane that has the fewest; 0 without any."""
    lanes = evidence.lanes.values()
    return min((len({w.at for w in windows if w.samples}) for windows in lanes), default=0)
