"""The collector: each window once, acknowledged only when stored, poured together exactly, never more than bounded."""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.collect.collector import Collector, Retention
from edgekit.collect.intake import Intake
from edgekit.collect.ledger import Page
from edgekit.collect.prometheus import MOST_GROUPS, FleetCollector, cumulative
from edgekit.collect.rollup import Rollup, merge_all
from edgekit.collect.store import Store
from edgekit.config import MqttConfig
from edgekit.errors import ConfigError
from edgekit.fleet import Fleet
from edgekit.sim.device import Behaviour
from edgekit.sim.fleet import SimFleet
from edgekit.telemetry.broker import Broker, find_mosquitto, start_broker
from edgekit.telemetry.connection import Outgoing
from edgekit.telemetry.histogram import HistogramBuilder, quantile, relative_error
from edgekit.telemetry.messages import Histogram, LaneMetrics, Metrics, Received, encode, topic
from edgekit.telemetry.recording import RecordingWriter, read_recording
from edgekit.telemetry.watch import Watcher
from tests.waiting import until

needs_mosquitto = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
NOW_S = 1_800_000_000.0


def latency(values: list[float]) -> Histogram:
    builder = HistogramBuilder(max_scale=4)
    builder.record_many(values)
    made = builder.histogram()
    assert made is not None
    return made


def window(seq: int, *, epoch: int = 1, device: str = "cam-1", at_s: float = NOW_S, **fields: object) -> Received:
    values = [1.0 + seq, 2.0, 3.0]
    lane = LaneMetrics(model="digits", artifact="int8", requests=3, infer_ms=latency(values))
    made = {"t_unix_ms": int(at_s * 1000), "t_mono_ms": 0, "window_ms": 10_000, "lanes": (lane,), **fields}
    payload = encode(Metrics(epoch=epoch, seq=seq, **made))  # type: ignore[arg-type]
    return Received(topic=topic("hall", device, "metrics"), payload=payload, received_s=at_s + 0.1)


@given(st.lists(st.integers(0, 12)), st.integers(0, 8))
def test_each_window_counts_once_and_the_acknowledged_are_those_without_a_hole(seqs: list[int], oldest: int) -> None:
    page, seen = Page(), set()
    for seq in seqs:
        assert page.enter(seq) is (seq not in seen)
        seen.add(seq)
    hole = next(n for n in range(20) if n not in seen)
    assert page.next == hole
    # The device says what it will not send: up to there nothing is waited for, and what was missing is known.
    page.enter(20, oldest)
    assert page.next >= min(oldest, 20)
    assert page.lost == {n for n in range(oldest) if n not in seen}


def test_a_window_given_up_that_comes_after_all_still_counts_once() -> None:
    page = Page()
    assert page.enter(5, 5)
    assert (page.next, page.lost) == (6, {0, 1, 2, 3, 4})
    assert [page.enter(3), page.enter(3)] == [True, False]
    assert page.lost == {0, 1, 2, 4}


def test_hostile_sequence_numbers_cost_a_bounded_amount_of_memory() -> None:
    page = Page()
    for seq in range(1, 400_000, 2):
        page.enter(seq)
    page.enter(2**53, 2**53)
    assert len(page.ahead) + len(page.lost) <= 2 * 65_536


def commit(store: Store, intake: Intake, messages: list[Received]) -> None:
    intake.take(messages)
    batch = intake.taken()
    store.commit(batch.windows, batch.events, batch.pages, now_ms=int(NOW_S * 1000))
    intake.stored(batch, int(NOW_S * 1000) + 200)


def test_what_was_stored_is_known_after_a_restart_and_what_was_not_comes_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "h.db")
    intake = Intake(store)
    commit(store, intake, [window(seq) for seq in (0, 1, 2, 4)])
    intake.take([window(3), window(5)])  # taken in, but the power goes before it is stored
    store.close()
    store = Store(tmp_path / "h.db")
    intake = Intake(store)
    commit(store, intake, [window(seq) for seq in range(7)])
    assert sorted(w.seq for w in store.windows()) == list(range(7))
    assert (intake.counts.windows, intake.counts.duplicates) == (3, 4)
    assert store.page(1, 1).next == 7
    store.close()


