"""The thread that folds, and rests: what it works on the screen does not wait for."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from edgekit_tui.courtesy import Courtesy
from edgekit_tui.feed import PERIOD_S, Folder, Source, View

REST, LONGEST_PERIOD_S = 4.0, 2.0
"A step that took t of a core is followed by a rest of four t: a large fleet costs this thread a fifth of one at most."

LARGE, TIDY_S = 1_000, 10.0
"From so many devices on the collector's long walks are spared: each would stop the screen for half a second."


def tidy() -> None:
    """Collect what is youngest, and leave out of all later walks what has stayed."""
    gc.collect(0)
    gc.freeze()


class Feed:
    """The worker thread around a Folder. A failure inside it reaches `failed` instead of dying unseen."""

    def __init__(
        self,
        source: Source,
        folder: Folder,
        *,
        post: Callable[[View], object],
        failed: Callable[[BaseException], object],
        clock: Callable[[], float] = time.time,
        courtesy: Courtesy | None = None,
    ) -> None:
        self._courtesy = courtesy or Courtesy()
        self._clock = clock
        self._source, self._folder, self._post, self._failed = source, folder, post, failed
        self._stopping = threading.Event()
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="edgekit-feed")

    def start(self) -> None:
        """Connect and begin to post views."""
        self._worker.submit(self._run).add_done_callback(self._ended)

    def stop(self) -> None:
        """Disconnect; returns when the thread has ended."""
        self._stopping.set()
        self._worker.shutdown(wait=True)

    def _run(self) -> None:
        self._source.start()
        try:
            pause_s, tidied_s = PERIOD_S, 0.0
            self._courtesy.rest()
            while not self._stopping.wait(pause_s):
                self._courtesy.begin()
                began_s = time.thread_time()
                if (view := self._folder.step(self._clock(), give_way=self._courtesy.give)) is not None:
                    self._post(view)
                    if view.totals.devices >= LARGE and time.monotonic() - tidied_s >= TIDY_S:
                        tidy()
                        tidied_s = time.monotonic()
                self._courtesy.rest()
                took_s = time.thread_time() - began_s
                pause_s = min(max(PERIOD_S - took_s, REST * took_s), LONGEST_PERIOD_S)
        finally:
            self._source.stop()

    def _ended(self, run: Future[None]) -> None:
        error = run.exception()
        if error is not None and not self._stopping.is_set():
            self._failed(error)
