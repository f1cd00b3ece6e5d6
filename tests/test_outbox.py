"""The outbox: what it keeps, for whom and for how long; on the disk through restarts, damage and a full disk."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgekit.telemetry.outbox import NOTHING, Outbox
from edgekit.telemetry.outbox_file import Item
from edgekit.telemetry.pace import BURST, Pace
from tests.waiting import until


class Desk:
    """Outboxes of one file, as one process after another opens it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "outbox.db"
        self.open: list[Outbox] = []

    def outbox(self, max_bytes: int | None = None, **options: object) -> Outbox:
        outbox = Outbox(max_bytes, path=self.path, **{"commit_s": 60.0, **options})  # type: ignore[arg-type]
        self.open.append(outbox)
        assert until(lambda: outbox.is_ready)
        return outbox

    def reopen(self, **options: object) -> Outbox:
        self.open.pop().close()
        return self.outbox(**options)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    for outbox in made.open:
        outbox.close()


def fill(outbox: Outbox, count: int, *, epoch: int = 1, first: int = 0, size: int = 100) -> None:
    for seq in range(first, first + count):
        outbox.append("t/metrics", b"%06d" % seq + b"x" * size, now_s=time.monotonic(), window=(epoch, seq))


def waiting(outbox: Outbox) -> list[tuple[int, int] | None]:
    return [item.window for item in outbox.after(NOTHING, 10_000)]


def windows(*seqs: int, epoch: int = 1) -> list[tuple[int, int]]:
    return [(epoch, seq) for seq in seqs]


def test_the_oldest_makes_room_and_is_counted() -> None:
    outbox = Outbox(max_bytes=200)
    for i in range(5):
        outbox.append("t", bytes([i]) * 40, now_s=0.0)
    assert [item.payload[0] for item in outbox.after(NOTHING, 10)] == [3, 4]
    assert outbox.dropped == {"outbox full": 3}
    outbox.append("t", b"x" * 201, now_s=0.0)
    assert outbox.dropped == {"outbox full": 3, "too large": 1}
    assert outbox.depth == 2


def test_it_forgets_only_what_was_delivered() -> None:
    outbox = Outbox()
    for i in range(3):
        outbox.append("t", bytes([i]), now_s=0.0)
    first, second, _ = outbox.after(NOTHING, 10)
    outbox.delivered(second)
    outbox.delivered(second)
    assert outbox.after(first.number - 1, 1) == [first]
    assert (outbox.depth, outbox.state().bytes_sent) == (2, 1)
    outbox.drop(first.number, "larger than the broker takes")
    assert outbox.dropped == {"larger than the broker takes": 1}
    assert outbox.after(NOTHING, 0) == []


def test_without_a_collector_the_brokers_word_is_delivery(desk: Desk) -> None:
    outbox = desk.outbox()
    fill(outbox, 3)
    for item in outbox.after(NOTHING, 2):
        outbox.delivered(item)
    assert waiting(outbox) == windows(2)


@pytest.mark.parametrize("committed", [False, True])
def test_once_a_collector_has_spoken_windows_wait_for_its_word(desk: Desk, committed: bool) -> None:
    outbox = desk.outbox()
    fill(outbox, 1)
    outbox.acknowledged(1, 0)
    fill(outbox, 4, first=1)
    assert not committed or outbox.commit()
    for item in outbox.after(NOTHING, 10):
        outbox.delivered(item)
    assert waiting(outbox) == windows(1, 2, 3, 4)
    assert outbox.unsent == 0
    outbox.acknowledged(1, 2)
    assert waiting(outbox) == windows(3, 4)
    outbox.acknowledged(9, 99)
    assert waiting(outbox) == windows(3, 4)
    # The next process knows it too, and sends what was never acknowledged again.
    later = desk.reopen()
    assert later.waits_for_collector
    assert (waiting(later), later.unsent) == (windows(3, 4), 2)
    later.acknowledged(1, 4)
    assert later.depth == 0
    assert desk.reopen().depth == 0


