"""Alerts: what raises one, how long it lasts, when it rings; and the file they come from."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from textual.pilot import Pilot

from edgekit.errors import ConfigError
from edgekit.fleet import Fleet
from edgekit_tui.alerts import DEFAULT, Alarm, Bell, Rule, Rules, is_quiet, read_rules
from edgekit_tui.app import Console
from edgekit_tui.device_screen import DeviceScreen
from edgekit_tui.main import NOTICES
from edgekit_tui.news import Folded
from edgekit_tui.notices import WAYS, sequence
from tests.tui.changed import replace
from tests.tui.simulated import NOW_S, drive, lived, lived_view, text_of

VIEW = lived_view()
SLOW = next(row for row in VIEW.rows if row.device == "line-2-cam")
WELL = next(row for row in VIEW.rows if row.device == "mail-scan")


def test_the_built_in_rules_find_what_is_wrong() -> None:
    found = {(alert.rule, alert.device) for alert in VIEW.alerts}
    assert found == {
        ("slow", "line-2-cam"), ("throttled", "line-2-cam"), ("offline", "dock-3"), ("offline", "bench-coral"),
        ("selection", "dock-2"),
    }  # fmt: skip
    assert "over 96.0 for 3 windows" in next(alert.text for alert in VIEW.alerts if alert.rule == "slow")


def found(rule: Rule, *rows: object) -> list[str]:
    return [one.text for one in Alarm(Rules(rule=(rule,))).step(rows, Fleet(), NOW_S)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rule", "change", "text"),
    [
        (Rule(name="r", when="offline"), {"state": "offline", "reason": "power cut"}, "power cut"),
        (Rule(name="r", when="offline"), {"state": "stale"}, "offline"),
        (Rule(name="r", when="offline"), {"state": "late"}, None),
        (Rule(name="r", when="drops"), {"dropped": 1200}, "1,200 messages dropped"),
        (Rule(name="r", when="drops"), {}, None),
        (Rule(name="r", when="drops"), {"dropped": 5, "state": "stale"}, None),
        (Rule(name="r", when="throttled"), {"throttled": True}, "the board slows itself down"),
        (Rule(name="r", when="throttled"), {"throttled": True, "state": "offline"}, None),
        (Rule(name="r", when="selection"), {"throttled": True, "state": "offline"}, None),
    ],
)
def test_a_rule_says_what_it_found(rule: Rule, change: dict[str, object], text: str | None) -> None:
    assert found(rule, replace(WELL, **change)) == ([] if text is None else [text])


def test_a_rule_of_one_window_and_the_latest_figure_in_its_words() -> None:
    history = tuple(replace(WELL.history[-1], p99_ms=p99) for p99 in (60.0, 70.0, 80.0))
    row = replace(WELL, p99_ms=75.0, history=history, limit_ms=50.0)
    assert found(Rule(name="r", when="p99", windows=1), row) == ["p99 80.0 ms, over 50.0 for a window"]
    assert found(Rule(name="r", when="p99", windows=2), row) == ["p99 80.0 ms, over 50.0 for 2 windows"]
    assert found(Rule(name="r", when="p99", over_ms=70.0, windows=1), row) == ["p99 80.0 ms, over 70.0 for a window"]
    assert found(Rule(name="r", when="p99", over_ms=70.0, windows=2), row) == [], "at the bound is not over it"
    assert found(Rule(name="r", when="p99", over_ms=75.0, windows=1), row) == []
    assert found(Rule(name="r", when="p99", windows=4), row) == [], "so many windows are not known"
    assert found(Rule(name="r", when="p99", windows=1), replace(row, limit_ms=None)) == []


def test_a_device_is_offline_once_and_each_of_its_models_slow_by_itself() -> None:
    both = [row for row in VIEW.rows if row.device == "gate-north"]
    assert len(found(Rule(name="r", when="offline"), *(replace(row, state="offline") for row in both))) == 1
    assert len(found(Rule(name="r", when="p99", over_ms=0.001), *both)) == 2


def test_the_newest_alert_comes_first() -> None:
    alarm = Alarm(Rules(rule=(Rule(name="hot", when="throttled"),)))
    first, second = (replace(WELL, device=name, throttled=True) for name in "ab")
    alarm.step([first], Fleet(), NOW_S)
    assert [one.device for one in alarm.step([first, second], Fleet(), NOW_S + 5)] == ["b", "a"]


def test_one_slow_window_is_no_alert_and_so_many_are() -> None:
    points = [replace(WELL.history[-1], p99_ms=p99) for p99 in (1.0, 90.0, 90.0)]
    alarm = Alarm(Rules(rule=(Rule(name="slow", when="p99", over_ms=50.0, windows=3),)))
    assert alarm.step([replace(WELL, p99_ms=80.0, history=tuple(points))], Fleet(), NOW_S) == ()
    points.append(points[-1])
    assert alarm.step([replace(WELL, p99_ms=8.0, history=tuple(points))], Fleet(), NOW_S) == (), "three lone outliers"
    assert len(alarm.step([replace(WELL, p99_ms=80.0, history=tuple(points))], Fleet(), NOW_S)) == 1


def test_an_alert_stays_until_it_is_over_and_known() -> None:
    alarm = Alarm(Rules(rule=(Rule(name="hot", when="throttled"),)))
    hot, cool = replace(WELL, throttled=True), replace(WELL, throttled=False)
    (first,) = alarm.step([hot], Fleet(), NOW_S)
    (still,) = alarm.step([hot], Fleet(), NOW_S + 60)
    assert still.since_s == NOW_S
    (over,) = alarm.step([cool], Fleet(), NOW_S + 90)
    assert (over.ended, over.acknowledged) == (True, False)
    alarm.acknowledge(first)
    assert alarm.step([cool], Fleet(), NOW_S + 91) == ()
    (again,) = alarm.step([hot], Fleet(), NOW_S + 99)
    assert again.since_s == NOW_S + 99
    assert not again.acknowledged, "what comes back is new"


def test_an_acknowledged_alert_stays_while_it_lasts_and_sinks_to_the_end() -> None:
    alarm = Alarm(Rules(rule=(Rule(name="hot", when="throttled"),)))
    rows = [replace(WELL, device=name, throttled=True) for name in ("a", "b")]
    first, _ = alarm.step(rows, Fleet(), NOW_S)
    alarm.acknowledge(first)
    assert [(one.device, one.acknowledged) for one in alarm.step(rows, Fleet(), NOW_S + 1)] == [
        ("b", False),
        ("a", True),
    ]


def test_a_rule_may_be_for_some_devices_only() -> None:
    alarm = Alarm(Rules(rule=(Rule(name="hot", when="throttled", only="site:berlin"),)))
    assert [one.device for one in alarm.step(VIEW.rows, VIEW.fleet, NOW_S)] == ["line-2-cam"]
    elsewhere = Alarm(Rules(rule=(Rule(name="hot", when="throttled", only="site:porto"),)))
    assert elsewhere.step(VIEW.rows, VIEW.fleet, NOW_S) == ()


def test_a_selection_is_told_once() -> None:
    alarm = Alarm()
    (one,) = (alert for alert in alarm.step((), VIEW.fleet, NOW_S) if alert.rule == "selection")
    alarm.acknowledge(one)
    assert alarm.step((), VIEW.fleet, NOW_S + 1) == ()
    assert alarm.step((), VIEW.fleet, NOW_S + 2) == ()


def test_rules_of_selections_keep_to_their_devices_and_each_is_heard() -> None:
    names = {"here": "site:porto", "there": "site:berlin", "all": ""}
    rules = Rules(rule=tuple(Rule(name=name, when="selection", only=only) for name, only in names.items()))
    alerts = Alarm(rules).step(VIEW.rows, VIEW.fleet, NOW_S)
    assert sorted((one.rule, one.device) for one in alerts) == [("all", "dock-2"), ("here", "dock-2")]
    assert {one.text for one in alerts} == {"ocr-detector: int8-static for fp32, p99 19.2 for 33.5 ms"}


def test_only_loud_rules_ring() -> None:
    rows = [replace(WELL, throttled=True, dropped=3)]
    bell = Bell(DEFAULT)
    bell.rings((), NOW_S)
    assert [one.rule for one in bell.rings(Alarm().step(rows, VIEW.fleet, NOW_S), NOW_S)] == ["drops"]


def test_the_bell_rings_once_for_what_is_new_and_not_at_night() -> None:
    hour = time.strftime("%H", time.localtime(NOW_S))
    alerts = Alarm().step([replace(WELL, state="offline")], Fleet(), NOW_S)
    bell = Bell(DEFAULT)
    assert not bell.rings(alerts, NOW_S), "what was there before we came rings no bell"
    assert [Bell(DEFAULT).rings((), NOW_S), bell.rings((), NOW_S)] == [[], []]
    assert bell.rings(alerts, NOW_S)
    assert not bell.rings(alerts, NOW_S)
    night = Rules(rule=DEFAULT.rule, quiet_from=f"{hour}:00", quiet_to=f"{hour}:59")
    asleep = Bell(night)
    asleep.rings((), NOW_S)
    assert is_quiet(night, NOW_S) == (not asleep.rings(alerts, NOW_S))


def test_quiet_hours_may_span_midnight() -> None:
    def at(clock: str) -> float:
        return time.mktime(time.strptime(f"2026-06-01 {clock}", "%Y-%m-%d %H:%M"))

    night = Rules(quiet_from="22:00", quiet_to="07:00")
    assert [is_quiet(night, at(clock)) for clock in ("21:59", "22:00", "03:00", "07:00")] == [False, True, True, False]
    assert not is_quiet(Rules(), at("03:00"))
    lunch = Rules(quiet_from="12:00", quiet_to="13:00")
    assert [is_quiet(lunch, at(clock)) for clock in ("11:59", "12:00", "12:59", "13:00")] == [False, True, True, False]


@pytest.mark.parametrize("way", WAYS)
def test_what_is_written_to_the_terminal_is_one_sequence_whatever_the_alert_says(way: str) -> None:
    hostile = replace(VIEW.alerts[0], device="x\x1b]0;title\x07" + "y" * 500, text="a;b\x9c\x1b\\c\n日本")
    assert sequence(way, []) == ""
    told = sequence(way, [hostile, VIEW.alerts[1]])
    body = told.removeprefix({"osc9": "\x1b]9;", "osc777": "\x1b]777;notify;edgekit;"}.get(way, "")).removesuffix(
        "\x1b\\"
    )
    assert told.count("\x1b") == (2 if way.startswith("osc") else 0)
    assert told == {"bell": "\a", "none": ""}.get(way, told)
    if way.startswith("osc"):
        assert body.startswith(VIEW.alerts[0].rule)
        assert all(char.isprintable() for char in body)
        assert ";" not in body


def test_one_alert_is_told_whole_and_many_as_how_many_more() -> None:
    (one, *_) = VIEW.alerts
    assert sequence("osc9", [one]) == f"\x1b]9;{one.rule}: {one.device} {one.text}\x1b\\"
    assert sequence("osc9", list(VIEW.alerts)).endswith(f", and {len(VIEW.alerts) - 1} more\x1b\\")


@pytest.mark.parametrize("way", WAYS)
def test_a_new_alert_is_written_past_the_screen_once(way: str) -> None:
    new = replace(VIEW.alerts[0], rule="slow", device="fresh")
    written: list[str] = []

    async def act(app: Console, pilot: Pilot[None]) -> None:
        assert app._driver is not None
        app._driver.write = written.append  # type: ignore[method-assign]
        for alerts in (VIEW.alerts, (new, *VIEW.alerts), (new, *VIEW.alerts)):
            app.post_message(Folded(replace(VIEW, alerts=alerts)))
            await pilot.pause()
        wanted = sequence(way, [new])
        assert [one for one in written if one == wanted] == ([wanted] if wanted else [])
        assert "fresh" not in "".join(written) or way.startswith("osc")

    drive(act, notify=way, start="overview")


def test_the_parser_knows_every_way() -> None:
    assert NOTICES == WAYS


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('quiet_from = "25:00"\nquiet_to = "07:00"', "quiet_from: '25:00' is not a time such as 22:00"),
        ('quiet_from = "22:00"', "goes together with quiet_to"),
        ('[[rule]]\nname = "x"\nwhen = "p98"', "p98"),
        ('[[rule]]\nname = "x"\nwhen = "p99"\nover = 3', "unknown key; did you mean 'over_ms'?"),
        ('[[rule]]\nname = "x"\nwhen = "p99"\nonly = "boad:pi"', "did you mean 'board'?"),
        ('[[rule]]\nname = "x"\nwhen = "p99"\nwindows = 0', "rule.x.windows: must be at least 1"),
        ('[[rule]]\nname = "x"\nwhen = "p99"\n[[rule]]\nname = "x"\nwhen = "drops"', "rule.x: there are two"),
    ],
)
def test_a_wrong_file_is_one_error_that_names_the_key(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "alerts.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_rules(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_rule_may_be_of_one_window(tmp_path: Path) -> None:
    path = tmp_path / "alerts.toml"
    path.write_text('[[rule]]\nname = "x"\nwhen = "p99"\nwindows = 1\n[[rule]]\nname = "y"\nwhen = "p99"')
    assert [(rule.name, rule.windows) for rule in read_rules(path).rule] == [("x", 1), ("y", 3)]


def test_the_example_of_the_guide_is_a_good_file(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs/console.md").read_text(encoding="utf-8")
    path = tmp_path / "alerts.toml"
    path.write_text(guide.split("```toml\n")[1].split("```")[0])
    assert len(read_rules(path).rule) >= 3


def test_alerts_are_acknowledged_on_their_screen_and_open_the_device() -> None:
    _, folder, view = lived(windows=60)

    async def act(app: Console, pilot: Pilot[None]) -> None:
        assert "0 alerts 5" in text_of(app)
        await pilot.press("0")
        await pilot.pause()
        assert "alerts  5, 5 not acknowledged" in text_of(app)
        await pilot.press("a")
        newer = folder.step(NOW_S + 30)
        assert newer is not None
        app.post_message(Folded(newer))
        await pilot.pause()
        left = sum(not alert.acknowledged for alert in newer.alerts)
        assert left == len(newer.alerts) - (0 if len(newer.alerts) < 5 else 1)
        await pilot.press("A", "enter")
        await pilot.pause()
        assert isinstance(app.screen, DeviceScreen)

    drive(act, view=view, alarm=folder.alarm)
