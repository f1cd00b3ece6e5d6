"""Who goes first: a key gets the interpreter for itself until its paint; the worker that folds steps aside."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

HOLD_S = 0.06
"After a key: about what its action and its paint take on a slow machine."
MOST_S = 0.4
"Of one round of the worker: with a key held down the fleet still moves on."
SWITCH_S, CALM_SWITCH_S = 0.001, 0.05
"""How long a thread waits before it takes the interpreter from another. While the worker folds, the screen must not
wait long for it; while it rests, the reader's many short turns must not take it from the screen again and again, since
on a busy machine each costs the screen its place in the processor's queue."""


class Courtesy:
    """Between two threads of one interpreter, of which the one that a person waits for must not queue."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        switch: Callable[[float], object] = sys.setswitchinterval,
    ) -> None:
        self._clock, self._sleep, self._switch = clock, sleep, switch
        self._until_s = 0.0
        self._given_s = 0.0

    def ask(self) -> None:
        """The screen has something to do for a person, now."""
        self._until_s = self._clock() + HOLD_S

    @property
    def left_s(self) -> float:
        """How much longer the screen has the interpreter for itself; 0 when nobody is waited for."""
        return max(0.0, self._until_s - self._clock())

    def give(self) -> None:
        """The worker: stand aside as long as that is asked, up to `MOST_S` a round."""
        while self._given_s < MOST_S and (left_s := self.left_s) > 0:
            self.rest()
            self._sleep(left_s)
            self._given_s += left_s
            self._switch(SWITCH_S)

    def begin(self) -> None:
        """The worker: another round."""
        self._given_s = 0.0
        self._switch(SWITCH_S)

    def rest(self) -> None:
        """The worker: nothing is done for a while."""
        self._switch(CALM_SWITCH_S)