def test_rollups_hold_every_sample_once_over_restarts_and_at_every_level(tmp_path: Path) -> None:
    dice = random.Random(3)
    exact: list[float] = []
    path = tmp_path / "h.db"
    for part in range(4):
        store = Store(path)
        intake = Intake(store)
        messages = []
        for seq in range(part * 50, part * 50 + 50):
            values = [dice.lognormvariate(1.0, 0.5) for _ in range(20)]
            exact += values
            lane = LaneMetrics(model="m", requests=20, infer_ms=latency(values))
            messages.append(window(seq, at_s=NOW_S + seq * 60.0, clock_synced=True, lanes=(lane,)))
        commit(store, intake, messages)
        if part % 2:  # else the process dies before it pours: the next one makes up for it from the windows
            store.pour(intake.poured(), rolled=intake.newest)
        store.close()
    store = Store(path)
    exact.sort()
    for level_s, spans in ((300, 41), (3600, 5)):
        rollups = dict(store.rollups(level_s))
        total = merge_all(rollups.values())
        assert total.infer_ms is not None
        assert (total.windows, total.requests, total.infer_ms.count) == (200, 4000, 4000)
        assert abs(len(rollups) - spans) <= 1
        for q in (0.5, 0.9, 0.99):
            wanted = exact[int(q * 4000) - 1]
            assert quantile(total.infer_ms, q) == pytest.approx(wanted, rel=relative_error(total.infer_ms) + 1e-9)
    store.forget_before(windows_ms=int((NOW_S + 6000) * 1000), rollups_s={300: NOW_S + 6000, 3600: 0}, pages_ms=0)
    assert next(store.windows()).seq == 100
    assert merge_all(r for _, r in store.rollups(3600)).windows == 200
    assert merge_all(r for _, r in store.rollups(300)).windows < 110
    store.close()


def test_garbage_changes_nothing_and_is_counted(tmp_path: Path) -> None:
    dice = random.Random(1)
    store = Store(tmp_path / "h.db")
    intake = Intake(store)
    topics = [
        topic("hall", d, leaf) for d in ("cam-1", "x\n", "_all", "A") for leaf in ("metrics", "event", "nonsense")
    ]
    good = window(0).payload
    junk = [dice.randbytes(dice.randrange(200)) for _ in range(2000)]
    junk += [good[: dice.randrange(len(good))] for _ in range(500)]
    junk += [
        b'{"a":' * 5000,
        b"[" * 10_000,
        good.replace(b'"seq":0', b'"seq":-1'),
        good.replace(b'"count":3', b'"count":9'),
    ]
    junk += [good.replace(b'"v":1', b'"v":2'), good.replace(b'"seq":0', b'"seq":99999999999999999999')]
    messages = [Received(topic=dice.choice(topics), payload=payload, received_s=NOW_S) for payload in junk]
    commit(store, intake, [*messages, window(0), window(1, device="cam-2")])
    assert intake.counts.windows == 2
    assert intake.counts.malformed > 1000
    store.close()


def test_a_file_that_is_no_history_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello " * 1000)
    with sqlite3.connect(tmp_path / "newer") as db:
        db.execute("PRAGMA user_version = 7")
    db.close()
    for name, word in (("text", "not a database"), ("newer", "format is 7")):
        with pytest.raises(ConfigError, match=word):
            Store(tmp_path / name)


def test_a_forgotten_device_leaves_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "h.db")
    intake = Intake(store)
    commit(store, intake, [window(0), window(0, device="cam-2")])
    store.pour(intake.poured(), rolled=intake.newest)
    assert store.forget("hall", "cam-1")
    assert not store.forget("hall", "cam-1")
    assert [w.device for w in store.windows()] == [store.devices["hall", "cam-2"]]
    assert len(list(store.rollups(300))) == 1
    store.close()


def test_a_recording_reads_back_as_it_was_and_up_to_where_it_was_cut(tmp_path: Path) -> None:
    messages = [window(seq) for seq in range(20)]
    writer = RecordingWriter(tmp_path / "r")
    writer.write(messages)
    writer.close()
    assert list(read_recording(tmp_path / "r")) == messages
    (tmp_path / "cut").write_bytes((tmp_path / "r").read_bytes()[:-10])
    assert list(read_recording(tmp_path / "cut")) == messages[:-1]
    (tmp_path / "no").write_text("something else")
    with pytest.raises(ConfigError, match="is no recording"):
        list(read_recording(tmp_path / "no"))
    with pytest.raises(ConfigError, match="File exists"):
        RecordingWriter(tmp_path / "r")


def test_prometheus_buckets_are_exact_at_their_edges() -> None:
    values = [random.Random(5).lognormvariate(2.0, 1.0) for _ in range(1)] + [0.0, 1.0, 2.0, 2.001, 64.0, 1e9]
    buckets = dict(cumulative(latency(values)))
    for edge, count in buckets.items():
        if edge != "+Inf":
            assert count == sum(v <= float(edge) * 1000 for v in values), edge
    assert buckets["+Inf"] == len(values)


def test_prometheus_series_are_bounded_whatever_names_devices_invent() -> None:
    groups = {("s", f"model-{i}", "l", "a"): Rollup(windows=1, requests=i) for i in range(3 * MOST_GROUPS)}
    counts = dict.fromkeys(("windows", "historical", "duplicates", "malformed"), 0) | {
        "delay_p99_ms": None,
        "state": "",
    }
    families = {m.name: m for m in FleetCollector(lambda: (Fleet(), groups, counts)).collect()}
    requests = families["edgekit_requests"].samples
    assert len(requests) == MOST_GROUPS + 1
    assert sum(s.value for s in requests) == sum(range(3 * MOST_GROUPS))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with start_broker(tmp_path_factory.mktemp("broker"), kind="mosquitto") as running:
        yield running


