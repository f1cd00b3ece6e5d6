"""What a running daemon does beside answering: it looks after its memory and its lanes, and changes while it runs."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, TypeVar

from edgekit.config import DaemonConfig
from edgekit.device import sensors
from edgekit.device.memory import read_memory
from edgekit.device.tree import Tree
from edgekit.errors import ConfigError, EdgekitError
from edgekit.runtimes.warmup import random_inputs
from edgekit.serve.engine import Engine
from edgekit.serve.guard import STEPS, Guard, read_now
from edgekit.serve.job import Job
from edgekit.serve.lane import REALTIME, Lane
from edgekit.serve.loader import Loader
from edgekit.serve.remote import RemoteSession
from edgekit.serve.strain import Strain, why_strained

logger = logging.getLogger(__name__)

LOOK_S = 1.0
MEMORY_EVERY, HEAT_EVERY = 2, 15
"""Looks."""
PROBE_SHARE = 200
"""A self-probe takes at most this part of a core: a slow model is probed less often."""
SLOW = 20
"""An inference is stuck only when it also takes this many times what one of its kind takes."""
Tell = Callable[..., None]
Result = TypeVar("Result")
CLOSE_S = 0.5
HELPLESS = "the daemon cannot look after itself"


class Upkeep:
    """`tell` publishes an event; `end` is called when a runtime in our own process is stuck and only an end helps."""

    def __init__(
        self,
        loader: Loader,
        config: DaemonConfig,
        source: str,
        *,
        reread: Callable[[], DaemonConfig] | None,
        tell: Tell,
        end: Callable[[str], None],
    ) -> None:
        self._loader, self._config, self._source, self._reread = loader, config, source, reread
        self._tell, self._end = tell, end
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="load")
        self._under_way: set[Future[Any]] = set()
        self._tree = Tree()
        self._usable_bytes = read_memory(self._tree).usable_bytes
        self._guard = Guard(config.memory)
        self._probed_s: dict[Lane, float] = {}
        self._strains: dict[str, Strain] = {}
        self._helpless: set[str] = set()
        "Models under strain for which there is nothing faster."
        self._seen: dict[str, tuple[Lane | None, int, int]] = {}
        "Model -> its lane at the last look, and what that had answered, in all and late."
        self._is_over = threading.Event()
        self.is_live = True
        "Every loaded lane has answered of late, a client or a probe of ours, and none is stuck."

    @property
    def engine(self) -> Engine:
        return self._loader.engine

    def gauges(self) -> dict[str, float]:
        """For /metrics."""
        return {"edgekit_live": int(self.is_live), "edgekit_memory_level": self._guard.level}

    def load(self) -> asyncio.Future[None]:
        """Everything that is configured; on a thread, so that health is answered meanwhile."""
        return self._load(self._loader.apply, self._config, self._source)

    def close(self, timeout_s: float = CLOSE_S) -> bool:
        """Load nothing more; False when a load is still under way after `timeout_s`: nothing can stop one."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._is_over.set()
        return not wait(self._under_way, timeout_s).not_done

    def _load(self, work: Callable[..., Result], *args: Any) -> asyncio.Future[Result]:
        """`work` on the one thread that loads."""
        future = self._executor.submit(work, *args)
        self._under_way = {future, *(other for other in self._under_way if not other.done())}
        return asyncio.wrap_future(future)

    async def reload(self) -> str:
        """Read the configuration again and change what it changes, without a failed request; what came of it.

        Raises ConfigError and what loading raises; then everything is as before.
        """
        if self._reread is None:
            raise ConfigError(self._source, None, "there is no configuration file to read again")
        config = self._reread()
        fixed = [
            key for key in ("site", "device", "http", "mqtt") if getattr(config, key) != getattr(self._config, key)
        ]
        await self._apply(config)
        self._guard = Guard(config.memory) if config.memory != self._config.memory else self._guard
        if config.health != self._config.health:
            self._strains = {}
        self._config = config
        models = ", ".join(self.engine.models)
        later = f"; {', '.join(fixed)} will change at the next start" if fixed else ""
        return f"serving {models}{later}"

    async def _apply(self, config: DaemonConfig) -> None:
        try:
            await self._load(self._loader.apply, config, self._source)
        except EdgekitError:
            if config is not self._config:  # a part of it may have been loaded before the fault was met
                await self._load(self._loader.apply, self._config, self._source)
            raise

    def start(self) -> asyncio.Task[None]:
        """Watch until cancelled. A fault in it ends the daemon: unguarded and unwatched it must not go on.

        What is stuck is looked for by a thread of its own: a short inference runs on the loop's, and may be the one.
        """
        threading.Thread(target=self._watch_for_stuck, name="stuck", daemon=True).start()
        watching = asyncio.get_running_loop().create_task(self._watch())
        watching.add_done_callback(self._on_end)
        return watching

    def _on_end(self, watching: asyncio.Task[None]) -> None:
        if not watching.cancelled() and (fault := watching.exception()) is not None:
            logger.error("the daemon's upkeep ended by a fault", exc_info=fault)
            self._end(HELPLESS)

    async def _watch(self) -> None:
        look = 0
        while True:
            await asyncio.sleep(LOOK_S)
            look += 1
            if look % HEAT_EVERY == 0:
                self.engine.is_hot = bool(sensors.read(Path("/")).throttled)
                await self._look_at_strain(time.monotonic())
            if look % MEMORY_EVERY == 0:
                await self._look_at_memory()
            self._look_at_lanes(time.monotonic())

    async def _look_at_memory(self) -> None:
        reading = read_now(self._tree, self._usable_bytes)
        before = self._guard.level
        if not self._guard.see(reading, time.monotonic()):
            return
        level = self._guard.level
        text = f"{STEPS[level]}: {reading}"
        logger.warning("memory: %s", text)
        self._tell("memory", text, level=level, before=before, available_bytes=reading.available_bytes)
        self._loader.level = level
        await self.apply_again()

    async def _look_at_strain(self, now_s: float) -> None:
        """A model that is too slow for a while runs the fastest candidate that was measured, until it is calm again."""
        sustained_s = self._config.health.strain_s
        if sustained_s == 0:
            return
        for name, served in list(self.engine.models.items()):
            if served.lane is None:
                continue
            counts, strain = served.lane.counts, self._strains.setdefault(name, Strain(sustained_s))
            requests, late = (counts.requests, counts.late)
            seen_lane, seen_requests, seen_late = self._seen.get(name, (None, 0, 0))
            self._seen[name] = (served.lane, requests, late)
            if seen_lane is not served.lane:
                continue
            why = why_strained(
                throttled=self.engine.is_hot,
                requests=requests - seen_requests,
                late=late - seen_late,
                bound_ms=counts.bound_ms,
            )
            if strain.see(now_s, why):
                await self._relieve(name, f"{why}, for {sustained_s:g} s")
            elif strain.is_over(now_s):
                self._helpless.discard(name)
                if self._loader.strained.pop(name, None) is not None:
                    self._say_adapted(name, "calm again: back to what was selected")
                    await self.apply_again()

    async def _relieve(self, name: str, why: str) -> None:
        other = await self._load(self._loader.relieve, name)
        if other is None:
            if name not in self._helpless:  # once, not every minute of a long summer
                self._say_adapted(name, f"{why}; nothing that was measured here is faster and accurate enough")
            self._helpless.add(name)
            return
        self._say_adapted(name, f"{why}; now {other}")
        await self.apply_again()

    def _say_adapted(self, name: str, text: str) -> None:
        logger.warning("%s: %s", name, text)
        self._tell("adapted", f"{name}: {text}")

    async def apply_again(self) -> None:
        """After something has changed that the loader looks at: memory, failures. What fails is logged and told."""
        try:
            await self._apply(self._config)
        except EdgekitError as error:
            logger.error("%s", error)
            self._tell("load-failed", str(error))

    def _look_at_lanes(self, now_s: float) -> None:
        lanes = self._lanes()
        self._probed_s = {lane: at_s for lane, at_s in self._probed_s.items() if lane in lanes}
        health = self._config.health
        is_live = True
        for lane in lanes:
            every_s = max(health.probe_s, PROBE_SHARE * lane.pace.slowest_ms() / 1e3)
            silent_s = now_s - lane.answered_s
            if isinstance(lane.session, RemoteSession):
                silent_s -= lane.session.paused_s
            is_live = is_live and silent_s < 3 * every_s
            if health.keep_warm and lane.name == REALTIME and (warm_s := lane.warmth.interval_s) is not None:
                every_s = min(every_s, max(warm_s, PROBE_SHARE * lane.pace.slowest_ms() / 1e3))
            if silent_s > every_s and now_s - self._probed_s.get(lane, 0.0) > every_s:
                self._probed_s[lane] = now_s
                _probe(lane)
        if is_live != self.is_live:
            logger.warning("health: %s", "live again" if is_live else "not live: a lane does not answer")
        self.is_live = is_live

    def _watch_for_stuck(self) -> None:
        try:
            while not self._is_over.wait(LOOK_S):
                for lane in self._lanes():
                    self._end_if_stuck(lane, time.monotonic())
        except Exception:
            logger.exception("the watch for stuck inferences ended by a fault")
            self._end(HELPLESS)

    def _lanes(self) -> list[Lane]:
        return [lane for model in list(self.engine.models.values()) for lane in model.lanes]

    def _end_if_stuck(self, lane: Lane, now_s: float) -> None:
        """Our own thread cannot be killed: the process ends, and its supervisor starts another."""
        since_s = lane.running_since_s
        if since_s is None or isinstance(lane.session, RemoteSession):
            return
        limit_s = max(self._config.health.stuck_s, SLOW * lane.pace.slowest_ms() / 1e3)
        if now_s - since_s > limit_s:
            how = f"stuck in an inference for {now_s - since_s:.0f} s"
            self._loader.record_failure(lane, how)
            self._end(f"{lane.model}: {lane.artifact} is {how}")


def _probe(lane: Lane) -> None:
    """An inference of our own, in its turn; it counts for nothing but health."""
    inputs = random_inputs(next(lane.signature.shapes())) | dict(lane.signature.constants)
    job = Job(inputs=inputs, done=_ignore, is_tolerant=True, is_probe=True)
    try:
        lane.submit(job)
    except EdgekitError as error:
        logger.info("%s: not probed: %s", lane.model, error)


def _ignore(_: Any) -> None:
    pass