def test_events_are_delivered_by_the_broker_even_with_a_collector() -> None:
    outbox = Outbox(collector=True)
    outbox.append("t/event", b"{}", now_s=0.0)
    outbox.delivered(outbox.after(NOTHING, 1)[0])
    assert outbox.depth == 0


def test_the_settings_can_say_that_there_is_no_collector_or_that_there_is_one() -> None:
    never, always = Outbox(collector=False), Outbox(collector=True)
    never.acknowledged(0, 0)
    for outbox in (never, always):
        fill(outbox, 1)
        outbox.delivered(outbox.after(NOTHING, 1)[0])
    assert (never.depth, always.depth) == (0, 1)


def test_a_window_tells_the_oldest_of_its_epoch_that_still_waits_wherever_that_lies(desk: Desk) -> None:
    outbox = desk.outbox(collector=True)
    fill(outbox, 4)
    outbox.acknowledged(1, 1)
    assert outbox.commit()
    fill(outbox, 1, first=4)
    fill(outbox, 2, epoch=2)
    newest = outbox.after(outbox.newest - 3, 10)
    assert [(item.window, item.oldest_seq) for item in newest] == [((1, 4), 2), ((2, 0), 0), ((2, 1), 0)]


def test_what_waits_survives_the_process_in_order_and_is_marked_as_old(desk: Desk) -> None:
    outbox = desk.outbox()
    fill(outbox, 5)
    outbox.append("t/event", b'{"kind":"x"}', now_s=time.monotonic())
    later = desk.reopen()
    fill(later, 2, epoch=2)
    found = later.after(NOTHING, 100)
    assert [item.window for item in found] == [*windows(0, 1, 2, 3, 4), None, *windows(0, 1, epoch=2)]
    assert [item.number for item in found] == sorted(item.number for item in found)
    assert all(item.added_s == float("-inf") for item in found[:6])
    assert found[3].payload.startswith(b"000003")
    assert [i.window for i in later.after(found[2].number, 2)] == windows(3, 4)


def test_it_is_on_the_disk_after_the_stated_interval_without_being_asked(desk: Desk) -> None:
    outbox = desk.outbox(commit_s=0.05)
    fill(outbox, 3)
    assert until(lambda: outbox.state().bytes_written > 0)
    copy = sqlite3.connect(f"file:{desk.path}?mode=ro&immutable=1", uri=True)  # the log is not in it: just openable
    copy.close()
    assert Path(f"{desk.path}-wal").stat().st_size > 0
    assert outbox.depth == 3


def test_windows_acknowledged_in_time_never_touch_the_disk(desk: Desk) -> None:
    outbox = desk.outbox(collector=True)
    assert outbox.commit()
    written = outbox.state().bytes_written
    for seq in range(50):
        fill(outbox, 1, first=seq)
        outbox.acknowledged(1, seq)
    time.sleep(0.05)
    assert outbox.state().bytes_written == written


def test_the_file_is_capped_and_the_count_of_what_went_survives(desk: Desk) -> None:
    outbox = desk.outbox(70_000)
    for first in range(0, 500, 50):
        fill(outbox, 50, first=first, size=200)
        assert outbox.commit()
    dropped = outbox.dropped["outbox full"]
    assert waiting(outbox) == windows(*range(dropped, 500))
    assert 200 < dropped < 300
    assert desk.reopen(max_bytes=70_000).dropped == {"outbox full": dropped}


def test_the_file_shrinks_after_an_outage(desk: Desk) -> None:
    outbox = desk.outbox(collector=True)
    for first in (0, 3000):
        fill(outbox, 3000, first=first, size=900)
        assert outbox.commit()
    large = desk.path.stat().st_size
    assert large > 5_000_000
    outbox.acknowledged(1, 5999)
    fill(outbox, 1500, first=6000, size=900)  # the log must fill up before it is poured
    assert outbox.commit()
    outbox.acknowledged(1, 7499)
    fill(outbox, 1500, first=7500, size=900)
    assert outbox.commit()
    assert desk.path.stat().st_size < large / 2
    assert waiting(outbox) == windows(*range(7500, 9000))


