"""One attempt: what is refused, what is tried again, what is given up, and in which order it is written down."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from edgekit.errors import Cancelled, ConfigError, ReleaseError, RuntimeUnavailable, SlotError, UnreachableError
from edgekit.provision import errand as er
from edgekit.provision import fetching, keys, slots, stage, state, update
from edgekit.provision.errand import Errand, read_errand
from edgekit.provision.fetching import attempt, why_another
from edgekit.provision.release import Library
from edgekit.provision.report import Doing
from edgekit.provision.repository import Repository
from edgekit.provision.settings import Settings
from edgekit.telemetry.desired import Step
from tests.torture.small import make

NOW_S = 1_000_000.0


class World:
    """A repository as a folder and a device with release 1.0 committed in slot a."""

    def __init__(self, folder: Path, *, is_new: bool = False) -> None:
        self.keys, self.root = folder / "keys", folder / "device"
        self.library, self.repository = Library(folder / "library"), Repository(folder / "repo")
        self.said: list[Doing] = []
        if is_new:
            self._make()

    def _make(self) -> None:
        keys.create(self.keys)
        self.repository.create(self.keys)
        self.publish("1.0", 10)
        slots.prepare(self.root)
        (self.root / "trust").mkdir()
        (self.root / "trust/root.json").write_bytes(self.repository.root_bytes())
        slot = stage.install(self.root, self.library.load("1.0"), stage.from_folder(self.library.blob))
        state.change(self.root, lambda table: state.mark_good(table, slot, 1.0) or slot)

    def publish(self, name: str, sequence: int, **how: object) -> str:
        stored = make(self.library, name, sequence=sequence, **how)  # type: ignore[arg-type]
        self.repository.publish(self.library, stored, self.keys)
        return stored.digest

    def attempt(
        self, errand: Errand, *, is_cancelled: Callable[[], bool] = lambda: False, **settings: object
    ) -> Errand:
        given = Settings(**({"repository": f"file://{self.repository.folder}"} | settings))  # type: ignore[arg-type]
        return attempt(
            self.root,
            errand,
            given,
            is_cancelled=is_cancelled,
            say=self.said.append,
            now_s=NOW_S,
            dice=random.Random(1),
        )


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made-once")
    World(folder, is_new=True)
    return folder


@pytest.fixture
def world(made_once: Path, tmp_path: Path) -> World:
    shutil.copytree(made_once, tmp_path / "world", symlinks=True)
    return World(tmp_path / "world")


TOLD = Errand(release="2.0", id="r1")


def test_what_is_signed_is_staged_noted_and_handed_to_the_guard(world: World):
    digest = world.publish("2.0", 20)
    done = world.attempt(replace(TOLD, digest=digest))
    assert (done.slot, done.slot_digest, done.outcome, done.reason) == ("b", digest, None, "")
    assert done.received_bytes > 0
    assert slots.status(world.root).slots[1].state == "pending"
    assert world.said[0] == Doing(step=Step.FETCHING, reason="looking what is offered")
    assert {doing.step for doing in world.said} == {Step.FETCHING}
    assert world.said[-1].reason == "verifying"
    kept = read_errand(world.root)
    assert kept is not None
    assert (kept.slot, kept.slot_digest, kept.received_bytes) == (done.slot, done.slot_digest, done.received_bytes)


def test_the_slot_is_written_down_before_the_guard_is_asked(world: World, monkeypatch: pytest.MonkeyPatch):
    world.publish("2.0", 20)
    known: list[Errand | None] = []
    switch = slots.switch

    def see(root: Path, slot: str) -> None:
        known.append(read_errand(root))
        switch(root, slot)

    monkeypatch.setattr(slots, "switch", see)
    world.attempt(TOLD)
    assert [errand.slot for errand in known if errand] == ["b"]


def test_what_is_there_and_good_already_is_the_answer_without_a_byte(world: World):
    done = world.attempt(Errand(release="1.0"))
    assert (done.slot, done.slot_digest, done.received_bytes) == ("a", world.library.load("1.0").digest, 0)
    assert slots.status(world.root).slots[1].state == "empty"


def test_an_attempt_after_a_cut_between_staging_and_switch_only_switches(world: World):
    world.publish("2.0", 20)
    fetch = stage.from_folder(world.library.blob)
    stage.stage(world.root, world.library.load("2.0"), fetch, progress=lambda _t, _s: None)
    done = world.attempt(TOLD)
    assert (done.slot, done.received_bytes) == ("b", 0)
    assert slots.status(world.root).slots[1].state == "pending"


@pytest.mark.parametrize(
    ("errand", "settings", "reason"),
    [
        (Errand(release="9.9"), {}, "what is signed for group default is 1.0, not 9.9"),
        (Errand(release="1.0", digest="ab" * 32), {}, "not the desired abababababab"),
        (
            Errand(release="1.0"),
            {"group": "canary"},
            "the repository has nothing for group canary, and 1.0 was desired",
        ),
        (Errand(release="1.0"), {"group": "../x"}, "'../x' is no name of a group"),
        (Errand(release="1.0"), {"repository": None}, "this device was not told where to look"),
    ],
)
def test_what_may_not_be_taken_is_refused_and_touches_nothing(world: World, errand, settings, reason):
    before = (world.root / "state.json").read_bytes()
    done = world.attempt(errand, **settings)
    assert done.outcome is Step.REFUSED
    assert reason in done.reason
    assert (world.root / "state.json").read_bytes() == before


def test_a_release_that_failed_here_is_refused_until_its_time(world: World):
    digest = world.publish("2.0", 20)
    state.change(world.root, lambda table: state.deny(table, digest, "p99 41 ms", 2e9))
    assert world.attempt(TOLD).reason == "it failed here 1x: p99 41 ms"
    state.change(world.root, lambda table: table["denied"][digest].update(not_before_unix_s=5))
    assert world.attempt(TOLD).slot == "b"


def test_a_manifest_that_was_tampered_with_is_refused(world: World):
    world.publish("2.0", 20)
    path = max((world.repository.folder / "targets/group").glob("*.json"), key=lambda p: p.stat().st_mtime_ns)
    path.write_bytes(path.read_bytes().replace(b"launch", b"lunch!"))
    done = world.attempt(TOLD)
    assert done.outcome is Step.REFUSED
    assert "not what its metadata says" in done.reason


@pytest.mark.parametrize(
    ("error", "outcome", "attempts"),
    [
        (UnreachableError("repo", "refused"), None, 1),
        (ReleaseError("repo", "expired"), Step.REFUSED, 0),
        (RuntimeUnavailable("update", "tuf is missing", "pip install tuf"), Step.REFUSED, 0),
        (ConfigError("updater.json", "repository", "missing"), Step.REFUSED, 0),
    ],
)
def test_errors_while_looking(world: World, monkeypatch, error, outcome, attempts):
    def look(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(update, "look", look)
    done = world.attempt(TOLD)
    assert (done.outcome, done.attempts) == (outcome, attempts)
    assert str(error) in done.reason


@pytest.mark.parametrize(
    ("error", "outcome", "attempts"),
    [
        (UnreachableError("repo", "broke off"), None, 1),
        (SlotError("b", "disk full", rolled_back=False), None, 1),
        (ReleaseError("x", "a member leaves the slot"), Step.FAILED, 0),
    ],
)
def test_errors_while_staging(world: World, monkeypatch, error, outcome, attempts):
    world.publish("2.0", 20)

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(stage, "stage", fail)
    done = world.attempt(replace(TOLD, received_bytes=7))
    assert (done.outcome, done.attempts, done.received_bytes) == (outcome, attempts, 7)
    assert done.slot is None


def test_another_update_under_way_is_waited_for(world: World):
    world.publish("2.0", 20)
    with slots.updating(world.root):
        done = world.attempt(TOLD)
    assert "another update of" in done.reason
    assert NOW_S < done.not_before_unix_s <= NOW_S + er.FIRST_WAIT_S
    assert world.attempt(done).slot == "b"


def test_bytes_without_end_are_given_up(world: World):
    world.publish("2.0", 20)
    done = world.attempt(replace(TOLD, received_bytes=50 << 20, reason="broke off"))
    assert done.outcome is Step.FAILED
    assert "52428800 bytes received for" in done.reason
    assert done.reason.endswith("broke off")


def test_a_hold_of_the_application_is_no_attempt(world: World):
    world.publish("2.0", 20)
    (world.root / "shared" / update.HOLD).write_text("exam in progress")
    done = world.attempt(TOLD)
    assert (done.attempts, done.outcome, done.not_before_unix_s) == (0, None, NOW_S + fetching.HELD_S)
    assert "exam in progress" in done.reason
    assert [doing.step for doing in world.said] == [Step.WAITING]


def test_taken_back_in_the_middle_keeps_what_came_and_says_nothing_of_a_fault(world: World, monkeypatch):
    world.publish("2.0", 20)

    def cancelled(*_: object, **__: object) -> None:
        raise Cancelled("cancelled after 5 of 9 bytes")

    monkeypatch.setattr(stage, "stage", cancelled)
    ours = world.attempt(TOLD, is_cancelled=lambda: True)
    assert (ours.reason, ours.outcome, ours.attempts) == ("", None, 0)
    held = world.attempt(TOLD)
    assert held.reason == "cancelled after 5 of 9 bytes"


def finding(**given: object) -> update.Finding:
    known = {"repository": "r", "group": "g", "offered": "2.0", "digest": "d2", "sequence": 1, "active": None}
    return update.Finding(**(known | {"will_install": True, "reason": "it is new"} | given))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("errand", "given", "reason"),
    [
        (TOLD, {}, None),
        (replace(TOLD, digest="d2"), {}, None),
        (replace(TOLD, digest="d3"), {}, "what is signed as 2.0 is d2, not the desired d3"),
        (TOLD, {"offered": "1.9"}, "what is signed for group g is 1.9, not 2.0"),
        (TOLD, {"offered": None, "reason": "nothing for g"}, "nothing for g, and 2.0 was desired"),
    ],
)
def test_why_the_offer_is_not_what_was_desired(errand, given, reason):
    assert why_another(errand, finding(**given)) == reason
