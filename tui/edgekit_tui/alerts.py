"""Alerts: rules from a TOML file, held against every view; each alert lasts until it has ended and was acknowledged."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec

from edgekit.errors import ConfigError, UsageError
from edgekit.fleet import Fleet
from edgekit.strict import read_toml
from edgekit_tui import draw
from edgekit_tui.draw import UNICODE
from edgekit_tui.kept import Kept
from edgekit_tui.query import parse_query
from edgekit_tui.rows import Row

AlertId = tuple[str, str, str, str, float]
"Rule, site, device, model, and when it began."
_CLOCK = re.compile(r"([01]\d|2[0-3]):[0-5]\d")


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[rule]]`."""

    name: str
    when: Literal["p99", "offline", "throttled", "drops", "selection"]
    over_ms: float | None = None
    "For p99. Left out: the limit set for the model."
    windows: int = 3
    "For p99: so many windows in a row."
    only: str = ""
    "A filter, as in the filter bar."
    bell: bool = True


class Rules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file."""

    rule: tuple[Rule, ...] = ()
    quiet_from: str | None = None
    '"22:00", local time: from then until `quiet_to` no bell rings.'
    quiet_to: str | None = None


DEFAULT = Rules(
    rule=(
        Rule(name="slow", when="p99"),
        Rule(name="offline", when="offline"),
        Rule(name="throttled", when="throttled", bell=False),
        Rule(name="drops", when="drops"),
        Rule(name="selection", when="selection", bell=False),
    )
)


Judged = tuple[Row, Sequence[tuple[Rule, str]]]
"A row, and the rules it breaks with how."


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One rule that does not hold for one row."""

    rule: str
    site: str
    device: str
    model: str
    since_s: float
    text: str
    ended: bool = False
    acknowledged: bool = False

    @property
    def id(self) -> AlertId:
        return self.rule, self.site, self.device, self.model, self.since_s


def read_rules(path: Path) -> Rules:
    """The rules of a file. Raises ConfigError naming the key."""
    rules = read_toml(path, Rules)
    for key in ("quiet_from", "quiet_to"):
        value = getattr(rules, key)
        if value is not None and not _CLOCK.fullmatch(value):
            raise ConfigError(path, key, f"'{value}' is not a time such as 22:00")
    if (rules.quiet_from is None) != (rules.quiet_to is None):
        raise ConfigError(path, "quiet_from", "goes together with quiet_to; give both or neither")
    for i, rule in enumerate(rules.rule):
        if rule.name in (other.name for other in rules.rule[:i]):
            raise ConfigError(path, f"rule.{rule.name}", "there are two of this name; alerts are told apart by it")
        try:
            parse_query(rule.only)
        except UsageError as e:
            raise ConfigError(path, f"rule.{rule.name}.only", str(e)) from e
        if rule.windows < 1:
            raise ConfigError(path, f"rule.{rule.name}.windows", "must be at least 1")
    return rules


def is_quiet(rules: Rules, now_s: float) -> bool:
    """Whether no bell rings now, by the local clock."""
    if rules.quiet_from is None or rules.quiet_to is None:
        return False
    now = time.strftime("%H:%M", time.localtime(now_s))
    if rules.quiet_from <= rules.quiet_to:
        return rules.quiet_from <= now < rules.quiet_to
    return now >= rules.quiet_from or now < rules.quiet_to


