"""Collectors that share a real PostgreSQL: N equal one, a site belongs to one of them, and a crash loses nothing."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="needs psycopg; to mend it: pip install 'edgekit-deploy[postgres]'")

from edgekit.cli.main import main
from edgekit.collect.collector import Collector
from edgekit.collect.history import History, open_history
from edgekit.collect.intake import Intake
from edgekit.collect.postgres import MIGRATIONS, Postgres, lock_key
from edgekit.collect.rollup import LEVELS_S, Rollup, merge_all
from edgekit.collect.store import Store
from edgekit.config import MqttConfig
from edgekit.errors import ConfigError, UnreachableError
from edgekit.sim.device import Behaviour
from edgekit.sim.fleet import SimFleet
from edgekit.telemetry.broker import Broker, find_mosquitto, start_broker
from edgekit.telemetry.histogram import HistogramBuilder
from edgekit.telemetry.messages import Histogram, LaneMetrics, Metrics, Received, encode, topic
from tests.postgres import PostgresServer, find_initdb
from tests.waiting import until

pytestmark = pytest.mark.skipif(find_initdb() is None, reason="needs PostgreSQL; to mend it: apt install postgresql")
needs_mosquitto = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
NOW_S = 1_800_000_000.0


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    made = PostgresServer()
    yield made
    made.close()


@pytest.fixture
def schema(server: PostgresServer, request: pytest.FixtureRequest) -> str:
    """Tables of its own for each test."""
    name = f"t{zlib.crc32(request.node.name.encode())}"
    server.sql(f"DROP SCHEMA IF EXISTS {name} CASCADE; CREATE SCHEMA {name}")
    return name


@pytest.fixture
def address(server: PostgresServer, schema: str) -> str:
    return server.address(schema)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with start_broker(tmp_path / "broker") as running:
        yield running


def latency(values: list[float]) -> Histogram:
    builder = HistogramBuilder(max_scale=4)
    builder.record_many(values)
    made = builder.histogram()
    assert made is not None
    return made


def window(site: str, device: str, seq: int, *, at_s: float = NOW_S, values: list[float] | None = None) -> Received:
    lane = LaneMetrics(model="digits", artifact="int8", requests=3, infer_ms=latency(values or [1.0 + seq, 2.0, 3.0]))
    made = Metrics(epoch=1, seq=seq, t_unix_ms=int(at_s * 1000), t_mono_ms=0, window_ms=10_000, lanes=(lane,))
    return Received(topic=topic(site, device, "metrics"), payload=encode(made), received_s=at_s + 0.1)


def commit(history: History, intake: Intake, messages: list[Received]) -> None:
    intake.take(messages)
    batch = intake.taken()
    history.commit(batch.windows, batch.events, batch.pages, now_ms=int(NOW_S * 1000))
    intake.stored(batch, int(NOW_S * 1000) + 200)


def content(
    history: Store | Postgres,
) -> tuple[list[tuple[str, str, int, int, bytes]], dict[tuple[object, ...], Rollup]]:
    """(all windows, all rollups) by names, which is what two histories can be compared by."""
    windows = sorted((*history.names[w.device], w.epoch, w.seq, w.payload) for w in history.windows())
    rollups = {
        (level_s, p.start_s, *history.names[p.device], p.model, p.lane, p.artifact): rollup
        for level_s in LEVELS_S
        for p, rollup in history.rollups(level_s)
    }
    return windows, rollups


def test_three_collectors_that_share_a_database_equal_one_with_a_file(address: str, tmp_path: Path) -> None:
    dice = random.Random(5)
    traffic = [
        window(site, f"cam-{n}", seq, at_s=NOW_S + seq * 40.0, values=[dice.lognormvariate(1, 0.6) for _ in range(9)])
        for site in ("north", "south", "west")
        for n in range(4)
        for seq in range(30)
    ]
    dice.shuffle(traffic)
    alone = Store(tmp_path / "h.db")
    one = Intake(alone)
    shares = {site: Postgres(address, sites=[site]) for site in ("north", "south", "west")}
    intakes = {site: Intake(history) for site, history in shares.items()}
    for start in range(0, len(traffic), 40):
        part = traffic[start : start + 40]
        commit(alone, one, part + part[:7])  # some come twice
        for site, history in shares.items():
            ours = [m for m in part + part[:7] if f"/{site}/" in m.topic]
            commit(history, intakes[site], ours)
            if start % 80 == 0:
                history.pour(intakes[site].poured(), rolled=intakes[site].newest)
    alone.pour(one.poured(), rolled=one.newest)
    for site, history in shares.items():
        history.pour(intakes[site].poured(), rolled=intakes[site].newest)
        history.close()
    together = Postgres(address)
    windows, rollups = content(together)
    wanted_windows, wanted_rollups = content(alone)
    assert windows == wanted_windows
    assert rollups.keys() == wanted_rollups.keys()
    for place, wanted in wanted_rollups.items():
        found = rollups[place]
        assert (found.infer_ms.counts, found.infer_ms.offset) == (wanted.infer_ms.counts, wanted.infer_ms.offset)
        assert found.infer_ms.sum == pytest.approx(wanted.infer_ms.sum)  # of floats, in another order
        assert (found.requests, found.windows) == (wanted.requests, wanted.windows)
    assert sum(i.counts.duplicates for i in intakes.values()) == one.counts.duplicates > 0
    together.close()
    alone.close()


def test_a_site_that_moves_to_another_collector_goes_on_where_it_was(address: str) -> None:
    first = Postgres(address, sites=["north", "south"])
    intake = Intake(first)
    commit(first, intake, [window("north", "a", 0), window("south", "b", 0), window("north", "a", 1)])
    first.pour(intake.poured(), rolled=intake.newest)
    commit(first, intake, [window("north", "a", 2), window("south", "b", 1)])
    first.close()  # killed before it poured the last two

    second = Postgres(address, sites=["south"])
    intake = Intake(second)
    assert second.devices.keys() == {("south", "b")}
    commit(second, intake, [window("south", "b", seq) for seq in range(4)])
    assert (intake.counts.windows, intake.counts.duplicates) == (2, 2)
    second.pour(intake.poured(), rolled=intake.newest)
    assert merge_all(r for _, r in second.rollups(300)).windows == 4
    second.close()

    third = Postgres(address, sites=["north"])
    intake = Intake(third)
    third.pour(intake.poured(), rolled=intake.newest)
    assert merge_all(r for _, r in third.rollups(3600)).windows == 3
    assert third.page(third.devices["north", "a"], 1).next == 3
    third.close()


@pytest.mark.parametrize(
    ("held", "wanted", "problem"),
    [
        (["north"], ["north"], "another collector collects site north"),
        (["north", "south"], ["west", "south"], "another collector collects site south"),
        ([], ["north"], "another collector collects all sites"),
        (["north"], [], "another collector collects some sites of it"),
        ([], [], "another collector collects some sites of it"),
    ],
)
def test_a_site_belongs_to_one_collector_at_a_time(
    address: str, held: list[str], wanted: list[str], problem: str
) -> None:
    holder = Postgres(address, sites=held)
    with pytest.raises(ConfigError, match=problem):
        Postgres(address, sites=wanted)
    holder.close()
    Postgres(address, sites=wanted).close()


def test_a_collector_that_has_left_is_in_nobodys_way_although_the_server_has_not_noticed(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of its session is held back here: by then its locks are gone."""
    import psycopg

    held_back: list[Any] = []
    end = psycopg.Connection.close
    monkeypatch.setattr(psycopg.Connection, "close", lambda connection: held_back.append(connection))
    holder = Postgres(address, sites=["north"])
    with pytest.raises(ConfigError):
        Postgres(address, sites=["south", "north"])
    Postgres(address, sites=["south"]).close()
    holder.close()
    Postgres(address, sites=["north"]).close()
    assert len(held_back) == 4
    for connection in held_back:
        end(connection)


