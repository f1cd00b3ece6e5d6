"""The conductor with a world of values: what is written before what is told, and an operator who dies at every step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from edgekit.provision import conductor
from edgekit.provision import rollout as ro
from edgekit.provision.compare import Bounds
from edgekit.provision.conductor import Conductor
from edgekit.provision.rollout import Condition, Limits, Phase, Rollout
from edgekit.provision.waves import Wave
from edgekit.telemetry.desired import Desired, Reported, Step
from edgekit.telemetry.histogram import HistogramBuilder
from edgekit.telemetry.messages import LaneMetrics, Metrics, Received, decode, encode

KEYS = ("h/a", "h/b", "h/c", "h/d")
PLAN = Rollout(
    id="r",
    release="2.0",
    digest="d2",
    waves=(Wave(name="canary", devices=KEYS[:1]), Wave(name="group x", devices=KEYS[1:])),
    kinds=dict.fromkeys(KEYS, "pi"),
    limits=Limits(observe_s=20.0, patience_s=400.0),
    bounds=Bounds(samples=200),
    began_unix_s=0.0,
)


class Killed(Exception):
    """The operator's machine has died."""


class World:
    """Broker, devices, state file and clock in one; counts every act of the conductor and dies at one of them."""

    def __init__(self, *, slower: float = 1.0, ends: Step = Step.COMMITTED, requests: int = 40) -> None:
        self.now_s, self.seq = 1000.0, 0
        self.slower, self.ends, self.requests = slower, ends, requests
        self.wishes: dict[str, Desired] = {}
        self.done: dict[str, Desired] = {}
        self.stored: Rollout | None = None
        self.acts: list[str] = []
        self.dies_at: int | None = None
        self.request: str | None = None
        self.state = ""
        self.notes: list[str] = []
        self._dice = np.random.default_rng(1)
        self._said_again = True

    def _act(self, what: str) -> None:
        self.acts.append(what)
        if self.dies_at is not None and len(self.acts) > self.dies_at:
            raise Killed

    # as a store

    def write(self, rollout: Rollout) -> None:
        self._act("write")
        self.stored = rollout

    def asked(self) -> str | None:
        asked, self.request = self.request, None
        return asked

    # as a crier

    def tell(self, key: str, payload: bytes) -> None:
        self._act(f"tell {key}" if payload else f"take back {key}")
        if not payload:
            self.wishes.pop(key, None)
            return
        desired = decode("desired", payload)
        assert isinstance(desired, Desired)
        if self.wishes.get(key) != desired:
            self.wishes[key] = desired
            self.done.pop(key, None)

    def repeat(self) -> int:
        return 0

    def settle(self) -> bool:
        return True

    def drain(self) -> list[Received]:
        """A second passes; devices that were told end, and all report a window each second."""
        self.now_s += 1.0
        self.seq += 1
        for key, wish in self.wishes.items():
            self.done.setdefault(key, wish)
        told = [self._received(key, "reported", self._reported(key, wish)) for key, wish in self.done.items()]
        return told + [self._received(key, "metrics", self._window(key)) for key in KEYS]

    def _reported(self, key: str, wish: Desired) -> Reported:
        reason = "p99 41 ms" if self.ends is Step.ROLLED_BACK else ""
        return Reported(t_unix_ms=1, desired=wish.release, desired_id=wish.id, step=self.ends, reason=reason)

    def _window(self, key: str) -> Metrics:
        factor = self.slower if key in self.done and self.ends is Step.COMMITTED else 1.0
        builder = HistogramBuilder(max_scale=4)
        builder.record_many(3.0 * factor * self._dice.lognormal(0.0, 0.05, max(1, self.requests)))
        lanes = (LaneMetrics(model="m", requests=self.requests, infer_ms=builder.histogram()),) if self.requests else ()
        return Metrics(epoch=1, seq=self.seq, t_unix_ms=1, t_mono_ms=1, window_ms=1000, lanes=lanes)

    def _received(self, key: str, leaf: str, payload: Any) -> Received:
        return Received(topic=f"edgekit/v1/{key}/{leaf}", payload=encode(payload), received_s=self.now_s)

    def conduct(self, rollout: Rollout = PLAN) -> Rollout:
        """One operator's turn, from `rollout` on."""
        driving = Conductor(
            rollout,
            self,
            self,  # type: ignore[arg-type]
            note=self.notes.append,
            show=lambda _text, _share: None,
            clock=lambda: self.now_s,
        )
        return driving.run()


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conductor, "TURN_S", 0.0)


