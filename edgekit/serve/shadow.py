"""A share of requests runs on the standard artifact too, behind everybody's back, to see whether Flash still agrees.

A quantised model drifts in the field without an error: other light, other microphones, other inputs than those it was
calibrated with. Only the standard's own answers to the same inputs show that.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping

import numpy as np

from edgekit.errors import EdgekitError
from edgekit.pipeline.metrics import agreement
from edgekit.serve.job import Answer, Job, Outcome
from edgekit.serve.lane import Lane

DEFAULT_SHARE = 0.001
"""Where the standard is loaded anyway; elsewhere the configuration must ask, since it costs its memory."""
ALIKE = 0.99
"""Likeness from which two answers agree; class scores agree when their best class is the same."""


class Shadow:
    """Compares answers of a lane with those of `reference`. `is_quiet` says when not to: the device is hot."""

    def __init__(
        self,
        reference: Lane,
        share: float,
        *,
        tell: Callable[[Lane, bool], None],
        is_quiet: Callable[[], bool],
        rng: random.Random | None = None,
    ) -> None:
        self.reference = reference
        self._share, self._tell, self._is_quiet = share, tell, is_quiet
        self._rng = rng or random.Random()

    def offer(self, lane: Lane, job: Job, outputs: Mapping[str, np.ndarray]) -> None:
        """After the answer is on its way, on its thread. Sequences are left out: their state is one lane's."""
        if job.step is not None or self._rng.random() >= self._share or self._is_quiet():
            return
        if self.reference.pace.is_busy or not self.reference.takes(job, lane):  # what is asked for goes first
            return

        def compare(outcome: Outcome) -> None:
            if isinstance(outcome, Answer):
                self._tell(lane, agreement([outcome.outputs], [outputs]) >= ALIKE)

        with contextlib.suppress(EdgekitError):  # it is being closed
            self.reference.submit(Job(inputs=job.inputs, done=compare, is_tolerant=True, is_probe=True))
