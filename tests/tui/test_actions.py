"""Commands: who is asked, that each is asked once, and what became of it."""

from __future__ import annotations

import msgspec
import pytest
from textual.pilot import Pilot

from edgekit.telemetry.messages import Command, Received, Reply, topic
from edgekit_tui.action_screen import ActionScreen
from edgekit_tui.actions import ANSWER_S, AT_ONCE, Dispatch, Order, order, why_not
from edgekit_tui.app import Console
from edgekit_tui.draw import UNICODE
from edgekit_tui.fleet_screen import FleetScreen
from edgekit_tui.news import Folded
from tests.tui.changed import replace
from tests.tui.simulated import DEAD, NOW_S, drive, lived, lived_view, text_of
from tests.tui.test_navigation import run

VIEW = lived_view()
DEVICES = VIEW.fleet.devices


class Wire:
    """Takes what is sent; can be cut."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, Command]] = []
        self.connected = True

    def send(self, site: str, device: str, command: Command) -> bool:
        if self.connected:
            self.sent.append((site, device, command))
        return self.connected


def test_devices_that_cannot_be_asked_are_told_with_the_reason() -> None:
    made = order("reload", DEVICES.values())
    assert {site for site, _ in made.targets} == {"porto"}
    why = {device: reason for (_, device), reason in made.refused}
    assert why["gate-north"] == "it allows only ping, rebirth"
    assert why[DEAD] == "it is offline"
    unborn = msgspec.structs.replace(DEVICES["porto", "dock-1"], birth=None)
    assert why_not("ping", unborn) is None
    assert why_not("reload", unborn) == "it allows only ping, rebirth"


def test_each_device_gets_one_command_and_its_answer_is_kept() -> None:
    made = order("ping", DEVICES.values())
    wire, dispatch = Wire(), Dispatch(made, prefix="t")
    replies: dict[str, Reply] = {}
    for n in range(5):
        dispatch.turn(wire.send, replies, NOW_S + n)
        replies = {one.id: Reply(id=one.id, ok=i % 2 == 0, text="") for i, (*_, one) in enumerate(wire.sent)}
    assert [(site, device) for site, device, _ in wire.sent] == list(made.targets)
    assert len({one.id for *_, one in wire.sent}) == len(made.targets)
    assert all(one.expires_unix_ms is None for *_, one in wire.sent), "a device whose clock is wrong answers a ping"
    assert dispatch.is_done
    assert dispatch.counts == {"ok": 6, "failed": 5}


def test_silence_is_an_outcome_and_a_late_answer_still_counts() -> None:
    made = Order(verb="reload", args={"model": "a"}, targets=(("porto", "dock-1"),), refused=())
    wire, dispatch = Wire(), Dispatch(made, prefix="t")
    dispatch.turn(wire.send, {}, NOW_S)
    assert wire.sent[0][2].args == {"model": "a"}
    assert (wire.sent[0][2].expires_unix_ms or 0) > NOW_S * 1000
    assert not dispatch.is_done
    dispatch.turn(wire.send, {}, NOW_S + ANSWER_S + 1)
    assert dispatch.counts == {"lost": 1}
    dispatch.turn(wire.send, {"t-0": Reply(id="t-0", ok=True, text="done")}, NOW_S + ANSWER_S + 2)
    assert dispatch.counts == {"ok": 1}
    assert len(wire.sent) == 1


def test_an_answer_without_words_is_told_in_ours_and_silence_with_its_bound() -> None:
    targets = tuple(("lab", name) for name in "abc")
    dispatch = Dispatch(Order(verb="ping", targets=targets, refused=()), prefix="t")
    wire = Wire()
    dispatch.turn(wire.send, {}, NOW_S)
    replies = {"t-0": Reply(id="t-0", ok=True, text=""), "t-1": Reply(id="t-1", ok=False, text="")}
    dispatch.turn(wire.send, replies, NOW_S + ANSWER_S)
    assert dispatch.outcomes == {targets[0]: ("ok", "done"), targets[1]: ("failed", "refused")}
    assert not dispatch.is_done
    dispatch.turn(wire.send, replies, NOW_S + ANSWER_S + 0.1)
    assert dispatch.outcomes[targets[2]] == ("lost", "no answer within 15 s")


def test_a_command_runs_out_after_a_minute() -> None:
    wire = Wire()
    Dispatch(Order(verb="reload", targets=(("lab", "a"),), refused=()), prefix="t").turn(wire.send, {}, NOW_S)
    assert wire.sent[0][2].expires_unix_ms == (NOW_S + 60) * 1000


def asked(targets: int, refused: int, **args: str) -> ActionScreen:
    made = Order(verb="reload", args=args, targets=tuple(("lab", f"d{n}") for n in range(targets)),
                 refused=tuple((("lab", f"x{n}"), "it is offline") for n in range(refused)))  # fmt: skip
    return ActionScreen(made, Wire().send, UNICODE)


def told(lines: object) -> list[str]:
    return ["".join(text for text, _ in line) for line in lines]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("screen", "says"),
    [
        (asked(1, 0), ["the command 'reload' will be sent once to 1 device"]),
        (asked(1200, 0), ["the command 'reload' will be sent once to 1,200 devices"]),
        (asked(2, 1, model="a"), ["the command 'reload model=a' will be sent once to 2 devices",
                                  "1 cannot be asked, and is left out"]),
        (asked(2, 3), ["the command 'reload' will be sent once to 2 devices", "3 cannot be asked, and are left out"]),
        (asked(0, 3), ["no device can be asked; nothing will be sent"]),
    ],
)  # fmt: skip
def test_the_question_tells_what_will_happen(screen: ActionScreen, says: list[str]) -> None:
    assert told(screen._head(80)) == says
    assert told(screen._keys()) == (["escape close"] if says[0].startswith("no") else ["y send   escape do nothing"])


def test_the_outcomes_stand_device_by_device_with_a_bar_above() -> None:
    screen = asked(4, 1)
    assert [line.split(None, 2)[2] for line in told(line for _, line in screen._items(60)[1])] == [
        "will get it".ljust(37)] * 4 + ["it is offline".ljust(37)]  # fmt: skip
    screen.dispatch = Dispatch(screen._order, prefix="t", outcomes={
        ("lab", "d0"): ("ok", "done"), ("lab", "d1"): ("failed", "no such model"), ("lab", "d2"): ("lost", "silent"),
    })  # fmt: skip
    lines = [line.split() for line in told(line for _, line in screen._items(60)[1])]
    assert [line[0] for line in lines] == ["✓", "✗", "✗", "·", "–"]
    assert lines[3][2:] == ["waiting"]
    bar, words = told(screen._head(58))
    assert bar == "━" * 30 + "─" * 10 + " 3/4"
    assert words == "1 ok  1 failed  1 lost"
    screen.dispatch.outcomes.clear()
    assert told(screen._head(58))[1] == "waiting for answers"


def test_without_a_connection_nothing_is_sent_now_or_later() -> None:
    targets = tuple(("lab", f"d{n}") for n in range(AT_ONCE + 1))
    wire, dispatch = Wire(), Dispatch(Order(verb="ping", targets=targets, refused=()), prefix="t")
    wire.connected = False
    dispatch.turn(wire.send, {}, NOW_S)
    assert len(dispatch.outcomes) == AT_ONCE
    wire.connected = True
    dispatch.turn(wire.send, {}, NOW_S)
    dispatch.turn(wire.send, {}, NOW_S)
    assert [device for _, device, _ in wire.sent] == [f"d{AT_ONCE}"]
    assert dispatch.counts == {"unsent": AT_ONCE}
    dispatch.turn(wire.send, {}, NOW_S + ANSWER_S + 1)
    assert dispatch.counts == {"unsent": AT_ONCE, "lost": 1}, "what was not sent is not waited for"


def test_nothing_leaves_before_y_and_a_second_y_sends_nothing() -> None:
    wire = Wire()
    source, folder, view = lived(windows=12)

    async def act(app: Console, pilot: Pilot[None]) -> None:
        await run(app, pilot, "filter site:porto")
        await run(app, pilot, "send reload all model=digits")
        assert isinstance(app.screen, ActionScreen)
        text = text_of(app)
        for words in ("'reload model=digits' will be sent once to 4 devices", "porto/mail-scan", "y send"):
            assert words in text
        await pilot.press("enter", "escape")
        await pilot.pause()
        assert isinstance(app.screen, FleetScreen)
        assert wire.sent == []
        await run(app, pilot, "send reload all")
        await pilot.press("y", "y")
        await pilot.pause()
        assert len(wire.sent) == 4
        assert "0/4" in text_of(app)
        for site, device, command in wire.sent:
            reply = Reply(id=command.id, ok=device != "dock-2", text="no such model" if device == "dock-2" else "")
            source.messages.append(
                Received(topic=topic(site, device, "reply"), payload=msgspec.json.encode(reply), received_s=NOW_S)
            )
        newer = folder.step(NOW_S + 1)
        assert newer is not None
        app.post_message(Folded(newer))
        await pilot.pause()
        text = text_of(app)
        for words in ("4/4", "3 ok  1 failed", "no such model"):
            assert words in text
        assert len(wire.sent) == 4

    drive(act, view=view, send=wire.send)


def test_a_console_that_only_reads_refuses_in_words() -> None:
    async def act(app: Console, pilot: Pilot[None]) -> None:
        await pilot.press("P")
        await pilot.pause()
        assert "this console only reads" in text_of(app)
        assert isinstance(app.screen, FleetScreen)

    drive(act)


def test_a_key_pings_the_device_under_the_cursor() -> None:
    wire = Wire()

    async def act(app: Console, pilot: Pilot[None]) -> None:
        await pilot.press("P")
        await pilot.pause()
        assert "lab/bench-coral" in text_of(app)
        assert "it is offline" in text_of(app)
        await pilot.press("y", "escape", "j", "P", "y")
        await pilot.pause()
        assert [device for _, device, _ in wire.sent] == ["bench-n100"]
        await pilot.press("escape", "1", "P")
        await pilot.pause()
        assert "choose a device first" in text_of(app)

    drive(act, send=wire.send)


def test_ten_thousand_replies_do_not_push_each_other_out() -> None:
    source, folder, _ = lived(windows=2)
    source.messages = [
        Received(topic=topic("lab", "bench-pi5", "reply"),
                 payload=msgspec.json.encode(Reply(id=f"r{n}", ok=True)), received_s=NOW_S)
        for n in range(2_000)
    ]  # fmt: skip
    view = folder.step(NOW_S + 1)
    assert view is not None
    assert len(view.replies) == 2_000
    assert replace(view).replies["r0"].ok
