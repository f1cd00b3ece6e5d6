"""State of stateful models, kept on the device from one request of a sequence to the next.

A client names its sequence, says where it starts and ends, and sends only what is new: the tensors that carry the
state never travel. Source: Triton, "Sequence Extension".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from edgekit.errors import RequestError
from edgekit.manifest import TensorSpec
from edgekit.serve.pace import Refused
from edgekit.serve.parameters import Step

IDLE_S = 60.0
MAX_COUNT = 256


@dataclass(slots=True)
class _State:
    tensors: dict[str, np.ndarray]
    used_s: float


class Sequences:
    """The open sequences of one lane, used by who has its turn.

    `specs` are the model's inputs, `state` maps an input to the output that feeds it at the next step.
    """

    def __init__(
        self,
        specs: Mapping[str, TensorSpec],
        state: Mapping[str, str],
        *,
        idle_s: float = IDLE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._specs, self._state = specs, state
        self._idle_s, self._clock = idle_s, clock
        self._open: dict[int | str, _State] = {}

    def __len__(self) -> int:
        return len(self._open)

    def before(self, step: Step) -> Mapping[str, np.ndarray]:
        """The state that this step begins with; zeros at the first. Raises RequestError (400), Refused (too many)."""
        now_s = self._clock()
        for key in [key for key, found in self._open.items() if now_s - found.used_s > self._idle_s]:
            del self._open[key]
        if step.is_first:
            if step.id not in self._open and len(self._open) >= MAX_COUNT:
                raise Refused(f"{MAX_COUNT} sequences are open; end some, or wait {self._idle_s:g} s")
            self._open[step.id] = _State({name: _zeros(self._specs[name]) for name in self._state}, now_s)
        found = self._open.get(step.id)
        if found is None:
            problem = f"no open sequence {step.id!r}: begin it with sequence_start; after {self._idle_s:g} s it expires"
            raise RequestError(400, problem)
        return found.tensors

    def after(self, step: Step, outputs: Mapping[str, np.ndarray]) -> None:
        """Keep what the step left, unless it was the last."""
        if step.is_last:
            self._open.pop(step.id, None)
            return
        # The outputs go to the client; a runtime may write over them in the next inference.
        tensors = {name: np.array(outputs[output]) for name, output in self._state.items()}
        self._open[step.id] = _State(tensors, self._clock())


def _zeros(spec: TensorSpec) -> np.ndarray:
    return np.zeros([size if isinstance(size, int) else 1 for size in spec.shape], spec.dtype)