def test_an_equal_release_goes_through_all_waves_and_each_is_told_once():
    world = World()
    ended = world.conduct()
    assert (ended.condition, ended.why) == (Condition.DONE, "all 2 waves have it")
    assert world.stored == ended
    assert [act for act in world.acts if act != "write"] == [f"tell {key}" for key in KEYS]
    assert {wish.id for wish in world.wishes.values()} == {"r.0"}
    assert [note.partition(":")[0] for note in world.notes] == [
        *["wave 1 of 2, canary"] * 3,
        *["wave 2 of 2, group x"] * 3,
    ]


def test_what_is_about_to_be_told_is_written_down_first():
    world = World()
    written: list[tuple[Phase, int]] = []
    write, tell = world.write, world.tell

    def see_write(rollout: Rollout) -> None:
        written.append((rollout.phase, rollout.wave))
        write(rollout)

    def see_tell(key: str, payload: bytes) -> None:
        wave = 0 if key in KEYS[:1] else 1
        assert written[-1] == (Phase.TOLD, wave), f"{key} was told before that was written down"
        tell(key, payload)

    world.write, world.tell = see_write, see_tell  # type: ignore[method-assign]
    assert world.conduct().condition is Condition.DONE


def lives() -> Iterator[int]:
    """Every act of a whole rollout, one after the other."""
    world = World()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conductor, "TURN_S", 0.0)
        world.conduct()
    yield from range(len(world.acts))


@pytest.mark.parametrize("act", list(lives()))
def test_an_operator_who_dies_at_any_act_is_taken_over_by_the_next(act: int):
    world = World()
    world.write(PLAN)
    world.acts.clear()
    world.dies_at = act
    with pytest.raises(Killed):
        world.conduct()
    world.dies_at = None
    assert world.stored is not None
    assert world.stored.condition is Condition.RUNNING
    ended = world.conduct(world.stored)
    assert ended.condition is Condition.DONE
    assert world.done.keys() == set(KEYS)
    assert {wish.id for wish in world.wishes.values()} == {"r.0"}  # to the devices it was one wish all along
    assert len(ro.committed(ended)) == 4


def test_a_release_that_is_slower_stops_in_the_canary_and_is_judged_again_on_resume():
    world = World(slower=1.3)
    ended = world.conduct()
    assert (ended.condition, ended.wave, ended.phase) == (Condition.STOPPED, 0, Phase.OBSERVED)
    assert ended.why.startswith("wave 1 of 2, canary: m on pi: p")
    assert world.done.keys() == {"h/a"}
    again = world.conduct(ro.told_anew(ended))
    assert again.condition is Condition.STOPPED
    assert world.done.keys() == {"h/a"}
    world.slower = 1.0
    assert world.conduct(ro.told_anew(again)).condition is Condition.DONE


def test_a_slow_last_wave_is_found_against_the_earlier_ones():
    world = World()
    second = replace(
        PLAN, wave=1, devices={"h/a": ro.Progress(step=Step.COMMITTED)}, history=("wave 1 of 2, canary: held",)
    )
    world.slower = 1.3
    ended = world.conduct(second)
    assert (ended.condition, ended.wave) == (Condition.STOPPED, 1)


