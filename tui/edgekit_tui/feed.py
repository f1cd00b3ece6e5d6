"""From the broker to one frozen view: what the reader has is folded, summed up and held against the alert rules."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from edgekit.fleet import Fleet, fold
from edgekit.ships import Ships
from edgekit.ships import heard as ships_after
from edgekit.telemetry.messages import Received, Reply, decode
from edgekit_tui.alerts import Alarm, Alert
from edgekit_tui.rows import Book, Row, book_of, percentile
from edgekit_tui.totals import Summary, Totals

PERIOD_S = 0.1
"At most this often a view is posted."
AGING_PERIOD_S = 1.0
"How often silent devices are looked at: they become late by the mere passing of time."
TREND_PERIOD_S = 2.0
TREND_POINTS = 300
KEPT_REPLIES = 20_000
SETTLE_S = 15.0
"So long after the link is up devices may look silent that are not."


class Source(Protocol):
    """Where messages come from: the broker's watcher, or a recording."""

    @property
    def connected(self) -> bool: ...
    @property
    def state(self) -> str:
        """A few words on the connection, for people."""
        ...

    @property
    def overrun(self) -> int:
        """Messages lost here, because they came faster than they were drained."""
        ...

    def start(self) -> None: ...
    def drain(self) -> list[Received]: ...
    def stop(self) -> object: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The connection to the broker as it is now."""

    endpoint: str
    connected: bool
    state: str
    was_connected: bool
    "It has been up since the start, so a loss is a reconnect."
    since_s: float
    "Unix time of the last change between up and down."
    overrun: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendPoint:
    """The live fleet's last windows at one moment."""

    at_s: float
    p50_ms: float | None
    p99_ms: float | None
    qps: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class View:
    """All that the screens draw from. Compared by identity: every posted view differs from the one before."""

    fleet: Fleet
    rows: tuple[Row, ...]
    totals: Totals
    trend: tuple[TrendPoint, ...]
    link: Link
    now_s: float
    replies: Mapping[str, Reply] = field(default_factory=dict)
    "Answers to commands, by the command's id."
    alerts: tuple[Alert, ...] = ()
    "Newest first, acknowledged ones last."
    releases: Ships = field(default_factory=dict)
    "Wishes and reports, by device."


class Folder:
    """Turns what the source has into views. Holds no thread and no clock: `step` does one round."""

    def __init__(self, source: Source, *, endpoint: str, alarm: Alarm | None = None) -> None:
        self._source, self.alarm = source, alarm or Alarm()
        self._fleet = Fleet()
        self._book: Book = {}
        self._order: list[tuple[str, str]] = []
        self._link = Link(endpoint=endpoint, connected=False, state="", was_connected=False, since_s=0.0, overrun=0)
        self._trend: tuple[TrendPoint, ...] = ()
        self._replies: dict[str, Reply] = {}
        self._alerts: tuple[Alert, ...] = ()
        self._ships: Ships = {}
        self._view: View | None = None
        self._aged_s = 0.0
        self._summary = Summary()

    def step(self, now_s: float, *, give_way: Callable[[], object] = lambda: None) -> View | None:
        """A new view, or None when nothing has changed that a screen shows. `give_way` is called again and again."""
        messages = self._source.drain()
        link = self._link_now(now_s)
        aged = now_s - self._aged_s >= AGING_PERIOD_S
        if not messages and not aged and link == self._link and self._view is not None:
            return None
        changed = link != self._link or self._view is None
        self._link = link
        if messages or aged:
            changed |= self._fold(messages, now_s, give_way)
        if not changed:
            return None
        if len(self._order) != len(self._book) or self._book.keys() != set(self._order):
            self._order = sorted(self._book)
        rows = tuple(row for key in self._order for row in self._book[key].rows)
        give_way()
        totals = self._summary.totals(self._fleet, rows, give_way)
        self._extend_trend(totals, now_s, fresh=bool(messages))
        # the silence of a broken link is not that of the devices, nor is the moment after it
        if (link.connected and now_s - link.since_s > SETTLE_S) or self._view is None:
            self._alerts = self.alarm.step(_politely(rows, give_way), self._fleet, now_s)
        self._view = View(
            fleet=self._fleet, rows=rows, totals=totals, trend=self._trend, link=link, now_s=now_s,
            replies=self._replies, alerts=self._alerts, releases=self._ships,
        )  # fmt: skip
        return self._view

    def _fold(self, messages: Sequence[Received], now_s: float, give_way: Callable[[], object]) -> bool:
        self._aged_s = now_s
        self._hear(messages)
        before, book_before, ships_before = self._fleet, self._book, self._ships
        self._ships = ships_after(self._ships, messages)
        for part in one_window_each(messages) or [[]]:
            self._fleet = fold(self._fleet, part, now_s=now_s, give_way=give_way)
            self._book = book_of(self._fleet, self._book, give_way, self._ships)
        return (
            self._fleet.events != before.events
            or self._fleet.malformed != before.malformed
            or self._ships is not ships_before
            or self._book.keys() != book_before.keys()
            or any(entry is not book_before[key] for key, entry in self._book.items())
        )

    def _hear(self, messages: Sequence[Received]) -> None:
        """Keep the replies: the fleet's events are too few to hold those of a large order."""
        heard = {}
        for message in messages:
            if message.topic.endswith("/reply"):
                with contextlib.suppress(ValueError):  # the fold counts what does not decode
                    reply = decode("reply", message.payload)
                    if isinstance(reply, Reply):
                        heard[reply.id] = reply
        if heard:
            merged = {**self._replies, **heard}
            self._replies = dict(list(merged.items())[-KEPT_REPLIES:])

    def _link_now(self, now_s: float) -> Link:
        connected = self._source.connected
        return Link(
            endpoint=self._link.endpoint,
            connected=connected,
            state=self._source.state,
            overrun=self._source.overrun,
            was_connected=self._link.was_connected or connected,
            since_s=now_s if connected != self._link.connected or not self._link.since_s else self._link.since_s,
        )

    def _extend_trend(self, totals: Totals, now_s: float, *, fresh: bool) -> None:
        if not fresh or (self._trend and now_s - self._trend[-1].at_s < TREND_PERIOD_S):
            return
        latency = self._summary.window(self._fleet)
        if latency is not None:
            point = TrendPoint(
                at_s=now_s, p50_ms=percentile(latency, 0.50), p99_ms=percentile(latency, 0.99), qps=totals.qps
            )  # fmt: skip
            self._trend = (*self._trend, point)[-TREND_POINTS:]


def one_window_each(messages: Sequence[Received]) -> list[list[Received]]:
    """`messages` cut so that no part holds two windows of one device: each then passes through `last_metrics`."""
    parts: list[list[Received]] = []
    seen: set[str] = set()
    for message in messages:
        is_window = message.topic.endswith("/metrics")
        if not parts or (is_window and message.topic in seen):
            parts.append([])
            seen.clear()
        if is_window:
            seen.add(message.topic)
        parts[-1].append(message)
    return parts


def _politely(rows: Sequence[Row], give_way: Callable[[], object]) -> Iterator[Row]:
    """The rows one by one, each after a look whether somebody waits."""
    for row in rows:
        give_way()
        yield row