def damage_header(path: Path) -> None:
    path.write_bytes(b"not a database at all" * 400)


def damage_middle(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096 * 3 :] = b"\xa5" * (len(content) - 4096 * 3)
    path.write_bytes(bytes(content))


def claim_newer(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()


@pytest.mark.parametrize("damage", [damage_header, damage_middle, claim_newer])
def test_a_damaged_file_is_set_aside_and_counted_and_all_goes_on(
    desk: Desk, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    first = desk.outbox()
    fill(first, 200)
    desk.open.pop().close()
    damage(desk.path)
    with caplog.at_level(logging.ERROR):
        outbox = desk.outbox()
    assert "is set aside" in caplog.text
    assert Path(f"{desk.path}.damaged").exists()
    assert (outbox.depth, outbox.state().set_aside) == (0, 1)
    fill(outbox, 3)
    assert waiting(desk.reopen()) == windows(0, 1, 2)
    assert desk.open[-1].state().set_aside == 1


def test_damage_found_while_running_loses_no_new_window(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    outbox = desk.outbox()
    fill(outbox, 6000, size=900)  # more than the page cache holds
    assert outbox.commit()
    with desk.path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (desk.path.stat().st_size - 4096))
    with caplog.at_level(logging.ERROR):
        outbox.after(NOTHING, 6000)
        fill(outbox, 5, epoch=2)
    assert outbox.commit() or outbox.commit()
    assert outbox.state().set_aside == 1
    assert waiting(outbox)[-5:] == windows(0, 1, 2, 3, 4, epoch=2)


def test_a_folder_that_cannot_be_written_keeps_all_in_memory_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.ERROR):
        outbox = Outbox(path=tmp_path / "file" / "outbox.db", commit_s=0.02)
        fill(outbox, 3)
        assert until(lambda: "outbox.db" in outbox.state().problem)
    assert waiting(outbox) == windows(0, 1, 2)
    assert caplog.text.count("cannot use its file") == 1
    (tmp_path / "file").unlink()
    assert until(lambda: outbox.is_ready)
    assert until(lambda: outbox.state().problem == "" and outbox.state().bytes_written > 0)
    outbox.close()


def test_a_full_disk_drops_nothing_until_memory_is_full_too(desk: Desk) -> None:
    outbox = desk.outbox()
    assert outbox._shelf is not None
    assert outbox._shelf._file is not None
    fill(outbox, 50)
    assert outbox.commit()
    outbox._shelf._file._db.execute("PRAGMA max_page_count = 12")  # SQLite says then what a full disk makes it say
    fill(outbox, 500, first=50, size=900)
    assert not outbox.commit()
    assert "full" in outbox.state().problem
    assert waiting(outbox) == windows(*range(550))
    outbox._shelf._file._db.execute("PRAGMA max_page_count = 100000")
    assert outbox.commit()
    assert outbox.state().problem == ""
    assert waiting(desk.reopen()) == windows(*range(550))


def test_a_second_process_on_one_file_does_not_harm_it(desk: Desk) -> None:
    outbox = desk.outbox()
    fill(outbox, 3)
    assert outbox.commit()
    other = (
        "import sys, time\nfrom pathlib import Path\nfrom edgekit.telemetry.outbox import Outbox\n"
        "o = Outbox(path=Path(sys.argv[1]), commit_s=0.05)\ntime.sleep(0.3)\nprint(o.state().problem, o.is_ready)"
    )
    run = subprocess.run([sys.executable, "-c", other, str(desk.path)], capture_output=True, text=True, check=True)
    assert "locked" in run.stdout
    assert "False" in run.stdout
    assert waiting(desk.reopen()) == windows(0, 1, 2)


def test_appending_never_waits_for_the_disk(desk: Desk) -> None:
    outbox = desk.outbox()
    assert outbox._shelf is not None
    with outbox._shelf.lock:  # as during a slow fsync
        appender = threading.Thread(target=fill, args=(outbox, 10))
        appender.start()
        appender.join(1.0)
        assert not appender.is_alive()
    assert waiting(outbox) == windows(*range(10))


def test_what_comes_before_the_file_is_open_follows_what_is_in_it(desk: Desk) -> None:
    fill(desk.outbox(), 3)
    desk.open.pop().close()
    ready = threading.Event()
    outbox = Outbox(path=desk.path, commit_s=60.0, on_ready=ready.set)
    desk.open.append(outbox)
    fill(outbox, 2, epoch=2)
    assert ready.wait(5.0)
    assert waiting(outbox) == [*windows(0, 1, 2), *windows(0, 1, epoch=2)]


def test_what_the_collector_does_not_acknowledge_is_sent_again_ever_more_rarely() -> None:
    outbox = Outbox(collector=True, resend_s=1.0)
    fill(outbox, 2)
    for item in outbox.after(NOTHING, 10):
        outbox.delivered(item)
    now_s = time.monotonic()
    overdue = [t for t in range(40) if outbox.overdue(now_s + t)]
    assert overdue == [2, 4, 8, 16, 32] or overdue == [1, 3, 7, 15, 31]
    outbox.acknowledged(1, 1)
    assert not outbox.overdue(now_s + 10_000)


def test_when_someone_begins_to_listen_what_is_not_acknowledged_is_sent_again() -> None:
    outbox = Outbox(collector=True)
    fill(outbox, 2)
    outbox.delivered(outbox.after(NOTHING, 1)[0])
    assert not outbox.overdue(time.monotonic())
    outbox.doubt()
    assert outbox.overdue(time.monotonic())
    assert not outbox.overdue(time.monotonic())


def take(pace: Pace, now_s: float, limit: int = 20) -> list[int]:
    return [item.window[1] for item in pace.next(limit, now_s=now_s) if item.window]


def test_a_short_outage_is_made_up_for_in_order_at_once() -> None:
    outbox = Outbox()
    fill(outbox, 30)
    pace = Pace(outbox, 1.0, now_s=0.0)
    fill(outbox, 2, first=30)
    assert [*take(pace, 0.0), *take(pace, 0.0)] == list(range(32))


def test_after_a_long_outage_live_windows_go_first_and_history_at_its_rate() -> None:
    outbox = Outbox()
    fill(outbox, 1000)
    pace = Pace(outbox, 5.0, now_s=0.0)
    sent: list[int] = []
    while found := take(pace, 0.0):
        sent += found
    assert sent == list(range(BURST))
    fill(outbox, 1, first=1000)
    assert take(pace, 1.0) == [1000, *range(BURST, BURST + 5)]
    assert pace.wait_s(60.0, now_s=1.0) == pytest.approx(0.2)
    assert len(take(pace, 11.0, 1000)) == 50
    pace.hurries = True
    assert len(take(pace, 11.0, 10_000)) == 1000 - BURST - 55


def test_each_is_sent_once_over_a_connection_until_it_is_overdue() -> None:
    outbox = Outbox(collector=True, resend_s=10.0)
    fill(outbox, 5)
    pace = Pace(outbox, 5.0, now_s=time.monotonic())
    for item in pace.next(20, now_s=time.monotonic()):
        outbox.delivered(item)
    later_s = time.monotonic() + 5.0
    fill(outbox, 1, first=5)
    assert take(pace, later_s) == [5]
    assert take(pace, later_s) == []
    assert take(pace, later_s + 20.0) == [0, 1, 2, 3, 4, 5]


def test_an_item_knows_what_it_costs() -> None:
    assert Item(0, "topic", b"payload", 0.0).cost_bytes == len("topic") + len(b"payload") + 48
