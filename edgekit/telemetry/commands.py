"""Commands: may this one be acted on (each id once, in time, and only what the config allows), and the acting.

The ids that were acted on are on the disk before the acting begins: a command that comes again after a restart, which a
broker may well do, is not acted on a second time.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

from edgekit.errors import EdgekitError
from edgekit.files import write_atomic
from edgekit.telemetry.clock import clock_synced, unix_ms
from edgekit.telemetry.messages import Command, Received, Reply, decode

logger = logging.getLogger(__name__)

REMEMBERED = 256
"""Ids kept; connections start clean, so a broker never resends what is older."""
_CUT_SHORT = "this device restarted while it acted on this command; it is not acted on again"


class _Acted(msgspec.Struct, frozen=True):
    replies: dict[str, Reply | None]


class CommandGate:
    """Refuses, or lets through, and remembers what was answered."""

    def __init__(self, allowed: Collection[str], folder: Path | None = None) -> None:
        """`folder`: where the ids of commands that were acted on are kept; None for in memory alone."""
        self._allowed = frozenset(allowed)
        self._path = folder / "commands.json" if folder else None
        self._lock = threading.Lock()
        self._answers: OrderedDict[str, Reply | None] = OrderedDict()
        self._acted: OrderedDict[str, Reply | None] = OrderedDict()
        for command_id, reply in self._read().items():
            known = reply or Reply(id=command_id, ok=False, text=_CUT_SHORT)
            self._answers[command_id] = self._acted[command_id] = known

    def refusal(self, command: Command, *, now_unix_ms: int, clock_synced: bool | None) -> Reply | None:
        """Why not, as a reply; None when it may run, which is said once for each id."""
        if command.id in self._answers:
            return self._answers[command.id] or Reply(id=command.id, ok=False, text="this command is still running")
        why = self._why_not(command, now_unix_ms, clock_synced)
        reply = Reply(id=command.id, ok=False, text=why) if why else None
        self._answers[command.id] = reply
        _keep_newest(self._answers)
        return reply

    def begin(self, command: Command) -> Reply | None:
        """Note on the disk that it is about to be acted on; a refusal where that cannot be noted."""
        with self._lock:
            self._acted[command.id] = None
            _keep_newest(self._acted)
            try:
                self._write()
            except OSError as e:
                del self._acted[command.id]
                text = f"that it was acted on cannot be noted, so it might be again after a restart: {e.strerror}"
                return Reply(id=command.id, ok=False, text=text)
        return None

    def answered(self, reply: Reply) -> None:
        """Remember the answer: the same id again gets the same one, without being acted on."""
        if reply.id in self._answers:
            self._answers[reply.id] = reply
        with self._lock:
            if reply.id not in self._acted:
                return
            self._acted[reply.id] = msgspec.structs.replace(reply, detail={})  # which may be long
            try:
                self._write()
            except OSError as e:
                logger.warning("the answer to command %s could not be stored: %s", reply.id, e)

    def _read(self) -> dict[str, Reply | None]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_Acted).replies if self._path else {}
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as e:
            logger.error("%s cannot be read, commands of before are not known: %s", self._path, e)
            return {}

    def _write(self) -> None:
        if self._path is not None:
            write_atomic(self._path, msgspec.json.encode(_Acted(dict(self._acted))), mode=0o600)

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


def _keep_newest(answers: OrderedDict[str, Reply | None]) -> None:
    while len(answers) > REMEMBERED:
        answers.popitem(last=False)


class CommandDesk:
    """Takes commands as they arrive and answers each. What takes long runs on a thread of its own, one at a time."""

    def __init__(
        self,
        allowed: Collection[str],
        *,
        own: Callable[[str], Reply | None],
        on_command: Callable[[Command], Reply] | None,
        answer: Callable[[Reply], None],
        folder: Path | None = None,
    ) -> None:
        """Args:
        folder: where it is kept which commands were acted on.
        own: answers a verb at once, with any id; None for a verb that is not its.
        on_command: acts on the others.
        """
        self._gate = CommandGate(allowed, folder)
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
        elif refusal := self._gate.begin(command):
            self._answer(refusal)
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
