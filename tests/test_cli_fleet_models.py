"""`edgekit fleet` row by row: a model a row, groups with `--by`, columns aligned, and the verb on a real broker."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from edgekit.cli.fleet_table import fleet_json, fleet_table, groups_json, groups_table
from edgekit.cli.main import main
from edgekit.groups import BY, Listening, listen
from edgekit.telemetry.broker import Broker, start_broker
from edgekit.telemetry.histogram import HistogramBuilder
from edgekit.telemetry.messages import (
    Birth,
    LaneMetrics,
    Metrics,
    ModelState,
    Received,
    State,
    Status,
    encode,
    topic,
)

Capture = pytest.CaptureFixture[str]
NOON = 1_800_000_000.0


def lane(model: str, count: int, value_ms: float, **more: Any) -> LaneMetrics:
    builder = HistogramBuilder(max_scale=6)
    builder.record_many([value_ms] * count)
    return LaneMetrics(model=model, requests=count, infer_ms=builder.histogram(), **more)


def said(leaf: str, payload: Any, device: str = "cam-1") -> Received:
    return Received(topic=topic("hall", device, leaf), payload=encode(payload), received_s=NOON)


def birth(*models: tuple[str, str]) -> Birth:
    served = tuple(ModelState(model=m, artifact=a, precision="int8", runtime="onnxruntime") for m, a in models)
    return Birth(epoch=1, t_unix_ms=0, board="Raspberry Pi 5", models=served)


def two_models() -> Listening:
    """A detector of 20 ms and a recogniser of 2 ms: one percentile for both would be of neither."""
    window = Metrics(
        epoch=1,
        seq=0,
        t_unix_ms=0,
        t_mono_ms=0,
        window_ms=10_000,
        lanes=(lane("detector", 700, 20.0, artifact="standard"), lane("recogniser", 100, 2.0, artifact="int8")),
    )
    return listen(
        Listening(),
        [said("birth", birth(("detector", "standard"), ("recogniser", "int8"))), said("metrics", window)],
        now_s=NOON,
    )


def drawn(table: Any, width: int = 160) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as taken:
        console.print(table)
    return taken.get().splitlines()


def test_each_model_has_its_own_percentiles_samples_and_rate() -> None:
    lines = drawn(fleet_table(two_models(), NOON, width=160))
    at = next(i for i, line in enumerate(lines) if "detector" in line)
    first, second = lines[at].split(), lines[at + 1].split()
    assert first[:4] == ["hall/cam-1", "online", "detector", "standard"]
    assert float(first[4]) == pytest.approx(20.0, rel=0.02)
    assert first[6:8] == ["700", "70.0"]
    assert second[:2] == ["recogniser", "int8"]
    assert float(second[2]) == pytest.approx(2.0, rel=0.02)
    assert second[3:] == ["–", "100", "10.0"], "too few samples for a p99"


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_the_second_models_figures_stand_under_the_first_ones(width: int) -> None:
    lines = drawn(fleet_table(two_models(), NOON, width=width), width)
    heading = next(line for line in lines if "P50 ms" in line)
    end = heading.index("P50 ms") + len("P50 ms")
    rows = [line for line in lines if "20.0" in line or "2.0" in line[:end].split()[-1:]]
    assert len(rows) >= 2
    assert all(line[end - 1].isdigit() and (len(line) <= end or line[end] == " ") for line in rows)


def test_a_model_that_the_birth_did_not_name_has_a_row_too() -> None:
    window = Metrics(
        epoch=1, seq=0, t_unix_ms=0, t_mono_ms=0, window_ms=1000, lanes=(lane("late", 5, 1.0, artifact="int8"),)
    )
    state = listen(Listening(), [said("birth", birth(("first", "standard"))), said("metrics", window)], now_s=NOON)
    lines = drawn(fleet_table(state, NOON, width=160))
    at = next(i for i, line in enumerate(lines) if "first" in line)
    assert lines[at].split()[2:8] == ["first", "standard", "–", "–", "–", "0.0"]
    assert lines[at + 1].split() == ["late", "int8", "1.00", "–", "5", "5.0"]


def test_json_keeps_the_devices_fields_and_adds_its_models() -> None:
    (device,) = json.loads(json.dumps(fleet_json(two_models(), NOON)))["devices"]
    assert device["latency"]["count"] == 800
    detector, recogniser = device["models"]
    assert (detector["model"], detector["artifact"]) == ("detector", "standard")
    assert detector["p99_ms"] == pytest.approx(20.0, rel=0.02)
    assert (recogniser["p99_ms"], recogniser["latency"]["count"]) == (None, 100)


def test_a_device_that_serves_nothing_has_no_models_in_json() -> None:
    state = listen(Listening(), [said("status", Status(state=State.ONLINE, epoch=1))], now_s=NOON)
    (device,) = fleet_json(state, NOON)["devices"]
    assert device["models"] == []


@pytest.mark.parametrize("by", BY)
def test_a_group_is_a_row_under_its_own_heading(by: str) -> None:
    lines = drawn(groups_table(two_models(), by))
    assert lines[1].split()[0] == by.upper()
    names = {"site": ["hall"], "board": ["Raspberry"], "lane": ["realtime"]}
    wanted = names.get(by, ["detector", "recogniser"] if by == "model" else ["int8", "standard"])
    rows = [line.split() for line in lines[3 : 3 + len(wanted)]]
    assert [row[0] for row in rows] == wanted
    footer = [line for line in lines if line.strip()][-1].split()
    assert footer[:2] == [str(len(wanted)), "groups"]
    assert "800" in footer


def test_failed_requests_of_a_group_are_counted_and_none_is_left_blank() -> None:
    window = Metrics(
        epoch=1, seq=0, t_unix_ms=0, t_mono_ms=0, window_ms=1000, lanes=(lane("x", 1, 1.0, errors=2, rejected=3),)
    )
    rows = drawn(groups_table(listen(Listening(), [said("metrics", window)], now_s=NOON), "model"))
    assert rows[3].split()[-1] == "5"
    assert drawn(groups_table(two_models(), "model"))[3].split()[-1] == "70.0"


def test_groups_as_json_carry_counts_and_the_merged_histogram() -> None:
    value = json.loads(json.dumps(groups_json(two_models(), "artifact", NOON)))
    assert (value["by"], value["at_s"], value["malformed"]) == ("artifact", NOON, 0)
    int8, standard = value["groups"]
    assert int8["artifact"] == "int8"
    assert standard["latency"]["count"] == standard["requests"] == 700
    assert standard["qps"] == pytest.approx(70.0)
    assert standard.keys() == {
        "artifact", "devices", "requests", "errors", "rejected", "cache_hits", "qps", "latency", "p50_ms", "p99_ms",
    }  # fmt: skip


def test_a_groups_name_steers_no_terminal() -> None:
    window = Metrics(epoch=1, seq=0, t_unix_ms=0, t_mono_ms=0, window_ms=1000, lanes=(lane("[red]\x1b[2Jx", 1, 1.0),))
    text = "\n".join(drawn(groups_table(listen(Listening(), [said("metrics", window)], now_s=NOON), "model")))
    assert "\x1b" not in text
    assert "[red]" in text


# The verb, on a broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with start_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="module")
def spoken(broker: Broker) -> Broker:
    """cam-1 is online and retained; cam-2 died."""
    import paho.mqtt.client as mqtt

    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
    client.connect(broker.host, broker.port)
    client.loop_start()
    for device, leaf, payload in (
        ("cam-1", "status", Status(state=State.ONLINE, epoch=1)),
        ("cam-1", "birth", birth(("digits", "int8"))),
        ("cam-2", "status", Status(state=State.OFFLINE, epoch=3, reason="unplugged")),
    ):
        client.publish(topic("hall", device, leaf), encode(payload), qos=1, retain=True).wait_for_publish(5.0)
    client.disconnect()
    client.loop_stop()
    return broker


def fleet(broker: Broker, *words: str) -> int:
    return main(["fleet", *words, "--host", broker.host, "--port", str(broker.port), "--for", "0.4"])


def test_the_verb_shows_what_the_broker_retained(spoken: Broker, capsys: Capture) -> None:
    assert fleet(spoken) == 0
    out, err = capsys.readouterr()
    assert "hall/cam-1" in out
    assert "digits" in out
    assert "offline (unplugged)" in out
    assert "2 devices" in out
    assert err == "no window heard yet; --for 12 waits for one\n"


def test_the_verb_as_json_is_one_value(spoken: Broker, capsys: Capture) -> None:
    before_s = time.time()
    assert fleet(spoken, "--json") == 0
    value = json.loads(capsys.readouterr().out)
    assert before_s <= value["at_s"] <= time.time()
    assert [device["device"] for device in value["devices"]] == ["cam-1", "cam-2"]
    assert value["devices"][0]["models"][0]["model"] == "digits"


def test_the_verb_by_groups_without_a_window_has_none(spoken: Broker, capsys: Capture) -> None:
    assert fleet(spoken, "--by", "model", "--json") == 0
    assert json.loads(capsys.readouterr().out)["groups"] == []


def test_another_site_is_silent_and_exit_1(spoken: Broker, capsys: Capture) -> None:
    assert fleet(spoken, "--site", "nowhere") == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"edgekit fleet: no device was heard within 0.4 s at {spoken.host}:{spoken.port}\n"


def test_forgetting_refuses_who_is_alive_and_clears_who_is_gone(spoken: Broker, capsys: Capture) -> None:
    assert fleet(spoken, "forget", "hall/cam-1", "hall/cam-2") == 1
    out, err = capsys.readouterr()
    assert out == "hall/cam-2: forgotten\n"
    assert err == "edgekit fleet: hall/cam-1 reports still and would come back; stop it first\n"
    assert fleet(spoken, "--json") == 0
    assert [device["device"] for device in json.loads(capsys.readouterr().out)["devices"]] == ["cam-1"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["forget"], "edgekit fleet forget SITE/DEVICE takes one or more devices"),
        (["remember", "hall/cam-1"], "edgekit fleet forget SITE/DEVICE takes one or more devices"),
        (["forget", "cam-1"], "'cam-1' is not SITE/DEVICE"),
        (["forget", "hall/cam-1/x"], "'hall/cam-1/x' is not SITE/DEVICE"),
        (["forget", "hall/cam-1", "hall/+"], "'hall/+' is not SITE/DEVICE"),
        (["forget", "hall/CAM"], "'hall/CAM' is not SITE/DEVICE"),
        (["forget", "/"], "'/' is not SITE/DEVICE"),
    ],
)
def test_what_is_no_device_is_not_forgotten(words: list[str], problem: str, capsys: Capture, tmp_path: Path) -> None:
    assert main(["fleet", *words]) == 2
    assert capsys.readouterr().err == f"edgekit fleet: {problem}\n"


def test_a_grouping_that_is_none_names_those_there_are(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as left:
        main(["fleet", "--by", "colour"])
    assert left.value.code == 2
    err = capsys.readouterr().err
    assert all(f"'{name}'" in err or name in err for name in BY)
