"""`edgekit fleet` on hand-made fleets: the table where it is narrow and wide, the JSON, and words that cannot harm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from edgekit.cli.fleet_table import WIDE, fleet_json, fleet_table
from edgekit.cli.main import main
from edgekit.fleet import Device, Fleet, Presence
from edgekit.groups import Listening, listen
from edgekit.telemetry.desired import Desired, Reported, Step
from edgekit.telemetry.histogram import HistogramBuilder
from edgekit.telemetry.messages import (
    Birth,
    Event,
    Histogram,
    LaneMetrics,
    Metrics,
    ModelState,
    Readings,
    Received,
    State,
    Status,
    encode,
    topic,
)

Capture = pytest.CaptureFixture[str]
NOON = 1_800_000_000.0
ENOUGH_FOR_P99 = 662


def latency(values_ms: list[float]) -> Histogram:
    builder = HistogramBuilder(max_scale=5)
    builder.record_many(values_ms)
    histogram = builder.histogram()
    assert histogram is not None
    return histogram


def said(device: str, leaf: str, payload: Any, site: str = "hall") -> Received:
    return Received(topic=topic(site, device, leaf), payload=encode(payload), received_s=NOON)


def birth(*models: tuple[str, str]) -> Birth:
    served = tuple(
        ModelState(model=model, artifact=artifact, precision="int8", runtime="onnxruntime")
        for model, artifact in models
    )
    return Birth(epoch=1, t_unix_ms=0, board="Raspberry Pi 5", models=served)


def window(values_ms: list[float], **readings: Any) -> Metrics:
    lane = LaneMetrics(model="digits", requests=len(values_ms), infer_ms=latency(values_ms))
    return Metrics(
        epoch=1, seq=0, t_unix_ms=0, t_mono_ms=0, window_ms=10_000, lanes=(lane,), system=Readings(**readings)
    )


def folded(*messages: Received, now_s: float = NOON) -> Listening:
    return listen(Listening(), messages, now_s=now_s)


def fleet_of_two() -> Listening:
    """cam-1 works and tells all; cam-2 went away by its own word and never told anything else."""
    return folded(
        said("cam-1", "status", Status(state=State.ONLINE, epoch=1)),
        said("cam-1", "birth", birth(("digits", "flash-int8-static"), ("ocr-detector", "standard"))),
        said("cam-1", "metrics", window([2.0] * 700, memory_available_bytes=512 * 2**20, temperature_c=61.54)),
        said("cam-2", "status", Status(state=State.OFFLINE, epoch=4, reason="stopped by its operator")),
    )


def drawn(fleet: Listening, *, width: int = 160, now_s: float = NOON) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as taken:
        console.print(fleet_table(fleet, now_s, width=width))
    return taken.get().splitlines()


def line_of(fleet: Listening, device: str, **more: Any) -> str:
    (line,) = [line for line in drawn(fleet, **more) if f"/{device}" in line]
    return line


# The table


def test_a_device_shows_what_it_told() -> None:
    lines = drawn(fleet_of_two())
    at = next(i for i, line in enumerate(lines) if "hall/cam-1" in line)
    cells = lines[at].split()
    assert cells[:4] == ["hall/cam-1", "online", "digits", "flash-int8-static"]
    p50, p99, samples, rate, free, heat, seen = cells[4:11]
    assert float(p50) == pytest.approx(2.0, rel=0.02)
    assert float(p99) == pytest.approx(2.0, rel=0.02)
    assert (samples, rate, free, heat) == ("700", "70.0", "512", "61.5")
    assert [seen, cells[11]] == ["0", "s"]
    assert lines[at + 1].split() == ["ocr-detector", "standard", "–", "–", "–", "0.0"], "a model a line"


def test_what_a_device_has_not_told_is_a_dash() -> None:
    silent = folded(said("cam-3", "status", Status(state=State.ONLINE, epoch=1)))
    assert line_of(silent, "cam-3").split()[2:] == ["–"] * 8 + ["0", "s"]


def test_an_orderly_death_has_its_reason_and_no_sight_means_never() -> None:
    assert "offline (stopped by" in line_of(fleet_of_two(), "cam-2")
    retained = Received(
        topic=topic("hall", "cam-9", "status"), payload=encode(Status(state=State.ONLINE, epoch=1)), retained=True
    )
    assert line_of(folded(retained), "cam-9").split()[-1] == "never"


def test_the_last_line_is_the_fleets_own() -> None:
    last = [line for line in drawn(fleet_of_two()) if line.strip()][-1].split()
    assert last[:4] == ["2", "devices", "1", "online"]
    assert last[-1] == "700"


def test_a_fleet_percentile_is_of_all_samples_and_no_average() -> None:
    fast = [said(f"fast-{i}", "metrics", window([1.0] * 400)) for i in range(2)]
    fleet = folded(*fast, said("slow", "metrics", window([100.0] * 100)))
    last = [line for line in drawn(fleet) if line.strip()][-1].split()
    assert float(last[4]) == pytest.approx(1.0, rel=0.02)
    assert float(last[5]) == pytest.approx(100.0, rel=0.02)


def test_a_p99_needs_its_samples_in_the_table_and_in_json() -> None:
    for count, known in ((ENOUGH_FOR_P99 - 1, False), (ENOUGH_FOR_P99, True)):
        fleet = folded(said("cam-1", "metrics", window([2.0] * count)))
        assert (line_of(fleet, "cam-1").split()[5] != "–") == known
        (device,) = fleet_json(fleet, NOON)["devices"]
        assert (device["p99_ms"] is not None) == known
        assert device["p50_ms"] == pytest.approx(2.0, rel=0.02)


def test_a_gap_is_counted_and_none_is_left_blank() -> None:
    later = Metrics(epoch=1, seq=3, t_unix_ms=0, t_mono_ms=0, window_ms=10_000)
    fleet = folded(said("cam-1", "metrics", window([1.0])), said("cam-1", "metrics", later))
    assert line_of(fleet, "cam-1").split()[-1] == "2"
    assert line_of(fleet_of_two(), "cam-1").split()[-2:] == ["0", "s"]


@pytest.mark.parametrize(
    ("silent_s", "text"), [(0, "0 s"), (99, "99 s"), (150, "2 min"), (3600, "60 min"), (7200, "2 h"), (-5, "0 s")]
)
def test_how_long_ago_is_told_in_a_unit_that_fits(silent_s: float, text: str) -> None:
    fleet = folded(said("cam-1", "event", Event(epoch=1, t_unix_ms=0, kind="started", text="x")))
    assert line_of(fleet, "cam-1", now_s=NOON + silent_s).rstrip().endswith(text)


@pytest.mark.parametrize("presence", Presence)
def test_every_state_is_a_word(presence: Presence) -> None:
    device = Device(site="hall", device="cam-1", presence=presence)
    assert presence.value in line_of(Listening(fleet=Fleet(devices={device.key: device})), "cam-1")


def test_devices_stand_in_the_order_of_their_names() -> None:
    fleet = folded(
        *(
            said(name, "status", Status(state=State.ONLINE, epoch=1), site)
            for site, name in (("b", "a"), ("a", "z"), ("a", "b"))
        )
    )
    found = [line.split()[0] for line in drawn(fleet) if "/" in line.split("  ")[0]]
    assert found == ["a/b", "a/z", "b/a"]


@pytest.mark.parametrize("width", [60, 80, WIDE, 132])
def test_no_line_is_wider_than_the_terminal_and_figures_stay_whole(width: int) -> None:
    lines = drawn(fleet_of_two(), width=width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert all(heading in text for heading in ("DEVICE", "STATE", "P50 ms", "P99 ms", "SEEN"))
    assert text.count("2.0") >= 4, "p50 and p99 of the device and of the fleet"
    assert ("FREE MiB" in text) == (width >= WIDE)
    assert "…" not in text


# Words of devices


@pytest.mark.parametrize(
    "words", ["[/]", "[red]fire[/red]", "[/nothing]", "[link=x]", "a[b]c", "\\[x", "\x1b[2J\x07", "a\nb\tc"]
)
def test_a_devices_words_are_no_markup_and_steer_no_terminal(words: str) -> None:
    fleet = folded(
        said("cam-1", "status", Status(state=State.OFFLINE, epoch=1, reason=words)),
        said("cam-1", "birth", birth((words, words))),
    )
    lines = drawn(fleet, width=200)
    text = "\n".join(lines)
    assert "\x1b" not in text
    assert "\x07" not in text
    shown = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in words)
    assert text.count(shown) == 3
    assert len(lines) == len(drawn(folded(said("cam-1", "status", Status(state=State.ONLINE, epoch=1))), width=200))


def test_such_words_reach_a_program_unchanged() -> None:
    words = "[/]\x1b[2J"
    fleet = folded(said("cam-1", "status", Status(state=State.OFFLINE, epoch=1, reason=words)))
    assert json.loads(json.dumps(fleet_json(fleet, NOON)))["devices"][0]["reason"] == words


def reports(**fields: Any) -> Listening:
    """The fleet of two, of which the first reports a release and was told of one."""
    report = Reported(t_unix_ms=0, running="2026.11", desired="2026.12", desired_id="w", **fields)
    state = fleet_of_two()
    wish = said("cam-1", "desired", Desired(release="2026.12", id="w"))
    return listen(state, [wish, said("cam-1", "reported", report)], now_s=NOON)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"step": Step.COMMITTED}, "2026.11 "),
        ({"step": Step.FETCHING, "share": 0.42}, "2026.11 (fetching 42%)"),
        ({"step": Step.ROLLED_BACK, "reason": "p99 41 ms"}, "2026.11 (rolled back)"),
        ({"step": Step.WAITING, "reason": "a\x1b[2J"}, "2026.11 (waiting)"),
        ({"step": Step.IDLE}, "2026.11 "),
    ],
)
def test_the_release_and_how_far_an_update_is_stand_beside_the_state(fields: dict[str, Any], says: str) -> None:
    line = line_of(reports(**fields), "cam-1", width=200)
    assert line.split(says)[0].split() == ["hall/cam-1", "online"]
    assert line.split(says)[1].split()[:2] == ["digits", "flash-int8-static"]
    assert "–" in line_of(reports(**fields), "cam-2", width=200)


def test_a_wish_that_the_report_does_not_name_is_not_answered_yet() -> None:
    other = listen(reports(), [said("cam-1", "desired", Desired(release="2027.1", id="x"))], now_s=NOON)
    assert "2026.11 (no answer yet)" in line_of(other, "cam-1", width=200)


def test_a_device_of_which_no_release_runs_says_none() -> None:
    bare = listen(fleet_of_two(), [said("cam-1", "reported", Reported(t_unix_ms=0))], now_s=NOON)
    assert line_of(bare, "cam-1", width=200).split()[:3] == ["hall/cam-1", "online", "none"]


def test_a_release_of_any_name_cannot_steer_the_terminal() -> None:
    said_ = said("cam-1", "reported", Reported(t_unix_ms=0, running="[red]\x1b[2J"))
    text = line_of(listen(fleet_of_two(), [said_], now_s=NOON), "cam-1", width=200)
    assert "[red]\N{REPLACEMENT CHARACTER}[2J" in text


def test_without_any_report_there_is_no_column_of_releases() -> None:
    assert "RELEASE" not in "".join(drawn(fleet_of_two()))
    assert "RELEASE" in "".join(drawn(reports()))
    wished = listen(fleet_of_two(), [said("cam-1", "desired", Desired(release="2027.1"))], now_s=NOON)
    assert "RELEASE" not in "".join(drawn(wished))


# The JSON


def test_json_tells_what_was_desired_and_reported() -> None:
    told = json.loads(json.dumps(fleet_json(reports(step=Step.FAILED, reason="no space"), NOON)))["devices"][0]
    assert (told["reported"]["running"], told["reported"]["step"]) == ("2026.11", "failed")
    assert told["reported"]["reason"] == "no space"
    assert told["desired"] == {"release": "2026.12", "id": "w"}


def test_json_has_the_fields_of_a_device_and_none_of_its_bookkeeping() -> None:
    value = json.loads(json.dumps(fleet_json(fleet_of_two(), NOON)))
    assert value.keys() == {"at_s", "devices", "events", "malformed"}
    assert value["at_s"] == NOON
    living, dead = value["devices"]
    wanted = {"site", "device", "presence", "reason", "epoch", "birth", "last_metrics", "last_seen_s", "windows"}
    wanted |= {"gaps", "historical", "duplicates", "latency", "history", "needs_rebirth", "p50_ms", "p99_ms"}
    wanted |= {"models", "desired", "reported"}
    assert living.keys() == wanted
    assert (living["presence"], living["windows"], living["birth"]["board"]) == ("online", 1, "Raspberry Pi 5")
    assert living["history"][0]["temperature_c"] == 61.54
    assert (dead["presence"], dead["reason"], dead["latency"]) == ("offline", "stopped by its operator", None)
    assert living["desired"] is living["reported"] is None


def test_json_carries_events_with_where_they_came_from_and_what_was_no_message() -> None:
    event = Event(epoch=1, t_unix_ms=7, kind="throttled", text="too hot", detail={"c": 91})
    junk = Received(topic=topic("hall", "cam-1", "metrics"), payload=b"{", received_s=NOON)
    value = fleet_json(folded(said("cam-1", "event", event), junk), NOON)
    (told,) = value["events"]
    assert (told["site"], told["device"], told["received_s"]) == ("hall", "cam-1", NOON)
    assert told["event"]["text"] == "too hot"
    assert value["malformed"] == 1


def test_an_empty_fleet_is_empty_lists() -> None:
    assert fleet_json(Listening(), 1.0) == {"at_s": 1.0, "devices": [], "events": [], "malformed": 0}
    assert "0 devices" in " ".join(drawn(Listening()))


# Flags


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--for", "0"], 2, "--for 0: must be a finite number, and more than zero"),
        (["--for", "nan"], 2, "--for nan"),
        (["--for", "inf"], 2, "--for inf"),
        (["--watch", "-1"], 2, "--watch -1"),
        (["--watch", "nan"], 2, "--watch nan"),
        (["--port", "0"], 2, "--port 0: must be from 1 to 65535"),
        (["--port", "65536"], 2, "--port 65536"),
        (["--site", "Hall"], 2, "--site Hall: a site is 1 to 63 of a-z"),
        (["--site", "hall", "--site", "+"], 2, "--site +"),
        (["--site", "a/#"], 2, "--site a/#"),
        (["--password-file", "/nowhere"], 3, "password_file: /nowhere: No such file or directory"),
        (["--certificate-file", __file__], 3, "goes together with key_file"),
        (["--key-file", __file__], 3, "goes together with key_file"),
        (["--ca-file", "/nowhere/ca.pem"], 3, "ca_file: /nowhere/ca.pem"),
        (["--port", "9"], 4, "127.0.0.1:9: Connection refused"),
    ],
)
def test_what_cannot_work_is_one_line_before_any_listening(
    arguments: list[str], code: int, words: str, capsys: Capture
) -> None:
    assert main(["fleet", *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert words in err


def test_a_password_that_is_not_readable_text_is_no_traceback(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "password").write_bytes(b"\xff\xfe\n")
    assert main(["fleet", "--port", "9", "--username", "reader", "--password-file", str(tmp_path / "password")]) in (
        3,
        4,
    )
    assert capsys.readouterr().err.count("\n") == 1
