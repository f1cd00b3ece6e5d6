"""The console without a terminal."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from edgekit.errors import BrokerError, ConfigError
from edgekit_tui.app import Console
from edgekit_tui.draw import ASCII, UNICODE
from edgekit_tui.feed import Folder
from edgekit_tui.once import as_json, as_table, gather, is_complete, snapshot
from tests.tui import simulated
from tests.tui.changed import replace
from tests.tui.simulated import NOW_S, Feeder, lived, lived_view

VIEW = lived_view()


def test_json_has_the_fields_of_the_values() -> None:
    value = json.loads(as_json(VIEW))
    assert set(value) == {"now_s", "totals", "rows", "events", "releases"}
    assert "latency" not in value["totals"]["cells"][0], "histograms are not for people"
    assert value["totals"]["devices"] == 12
    row = next(row for row in value["rows"] if row["device"] == "mail-scan")
    assert row["model"] == "file-type"
    assert row["temperature_c"] is None
    assert row["p99_ms"] > row["p50_ms"] > 0
    assert len(row["history"]) == 60
    row = next(row for row in value["rows"] if row["device"] == "gate-south")
    assert (row["release"], row["update"], row["update_fetched_ratio"]) == ("2026.11", "fetching", 0.42)


@pytest.mark.parametrize("width", [60, 100, 160, 240])
def test_the_text_table_keeps_to_the_width_and_has_every_row(width: int) -> None:
    lines = as_table(VIEW, width=width, glyphs=UNICODE).splitlines()
    assert len(lines) == 1 + len(VIEW.rows)
    assert max(map(len, lines)) <= width
    assert "▲ throttled" in "\n".join(lines)
    assert as_table(VIEW, width=width, glyphs=ASCII).isascii()


def test_the_text_table_has_releases_where_there_are_some() -> None:
    assert "✗ 2026.11 rolled back" in as_table(VIEW, width=240, glyphs=UNICODE)
    assert "release" not in as_table(replace(VIEW, releases={}), width=240, glyphs=UNICODE)


def test_a_snapshot_is_a_picture_of_the_screen(tmp_path: Path) -> None:
    path = tmp_path / "console.svg"
    snapshot(Console(clock=lambda: NOW_S), VIEW, path, size=(120, 40), then=lambda app: app.open_named(None))
    text = "".join(ET.parse(path).getroot().itertext()).replace("\xa0", " ")
    assert "gate-north" in text
    assert "fleet latency" in text
    links = set(re.findall(r"https?://[^\s\"')]+", path.read_text(encoding="utf-8")))
    assert links <= {"http://www.w3.org/2000/svg", "https://www.textualize.io"}, "a picture fetches nothing"
    assert "DejaVu Sans Mono" in path.read_text(encoding="utf-8")


def test_a_snapshot_can_show_one_device(tmp_path: Path) -> None:
    path = tmp_path / "device.svg"
    snapshot(Console(clock=lambda: NOW_S), VIEW, path, size=(120, 40), then=lambda app: app.open_named("dock-2"))
    text = "".join(ET.parse(path).getroot().itertext()).replace("\xa0", " ")
    assert "latency of ocr-detector" in text


def test_a_snapshot_that_cannot_be_written_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "console.svg"
    with pytest.raises(ConfigError, match=r"missing/console\.svg: cannot be written"):
        snapshot(Console(clock=lambda: NOW_S), VIEW, path, size=(80, 24), then=lambda _: None)


def test_gathering_ends_when_every_live_device_has_spoken() -> None:
    import time

    source = Feeder()
    now = time.time()
    for batch in simulated.life(now, windows=12):
        source.messages += batch
    view = gather(source, Folder(source, endpoint="here:1883"), wait_s=10, endpoint="here:1883")
    assert is_complete(view)
    assert time.time() - now < 5
    assert source.stopped


def test_gathering_without_a_broker_says_so_in_one_error() -> None:
    source = Feeder()
    source.connected, source.state = False, "connection refused"
    with pytest.raises(BrokerError, match=r"broker here:1883: no connection within 0\.3 s: connection refused"):
        gather(source, Folder(source, endpoint="here:1883"), wait_s=0.3, endpoint="here:1883")
    assert source.stopped


def test_a_fleet_of_which_nobody_spoke_is_not_complete() -> None:
    assert not is_complete(lived(windows=0)[2])
    assert is_complete(VIEW), "the silent and the dead are not waited for"
