"""What a scraper sees: counts and latency of every lane as Prometheus text (exposition format 0.0.4)."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping

BUCKETS_MS = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0)
"""Upper bounds. Percentiles to act on come from telemetry's exponential histograms, not from these."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class LaneCounts:
    """Since start. Written by the threads that answer and the server's."""

    def __init__(self, batches: Mapping[str, int] | None = None) -> None:
        """`batches`: inferences by the reason that their batch was closed for, counted elsewhere."""
        self._lock = threading.Lock()
        self.batches = {} if batches is None else batches
        self.requests = self.errors = self.rejected = self.cache_hits = 0
        self.bound_ms: float | None = None
        self.late = 0
        "Answered requests that took longer than `bound_ms`, waiting included."
        self.shadow_total = self.shadow_agreed = 0
        self.queue_ms_sum = self.infer_ms_sum = 0.0
        self.queue_buckets = [0] * (len(BUCKETS_MS) + 1)
        self.infer_buckets = [0] * (len(BUCKETS_MS) + 1)

    def observe(self, *, queue_ms: float, infer_ms: float) -> None:
        """One answered request."""
        with self._lock:
            self.requests += 1
            self.late += self.bound_ms is not None and queue_ms + infer_ms > self.bound_ms
            self.queue_ms_sum += queue_ms
            self.infer_ms_sum += infer_ms
            self.queue_buckets[bisect_left(BUCKETS_MS, queue_ms)] += 1
            self.infer_buckets[bisect_left(BUCKETS_MS, infer_ms)] += 1

    def hit(self) -> None:
        """A request answered from the cache."""
        with self._lock:
            self.cache_hits += 1

    def compare(self, agreed: bool) -> None:
        """An answer set against the standard artifact's."""
        with self._lock:
            self.shadow_total += 1
            self.shadow_agreed += agreed

    def refuse(self, *, errors: int, rejected: int) -> None:
        """Requests that got no answer but an error."""
        with self._lock:
            self.errors += errors
            self.rejected += rejected


def exposition(
    lanes: Iterable[tuple[str, str, str, LaneCounts]], *, gauges: Mapping[str, float], http_errors: Mapping[int, int]
) -> str:
    """The text of one scrape; `lanes` are (model, lane, artifact, counts), `gauges` what the whole process has."""
    rows = [(f'model="{_escape(m)}",lane="{lane}",artifact="{_escape(a)}"', counts) for m, lane, a, counts in lanes]
    lines = [line for name, value in gauges.items() for line in (f"# TYPE {name} gauge", f"{name} {value:g}")]
    lines += ["# TYPE edgekit_http_errors_total counter"]
    lines += [
        f'edgekit_http_errors_total{{status="{status}"}} {count}' for status, count in sorted(http_errors.items())
    ]
    lines += ["# TYPE edgekit_requests_total counter"]
    for labels, counts in rows:
        outcomes = {
            "ok": counts.requests,
            "cached": counts.cache_hits,
            "error": counts.errors,
            "rejected": counts.rejected,
        }
        for outcome, count in outcomes.items():
            lines.append(f'edgekit_requests_total{{{labels},outcome="{outcome}"}} {count}')
    lines += ["# TYPE edgekit_late_total counter"]
    lines += [f"edgekit_late_total{{{labels}}} {c.late}" for labels, c in rows if c.bound_ms is not None]
    lines += ["# TYPE edgekit_shadow_total counter"]
    for labels, counts in rows:
        for outcome, count in (("yes", counts.shadow_agreed), ("no", counts.shadow_total - counts.shadow_agreed)):
            lines.append(f'edgekit_shadow_total{{{labels},agreed="{outcome}"}} {count}')
    lines += ["# TYPE edgekit_batches_total counter"]
    for labels, counts in rows:
        for why, count in sorted(counts.batches.items()):
            lines.append(f'edgekit_batches_total{{{labels},closed="{why}"}} {count}')
    for name in ("infer", "queue"):
        metric = f"edgekit_{name}_seconds"
        lines.append(f"# TYPE {metric} histogram")
        for labels, counts in rows:
            lines += _histogram(
                metric, labels, getattr(counts, f"{name}_buckets"), getattr(counts, f"{name}_ms_sum") / 1e3
            )
    return "\n".join(lines) + "\n"


def _histogram(metric: str, labels: str, buckets: list[int], total_s: float) -> list[str]:
    lines = []
    count = 0
    for bound, inside in zip((*BUCKETS_MS, None), buckets, strict=True):
        count += inside
        le = "+Inf" if bound is None else f"{bound / 1e3:g}"
        lines.append(f'{metric}_bucket{{{labels},le="{le}"}} {count}')
    return [*lines, f"{metric}_sum{{{labels}}} {total_s:.6f}", f"{metric}_count{{{labels}}} {count}"]


def _escape(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
