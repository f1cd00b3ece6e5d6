"""Is the other side still there? Within one and a half keep-alives the answer is right. Pure."""

from __future__ import annotations

from dataclasses import dataclass

PROMISED_RATIO = 1.5
"""A status is right after so many keep-alives, which MQTT 3.1.1, section 3.1.2.10, asks of brokers too."""
_DEAD_RATIO = 1.4
"""A tenth is left for being late."""
_PAHO_RATIO = _DEAD_RATIO / 2
"""paho-mqtt speaks up after one of its keep-alives and gives up after two. The broker, told the same, is early too:
mosquitto looks only every 5 s, which this makes up for from a keep-alive of 14 s on."""


def wire_keepalive_s(keepalive_s: int) -> int:
    """What a client through paho-mqtt asks for (seconds, at least 2 of ours), so that both ends keep the bound."""
    return max(1, int(_PAHO_RATIO * keepalive_s))


def patience_s(keepalive_s: float) -> float:
    """After so long a silence the other side is dead."""
    return _DEAD_RATIO * keepalive_s


def idle_s(keepalive_s: int) -> float:
    """How long such a client may sleep without looking at its watch, which it does twice: most of what is left."""
    return 0.8 * (PROMISED_RATIO * keepalive_s / 2 - wire_keepalive_s(keepalive_s))


@dataclass(slots=True)
class KeepAlive:
    """The watch of a connection that counts for itself."""

    keepalive_s: float
    heard_s: float
    spoke_s: float
    pinged_s: float = 0.0

    def is_due(self, now_s: float) -> bool:
        """Whether to ping: half a keep-alive after either side fell silent."""
        return now_s - max(self.pinged_s, min(self.spoke_s, self.heard_s)) > self.keepalive_s / 2

    def is_dead(self, now_s: float) -> bool:
        """Whether the other side has been silent for too long."""
        return now_s - self.heard_s > patience_s(self.keepalive_s)

    @property
    def verdict(self) -> str:
        """What to say of a dead one."""
        return f"no answer for {patience_s(self.keepalive_s):.0f} s"
