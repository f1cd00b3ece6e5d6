"""The benchmark scripts of measuring run to their one line of JSON; the full counts are for `make soak`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnx")
SCRIPTS = Path(__file__).parent / "bench"


def test_a_clear_lead_is_decided_the_same_way_with_and_without_a_busy_neighbour():
    command = [sys.executable, str(SCRIPTS / "bench_repeat.py"), "--runs", "2", "--seconds", "0.5", "--percent", "40"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    *_, last = done.stdout.splitlines()
    assert json.loads(last) == {"runs": 2, "same": 2, "decided": "flash", "percent": 40.0}
    assert "quiet" in done.stdout
    assert "busy" in done.stdout
