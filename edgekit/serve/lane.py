"""One artifact of a model, ready to run: its session, its queue and the one thread that answers.

What waits is ordered by priority, then by arrival. A request that cannot meet its deadline is refused when it comes,
with the numbers, and again when its turn comes; it is never queued to die.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

from edgekit.errors import EdgekitError, RequestError
from edgekit.runtimes.warmup import random_inputs, warm_up
from edgekit.serve.cache import ResultCache
from edgekit.serve.metrics import LaneCounts
from edgekit.serve.pace import Pace, Refused
from edgekit.serve.precedence import Precedence, lower_this_thread
from edgekit.serve.signature import Signature

if TYPE_CHECKING:
    import numpy as np

    from edgekit.runtimes.session import Session
    from edgekit.telemetry.reporter import Recorder

logger = logging.getLogger(__name__)

REALTIME, TOLERANT = "realtime", "tolerant"
WARM_UP_S = 1.0
"""At most, for each shape: a large shape of a slow model must not keep a device from its work for minutes."""


class LaneClosed(RequestError):
    """The lane is being replaced or freed: the model may have another one by now."""

    def __init__(self, model: str) -> None:
        super().__init__(503, f"{model} is not served any more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One inference and where its time went."""

    outputs: Mapping[str, np.ndarray]
    artifact: str
    lane: str
    queue_ms: float
    infer_ms: float
    cached: bool = False


Outcome = Answer | EdgekitError


@dataclass(slots=True, kw_only=True)
class Job:
    """A query on its way; `done` is called once, on the lane's thread, unless the job is cancelled first."""

    inputs: Mapping[str, np.ndarray]
    done: Callable[[Outcome], None]
    deadline_ms: float | None = None
    is_tolerant: bool = False
    fingerprint: bytes | None = None
    "Of the inputs, when the answer may be kept."
    submitted_s: float = field(default_factory=perf_counter)
    is_cancelled: bool = False
    size_bytes: int = 0
    cost_ms: float = 0.0
    "What its lane counted it in with."

    def __post_init__(self) -> None:
        self.size_bytes = sum(array.nbytes for array in self.inputs.values())

    def cancel(self) -> None:
        """Nobody waits any more: if it has not begun it never will."""
        self.is_cancelled = True


