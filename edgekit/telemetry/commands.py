"""May this command be acted on? Each id once, in time, and only what the config allows. Pure but for its memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

from edgekit.telemetry.messages import Command, Reply

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
