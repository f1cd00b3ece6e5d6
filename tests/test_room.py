"""What fits: the peak against what the machine can give, less the reserve that the board's profile declares."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest

from edgekit.bench.record import Measurement, Settings
from edgekit.bench.stats import latency
from edgekit.device.probe import Facts, probe
from edgekit.errors import NoUsableArtifact
from edgekit.limits import Limits
from edgekit.room import Room, room
from edgekit.selection import select

MIB = 2**20
ROOM = Room(usable_bytes=512 * MIB, reserve_bytes=128 * MIB)


def _row(name: str = "standard", peak_mib: int | None = 100, **changes) -> Measurement:
    values = {
        "model": "m",
        "artifact": name,
        "artifact_sha256": name,
        "precision": "float32",
        "size_bytes": 1,
        "settings": Settings(runtime="onnxruntime", runtime_version="1", threads=1, spinning=False),
        "latency": latency([[1.0] * 10] * 12),
        "peak_memory_bytes": None if peak_mib is None else peak_mib * MIB,
        "accuracy_ratio": 1.0,
        "taken_at_unix_ms": 1,
    }
    return Measurement(**(values | changes))


@pytest.fixture(scope="module")
def facts() -> Facts:
    return probe()


@pytest.mark.parametrize(("peak_mib", "fits"), [(100, True), (384, True), (385, False), (None, True)])
def test_the_peak_must_fit_beside_the_reserve(peak_mib, fits):
    assert (ROOM.why_not(_row(peak_mib=peak_mib)) is None) is fits


def test_the_reason_has_all_its_numbers():
    assert ROOM.why_not(_row(peak_mib=400)) == (
        "peaks at 400 MiB, and this machine has 384 MiB to give: 512 usable, 128 in reserve for the system"
    )


def test_what_does_not_fit_is_rejected_however_fast_it_is():
    fast, slow = _row("fast", 400), _row("standard", 100, latency=latency([[9.0] * 10] * 12))
    selection = select([ROOM.applied(row) for row in (fast, slow)], Limits())
    assert selection.artifact == "standard"
    assert "384 MiB to give" in selection.rejections[0].reason
    with pytest.raises(NoUsableArtifact):
        select([ROOM.applied(fast)], Limits())


def test_a_failure_keeps_its_own_reason():
    row = _row(peak_mib=4000, failure="killed")
    assert ROOM.applied(row) is row


def test_a_reserve_above_the_memory_leaves_no_room():
    assert Room(usable_bytes=64 * MIB, reserve_bytes=128 * MIB).bytes == 0


@pytest.mark.parametrize(
    ("profile", "reserve_bytes"), [("jetson-agx-orin-32gb", 2 * 2**30), ("no-such-board", 128 * MIB)]
)
def test_the_reserve_is_the_boards_own(facts, profile, reserve_bytes):
    named = replace(facts, board=replace(facts.board, profile=profile))
    found = room(named)
    assert found is not None
    assert found.usable_bytes == facts.memory.usable_bytes
    if profile != "no-such-board" or facts.board.profile is None:
        assert found.reserve_bytes >= 128 * MIB
    if profile != "no-such-board":
        assert found.reserve_bytes == reserve_bytes


def test_a_machine_that_does_not_tell_its_memory_refuses_nothing(facts):
    assert room(replace(facts, memory=replace(facts.memory, usable_bytes=None))) is None


def test_the_row_itself_is_left_as_it_was():
    row = _row(peak_mib=400)
    before = msgspec.json.encode(row)
    assert ROOM.applied(row) is not row
    assert msgspec.json.encode(row) == before


@pytest.mark.parametrize(
    ("profile", "fits", "reserve_bytes"),
    [
        (None, [{"memory_reserve_bytes": 7 * MIB}, {"memory_reserve_bytes": 9 * MIB}], 7 * MIB),
        (None, [{"id": "without a reserve"}], 128 * MIB),
        (None, [], 128 * MIB),
        ("jetson-agx-orin-32gb", [{"memory_reserve_bytes": 7 * MIB}], 2 * 2**30),
    ],
)
def test_without_a_named_profile_the_first_that_fits_the_machine_counts(
    facts, monkeypatch, profile, fits, reserve_bytes
):
    monkeypatch.setattr("edgekit.room.fitting", lambda _root, _tables: [SimpleNamespace(profile=one) for one in fits])
    found = room(replace(facts, board=replace(facts.board, profile=profile)))
    assert found is not None
    assert found.reserve_bytes == reserve_bytes