class Alarm:
    """Holds the rules against each view. `acknowledge` may be called from another thread."""

    def __init__(self, rules: Rules = DEFAULT) -> None:
        self.rules = rules
        self._queries = {rule.name: parse_query(rule.only) for rule in rules.rule}
        self._known: dict[tuple[str, str, str, str], Alert] = {}
        self._acknowledged: set[AlertId] = set()
        self._events_seen_s = 0.0
        self._broken: Kept[Row, Judged] = Kept(self._judged)

    def acknowledge(self, alert: Alert) -> None:
        """Somebody knows; it goes away when it has ended."""
        self._acknowledged.add(alert.id)

    def step(self, rows: Iterable[Row], fleet: Fleet, now_s: float) -> tuple[Alert, ...]:
        """The alerts now, newest first."""
        judged = self._broken.of(rows)
        found = {**self._by_rows(judged, now_s), **self._by_events(fleet, judged, now_s)}
        known: dict[tuple[str, str, str, str], Alert] = {}
        for key, alert in self._known.items():
            acknowledged = alert.id in self._acknowledged
            still = found.pop(key, None)
            if still is None and acknowledged:
                self._acknowledged.discard(alert.id)
                continue
            text = still.text if still else alert.text
            known[key] = replace(alert, text=text, ended=still is None, acknowledged=acknowledged)
        known |= found
        self._known = known
        return tuple(sorted(known.values(), key=lambda one: (one.acknowledged, -one.since_s, one.id)))

    def _by_rows(self, judged: Sequence[Judged], now_s: float) -> Mapping[tuple[str, str, str, str], Alert]:
        found: dict[tuple[str, str, str, str], Alert] = {}
        for row, broken in judged:
            for rule, text in broken:
                if not self._queries[rule.name].matches(row, now_s):
                    continue
                # a device that is gone, or hot, or drops is so once, whatever it serves
                model = row.model if rule.when == "p99" else ""
                key = (rule.name, row.site, row.device, model)
                found[key] = Alert(
                    rule=rule.name, site=row.site, device=row.device, model=model, since_s=now_s, text=text
                )
        return found

    def _judged(self, row: Row) -> Judged:
        """The rules that a row breaks, whatever their filters say."""
        why = ((rule, _why(rule, row)) for rule in self.rules.rule if rule.when != "selection")
        return row, [(rule, text) for rule, text in why if text is not None]

    def _by_events(
        self, fleet: Fleet, judged: Sequence[Judged], now_s: float
    ) -> Mapping[tuple[str, str, str, str], Alert]:
        """A selection that changes is over at once: it stays until somebody knows."""
        found: dict[tuple[str, str, str, str], Alert] = {}
        fresh = [one for one in fleet.events if one.received_s > self._events_seen_s]
        self._events_seen_s = max((one.received_s for one in fresh), default=self._events_seen_s)
        fresh = [one for one in fresh if one.event.kind == "selection"]
        for rule in self.rules.rule if fresh else ():
            if rule.when != "selection":
                continue
            query = self._queries[rule.name]
            meant = {(row.site, row.device) for row, _ in judged if query.matches(row, now_s)} if rule.only else None
            for one in fresh:
                if meant is None or (one.site, one.device) in meant:
                    found[rule.name, one.site, one.device, str(one.received_s)] = Alert(
                        rule=rule.name, site=one.site, device=one.device, model="", since_s=one.received_s,
                        text=one.event.text,
                    )  # fmt: skip
        return found


class Bell:
    """Says when to ring: once for whatever is new, unless its rule or the hour forbids it."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._loud = {rule.name for rule in rules.rule if rule.bell}
        self._known: set[AlertId] | None = None

    def rings(self, alerts: Sequence[Alert], now_s: float) -> list[Alert]:
        """The new ones to ring for; those of the first call are not new."""
        before, self._known = self._known, {alert.id for alert in alerts}
        if before is None or is_quiet(self._rules, now_s):
            return []
        return [alert for alert in alerts if alert.rule in self._loud and alert.id not in before]


def _why(rule: Rule, row: Row) -> str | None:
    if rule.when == "offline":
        return row.reason or "offline" if row.state in ("offline", "stale") else None
    if row.state in ("offline", "stale"):
        return None
    if rule.when == "throttled":
        return "the board slows itself down" if row.throttled else None
    if rule.when == "drops":
        return f"{draw.count(row.dropped)} messages dropped" if row.dropped else None
    bound = rule.over_ms if rule.over_ms is not None else row.limit_ms
    last = [point.p99_ms for point in row.history[-rule.windows :]]
    if bound is None or len(last) < rule.windows or not all(p99 is not None and p99 > bound for p99 in last):
        return None
    if row.p99_ms is None or row.p99_ms <= bound:
        return None  # a window has too few samples for a p99 of its own: one outlier in each would raise this
    windows = f"{rule.windows} windows" if rule.windows > 1 else "a window"
    return f"p99 {draw.ms(last[-1], UNICODE)} ms, over {draw.ms(bound, UNICODE)} for {windows}"
