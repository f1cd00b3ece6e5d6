"""A query on its way through a lane, and the line it waits in."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

import msgspec

from edgekit.errors import EdgekitError, RequestError
from edgekit.serve.parameters import Step

if TYPE_CHECKING:
    import numpy as np


class LaneClosed(RequestError):
    """The lane is being replaced or freed: the model may have another one by now."""

    def __init__(self, model: str) -> None:
        super().__init__(503, f"{model} is not served any more")


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One inference and where its time went."""

    outputs: Mapping[str, np.ndarray]
    artifact: str
    lane: str
    queue_ms: float
    infer_ms: float
    cached: bool = False
    batch: int = 1
    "Items in the inference that answered it."


Outcome = Answer | EdgekitError
Later = Callable[[Callable[[], None]], object]


def at_once(work: Callable[[], None]) -> None:
    """The `Later` of whoever need not be spared."""
    work()


def ended_by_a_fault(model: str) -> RequestError:
    """What the clients hear of whoever answers for a model, and met what it knows nothing of."""
    return RequestError(500, f"{model}: the inference thread ended by a fault; see the daemon's log")


@dataclass(slots=True, kw_only=True)
class Job:
    """`done` is called once, on the thread that answers, unless the job is cancelled first."""

    inputs: Mapping[str, np.ndarray]
    done: Callable[[Outcome], None]
    deadline_ms: float | None = None
    is_tolerant: bool = False
    is_probe: bool = False
    "Our own, to see whether the lane answers."
    step: Step | None = None
    fingerprint: bytes | None = None
    "Of the inputs, when the answer may be kept."
    submitted_s: float = field(default_factory=perf_counter)
    is_cancelled: bool = False
    size_bytes: int = 0
    items: int = 1
    "How many it holds along the first axis; of consequence to lanes that batch."
    cost_ms: float = 0.0
    "What its lane counted it in with."
    later: Later | None = None
    "Who submits it may be held up for a moment, and answers it if the lane is free; takes what can wait until then."

    def __post_init__(self) -> None:
        self.size_bytes = sum(array.nbytes for array in self.inputs.values())
        first = next(iter(self.inputs.values()), None)
        self.items = max(1, len(first)) if first is not None and first.ndim else 1

    @property
    def kind(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Jobs of one kind fit into one batch."""
        return tuple((name, array.shape[1:]) for name, array in sorted(self.inputs.items()))

    def parts(self, batching: object | None) -> int:
        """Of how many items it is in a lane that batches; elsewhere it is one."""
        return self.items if batching is not None else 1

    def part_bytes(self, batching: object | None) -> int:
        """The size of each of its parts."""
        return self.size_bytes // self.parts(batching)

    def cancel(self) -> None:
        """Nobody waits any more: if it has not begun it never will."""
        self.is_cancelled = True


class Line:
    """Jobs in the order of priority, then of arrival. `put` and `end` from any thread, the rest from the lane's."""

    def __init__(self) -> None:
        self._arriving: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._first: deque[Job] = deque()
        self._second: deque[Job] = deque()
        self.is_ending = False

    def __len__(self) -> int:
        return len(self._first) + len(self._second)

    @property
    def is_empty(self) -> bool:
        return self._arriving.empty() and not len(self)

    def put(self, job: Job) -> None:
        self._arriving.put(job)

    def end(self) -> None:
        """What was put before is still given; then `next` gives None."""
        self._arriving.put(None)

    def put_back(self, job: Job) -> None:
        """Before all others of its priority."""
        (self._second if job.is_tolerant else self._first).appendleft(job)

    def next(self) -> Job | None:
        """The next in order, waited for; None at the end."""
        self._look(None)
        return self._first.popleft() if self._first else self._second.popleft() if self._second else None

    def wait(self, timeout_s: float) -> None:
        """Until another one arrives, or the timeout."""
        if not self.is_ending:
            self._look(timeout_s)

    def take_alike(self, job: Job, most_items: int) -> list[Job]:
        """Those that fit into a batch with `job`, at most `most_items` of theirs, in order."""
        taken: list[Job] = []
        kind = job.kind
        for waiting in (self._first, self._second):
            for other in list(waiting):
                if other.step is None and other.items <= most_items and other.kind == kind:
                    most_items -= other.items
                    waiting.remove(other)
                    taken.append(other)
        return taken

    def _look(self, timeout_s: float | None) -> None:
        """Sort in what has arrived; wait for one only when none waits already (or, with a timeout, in any case)."""
        must_wait = timeout_s is not None or not (self._first or self._second or self.is_ending)
        while True:
            try:
                job = self._arriving.get(timeout=timeout_s) if must_wait else self._arriving.get_nowait()
            except queue.Empty:
                return
            must_wait = False
            if job is None:
                self.is_ending = True
            else:
                (self._second if job.is_tolerant else self._first).append(job)