def test_collectors_of_different_sites_do_not_meet(address: str) -> None:
    both = [Postgres(address, sites=[site]) for site in ("north", "south")]
    assert [history.next_number for history in both] == [1, 1]
    for history in both:
        history.close()
    names = [f"site-{n}" for n in range(2000)]
    keys = {lock_key(name) for name in names}
    assert len(keys) == len(names)
    assert all(0 < key < 2**31 for key in keys)


def test_collectors_that_start_together_make_the_tables_once(address: str) -> None:
    problems: list[Exception] = []

    def start(site: str) -> None:
        try:
            Postgres(address, sites=[site]).close()
        except Exception as e:  # noqa: BLE001 - whatever it is, the test shows it
            problems.append(e)

    threads = [threading.Thread(target=start, args=(f"s{n}",)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_a_commit_is_all_or_nothing_and_says_so(address: str, server: PostgresServer) -> None:
    history = Postgres(address, sites=["north"])
    intake = Intake(history)
    commit(history, intake, [window("north", "a", 0)])
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'edgekit collect'")
    with pytest.raises(history.errors):
        commit(history, intake, [window("north", "a", 1), window("north", "new", 0)])
    history.close()
    again = Postgres(address, sites=["north"])
    assert [w.seq for w in again.windows()] == [0]
    assert again.devices.keys() == {("north", "a")}
    again.close()


def test_one_that_was_cut_off_can_store_nothing_after_another_took_over(address: str, server: PostgresServer) -> None:
    stale = Postgres(address, sites=["north"])
    intake = Intake(stale)
    commit(stale, intake, [window("north", "a", 0)])
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'edgekit collect'")
    assert until(lambda: _opens(address))
    new = Postgres(address, sites=["north"])
    fresh = Intake(new)
    commit(new, fresh, [window("north", "a", 0), window("north", "a", 1)])
    with pytest.raises(stale.errors):
        commit(stale, intake, [window("north", "a", 1)])
    assert [w.seq for w in new.windows()] == [0, 1]
    stale.close()
    new.close()


def _opens(address: str) -> bool:
    try:
        Postgres(address, sites=["north"]).close()
    except ConfigError:
        return False
    return True


def test_what_is_old_goes_but_not_what_no_rollup_holds_yet(address: str) -> None:
    history = Postgres(address, sites=["north"])
    intake = Intake(history)
    commit(history, intake, [window("north", "a", seq, at_s=NOW_S + seq * 3600) for seq in range(3)])
    late_ms = int((NOW_S + 10**6) * 1000)
    history.forget_before(windows_ms=late_ms, rollups_s={300: 0.0}, pages_ms=0)
    assert [w.seq for w in history.windows()] == [0, 1, 2], "not poured yet"
    history.pour(intake.poured(), rolled=intake.newest)
    history.forget_before(windows_ms=late_ms, rollups_s={300: NOW_S + 3600, 3600: 0.0}, pages_ms=late_ms)
    assert list(history.windows()) == []
    assert {p.start_s for p, _ in history.rollups(300)} == {int(NOW_S) + 7200, int(NOW_S) + 3600}
    assert len(list(history.rollups(3600))) == 3
    assert history.page(history.devices["north", "a"], 1).next == 0
    history.close()


def test_a_device_that_is_forgotten_leaves_nothing_and_its_neighbour_stays(
    address: str, schema: str, server: PostgresServer
) -> None:
    history = Postgres(address)
    intake = Intake(history)
    commit(history, intake, [window("north", "a", 0), window("north", "b", 0)])
    history.pour(intake.poured(), rolled=intake.newest)
    assert history.forget("north", "a")
    assert not history.forget("north", "a")
    assert [history.names[w.device] for w in history.windows()] == [("north", "b")]
    tables = ("page", "window", "rollup", "device")
    counts = [server.sql(f"SELECT count(*) FROM edgekit_{t}", schema) for t in tables]
    assert counts == ["1", "1", "2", "1"]
    history.close()


def test_a_role_that_may_not_create_tables_uses_those_of_the_printed_script(
    address: str, schema: str, server: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["collect", "--print-schema"]) == 0
    server.sql(capsys.readouterr().out, schema)
    server.sql(
        f"DROP ROLE IF EXISTS limited; CREATE ROLE limited LOGIN; GRANT USAGE ON SCHEMA {schema} TO limited; "
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO limited"
    )
    history = Postgres(server.address(schema, user="limited"), sites=["north"])
    commit(history, Intake(history), [window("north", "a", 0)])
    assert [w.seq for w in history.windows()] == [0]
    history.close()
    server.sql("DROP OWNED BY limited; DROP ROLE limited")


def test_a_newer_format_is_refused(address: str, schema: str, server: PostgresServer) -> None:
    Postgres(address).close()
    server.sql(f"UPDATE edgekit_schema SET version = {len(MIGRATIONS) + 1}", schema)
    with pytest.raises(ConfigError, match=f"its format is {len(MIGRATIONS) + 1}, this edgekit reads {len(MIGRATIONS)}"):
        Postgres(address)


def test_commits_are_durable_whatever_the_servers_default(address: str, server: PostgresServer) -> None:
    history = Postgres(address + "%20-csynchronous_commit%3Doff")
    row = history._db.execute("SHOW synchronous_commit").fetchone()
    assert row == ("on",)
    history.close()


@pytest.mark.parametrize(
    ("data", "code", "problem"),
    [
        ("postgresql://u:secret@127.0.0.1/db", 3, "passwords come by file"),
        ("postgresql://u@127.0.0.1/db?password=x", 3, "passwords come by file"),
        ("postgresql://u@127.0.0.1:1/db", 4, "127.0.0.1"),
        ("mysql://u@127.0.0.1/db", 2, "a file, or postgresql://USER@HOST/DATABASE"),
    ],
)
def test_what_cannot_be_a_database_is_one_line(data, code, problem, capsys, edgekit_home) -> None:
    assert main(["collect", "--data", data, "--host", "127.0.0.1", "--for", "1"]) == code
    said = capsys.readouterr().err.strip()
    assert problem in said
    assert "secret" not in said
    assert len(said.splitlines()) == 1


def test_a_password_file_that_is_not_there_is_said(address: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        open_history(address, password_file=tmp_path / "none")
    (tmp_path / "some").write_text("x\n")
    open_history(address, password_file=tmp_path / "some").close()


@pytest.mark.broker
@needs_mosquitto
def test_two_collectors_of_a_flapping_fleet_on_a_server_that_crashes_have_every_window_once(
    broker: Broker, address: str, server: PostgresServer
) -> None:
    config = MqttConfig(host="127.0.0.1", port=broker.port)
    collectors = [Collector(config, address, sites=[site], commit_s=0.05) for site in ("site-0", "site-1")]
    threads = [threading.Thread(target=collector.run) for collector in collectors]
    for thread in threads:
        thread.start()
    assert until(lambda: all(c.state == "connected" for c in collectors))
    behaviour = Behaviour(window_s=0.3, drops_per_h=600.0, history_per_s=200.0)
    fleet, tallies = SimFleet(config, behaviour, devices=8, sites=2), []
    for device in fleet._devices:  # what the server forgot is sent again soon
        device.outbox._first_resend_s = device.outbox._resend_s = 1.0
    driver = threading.Thread(target=lambda: tallies.append(fleet.run(2.5, drain_s=60.0)))
    driver.start()
    assert until(lambda: all(c.view()[2]["windows"] > 4 for c in collectors))
    server.crash()
    server.start()
    driver.join()
    for collector, thread in zip(collectors, threads, strict=True):
        collector.stop()
        thread.join()
    made = [
        (*name.split("/"), epoch, seq)
        for name, epochs in tallies[0].made.items()
        for epoch, count in epochs.items()
        for seq in range(count)
    ]
    assert (tallies[0].waiting, tallies[0].lost) == (0, 0)
    history = Postgres(address)
    assert sorted((*history.names[w.device], w.epoch, w.seq) for w in history.windows()) == sorted(made)
    assert merge_all(r for _, r in history.rollups(300)).windows == len(made)
    assert {site for site, _ in history.devices} == {"site-0", "site-1"}
    history.close()


@pytest.mark.broker
@needs_mosquitto
def test_the_verb_writes_to_the_database(broker: Broker, address: str) -> None:
    words = [sys.executable, "-m", "edgekit.cli.main", "collect", "--port", str(broker.port), "--site", "north"]
    done = subprocess.run([*words, "--data", address, "--for", "1"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"edgekit collect: {address}" in done.stderr
    assert "0 windows of 0 devices" in done.stdout


def test_a_server_that_is_not_there_is_unreachable() -> None:
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1"):
        Postgres("postgresql://u@127.0.0.1:1/db")
