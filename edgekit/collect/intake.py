"""From messages to rows: each window once, its samples into the rollups, what the collector must store and acknowledge.

No clock and no network; the store is only read. What `taken` gave must be committed before anything is acknowledged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from edgekit.collect.history import History, Window
from edgekit.collect.ledger import Page
from edgekit.collect.rollup import LEVELS_S, NOTHING, Place, Rollup, with_window
from edgekit.config import NAME_PATTERN
from edgekit.fleet import MAX_DEVICES
from edgekit.telemetry import histogram
from edgekit.telemetry.histogram import HistogramBuilder
from edgekit.telemetry.messages import EVERYONE, Metrics, Received, decode, parse_topic

MOST_PLACES = 200_000
"""Rollups held between two pourings; lanes beyond them are counted under one name: invented ones must cost little."""
MOST_PAGES = 200_000
OTHER = "_other"
_TRUSTED_PAST_MS, _TRUSTED_FUTURE_MS = 400 * 86_400_000, 3_600_000
_NAME = re.compile(NAME_PATTERN)


@dataclass(slots=True)
class Counts:
    """Since the start of this collector."""

    messages: int = 0
    windows: int = 0
    historical: int = 0
    duplicates: int = 0
    malformed: int = 0
    commits: int = 0


@dataclass(slots=True)
class Batch:
    """What was taken in since the last commit."""

    windows: list[Window] = field(default_factory=list)
    events: list[tuple[int, int, bytes]] = field(default_factory=list)
    pages: dict[tuple[int, int], Page] = field(default_factory=dict)
    live_at_ms: list[int] = field(default_factory=list)
    "When the live windows ended by synchronised clocks, to know how late they are when they are stored."


class Intake:
    """Takes messages in. One thread."""

    def __init__(self, store: History) -> None:
        self.counts = Counts()
        self.delay_ms = HistogramBuilder(max_scale=4)
        "From the end of a live window to its being stored."
        self.places: dict[Place, Rollup] = {}
        "Five minutes each, of the windows that the store has not poured yet."
        self._store = store
        self._pages: dict[tuple[int, int], Page] = {}
        self._topics: dict[str, tuple[str, int] | None] = {}
        self._batch = Batch()
        self._number = store.next_number
        for window in store.unpoured():
            found = decode("metrics", window.payload)
            assert isinstance(found, Metrics)
            self._pour(window.device, window.at_ms, found)

    @property
    def newest(self) -> int:
        """The number of the newest window taken in."""
        return self._number - 1

    def take(self, messages: Iterable[Received]) -> None:
        """Take in what was received; what is not ours or does not decode is counted and changes nothing."""
        for message in messages:
            self.counts.messages += 1
            place = self._topics.get(message.topic) or self._place(message.topic)
            if place is None:
                continue
            leaf, device = place
            try:
                if leaf == "metrics":
                    self._take_window(device, message)
                elif leaf in ("event", "birth") and not message.retained:
                    decode(leaf, message.payload)
                    if leaf == "event":
                        self._batch.events.append((device, int(message.received_s * 1000), message.payload))
            except ValueError:
                self.counts.malformed += 1

    def forget(self, site: str, device: str) -> None:
        """A device was cleared away; call it between two batches."""
        number = self._store.devices.get((site, device))
        self._store.forget(site, device)
        self._topics = {topic: place for topic, place in self._topics.items() if place and place[1] != number}
        self._pages = {key: page for key, page in self._pages.items() if key[0] != number}
        self.places = {place: rollup for place, rollup in self.places.items() if place.device != number}

    def taken(self) -> Batch:
        """What must be stored now; the next batch begins."""
        batch, self._batch = self._batch, Batch()
        if len(self._pages) > MOST_PAGES:
            self._pages.clear()  # they are read again when needed
        return batch

    def stored(self, batch: Batch, now_ms: int) -> None:
        """The batch is on the disk."""
        self.counts.commits += 1
        self.delay_ms.record_many([float(max(0, now_ms - at_ms)) for at_ms in batch.live_at_ms])

    def poured(self) -> dict[Place, Rollup]:
        """The rollups so far, to be poured into the store; new ones begin."""
        places, self.places = self.places, {}
        return places

    def _place(self, topic: str) -> tuple[str, int] | None:
        """(leaf, device number) of a topic; None for one that is not a device's."""
        parsed = parse_topic(topic)
        if parsed is None or not _NAME.match(parsed.site) or not _NAME.match(parsed.device):
            self.counts.malformed += 1
            return None
        if EVERYONE in (parsed.site, parsed.device) or parsed.leaf not in ("metrics", "event", "birth"):
            return None
        if (parsed.site, parsed.device) not in self._store.devices and len(self._store.devices) >= MAX_DEVICES:
            self.counts.malformed += 1
            return None
        place = (parsed.leaf, self._store.device(parsed.site, parsed.device))
        self._topics[topic] = place
        return place

    def _take_window(self, device: int, message: Received) -> None:
        """Raises ValueError for what is no window."""
        window = decode("metrics", message.payload)
        assert isinstance(window, Metrics)
        for lane in window.lanes:
            for latency in (lane.infer_ms, lane.queue_ms):
                if latency is not None and (wrong := histogram.problem(latency)):
                    raise ValueError(f"{lane.model}: {wrong}")
        key = (device, window.epoch)
        page = self._pages.get(key)
        if page is None:
            page = self._pages[key] = self._store.page(device, window.epoch)
        self._batch.pages[key] = page
        if not page.enter(window.seq, window.oldest_seq):
            self.counts.duplicates += 1
            return
        received_ms = int(message.received_s * 1000)
        trusted = window.clock_synced is not False and (
            received_ms - _TRUSTED_PAST_MS < window.t_unix_ms < received_ms + _TRUSTED_FUTURE_MS
        )
        at_ms = window.t_unix_ms if trusted else received_ms
        row = Window(self._number, device, window.epoch, window.seq, at_ms, received_ms, message.payload)
        self._batch.windows.append(row)
        self._number += 1
        self.counts.windows += 1
        self.counts.historical += window.historical
        if trusted and not window.historical:
            self._batch.live_at_ms.append(at_ms)
        self._pour(device, at_ms, window)

    def _pour(self, device: int, at_ms: int, window: Metrics) -> None:
        start_s = at_ms // 1000
        start_s -= start_s % LEVELS_S[0]
        for lane in window.lanes:
            place = Place(start_s, device, lane.model, lane.lane, lane.artifact)
            known = self.places.get(place)
            if known is None and len(self.places) >= MOST_PLACES:
                place = Place(start_s, device, OTHER, "", "")
                known = self.places.get(place)
            self.places[place] = with_window(known or NOTHING, lane)