class Lane:
    """Closing waits for what has begun. A tolerant lane's thread, and so its session, run at the lowest priority."""

    def __init__(
        self,
        *,
        model: str,
        name: str,
        artifact: str,
        session: Session,
        signature: Signature,
        recorder: Recorder | None,
        precedence: Precedence | None = None,
        producer: str = "",
        cache: ResultCache | None = None,
    ) -> None:
        """`producer`: the artifact and how it is opened, exactly; answers are kept under it."""
        self.model, self.name, self.artifact = model, name, artifact
        self.producer, self.cache = producer or artifact, cache
        self.session, self.signature = session, signature
        self.counts = LaneCounts()
        self.pace = Pace()
        self.on_death: Callable[[], None] = lambda: None
        self._recorder, self._precedence = recorder, precedence
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._waiting: tuple[deque[Job], deque[Job]] = (deque(), deque())
        self._is_closed = self._is_ending = False
        self._thread = threading.Thread(target=self._work, name=f"infer-{model}-{name}", daemon=True)

    def warm_up(self, progress: Callable[[str], None] = lambda _: None) -> None:
        """Run every configured shape until it stops getting faster; only then is the first answer like the others."""
        for specs in self.signature.shapes():
            inputs = random_inputs(specs)
            (warm,) = warm_up(self.session, [inputs], max_s=WARM_UP_S)
            size_bytes = sum(array.nbytes for array in inputs.values())
            for took_ms in warm.times_ms[-5:]:
                self.pace.learn(size_bytes, took_ms)
            shapes = ", ".join(str(list(spec.shape)) for spec in specs)
            runs = f"{warm.first_ms:.2f} ms at first, {warm.times_ms[-1]:.2f} ms after {len(warm.times_ms)} runs"
            progress(f"warm: {shapes}: {runs}")

    def start(self) -> None:
        """Take jobs from now on."""
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queue a job whose inputs hold to the signature. Raises LaneClosed, Refused."""
        if self._is_closed:
            raise LaneClosed(self.model)
        try:
            job.cost_ms = self.pace.admit(job.size_bytes, job.deadline_ms)
        except Refused:
            self.refuse(rejected=1)
            raise
        if self._precedence is not None and not job.is_tolerant:
            self._precedence.enter()
        self._jobs.put(job)

    def refuse(self, *, errors: int = 0, rejected: int = 0) -> None:
        """Count a request that got no answer."""
        self.counts.refuse(errors=errors, rejected=rejected)
        if self._recorder is not None:
            self._recorder.count(
                model=self.model, lane=self.name, artifact=self.artifact, errors=errors, rejected=rejected
            )

    def recall(self, fingerprint: bytes) -> Answer | None:
        """What this lane answered to these inputs before, counted as a hit; None when it does not know any more."""
        outputs = self.cache.get(self.producer, fingerprint) if self.cache is not None else None
        if outputs is None:
            return None
        self.counts.hit()
        if self._recorder is not None:
            self._recorder.count(model=self.model, lane=self.name, artifact=self.artifact, cache_hits=1)
        return Answer(outputs=outputs, artifact=self.artifact, lane=self.name, queue_ms=0.0, infer_ms=0.0, cached=True)

    def close(self, timeout_s: float) -> bool:
        """Finish what is queued, free the session; False when the thread is still in an inference after `timeout_s`."""
        self._is_closed = True
        self._jobs.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        self.session.close()
        return True

    def _work(self) -> None:
        if self.name == TOLERANT:
            lower_this_thread()
        job: Job | None = None
        try:
            while (job := self._next()) is not None:
                if not job.is_cancelled:
                    if job.is_tolerant and self._precedence is not None:
                        self._precedence.give_way()
                    self._answer(job)
                self._leave(job)
        finally:
            if job is not None or not self._is_closed:
                self._die(job)

    def _next(self) -> Job | None:
        """The next in order, waited for; None when the lane is closed and everything is answered."""
        first, second = self._waiting
        while True:
            is_idle = not (first or second or self._is_ending)
            try:
                job = self._jobs.get() if is_idle else self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is None:
                self._is_ending = True
            else:
                (second if job.is_tolerant else first).append(job)
        return first.popleft() if first else second.popleft() if second else None

    def _leave(self, job: Job) -> None:
        self.pace.leave(job.cost_ms)
        if self._precedence is not None and not job.is_tolerant:
            self._precedence.leave()

    def _answer(self, job: Job) -> None:
        started = perf_counter()
        queue_ms = (started - job.submitted_s) * 1e3
        if job.deadline_ms is not None and (late := self._why_late(job, queue_ms)):
            self.refuse(rejected=1)
            job.done(Refused(late))
            return
        try:
            outputs = self.session.run(job.inputs)
        except EdgekitError as error:
            logger.warning("%s: %s", self.model, error)
            self.refuse(errors=1)
            job.done(error)
            return
        infer_ms = (perf_counter() - started) * 1e3
        job.done(Answer(outputs=outputs, artifact=self.artifact, lane=self.name, queue_ms=queue_ms, infer_ms=infer_ms))
        # After the answer is on its way: accounts are not part of a request's latency.
        self.pace.learn(job.size_bytes, infer_ms)
        if job.fingerprint is not None and self.cache is not None:
            self.cache.put(self.producer, job.fingerprint, outputs)
        self.counts.observe(queue_ms=queue_ms, infer_ms=infer_ms)
        if self._recorder is not None:
            self._recorder.observe(
                model=self.model, lane=self.name, artifact=self.artifact, infer_ms=infer_ms, queue_ms=queue_ms
            )

    def _why_late(self, job: Job, queue_ms: float) -> str | None:
        best_ms = self.pace.fastest_ms(job.size_bytes)
        if job.deadline_ms is None or queue_ms + best_ms <= job.deadline_ms:
            return None
        return (
            f"waited {queue_ms:.1f} ms for its turn and takes {best_ms:.1f} ms at best; "
            f"deadline_ms is {job.deadline_ms:g}"
        )

    def _die(self, job: Job | None) -> None:
        """The thread ends by a fault that no session is known to raise: fail what waits, so that no client hangs."""
        self._is_closed = True
        failure = RequestError(500, f"{self.model}: the inference thread ended by a fault; see the daemon's log")
        while job is not None:
            self._leave(job)
            job.done(failure)
            self._is_ending = True  # so that what is left is taken without waiting
            job = self._next()
        self.on_death()
