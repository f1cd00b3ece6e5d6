"""Home Assistant: the description holds what its schema knows, the numbers are those of the windows, and off is off."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgekit.config import MqttConfig
from edgekit.telemetry.access import Role, User
from edgekit.telemetry.broker import Broker, find_mosquitto, start_broker
from edgekit.telemetry.histogram import HistogramBuilder, relative_error
from edgekit.telemetry.home_assistant import P50_SAMPLES, P99_SAMPLES, SPAN_WINDOWS, Summaries, discovery
from edgekit.telemetry.link import Link, Opening
from edgekit.telemetry.messages import Birth, LaneMetrics, Metrics, Readings, Received, Summary, decode
from edgekit.telemetry.reporter import Recorder, Reporter
from tests.network import QUICK
from tests.waiting import until

needs_mosquitto = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")

# Written down from the tables of home-assistant.io: "MQTT discovery", "Sensor" and "Binary sensor" of the integration.
SHARED = {"availability", "availability_mode", "availability_template", "availability_topic", "command_topic",
          "payload_available", "payload_not_available", "state_topic", "qos", "encoding"}  # fmt: skip
DEVICE = {"identifiers", "connections", "manufacturer", "model", "model_id", "name", "hw_version", "serial_number",
          "sw_version", "via_device", "suggested_area", "configuration_url"}  # fmt: skip
ORIGIN = {"name", "sw_version", "support_url"}
ENTITY = SHARED | {"platform", "name", "unique_id", "device_class", "entity_category", "enabled_by_default", "icon",
                   "expire_after", "force_update", "value_template", "json_attributes_topic",
                   "json_attributes_template"}  # fmt: skip
PLATFORM = {
    "sensor": ENTITY | {"state_class", "unit_of_measurement", "suggested_display_precision", "options"},
    "binary_sensor": ENTITY | {"payload_on", "payload_off", "off_delay"},
}
UNITS = {"duration": {"d", "h", "min", "s", "ms", "µs"}, "temperature": {"°C", "°F", "K"}}


def described(**fields: object) -> tuple[str, dict[str, Any]]:
    birth = Birth(epoch=1, t_unix_ms=0, board="Raspberry Pi 5", **fields)  # type: ignore[arg-type]
    message = discovery("hall", "cam-1", birth, "1.2.3")
    assert message.retain
    return message.topic, json.loads(message.payload)


def test_the_description_holds_only_what_home_assistant_documents() -> None:
    topic, found = described()
    assert re.fullmatch(r"homeassistant/device/[a-zA-Z0-9_-]+/[a-zA-Z0-9_-]+/config", topic)
    assert found.keys() - SHARED == {"device", "origin", "components"}
    assert found["device"].keys() <= DEVICE
    assert found["device"]["identifiers"] == ["edgekit_hall_cam-1"]
    assert {"name"} <= found["origin"].keys() <= ORIGIN
    ids = [entity["unique_id"] for entity in found["components"].values()]
    assert len(set(ids)) == len(ids) == 4
    for entity in found["components"].values():
        assert entity.keys() <= PLATFORM[entity["platform"]]
        assert "state_topic" in entity
        if entity["platform"] == "sensor":
            assert entity["unit_of_measurement"] in UNITS[entity["device_class"]]
            assert entity["state_class"] == "measurement"
            assert isinstance(entity["expire_after"], int)


@pytest.mark.parametrize(("window_ms", "expires_s"), [(10_000, 30), (100, 1), (60_000, 180)])
def test_numbers_expire_after_three_windows(window_ms: int, expires_s: int) -> None:
    _, found = described(window_ms=window_ms)
    assert {e["expire_after"] for e in found["components"].values() if "expire_after" in e} == {expires_s}


def test_the_status_itself_is_never_unavailable_and_the_numbers_are_when_the_device_is() -> None:
    _, found = described()
    status = found["components"].pop("status")
    assert "availability_topic" not in status
    assert (status["payload_on"], status["payload_off"]) == ("online", "offline")
    assert {e["availability_topic"] for e in found["components"].values()} == {"edgekit/v1/hall/cam-1/status"}


def test_the_templates_read_keys_that_a_summary_has() -> None:
    _, found = described()
    read = {key for e in found["components"].values() for key in re.findall(r"get\('(\w+)'\)", e["value_template"])}
    assert read == {"p50_ms", "p99_ms", "temperature_c"} < set(Summary.__struct_fields__)


def window(*latencies_ms: float, temperature_c: float | None = None) -> Metrics:
    builder = HistogramBuilder(max_scale=4)
    builder.record_many(list(latencies_ms))
    lane = LaneMetrics(model="m", requests=len(latencies_ms), infer_ms=builder.histogram())
    return Metrics(
        epoch=1,
        seq=0,
        t_unix_ms=7,
        t_mono_ms=0,
        window_ms=10_000,
        lanes=(lane,),
        system=Readings(temperature_c=temperature_c),
    )


def test_a_summary_is_over_many_windows_and_says_nothing_that_its_samples_do_not_support() -> None:
    summaries = Summaries()
    few = summaries.after(window(*[5.0] * (P50_SAMPLES - 1), temperature_c=51.5))
    assert (few.samples, few.p50_ms, few.p99_ms, few.temperature_c) == (P50_SAMPLES - 1, None, None, 51.5)
    some = summaries.after(window(5.0))
    assert some.p50_ms == pytest.approx(5.0, rel=0.05)
    assert some.p99_ms is None
    many = summaries.after(window(*[5.0] * (P99_SAMPLES - 40), *[80.0] * 40))
    assert many.samples == P99_SAMPLES + P50_SAMPLES
    bound = relative_error(window(80.0).lanes[0].infer_ms)  # type: ignore[arg-type]
    assert many.p99_ms == pytest.approx(80.0, rel=2 * bound)
    for _ in range(SPAN_WINDOWS):
        last = summaries.after(window())
    assert (last.samples, last.p50_ms) == (0, None), "what is older than the span is forgotten"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    users = [
        User(name="hall/cam-1", role=Role.DEVICE, password="c"),
        User(name="hall/cam-2", role=Role.DEVICE, password="d"),
        User(name="home", role=Role.READER, password="h"),
    ]
    with start_broker(tmp_path / "broker", kind="mosquitto", users=users) as made:
        with (tmp_path / "broker/access-rules").open("a") as rules:
            rules.write("\nuser home\ntopic read homeassistant/#\ntopic read edgekit/v1/#\n")
        (tmp_path / "secret").write_text("c")
        (tmp_path / "home").write_text("h")
        yield made


@pytest.mark.broker
@needs_mosquitto
@pytest.mark.parametrize("wanted", [True, False])
def test_a_device_describes_itself_under_its_own_rights_when_it_is_asked_to(
    broker: Broker, tmp_path: Path, wanted: bool
) -> None:
    broker.process.send_signal(signal.SIGHUP)  # reads the rule of `home`
    heard: list[Received] = []
    settings = {"host": "127.0.0.1", "port": broker.port, "username": "home", "password_file": str(tmp_path / "home")}
    reader = Link(
        MqttConfig(**settings),  # type: ignore[arg-type]
        client_id="home",
        subscriptions=("homeassistant/#", "edgekit/v1/#"),
        opening=Opening,
        on_message=heard.append,
        back_off=QUICK,
    )
    reader.start()
    recorder = Recorder()
    mine = settings | {"username": "hall/cam-1", "password_file": str(tmp_path / "secret")}
    reporter = Reporter(
        MqttConfig(**mine, window_s=0.2, home_assistant=wanted),  # type: ignore[arg-type]
        site="hall",
        device="cam-1",
        state_folder=tmp_path / "state",
        birth=lambda epoch: Birth(epoch=epoch, t_unix_ms=0, board="Pi 5", window_ms=200),
        readings=lambda: Readings(temperature_c=47.0),
        recorder=recorder,
        back_off=QUICK,
    )
    try:
        assert until(lambda: reader.state.connected)
        for _ in range(10):
            recorder.observe(model="m", lane="realtime", artifact="a", infer_ms=4.0)
        reporter.start()

        def topics() -> set[str]:
            return {message.topic for message in heard}

        assert until(lambda: "edgekit/v1/hall/cam-1/metrics" in topics())
        if not wanted:
            assert not [topic for topic in topics() if topic.startswith("homeassistant") or topic.endswith("summary")]
            return
        assert until(lambda: {"homeassistant/device/hall/cam-1/config", "edgekit/v1/hall/cam-1/summary"} <= topics())
        summary = decode("summary", next(m.payload for m in heard if m.topic.endswith("/summary")))
        assert isinstance(summary, Summary)
        assert (summary.samples, summary.temperature_c) == (10, 47.0)
        assert reporter._link.refused == 0
    finally:
        reporter.stop("done", timeout_s=1.0)
        reader.stop()
