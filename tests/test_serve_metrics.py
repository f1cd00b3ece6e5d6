"""The Prometheus text: counts that add up, buckets that are cumulative, labels that cannot break a line."""

from __future__ import annotations

from edgekit.serve.metrics import BUCKETS_MS, LaneCounts, exposition


def values(text: str) -> dict[str, float]:
    rows = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in rows}


def test_buckets_are_cumulative_and_a_bound_belongs_to_its_bucket():
    counts = LaneCounts()
    for infer_ms in (0.1, 1.0, 1.1, 99_999.0):
        counts.observe(queue_ms=0.0, infer_ms=infer_ms)
    counts.refuse(errors=2, rejected=3)
    counts.hit()
    found = values(
        exposition([("m", "realtime", "a", counts)], gauges={"edgekit_connections": 5}, http_errors={400: 2})
    )
    labels = 'model="m",lane="realtime",artifact="a"'
    buckets = [found[f'edgekit_infer_seconds_bucket{{{labels},le="{bound / 1e3:g}"}}'] for bound in BUCKETS_MS]
    assert buckets == sorted(buckets)
    assert found[f'edgekit_infer_seconds_bucket{{{labels},le="0.001"}}'] == 2
    assert found[f'edgekit_infer_seconds_bucket{{{labels},le="0.0025"}}'] == 3
    assert found[f'edgekit_infer_seconds_bucket{{{labels},le="+Inf"}}'] == 4
    assert found[f"edgekit_infer_seconds_count{{{labels}}}"] == 4
    assert abs(found[f"edgekit_infer_seconds_sum{{{labels}}}"] - 100.0012) < 1e-6
    assert found[f'edgekit_queue_seconds_bucket{{{labels},le="0.00025"}}'] == 4
    outcomes = {
        o: found[f'edgekit_requests_total{{{labels},outcome="{o}"}}'] for o in ("ok", "cached", "error", "rejected")
    }
    assert outcomes == {"ok": 4, "cached": 1, "error": 2, "rejected": 3}
    assert found['edgekit_http_errors_total{status="400"}'] == 2
    assert found["edgekit_connections"] == 5


def test_every_series_has_its_type_before_it_and_labels_are_escaped():
    text = exposition([('a"b\\c\nd', "realtime", "x", LaneCounts())], gauges={"edgekit_ready": 0}, http_errors={})
    assert 'model="a\\"b\\\\c\\nd"' in text
    typed = set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            typed.add(line.split()[2])
        else:
            name = line.partition("{")[0].partition(" ")[0]
            assert name in typed or name.rpartition("_")[0] in typed
    assert "edgekit_ready 0" in text
