"""The updater that stays: woken by `desired`, it brings what is signed for this device and reports what became of it.

A process of its own beside the daemon, since it must outlive the daemon that an update replaces, and outside the guard,
which never touches the network. It runs from the active slot, and starts anew from the new one once that is good.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import queue
import random
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from edgekit.config import MqttConfig
from edgekit.errors import SlotError
from edgekit.provision import slots
from edgekit.provision.errand import Errand, heard, is_same_wish, read_errand, wait_s, write_errand
from edgekit.provision.fetching import attempt
from edgekit.provision.report import Doing, has_left_our_hands, report, slot_of
from edgekit.provision.settings import Settings
from edgekit.telemetry.clock import unix_ms
from edgekit.telemetry.connection import Outgoing
from edgekit.telemetry.desired import Desired, Reported, Step
from edgekit.telemetry.link import Link, Opening
from edgekit.telemetry.messages import EVERYONE, Received, decode, encode, topic

logger = logging.getLogger(__name__)

POLL_S = 0.5
PROGRESS_S = 1.0
"""`share` alone is reported at most so often."""
REBIRTH_SPREAD_S = 2.0


class Follower:
    """One device's updater, from `run` until `stop` or until another release is active."""

    def __init__(self, root: Path, settings: Settings, mqtt: MqttConfig, *, site: str, device: str) -> None:
        """Raises ConfigError for settings that can never connect, SlotError for a folder that is no device's."""
        self._root, self._settings = root, settings
        self._inbox: queue.SimpleQueue[Received | None] = queue.SimpleQueue()
        self._errand = read_errand(root)
        self._doing: Doing | None = None
        self._problem, self._is_tidy = "", False
        self._status = slots.status(root)
        self._seen: Any = None
        self._began_with = self._good_digest()
        self._where = topic(site, device, "reported")
        self._reported = self._report()
        self._reported_s = 0.0
        self._again_s: float | None = None
        self._work: Future[Errand] | None = None
        self._worked_for: Errand | None = None
        self._is_cancelled = self._stops = False
        self._dice = random.Random()
        self._link = Link(
            mqtt,
            client_id=f"{site}/{device}/updater",
            subscriptions=(
                topic(site, device, "desired"),
                *(topic(of, EVERYONE, "rebirth") for of in (site, EVERYONE)),
            ),
            opening=lambda: Opening(first=(self._outgoing(),)),
            on_message=self._inbox.put,
        )

    def run(self) -> bool:
        """True when another release has become the active, good one: its own updater is to go on."""
        with self._alone(), ThreadPoolExecutor(1, thread_name_prefix="update") as workers:
            self._link.start()
            try:
                while not self._stops:
                    self._listen()
                    self._look()
                    self._advance(workers)
                    self._tell()
                    if self._is_superseded():
                        return True
                return False
            finally:
                self._is_cancelled = True
                self._link.stop()

    def stop(self) -> None:
        """From a signal handler or any thread; what is under way is taken up again at the next start."""
        self._stops = self._is_cancelled = True
        self._inbox.put(None)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        with (self._root / "updater.lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as e:
                raise SlotError("a and b", f"another updater follows {self._root}", rolled_back=False) from e
            yield

    def _listen(self) -> None:
        """Wait a moment for messages and take in those that are there."""
        with contextlib.suppress(queue.Empty):
            message = self._inbox.get(timeout=POLL_S)
            while message is not None:
                self._hear(message)
                message = self._inbox.get_nowait()

    def _hear(self, message: Received) -> None:
        if message.topic.endswith("/rebirth"):
            # What is retained does not reach a reader's wildcards on every broker: say it again, but not all at once.
            self._again_s = self._again_s or time.monotonic() + self._dice.uniform(0.0, REBIRTH_SPREAD_S)
            return
        try:
            desired = decode("desired", message.payload) if message.payload else None
        except ValueError as e:
            self._problem = f"what is desired cannot be read: {e}"
            logger.warning("%s", self._problem)
            return
        assert desired is None or isinstance(desired, Desired)
        self._problem = ""
        not_before = time.time() + self._dice.uniform(0.0, self._settings.jitter_s)
        after = heard(self._errand, desired, not_before_unix_s=not_before)
        if after is not self._errand and after is not None:
            logger.info("desired: %s", after.reason or after.release)
            self._is_cancelled = True
            self._keep(after)

    def _keep(self, errand: Errand) -> None:
        self._errand, self._is_tidy = errand, False
        write_errand(self._root, errand)

    def _look(self) -> None:
        """Read the slots again if the guard or we have changed them: a manifest is too long to parse twice a second."""
        try:
            stat = (self._root / "state.json").stat()
        except FileNotFoundError:  # the guard makes a new one when it starts
            return
        seen = (stat.st_ino, stat.st_mtime_ns, slots.running_slot(self._root))
        if seen == self._seen:
            return
        before, self._status, self._seen = self._status, slots.status(self._root), seen
        if self._errand is not None and (slot := slot_of(self._status, self._errand)) is not None:
            was = slot_of(before, self._errand)
            if was is None or was.state is not slot.state:
                logger.info("slot %s: %s is %s %s", slot.slot, slot.release, slot.state.value, slot.reason or "")
            if slot.state is slots.SlotState.GOOD and slot.slot == self._status.active:
                self._tidy_once()

    def _tidy_once(self) -> None:
        """What neither slot needs goes, but never while another updater fills a slot."""
        if self._is_tidy:
            return
        with contextlib.suppress(SlotError), slots.updating(self._root):
            slots.tidy(self._root)
            self._is_tidy = True

    def _advance(self, workers: ThreadPoolExecutor) -> None:
        """Take in what an attempt came to; begin another where one is due."""
        if self._work is not None:
            if not self._work.done():
                return
            came_to, self._work, self._doing = self._work.result(), None, None
            if self._errand is self._worked_for or (came_to.slot and is_same_wish(self._errand, came_to)):
                self._keep(came_to)  # what was taken back too late is tried all the same: the guard has it
            elif self._errand is not None:
                self._keep(self._errand)  # the attempt may have written its own over it
            self._look()
        errand = self._errand
        if errand is None or has_left_our_hands(self._status, errand) or self._is_judging():
            return
        if (left_s := wait_s(errand, time.time())) > 0:
            self._doing = self._doing or Doing(step=Step.WAITING, reason=errand.reason or f"its turn in {left_s:.0f} s")
            return
        self._is_cancelled, self._worked_for = self._stops, errand
        self._doing = Doing(step=Step.WAITING, reason=errand.reason)
        self._work = workers.submit(
            attempt,
            self._root,
            errand,
            self._settings,
            is_cancelled=lambda: self._is_cancelled,
            say=self._say,
            now_s=time.time(),
            dice=self._dice,
        )

    def _say(self, doing: Doing) -> None:
        """On the worker's thread."""
        self._doing = doing

    def _is_judging(self) -> bool:
        """A release awaits its verdict: whatever else is desired comes after it."""
        return any(slot.state is slots.SlotState.PENDING for slot in self._status.slots)

    def _report(self) -> Reported:
        return report(
            self._status,
            self._errand,
            self._doing,
            group=self._settings.group,
            unix_ms=unix_ms(),
            problem=self._problem,
        )

    def _tell(self) -> None:
        """Publish when something has changed; progress alone only now and then."""
        now, now_s = self._report(), time.monotonic()
        said = replace(self._reported, t_unix_ms=now.t_unix_ms)
        if self._again_s is not None and now_s >= self._again_s:
            self._again_s = None
        elif now == said:
            return
        is_progress = now != said and now == replace(said, share=now.share, reason=now.reason)
        if is_progress and now_s - self._reported_s < PROGRESS_S:
            return
        self._reported, self._reported_s = now, now_s
        self._link.send(self._outgoing())

    def _outgoing(self) -> Outgoing:
        return Outgoing(self._where, encode(self._reported), retain=True)

    def _good_digest(self) -> str | None:
        active = next((slot for slot in self._status.slots if slot.slot == self._status.active), None)
        return active.digest if active is not None and active.state is slots.SlotState.GOOD else None

    def _is_superseded(self) -> bool:
        now = self._good_digest()
        return now is not None and now != self._began_with and self._status.running == self._status.active
