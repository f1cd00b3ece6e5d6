"""What was desired of each device and what it reports, read from the wire."""

from __future__ import annotations

import msgspec
import pytest

from edgekit import ships
from edgekit.provision.crier import Claim
from edgekit.ships import Ship, heard
from edgekit.telemetry.desired import Desired, Reported, Step
from edgekit.telemetry.messages import Received, topic

NOON = 1_800_000_000.0
WISH = Desired(release="r2", id="w")
KEY = ("lab", "one")


def said(leaf: str, payload: bytes | msgspec.Struct, device: str = "one") -> Received:
    raw = payload if isinstance(payload, bytes) else msgspec.json.encode(payload)
    return Received(topic=topic("lab", device, leaf), payload=raw, received_s=NOON)


def report(step: Step = Step.COMMITTED, **fields: object) -> Reported:
    return Reported(**{"t_unix_ms": 0, "desired": "r2", "desired_id": "w", "step": step, **fields})  # type: ignore[arg-type]


def test_wishes_and_reports_are_kept_by_device_and_taken_back_by_an_empty_payload() -> None:
    known = heard({}, [said("desired", WISH), said("reported", report()), said("reported", report(), "two")])
    assert known[KEY] == Ship(desired=WISH, reported=report())
    assert known["lab", "two"].desired is None
    known = heard(known, [said("desired", b"")])
    assert known[KEY].desired is None
    known = heard(known, [said("reported", b"")])
    assert KEY not in known, "nothing is known of it any more"


def test_a_device_of_which_nothing_new_was_said_keeps_its_value() -> None:
    before = heard({}, [said("desired", WISH), said("reported", report(), "two")])
    after = heard(before, [said("reported", report(), "one"), said("metrics", b"{}", "two")])
    assert after["lab", "two"] is before["lab", "two"]
    assert after[KEY] is not before[KEY]


@pytest.mark.parametrize(
    "message",
    [
        said("desired", b"{not json"), said("reported", b"[]"), said("reported", b"\xff"), said("metrics", b"{}"),
        said("desired", b'{"v":99,"release":"r"}'), said("status", b"{}"),
        Received(topic="other/desired", payload=b"{}"), Received(topic="desired", payload=b""),
        said("desired", Claim(id="r2-1", release="r2", operator="ann"), "_all"),
        said("desired", WISH, "x" * 64), said("reported", report(), "\x1b[31m"),
        Received(topic=topic("_all", "one", "desired"), payload=msgspec.json.encode(WISH)),
    ],
)  # fmt: skip
def test_what_says_nothing_of_a_devices_release_changes_nothing(message: Received) -> None:
    known = heard({}, [said("desired", WISH)])
    assert heard(known, [message]) is known


def test_a_flood_of_invented_names_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ships, "MAX_DEVICES", 3)
    known = heard({}, [said("desired", WISH, name) for name in "abab"])
    known = heard(known, [said("reported", report(), name) for name in "abcd"])
    assert sorted(name for _, name in known) == ["a", "b", "c"]
    assert known["lab", "b"] == Ship(desired=WISH, reported=report()), "those that are known are still heard"


@pytest.mark.parametrize(
    ("ship", "is_answered"),
    [
        (Ship(desired=WISH), False),
        (Ship(desired=WISH, reported=report(desired="r1")), False),
        (Ship(desired=WISH, reported=report(desired_id="older")), False),
        (Ship(desired=WISH, reported=report()), True),
        (Ship(reported=report(desired="r1")), True),
        (Ship(), True),
    ],
)
def test_only_a_report_of_the_wish_that_stands_answers_it(ship: Ship, is_answered: bool) -> None:
    assert ship.is_answered is is_answered


def test_what_was_not_reported_is_empty() -> None:
    assert (Ship(desired=WISH).running, Ship(desired=WISH).group) == ("", "")
    told = Ship(reported=report(running="r1", group="cameras"))
    assert (told.running, told.group) == ("r1", "cameras")
