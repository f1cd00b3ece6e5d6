"""The soak's own code, for seconds: reloads, swaps and killed runtimes leave no failed request and no descriptor."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", reason="the artifacts that are served run in onnxruntime")
pytest.importorskip("httptools", reason="the daemon's HTTP")


@pytest.mark.skipif(sys.platform != "linux", reason="sizes and descriptors are read from /proc")
def test_a_short_soak_ends_without_a_failure():
    soak = Path(__file__).parent / "bench/soak_serve.py"
    command = [sys.executable, soak, "--minutes", "0.08", "--every-s", "0.15"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    figures = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0, figures
    assert figures["reloads"] >= 8
    assert figures["answers"] > 100
    assert figures["deliberate_refusals"] > 0
    assert (figures["failures"], figures["exit_code"]) == (0, 0)
    assert figures["descriptors_grown"] <= 2
    assert figures["rss_slope_mib_per_hour"] is None, "seconds say nothing of an hour"


def test_a_leak_is_told_from_noise():
    sys.path.insert(0, str(Path(__file__).parent / "bench"))
    try:
        from soak_serve import slope_of
    finally:
        sys.path.pop(0)
    rng = random.Random(0)
    flat = [(i / 100, 100 + rng.gauss(0, 2)) for i in range(100)]
    slope, error = slope_of(flat)
    assert abs(slope) < 3 * error
    slope, error = slope_of([(hours, mib + 10 * hours) for hours, mib in flat])
    assert abs(slope - 10) < 3 * error < slope
    assert slope_of(flat[:19]) == (None, None)
