"""One command to many devices: who gets it, who cannot, and what became of each. Pure but for its own memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from edgekit.fleet import Device, Presence
from edgekit.telemetry.messages import Command, Reply

ALWAYS = ("ping", "rebirth")
"What a device allows before it has told what it allows."
ANSWER_S = 15.0
EXPIRE_S = 60.0
AT_ONCE = 50
"Commands handed over in one turn: replies come back while the rest is sent."

DeviceKey = tuple[str, str]
Send = Callable[[str, str, Command], bool]
"Hands a command to the broker; False: there is no connection, and nothing was sent."


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What will happen, before anybody has agreed to it."""

    verb: str
    args: Mapping[str, str] = field(default_factory=dict)
    targets: tuple[DeviceKey, ...]
    refused: tuple[tuple[DeviceKey, str], ...]
    "Devices that cannot be asked, with the reason."


def order(verb: str, devices: Iterable[Device], args: Mapping[str, str] | None = None) -> Order:
    """Who of `devices` can be asked."""
    targets: list[DeviceKey] = []
    refused: list[tuple[DeviceKey, str]] = []
    for device in devices:
        why = why_not(verb, device)
        if why is None:
            targets.append(device.key)
        else:
            refused.append((device.key, why))
    return Order(verb=verb, args=args or {}, targets=tuple(targets), refused=tuple(refused))


def why_not(verb: str, device: Device) -> str | None:
    """The reason a device cannot be asked; None if it can."""
    if device.presence is Presence.OFFLINE:
        return "it is offline"
    allowed = device.birth.allowed_commands if device.birth else ALWAYS
    if verb not in (allowed or ALWAYS):
        return f"it allows only {', '.join(allowed or ALWAYS)}"
    return None


@dataclass(slots=True)
class Dispatch:
    """An order on its way. Each device gets one command with one id, at most once."""

    order: Order
    prefix: str
    "Begins the ids; no two dispatches share one."
    outcomes: dict[DeviceKey, tuple[str, str]] = field(default_factory=dict)
    "ok, failed, lost or unsent, with the words."
    sent_s: dict[DeviceKey, float] = field(default_factory=dict)
    next: int = 0

    def id_of(self, n: int) -> str:
        return f"{self.prefix}-{n}"

    def turn(self, send: Send, replies: Mapping[str, Reply], now_s: float) -> None:
        """Send some more, and take what was answered."""
        until = min(len(self.order.targets), self.next + AT_ONCE)
        for n in range(self.next, until):
            site, device = key = self.order.targets[n]
            expires = None if self.order.verb in ALWAYS else int((now_s + EXPIRE_S) * 1000)
            command = Command(id=self.id_of(n), verb=self.order.verb, args=self.order.args, expires_unix_ms=expires)
            self.sent_s[key] = now_s
            if not send(site, device, command):
                self.outcomes[key] = ("unsent", "no connection to the broker; it was not sent")
        self.next = until
        for n, key in enumerate(self.order.targets[: self.next]):
            if key in self.outcomes and self.outcomes[key][0] != "lost":
                continue
            reply = replies.get(self.id_of(n))
            if reply is not None:
                self.outcomes[key] = ("ok" if reply.ok else "failed", reply.text or ("done" if reply.ok else "refused"))
            elif now_s - self.sent_s[key] > ANSWER_S:
                self.outcomes[key] = ("lost", f"no answer within {ANSWER_S:g} s")

    @property
    def is_done(self) -> bool:
        return len(self.outcomes) == len(self.order.targets)

    @property
    def counts(self) -> Mapping[str, int]:
        """Devices by outcome."""
        return Counter(outcome for outcome, _ in self.outcomes.values())
