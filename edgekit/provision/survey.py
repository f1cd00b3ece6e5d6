"""Who is there: which devices have an updater, of which group and kind, before a rollout is planned."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

from edgekit.errors import ConfigError
from edgekit.fleet import Fleet, Presence, fold
from edgekit.provision.compare import Bounds
from edgekit.provision.rollout import Limits, Rollout
from edgekit.provision.waves import Candidate, plan
from edgekit.telemetry.desired import Reported
from edgekit.telemetry.messages import EVERYONE, Received, decode, parse_topic


class Survey:
    """What was heard of a fleet. `hear` takes messages, `plan` makes a rollout of them."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.reported: dict[str, Reported] = {}

    def hear(self, message: Received) -> None:
        """One message; what cannot be read counts as not said."""
        where = parse_topic(message.topic)
        if where is None or EVERYONE in (where.site, where.device):
            return
        if where.leaf != "reported":
            self.fleet = fold(self.fleet, (message,), now_s=message.received_s, keep_history=False)
            return
        try:
            said = decode("reported", message.payload)
        except ValueError:
            return
        assert isinstance(said, Reported)
        self.reported[f"{where.site}/{where.device}"] = said

    def candidates(self) -> list[Candidate]:
        """Devices whose updater has reported."""
        found = []
        for key, said in sorted(self.reported.items()):
            device = self.fleet.devices.get(tuple(key.split("/", 1)))  # type: ignore[arg-type]
            birth = device.birth if device else None
            online = device is not None and device.presence in (Presence.ONLINE, Presence.LATE)
            kind = (birth.board_id or birth.board) if birth else ""
            found.append(Candidate(key=key, group=said.group, kind=kind, is_online=online))
        return found

    def plan(
        self,
        release: str,
        *,
        digest: str,
        groups: Sequence[str],
        canary: Sequence[float],
        sites: Sequence[str],
        bounds: Bounds,
        limits: Limits,
    ) -> Rollout:
        """Raises ConfigError when there is nobody to give it to."""
        everyone = self.candidates()
        waves = plan(everyone, canary=canary, groups=groups, seed=release)
        if not waves:
            said = ", ".join(sorted({c.group for c in everyone})) or "none at all"
            problem = f"no device with an updater is of group {', '.join(groups)}; heard of: {said}"
            raise ConfigError("the fleet", None, f"{problem}; devices need: edgekit update --follow")
        taking = {key for wave in waves for key in wave.devices}
        return Rollout(
            id=f"{release}-{secrets.token_hex(4)}",
            release=release,
            digest=digest,
            sites=tuple(sites),
            waves=waves,
            kinds={c.key: c.kind for c in everyone if c.key in taking},
            bounds=bounds,
            limits=limits,
            began_unix_s=time.time(),
        )

    def describe(self, rollout: Rollout) -> list[str]:
        """The plan, in lines for people."""
        size = len(rollout.kinds)
        lines = [f"{rollout.release}: {size} device{'s' * (size != 1)} in {len(rollout.waves)} waves"]
        online = {c.key for c in self.candidates() if c.is_online}
        for i, wave in enumerate(rollout.waves, 1):
            running: dict[str, int] = {}
            for key in wave.devices:
                name = self.reported[key].running or "nothing"
                running[name] = running.get(name, 0) + 1
            now = ", ".join(f"{count} run {name}" for name, count in sorted(running.items()))
            away = len(set(wave.devices) - online)
            named = ", ".join(wave.devices[:3]) + (", …" if len(wave.devices) > 3 else "")
            gone = f"; {away} not online" if away else ""
            lines.append(f"  wave {i}  {wave.name:14} {len(wave.devices):5}  {now}{gone}  ({named})")
        b, limit = rollout.bounds, rollout.limits
        compared = (
            f"p50 at most {b.p50_ratio:.2f}x, p99 {b.p99_ratio:.2f}x, failed requests {100 * b.failed:+.1f} points, "
            f"shadow agreement {-100 * b.disagreed:+.1f} points, each proven (99 %) by {b.samples} samples or more"
            if b.samples
            else "telemetry is not compared"
        )
        lines.append(f"  a wave goes on when {limit.success:.0%} have committed and {compared}")
        if others := len({f"{s}/{d}" for s, d in self.fleet.devices} - set(self.reported)):
            lines.append(f"  {others} devices report telemetry but have no updater; they take no part")
        return lines
