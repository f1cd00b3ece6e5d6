"""The engine inside a program: `from edgekit import Engine`."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time

import numpy as np
import pytest

import edgekit
from edgekit.config import Home, MqttConfig
from edgekit.errors import ConfigError, InputError, RequestError
from edgekit.telemetry.broker import find_mosquitto, start_broker
from edgekit.telemetry.messages import Metrics, decode
from edgekit.telemetry.watch import Watcher

pytest.importorskip("onnxruntime", reason="the artifacts of these tests run in onnxruntime")

X = {"image": np.zeros((1, 8, 8, 1), np.float32)}


@pytest.fixture
def home(tmp_path) -> Home:
    return Home(tmp_path)


def test_importing_edgekit_loads_nothing_heavy():
    script = (
        "import sys, edgekit\n"
        "loaded = {'numpy', 'onnxruntime', 'msgspec', 'paho'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
        "from edgekit import Engine\n"
        "assert Engine.__name__ == 'Engine' and 'numpy' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    assert "Engine" in dir(edgekit)
    with pytest.raises(AttributeError, match="no attribute 'Motor'"):
        edgekit.Motor  # noqa: B018


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere: open files are read from Linux's /proc")
def test_the_runtime_reports_to_nobody_unless_it_is_told_to(tmp_path):
    script = (
        "import os, edgekit\n"
        "from edgekit import Engine\n"
        "with Engine.open('digits', artifact='standard') as engine:\n"
        "    links = [f'/proc/self/fd/{n}' for n in os.listdir('/proc/self/fd')]\n"
        "    print([os.readlink(link) for link in links if os.path.lexists(link)])\n"
        "print(os.environ['ORT_DISABLE_TELEMETRY'])\n"
    )
    environ = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    environ |= {
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "EDGEKIT_HOME": str(tmp_path / "home"),
    }
    run = [sys.executable, "-c", script]
    said = subprocess.run(run, check=True, capture_output=True, text=True, env=environ).stdout
    assert "DeveloperTools" not in said
    assert said.endswith("1\n")
    assert not (tmp_path / "cache").exists()
    assert not (tmp_path / ".cache").exists()
    chosen = subprocess.run(
        run, check=True, capture_output=True, text=True, env=environ | {"ORT_DISABLE_TELEMETRY": "0"}
    )
    assert chosen.stdout.endswith("0\n")


def test_numpy_in_numpy_out(home):
    with edgekit.Engine.open("digits", artifact="int8", home=home) as engine:
        assert engine.infer(X)["logits"].shape == (1, 10)
        answer = engine.answer(X, priority="realtime", deadline_ms=10_000)
        assert (answer.artifact, answer.lane) == ("int8", "realtime")
        assert (engine.inputs[0].name, engine.outputs[0].name) == ("image", "logits")
        assert engine.state.reasons == ("pinned by the configuration",)
        with pytest.raises(InputError, match="the model takes"):
            engine.infer({"image": np.zeros((1, 2), np.float32)})
        with pytest.raises(RequestError, match=r"deadline_ms is 0\.0001"):
            engine.infer(X, deadline_ms=0.0001)
    with pytest.raises(RequestError, match="not served any more"):
        engine.infer(X)
    engine.close()


def test_many_await_their_answers_at_once(home):
    async def main(engine: edgekit.Engine) -> list[np.ndarray]:
        inputs = [{"image": np.full((1, 8, 8, 1), i / 8, np.float32)} for i in range(8)]
        answers = await asyncio.gather(*(engine.infer_async(x) for x in inputs))
        with pytest.raises(RequestError, match=r"deadline_ms is 0\.0001"):
            await engine.infer_async(inputs[0], deadline_ms=0.0001)
        late = asyncio.ensure_future(engine.infer_async(inputs[0]))
        await asyncio.sleep(0)
        late.cancel()
        return [answer["logits"] for answer in answers]

    with edgekit.Engine.open("digits", artifact="standard", home=home) as engine:
        found = asyncio.run(main(engine))
        for i, logits in enumerate(found):
            alone = engine.infer({"image": np.full((1, 8, 8, 1), i / 8, np.float32)})
            np.testing.assert_array_equal(logits, alone["logits"])


def test_what_is_not_known_is_said(home):
    with pytest.raises(TypeError, match="unknown latency; there are artifact, objective, latency_ms"):
        edgekit.Engine.open("digits", latency=25, home=home)
    with pytest.raises(ConfigError, match=r"model\.threads"):
        edgekit.Engine.open("digits", threads=0, home=home)
    with pytest.raises(ConfigError, match="did you mean digits"):
        edgekit.Engine.open("digit", home=home)


@pytest.mark.broker
def test_it_reports_like_the_daemon(home, tmp_path):
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not on the PATH")
    with start_broker(tmp_path / "broker", port=0) as broker:
        mqtt = MqttConfig(host="127.0.0.1", port=broker.port, window_s=0.2)
        watcher = Watcher(mqtt)
        watcher.start()
        with edgekit.Engine.open("digits", artifact="int8", home=home, mqtt=mqtt, site="lab", device="mine") as engine:
            heard: list[Metrics] = []
            until = time.monotonic() + 15
            while not any(window.lanes for window in heard) and time.monotonic() < until:
                engine.infer(X)
                time.sleep(0.05)
                windows = [m for m in watcher.drain() if m.topic == "edgekit/v1/lab/mine/metrics"]
                heard += [decode("metrics", m.payload) for m in windows]
        watcher.stop()
    lane = next(window.lanes[0] for window in heard if window.lanes)
    assert (lane.model, lane.artifact, lane.errors) == ("digits", "int8", 0)
