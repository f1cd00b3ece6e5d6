"""The demo runs the whole job without a terminal, leaves nothing running, and says who failed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgekit.demo.children import Child
from edgekit.demo.load import Load
from edgekit.errors import EdgekitError

for module in ("onnxruntime", "httptools", "onnx"):
    pytest.importorskip(module, reason="the demo needs the extra 'demo'")


def processes_that_mention(text: str) -> list[int]:
    """Process ids whose environment holds `text`. Check by hand: grep -l TEXT /proc/*/environ"""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if text.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def gone(text: str, within_s: float) -> bool:
    until_s = time.monotonic() + within_s
    while processes_that_mention(text):
        if time.monotonic() > until_s:
            return False
        time.sleep(0.1)
    return True


@pytest.mark.slow
def test_the_demo_shows_each_step_and_leaves_nothing_running(edgekit_home: Path):
    run = subprocess.run(
        [sys.executable, "-m", "edgekit.cli.main", "demo", "--model", "digits", "--seconds", "5"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert run.returncode == 0, run.stderr
    for words in ("Probe", "digits", "selected:", "standard", "demo/selected", "demo/standard", "online"):
        assert words in run.stdout, run.stdout[-3000:]
    assert "Traceback" not in run.stderr
    assert gone(str(edgekit_home), 5.0)


def test_a_child_that_ends_early_is_named_with_its_last_words(edgekit_home: Path):
    with Child("the daemon", "run", "no-such-model") as child, pytest.raises(EdgekitError, match="no-such-model"):
        child.wait_for("listening", 30.0)


def test_a_child_ends_with_its_parent_however_that_dies(edgekit_home: Path):
    code = (
        "import time; from edgekit.demo.children import Child\n"
        "child = Child('daemon', 'run', 'digits', '--artifact', 'standard', '--port', '0')\n"
        "print(child.wait_for('listening', 30), flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert "listening" in parent.stdout.readline()
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert gone(str(edgekit_home), 10.0)


def test_a_load_on_nobody_keeps_the_reasons():
    with Load("http://127.0.0.1:9", {"digits": [{}]}, rate_hz=50.0) as load:
        time.sleep(0.1)
    assert load.sent_count == 0
    assert "digits" in load.failures[0]