def test_a_fleet_of_one_is_measured_against_its_own_past():
    alone = replace(PLAN, waves=(Wave(name="canary", devices=("h/a",)),), kinds={"h/a": "pi"})
    for slower, condition in ((1.0, Condition.DONE), (1.3, Condition.STOPPED)):
        world = World(slower=slower)
        ended = world.conduct(alone)
        assert ended.condition is condition
    assert "h/a" in ended.before


def test_a_guard_that_went_back_stops_it_and_takes_the_wish_back():
    world = World(ends=Step.ROLLED_BACK)
    ended = world.conduct()
    assert ended.condition is Condition.STOPPED
    assert ended.why == "wave 1 of 2, canary: 1 of 1 did not keep it, 5% may: h/a went back: p99 41 ms"
    assert world.acts[-2:] == ["write", "take back h/a"]
    assert world.wishes == {}


@pytest.mark.parametrize(
    ("world", "words"),
    [
        (World(requests=0), "no requests on the updated devices and on others of their kind: nothing to judge by"),
        (World(ends=Step.FETCHING), "0 of 1 committed, 1 needed; 1 to come"),
    ],
    ids=["silence", "never-done"],
)
def test_what_is_not_decided_in_time_does_not_go_on(world: World, words: str):
    ended = world.conduct(replace(PLAN, limits=Limits(observe_s=5.0, patience_s=60.0)))
    assert ended.condition is Condition.STOPPED
    assert ended.why.startswith("wave 1 of 2, canary: not decided within 6")
    assert words in ended.why


def test_without_samples_asked_for_the_guards_verdicts_are_enough():
    world = World(requests=0)
    ended = world.conduct(replace(PLAN, bounds=Bounds(samples=0)))
    assert ended.condition is Condition.DONE
    assert world.now_s < 1020.0


@pytest.mark.parametrize(("asked", "condition"), [("pause", Condition.PAUSED), ("abort", Condition.ABORTED)])
def test_what_another_terminal_asks_ends_the_turn(asked: str, condition: Condition):
    world = World()
    world.request = asked
    ended = world.conduct()
    assert (ended.condition, ended.why) == (condition, f"wave 1 of 2, canary: {asked} was asked for")
    assert world.acts == ["write"]  # nobody was told anything


def test_strangers_and_rubbish_change_nothing():
    world = World()
    drain = world.drain

    def noisy() -> list[Received]:
        rubbish = [
            Received(topic="edgekit/v1/h/z/reported", payload=encode(Reported(t_unix_ms=1, desired_id="r.0"))),
            Received(topic="edgekit/v1/h/a/reported", payload=b"{"),
            Received(topic="edgekit/v1/h/a/metrics", payload=b'{"lanes": 5}'),
            Received(topic="edgekit/v1/h/a/desired", payload=b"{}"),
            Received(topic="elsewhere", payload=b""),
        ]
        return rubbish + drain()

    world.drain = noisy  # type: ignore[method-assign]
    assert world.conduct().condition is Condition.DONE


def test_one_look_decides_nothing(monkeypatch: pytest.MonkeyPatch):
    world = World(slower=1.3)
    looks: list[int] = []
    observe = Conductor._observe

    def count(self: Conductor) -> None:
        looks.append(len(self._looks))
        observe(self)

    monkeypatch.setattr(Conductor, "_observe", count)
    world.conduct()
    assert max(looks) >= 1


def test_how_it_stands_is_shown_with_the_share_that_has_it():
    world, shown = World(), []
    driving = Conductor(
        PLAN,
        world,
        world,  # type: ignore[arg-type]
        note=lambda _line: None,
        show=lambda text, share: shown.append((text, share)),
        clock=lambda: world.now_s,
    )
    driving.run()
    assert shown[0][1] == 0.0
    assert shown[-1][1] == 1.0
    assert any(text.startswith("wave 1 of 2, canary: ") and " at most" in text for text, _ in shown)
    world.state = "broker down"
    assert all(0.0 <= share <= 1.0 for _, share in shown)
