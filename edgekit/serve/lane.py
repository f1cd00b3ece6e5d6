"""One artifact of a model, ready to run: its session, its line of jobs and the thread that answers them.

What waits is ordered by priority, then by arrival. A request that cannot meet its deadline is refused when it comes,
with the numbers, and again when its turn comes; it is never queued to die.

Handing a job over and its answer back takes two wake-ups: where nobody waits, who brings a short one runs it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic, perf_counter
from typing import TYPE_CHECKING

from edgekit.errors import EdgekitError, RequestError, RuntimeUnavailable
from edgekit.serve.accounts import Accounts
from edgekit.serve.batching import Batching, Window, gather
from edgekit.serve.cache import ResultCache
from edgekit.serve.inference import run_jobs
from edgekit.serve.job import Answer, Job, LaneClosed, Later, Line, at_once, ended_by_a_fault
from edgekit.serve.layout import Layouts
from edgekit.serve.metrics import LaneCounts
from edgekit.serve.pace import Pace, Refused
from edgekit.serve.precedence import Precedence, lower_this_thread
from edgekit.serve.sequences import Sequences
from edgekit.serve.signature import Signature
from edgekit.serve.turn import Turn
from edgekit.serve.warming import warm
from edgekit.serve.warmth import Warmth

if TYPE_CHECKING:
    import numpy as np

    from edgekit.runtimes.session import Session
    from edgekit.serve.failures import Mark
    from edgekit.telemetry.reporter import Recorder

logger = logging.getLogger(__name__)

REALTIME, TOLERANT, SHADOW, CAREFUL = "realtime", "tolerant", "shadow", "careful"
LOWERED = (TOLERANT, SHADOW)
"""Lanes that real-time work goes before."""
SHORT_MS = 2.0
"""What is expected to take longer has a thread of its own: the one that brings it has others to look after."""


class Lane:
    """Closing waits for what has begun."""

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
        batching: Batching | None = None,
        is_lowered: bool = False,
        is_anywhere: bool = False,
    ) -> None:
        """`producer`: the artifact and how it is opened, exactly; answers are kept under it.

        `is_lowered`: its thread runs at the lowest priority, since it runs the inferences itself. `is_anywhere`: the
        session may run on any thread, one at a time.
        """
        self.model, self.name, self.artifact = model, name, artifact
        self.producer, self.cache = producer or artifact, cache
        self.session, self.signature, self.batching = session, signature, batching
        self.layouts = Layouts(signature)
        "For the thread that takes requests in."
        self.sequences = Sequences({spec.name: spec for spec in signature.inputs}, signature.state)
        self.pace, self.warmth = Pace(), Warmth()
        self.window = Window(batching) if batching is not None else None
        self.counts = LaneCounts(batches=self.window.closed if self.window else {})
        self._accounts = Accounts(model=model, lane=name, artifact=artifact, counts=self.counts, recorder=recorder)
        self.on_death: Callable[[], None] = lambda: None
        self.on_failure: Callable[[Lane, str], None] = lambda _lane, _how: None
        "Its runtime failed; called on the thread that answers."
        self.on_answer: Callable[[Lane, Job, Mapping[str, np.ndarray]], None] | None = None
        "Sees every answer after it has left."
        self.mark: Mark | None = None
        self.answered_s = monotonic()
        self.running_since_s: float | None = None
        self._precedence, self._is_lowered, self._is_anywhere = precedence, is_lowered, is_anywhere
        self._line, self._gate, self._turn = Line(), threading.Lock(), Turn()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name=f"infer-{model}-{name}", daemon=True)

    def warm_up(self, progress: Callable[[str], None] = lambda _: None) -> None:
        """Run every configured shape until it stops getting faster; only then is the first answer like the others."""
        warm(self.session, self.signature, self.pace, progress)

    def takes(self, job: Job, sender: Lane) -> bool:
        """Whether a job that holds to the signature of `sender` fits here: several items need a lane that batches."""
        return self.batching is not None or sender.batching is None or job.items == 1

    def start(self) -> None:
        """Take jobs from now on."""
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queue a job whose inputs hold to the signature, or answer it here and now.

        Raises LaneClosed, Refused, and RequestError on the thread that has the turn: it would wait for itself.
        """
        if job.later is not None and self._turn.is_mine:
            raise RequestError(500, f"{self.model} is asked for within its own inference")
        with self._gate:  # a job put behind the end of the line would wait for ever
            if self._is_closed:
                raise LaneClosed(self.model)
            try:
                job.cost_ms = self.pace.admit(job.part_bytes(self.batching), job.deadline_ms, job.parts(self.batching))
            except Refused:
                self.refuse(rejected=1)
                raise
            if self._precedence is not None and not job.is_tolerant:
                self._precedence.enter()
            is_here = self._is_anywhere and job.later is not None and not job.is_tolerant
            is_here = is_here and 0 < job.cost_ms <= SHORT_MS and self._line.is_empty and self._turn.take(0)
            if not is_here:
                self._line.put(job)
        if is_here:
            self._answer_here(job)

    def refuse(self, *, errors: int = 0, rejected: int = 0) -> None:
        """Count a request that got no answer."""
        self._accounts.refuse(errors=errors, rejected=rejected)

    def recall(self, fingerprint: bytes) -> Answer | None:
        """What this lane answered to these inputs before, counted as a hit; None when it does not know any more."""
        outputs = cache.get(self.producer, fingerprint) if (cache := self.cache) is not None else None
        if outputs is None:
            return None
        self._accounts.hit()
        return Answer(outputs=outputs, artifact=self.artifact, lane=self.name, queue_ms=0.0, infer_ms=0.0, cached=True)

    def close(self, timeout_s: float) -> bool:
        """Finish what is queued, free the session; False when the thread is still in an inference after `timeout_s`."""
        self._shut()
        end_s = monotonic() + timeout_s
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        if self._thread.is_alive() or not self._turn.take(max(0.0, end_s - monotonic())):
            return False
        self._turn.leave()
        self.session.close()
        return True

    def _shut(self) -> None:
        with self._gate:
            self._is_closed = True
            self._line.end()

    def _work(self) -> None:
        if self._is_lowered:
            lower_this_thread()
        jobs: list[Job] = []
        try:
            while (job := self._line.next()) is not None:
                jobs = [job]
                if job.is_tolerant and self._precedence is not None:
                    self._precedence.give_way()
                with self._turn:
                    if self.window is not None and job.step is None:
                        gather(self._line, jobs, self.window, self._slack_ms)
                    self._answer([job for job in jobs if not job.is_cancelled and self._is_in_time(job)])
                for job in jobs:
                    self._leave(job)
                jobs = []
        finally:
            if jobs or not self._is_closed:
                self._die(jobs)

    def _answer_here(self, job: Job) -> None:
        """On the thread that submitted it, which has the turn."""
        try:
            if self.window is not None and job.step is None:
                self.window.close(job.items, 0, waited_ms=0.0, slack_ms=1e9)
            self._answer([job], job.later or at_once)
        except Exception:  # as on the lane's own thread: it ends the lane
            logger.exception("%s: a fault that no session is known to raise", self.model)
            self._shut()
            job.done(ended_by_a_fault(self.model))
            self.on_death()
        finally:
            self._turn.leave()
            self._leave(job)

    def _slack_ms(self, job: Job, held: int) -> float:
        assert job.deadline_ms is not None
        age_ms = (perf_counter() - job.submitted_s) * 1e3
        return job.deadline_ms - age_ms - held * self.pace.mean_ms(job.part_bytes(self.batching))

    def _leave(self, job: Job) -> None:
        self.pace.leave(job.cost_ms)
        if self._precedence is not None and not job.is_tolerant:
            self._precedence.leave()

    def _is_in_time(self, job: Job) -> bool:
        """False, and the job is refused, when its turn came too late."""
        waited_ms = (perf_counter() - job.submitted_s) * 1e3
        late = self.pace.why_late(
            job.part_bytes(self.batching), job.deadline_ms, job.parts(self.batching), waited_ms=waited_ms
        )
        if late is not None:
            self.refuse(rejected=1)
            job.done(Refused(late))
        return late is None

    def _answer(self, jobs: Sequence[Job], later: Later = at_once) -> None:
        if not jobs:
            return
        started_s = perf_counter()
        self.running_since_s = monotonic()
        if self.mark is not None:
            self.mark.up()
        try:
            answers = run_jobs(self.session, self.signature, self.batching, self.sequences, jobs)
        except EdgekitError as error:
            self._fail(jobs, error)
            return
        finally:
            self.running_since_s = None
            if self.mark is not None:
                self.mark.down()
        infer_ms = (perf_counter() - started_s) * 1e3
        items = sum(job.parts(self.batching) for job in jobs)
        pause_s, self.answered_s = monotonic() - self.answered_s - infer_ms / 1e3, monotonic()
        if not self.batching:
            self.warmth.learn(pause_s, infer_ms, self.pace.mean_ms(jobs[0].part_bytes(self.batching)))
        for job, outputs in zip(jobs, answers, strict=True):
            job.done(
                Answer(
                    outputs=outputs,
                    artifact=self.artifact,
                    lane=self.name,
                    queue_ms=(started_s - job.submitted_s) * 1e3,
                    infer_ms=infer_ms,
                    batch=items,
                )
            )
        # After the answers are on their way: accounts are not part of a request's latency.
        accounts = partial(self._account, jobs, answers, started_s, infer_ms, items)
        later(accounts)

    def _fail(self, jobs: Sequence[Job], error: EdgekitError) -> None:
        """A batch fails for one of its items: each is tried alone, so that only that one's client hears of it."""
        if len(jobs) > 1:
            for job in jobs:
                self._answer([job])
            return
        if not isinstance(error, RequestError):
            logger.warning("%s: %s", self.model, error)
        if not jobs[0].is_probe:
            self.refuse(errors=1)
        jobs[0].done(error)
        if isinstance(error, RuntimeUnavailable):
            self.on_failure(self, str(error))
            with contextlib.suppress(EdgekitError):  # begun anew by its next inference, which should not be a client's
                self.warm_up()

    def _account(
        self,
        jobs: Sequence[Job],
        answers: Sequence[Mapping[str, np.ndarray]],
        started_s: float,
        infer_ms: float,
        items: int,
    ) -> None:
        for job, outputs in zip(jobs, answers, strict=True):
            if job.is_probe:
                continue
            self.pace.learn(job.part_bytes(self.batching), infer_ms / items)
            if job.fingerprint is not None and (cache := self.cache) is not None:
                cache.put(self.producer, job.fingerprint, outputs)
            queue_ms = (started_s - job.submitted_s) * 1e3
            self._accounts.observe(queue_ms=queue_ms, infer_ms=infer_ms, items=items)
            if (on_answer := self.on_answer) is not None:
                on_answer(self, job, outputs)

    def _die(self, jobs: Sequence[Job]) -> None:
        """The thread ends by a fault that no session is known to raise: fail what waits, so that no client hangs."""
        self._shut()
        failure = ended_by_a_fault(self.model)
        waiting = list(jobs)
        while (job := self._line.next()) is not None:
            waiting.append(job)
        for job in waiting:
            self._leave(job)
            job.done(failure)
        self.on_death()