def start_verb(broker: Broker, data: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "edgekit.cli.main", "collect", "--port", str(broker.port), "--data", str(data)]
    verb = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert verb.stderr is not None
    while "connected" not in (line := verb.stderr.readline()):
        assert line, verb.communicate()
    return verb


@pytest.mark.broker
@needs_mosquitto
def test_every_window_of_a_flapping_fleet_is_in_once_and_acknowledged(broker: Broker, tmp_path: Path) -> None:
    verb = start_verb(broker, tmp_path / "h.db", "--json", "--commit-ms", "50", "--record", str(tmp_path / "r"))
    behaviour = Behaviour(window_s=0.3, drops_per_h=900.0, deaths_per_h=200.0)
    fleet = SimFleet(MqttConfig(host="127.0.0.1", port=broker.port), behaviour, devices=40, seed=4)
    tally = fleet.run(4.0, drain_s=40.0)
    verb.send_signal(signal.SIGTERM)
    answer, talk = verb.communicate(timeout=20)
    assert verb.returncode == 0, talk
    assert tally.drops > 10
    assert (tally.waiting, tally.lost) == (0, 0)
    store = Store(tmp_path / "h.db")
    stored = [(*store.names[w.device], w.epoch, w.seq) for w in store.windows()]
    made = [
        (*name.split("/"), epoch, seq)
        for name, epochs in tally.made.items()
        for epoch, count in epochs.items()
        for seq in range(count)
    ]
    assert sorted(stored) == sorted(made)
    assert merge_all(r for _, r in store.rollups(300)).windows == len(made)
    store.close()
    assert json.loads(answer)["windows"] == len(made)
    assert sum(m.topic.endswith("/metrics") for m in read_recording(tmp_path / "r")) >= len(made)


@pytest.mark.broker
@needs_mosquitto
def test_the_endpoint_answers_prometheus(broker: Broker, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "edgekit.cli.main", "collect", "--port", str(broker.port), "--prometheus", "0"]
    verb = subprocess.Popen([*command, "--data", str(tmp_path / "h.db")], stderr=subprocess.PIPE, text=True)
    assert verb.stderr is not None
    address = verb.stderr.readline().split("metrics on ")[1].strip()
    with urllib.request.urlopen(address, timeout=5) as answer:
        text = answer.read().decode()
    verb.send_signal(signal.SIGINT)
    verb.communicate(timeout=10)
    assert verb.returncode == 0
    assert "edgekit_collector_windows_total 0.0" in text


def test_settings_that_can_never_work_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="host"):
        Collector(MqttConfig(), tmp_path / "h.db", retention=Retention())


@pytest.mark.broker
@needs_mosquitto
def test_a_device_cleared_from_the_broker_is_gone_from_the_history_too(broker: Broker, tmp_path: Path) -> None:
    config = MqttConfig(host="127.0.0.1", port=broker.port)
    collector = Collector(config, tmp_path / "h.db", sites=["cellar"], commit_s=0.05)
    thread = threading.Thread(target=collector.run)
    thread.start()
    assert until(lambda: collector.state == "connected")
    speaker = Watcher(config, sites=["cellar"])
    speaker.start()
    assert until(lambda: speaker.connected)
    for name in ("one", "two"):
        speaker._link.send(Outgoing(topic("cellar", name, "metrics"), window(0).payload))
    assert until(lambda: collector.view()[2]["windows"] == 2)
    speaker.forget("cellar", "one")
    assert until(lambda: collector.view()[2]["devices"] == 1)
    assert until(lambda: [key for key in collector.view()[0].devices if key[0] == "cellar"] == [("cellar", "two")])
    collector.stop()
    thread.join()
    speaker.stop()
    store = Store(tmp_path / "h.db")
    assert [store.names[w.device] for w in store.windows()] == [("cellar", "two")]
    store.close()


def test_the_alert_rules_ask_only_for_what_there_is() -> None:
    rules = (Path(__file__).resolve().parent.parent / "docs/prometheus-alerts.yml").read_text()
    counts = dict.fromkeys(("windows", "historical", "duplicates", "malformed"), 0) | {"delay_p99_ms": 1.0, "state": ""}
    known = set()
    for family in FleetCollector(lambda: (Fleet(), {}, counts)).collect():
        known |= {family.name, f"{family.name}_total"}
    asked = set(re.findall(r"\bedgekit_\w+", rules))
    assert len(asked) >= 6
    assert asked <= known


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_the_alert_rules() -> None:
    rules = Path(__file__).resolve().parent.parent / "docs/prometheus-alerts.yml"
    checked = subprocess.run(["promtool", "check", "rules", str(rules)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
