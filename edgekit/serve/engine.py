"""Models held warm, each with one or two lanes: what the HTTP daemon serves and an embedding program may use."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from edgekit.errors import EdgekitError, RequestError
from edgekit.serve.cache import ResultCache, digest
from edgekit.serve.job import Answer, Job, LaneClosed, Outcome, at_once
from edgekit.serve.lane import CAREFUL, REALTIME, SHADOW, TOLERANT, Lane
from edgekit.serve.pace import Refused
from edgekit.serve.parameters import Step

if TYPE_CHECKING:
    import numpy as np

    from edgekit.serve.cascade import Cascade

ROOM = 2.0
"""A request with a deadline and no priority is tolerant when the tolerant lane is expected to need half of it."""


class ServedModel:
    """A model under its name; `lane` (real-time) is None until it is loaded, `tolerant` where none is wanted."""

    def __init__(self, name: str, version: str) -> None:
        self.name, self.version = name, version
        self.lane: Lane | None = None
        self.tolerant: Lane | None = None
        self.standard: Lane | None = None
        "A lane that answers nobody: what answers are compared with (see `shadow`)."
        self.careful: Lane | None = None
        self.cascade: Cascade | None = None
        "Gives what the real-time lane is not sure of to `careful`."

    @property
    def lanes(self) -> Iterator[Lane]:
        """Those that are loaded."""
        return (lane for lane in (self.lane, self.tolerant, self.standard, self.careful) if lane is not None)

    def by_name(self, name: str) -> Lane | None:
        """The lane called `name`."""
        return {REALTIME: self.lane, TOLERANT: self.tolerant, SHADOW: self.standard, CAREFUL: self.careful}[name]

    def swap(self, name: str, lane: Lane | None) -> Lane | None:
        """Requests go to `lane` from now on; the one before is the caller's to close."""
        old = self.by_name(name)
        if name == TOLERANT:
            self.tolerant = lane
        elif name == SHADOW:
            self.standard = lane
        elif name == CAREFUL:
            self.careful = lane
        else:
            self.lane = lane
        return old

    def ready_lane(self) -> Lane:
        """Raises RequestError (503) while the model loads."""
        if self.lane is None:
            raise RequestError(503, f"{self.name} is still loading")
        return self.lane

    def submit(self, job: Job, priority: str | None, *, no_cache: bool = False) -> None:
        """Queue a job in the lane that its priority asks for, else the one that its deadline leaves room for.

        Inputs that were answered before are answered at once: a tolerant request takes either lane's answer, any other
        only the real-time lane's. A model without a tolerant lane answers tolerant requests after the real-time ones.
        Raises Refused, and LaneClosed when the model is not served any more.
        """
        lane = self._route(job, priority)
        if self.cascade is not None and lane is self.lane and job.step is None:
            job.done = self.cascade.then(job)
        if lane.cache is not None and not no_cache:
            job.fingerprint = digest(job.inputs)
            for knowing in dict.fromkeys((lane, self.ready_lane())):
                if answer := knowing.recall(job.fingerprint):
                    job.done(answer)
                    return
        try:
            lane.submit(job)
        except LaneClosed:
            again = self._route(job, priority)
            if again is lane:
                raise
            again.submit(job)  # it was swapped between the two lines

    def _route(self, job: Job, priority: str | None) -> Lane:
        lane, tolerant = self.ready_lane(), self.tolerant if job.step is None else None  # state stays in one lane
        if priority is None and job.deadline_ms is not None and tolerant is not None:
            has_room = tolerant.pace.expected_ms(job.size_bytes) * ROOM <= job.deadline_ms
            priority = TOLERANT if has_room else None
        job.is_tolerant = priority == TOLERANT
        return tolerant if job.is_tolerant and tolerant is not None and tolerant.takes(job, lane) else lane


class Engine:
    """The models of one process."""

    def __init__(self) -> None:
        self.models: dict[str, ServedModel] = {}
        self.cache: ResultCache | None = None
        self.refusal: str | None = None
        "Why no request is taken at the moment."
        self.is_hot = False
        "The device is throttled: nothing is run that nobody waits for."

    @property
    def is_ready(self) -> bool:
        """Every model is loaded and warm at every configured shape."""
        return bool(self.models) and all(model.lane is not None for model in self.models.values())

    def add(self, name: str, version: str) -> ServedModel:
        """Announce a model before it is loaded."""
        model = self.models[name] = ServedModel(name, version)
        return model

    def check_open(self) -> None:
        """Raises Refused while nothing is taken."""
        if self.refusal is not None:
            raise Refused(self.refusal, retry_after_s=10)

    def find(self, name: str, version: str | None = None) -> ServedModel:
        """Raises RequestError (404) naming the models there are."""
        model = self.models.get(name)
        if model is None:
            known = ", ".join(self.models) or "none"
            raise RequestError(404, f"unknown model '{name}'; served: {known}")
        if version is not None and version != model.version:
            raise RequestError(404, f"{name} has no version '{version}'; served: {model.version}")
        return model

    def infer(
        self,
        name: str,
        inputs: Mapping[str, np.ndarray],
        *,
        priority: str | None = None,
        deadline_ms: float | None = None,
        no_cache: bool = False,
        step: Step | None = None,
    ) -> Answer:
        """One inference, waited for. Raises InputError, RequestError, and what the session raises."""
        self.check_open()
        model = self.find(name)
        model.ready_lane().signature.check_arrays(inputs, in_sequence=step is not None)
        answers: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        job = Job(inputs=inputs, done=answers.put, deadline_ms=deadline_ms, step=step, later=at_once)
        model.submit(job, priority, no_cache=no_cache)
        outcome = answers.get()
        if isinstance(outcome, EdgekitError):
            raise outcome
        return outcome

    def close(self, timeout_s: float = 10.0) -> bool:
        """Free every model; False when an inference did not end in time."""
        closed = [lane.close(timeout_s) for model in self.models.values() for lane in model.lanes]
        return all(closed)
