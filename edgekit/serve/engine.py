"""Models held warm, each with its own inference thread: what the HTTP daemon serves and an embedding program may use.

A lane is one artifact of a model, ready to run. There is one a model here ("realtime"); the queue, the deadline and
the record of each answer already belong to the lane, so that a second one is an addition and not a change.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

from edgekit.errors import EdgekitError, RequestError
from edgekit.runtimes.warmup import random_inputs, warm_up
from edgekit.serve.metrics import LaneCounts
from edgekit.serve.signature import Signature

if TYPE_CHECKING:
    import numpy as np

    from edgekit.runtimes.session import Session
    from edgekit.telemetry.reporter import Recorder

logger = logging.getLogger(__name__)

WARM_UP_S = 1.0
"""At most, for each shape: a large shape of a slow model must not keep a device from its work for minutes."""


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
    submitted_s: float = field(default_factory=perf_counter)
    is_cancelled: bool = False

    def cancel(self) -> None:
        """Nobody waits any more: if it has not begun it never will."""
        self.is_cancelled = True


class Lane:
    """An artifact with its session, its queue and the one thread that runs it. Closing waits for what has begun."""

    def __init__(
        self, *, model: str, name: str, artifact: str, session: Session, signature: Signature, recorder: Recorder | None
    ) -> None:
        self.model, self.name, self.artifact = model, name, artifact
        self.session, self.signature = session, signature
        self.counts = LaneCounts()
        self.on_death: Callable[[], None] = lambda: None
        self._recorder = recorder
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name=f"infer-{model}-{name}", daemon=True)

    def warm_up(self, progress: Callable[[str], None] = lambda _: None) -> None:
        """Run every configured shape until it stops getting faster; only then is the first answer like the others."""
        for specs in self.signature.shapes():
            (warm,) = warm_up(self.session, [random_inputs(specs)], max_s=WARM_UP_S)
            shapes = ", ".join(str(list(spec.shape)) for spec in specs)
            runs = f"{warm.first_ms:.2f} ms at first, {warm.times_ms[-1]:.2f} ms after {len(warm.times_ms)} runs"
            progress(f"warm: {shapes}: {runs}")

    def start(self) -> None:
        """Take jobs from now on."""
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queue a job whose inputs hold to the signature."""
        if self._is_closed:
            raise RequestError(503, f"{self.model} is not served any more")
        self._jobs.put(job)

    def refuse(self, *, errors: int = 0, rejected: int = 0) -> None:
        """Count a request that never became a job."""
        self.counts.refuse(errors=errors, rejected=rejected)
        if self._recorder is not None:
            self._recorder.count(
                model=self.model, lane=self.name, artifact=self.artifact, errors=errors, rejected=rejected
            )

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
        job: Job | None = None
        try:
            while (job := self._jobs.get()) is not None:
                if not job.is_cancelled:
                    self._answer(job)
        finally:
            if not self._is_closed or job is not None:
                self._die(job)

    def _answer(self, job: Job) -> None:
        started = perf_counter()
        queue_ms = (started - job.submitted_s) * 1e3
        if job.deadline_ms is not None and queue_ms > job.deadline_ms:
            text = f"waited {queue_ms:.1f} ms for its turn, deadline_ms is {job.deadline_ms:g}"
            self.refuse(rejected=1)
            job.done(RequestError(503, text))
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
        # After the answer is on its way: telemetry is not part of a request's latency.
        self.counts.observe(queue_ms=queue_ms, infer_ms=infer_ms)
        if self._recorder is not None:
            self._recorder.observe(
                model=self.model, lane=self.name, artifact=self.artifact, infer_ms=infer_ms, queue_ms=queue_ms
            )

    def _die(self, job: Job | None) -> None:
        """The thread ends by a fault that no session is known to raise: fail what waits, so that no client hangs."""
        self._is_closed = True
        failure = RequestError(500, f"{self.model}: the inference thread ended by a fault; see the daemon's log")
        while job is not None:
            job.done(failure)
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
        self.on_death()


class ServedModel:
    """A model under its name; `lane` is None until one is loaded and warm."""

    def __init__(self, name: str, version: str) -> None:
        self.name, self.version = name, version
        self.lane: Lane | None = None

    def ready_lane(self) -> Lane:
        """Raises RequestError (503) while the model loads."""
        if self.lane is None:
            raise RequestError(503, f"{self.name} is still loading")
        return self.lane


class Engine:
    """The models of one process."""

    def __init__(self) -> None:
        self.models: dict[str, ServedModel] = {}

    @property
    def is_ready(self) -> bool:
        """Every model is loaded and warm at every configured shape."""
        return bool(self.models) and all(model.lane is not None for model in self.models.values())

    def add(self, name: str, version: str) -> ServedModel:
        """Announce a model before it is loaded."""
        model = self.models[name] = ServedModel(name, version)
        return model

    def find(self, name: str, version: str | None = None) -> ServedModel:
        """Raises RequestError (404) naming the models there are."""
        model = self.models.get(name)
        if model is None:
            known = ", ".join(self.models) or "none"
            raise RequestError(404, f"unknown model '{name}'; served: {known}")
        if version is not None and version != model.version:
            raise RequestError(404, f"{name} has no version '{version}'; served: {model.version}")
        return model

    def infer(self, name: str, inputs: Mapping[str, np.ndarray]) -> Answer:
        """One inference, waited for. Raises InputError, RequestError, and what the session raises."""
        lane = self.find(name).ready_lane()
        lane.signature.check_arrays(inputs)
        answers: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        lane.submit(Job(inputs=inputs, done=answers.put))
        outcome = answers.get()
        if isinstance(outcome, EdgekitError):
            raise outcome
        return outcome

    def close(self, timeout_s: float = 10.0) -> bool:
        """Free every model; False when an inference did not end in time."""
        lanes = [model.lane for model in self.models.values() if model.lane is not None]
        closed = [lane.close(timeout_s) for lane in lanes]
        return all(closed)
