"""Commands: may this one be acted on (each id once, in time, and only what the config allows), and the acting."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection

from edgekit.errors import EdgekitError
from edgekit.telemetry.clock import clock_synced, unix_ms
from edgekit.telemetry.messages import Command, Received, Reply, decode

logger = logging.getLogger(__name__)

REMEMBERED = 256
"""Ids kept; connections start clean, so a broker never resends what is older."""


class CommandGate:
    """Refuses, or lets through, and remembers what was answered."""

    def __init__(self, allowed: Collection[str]) -> None:
        self._allowed = frozenset(allowed)
        self._answers: OrderedDict[str, Reply | None] = OrderedDict()

    def refusal(self, command: Command, *, now_unix_ms: int, clock_synced: bool | None) -> Reply | None:
        """Why not, as a reply; None when it may run, which is said once for each id."""
        if command.id in self._answers:
            return self._answers[command.id] or Reply(id=command.id, ok=False, text="this command is still running")
        why = self._why_not(command, now_unix_ms, clock_synced)
        reply = Reply(id=command.id, ok=False, text=why) if why else None
        self._answers[command.id] = reply
        while len(self._answers) > REMEMBERED:
            self._answers.popitem(last=False)
        return reply

    def answered(self, reply: Reply) -> None:
        """Remember the answer: the same id again gets the same one, without being acted on."""
        if reply.id in self._answers:
            self._answers[reply.id] = reply

    def _why_not(self, command: Command, now_unix_ms: int, clock_synced: bool | None) -> str | None:
        if command.verb not in self._allowed:
            allowed = ", ".join(sorted(self._allowed)) or "nothing"
            return f"'{command.verb}' is not allowed here; mqtt.allowed_commands allows {allowed}"
        if command.expires_unix_ms is None:
            return None
        if clock_synced is False:
            return "it expires, and this device's clock is not synchronised"
        late_ms = now_unix_ms - command.expires_unix_ms
        return f"it expired {late_ms} ms ago by this device's clock" if late_ms > 0 else None


class CommandDesk:
    """Takes commands as they arrive and answers each. What takes long runs on a thread of its own, one at a time."""

    def __init__(
        self,
        allowed: Collection[str],
        *,
        own: Callable[[str], Reply | None],
        on_command: Callable[[Command], Reply] | None,
        answer: Callable[[Reply], None],
    ) -> None:
        """Args:
        own: answers a verb at once, with any id; None for a verb that is not its.
        on_command: acts on the others.
        """
        self._gate = CommandGate(allowed)
        self._own, self._on_command, self._say = own, on_command, answer
        self._acting = threading.Lock()

    def read(self, message: Received) -> None:
        """Act on one message of the command topic, or refuse."""
        try:
            command = decode("command", message.payload)
        except ValueError as e:
            logger.warning("a command that cannot be read: %s", e)
            return
        assert isinstance(command, Command)
        if message.retained:
            self._answer(Reply(id=command.id, ok=False, text="a retained command would come again; it is not acted on"))
            return
        refusal = self._gate.refusal(command, now_unix_ms=unix_ms(), clock_synced=clock_synced())
        if refusal is not None:
            self._answer(refusal)
        elif reply := self._own(command.verb):
            self._answer(Reply(id=command.id, ok=reply.ok, text=reply.text, detail=reply.detail))
        else:
            threading.Thread(target=self._act, args=(command,), name=f"command {command.id}", daemon=True).start()

    def _act(self, command: Command) -> None:
        if self._on_command is None:
            self._answer(Reply(id=command.id, ok=False, text=f"this device does not know '{command.verb}'"))
            return
        with self._acting:
            try:
                reply = self._on_command(command)
            except (EdgekitError, OSError) as e:
                reply = Reply(id=command.id, ok=False, text=str(e))
        self._answer(reply)

    def _answer(self, reply: Reply) -> None:
        self._gate.answered(reply)
        self._say(reply)
