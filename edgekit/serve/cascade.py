"""Flash first, the standard only when the answer is unsure: precision per input, on measured grounds."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import msgspec

from edgekit.errors import EdgekitError
from edgekit.serve.certainty import margin
from edgekit.serve.job import Answer, Job, Outcome
from edgekit.serve.lane import Lane


class Cascade:
    """`careful` answers what the lane before it answered with a margin below `threshold`.

    An unsure answer is better than none: it is given when the careful lane would be too late, is closed or fails.
    """

    def __init__(self, careful: Lane, threshold: float) -> None:
        self.careful, self.threshold = careful, threshold

    def then(self, job: Job) -> Callable[[Outcome], None]:
        """What to do with the first answer to `job`, instead of giving it."""
        give = job.done

        def judge(first: Outcome) -> None:
            if isinstance(first, EdgekitError) or job.is_cancelled or self.is_sure(first):
                give(first)
                return
            if job.fingerprint is not None and (known := self.careful.recall(job.fingerprint)):
                give(known)
                return
            try:
                self.careful.submit(self._again(job, first, give))
            except EdgekitError:
                give(first)

        return judge

    def is_sure(self, answer: Answer) -> bool:
        """The first output holds the scores of classes; of several items the least sure one counts."""
        return margin(next(iter(answer.outputs.values()))) >= self.threshold

    def _again(self, job: Job, first: Answer, give: Callable[[Outcome], None]) -> Job:
        def done(second: Outcome) -> None:
            if isinstance(second, EdgekitError):
                give(first)
                return
            queue_ms, infer_ms = first.queue_ms + second.queue_ms, first.infer_ms + second.infer_ms
            give(msgspec.structs.replace(second, queue_ms=queue_ms, infer_ms=infer_ms))

        left_ms = None
        if job.deadline_ms is not None:
            left_ms = max(job.deadline_ms - (perf_counter() - job.submitted_s) * 1e3, 1e-6)
        return Job(
            inputs=job.inputs,
            done=done,
            deadline_ms=left_ms,
            is_tolerant=job.is_tolerant,
            fingerprint=job.fingerprint,
        )
