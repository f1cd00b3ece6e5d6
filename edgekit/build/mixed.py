"""Mixed precision by measurement: which nodes go back to float, for accuracy first and then for speed.

Greedy and bounded in time; what was best so far is what comes out, whenever the time is up.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import onnx

from edgekit.artifact import Accuracy
from edgekit.build import accuracy
from edgekit.build.quantize import StaticInt8
from edgekit.build.race import race
from edgekit.build.sensitivity import Cost, costs
from edgekit.build.workshop import Workshop
from edgekit.errors import ArtifactError

GAIN = 0.98
"""A node goes back to float for speed only when the whole is then below this share."""
MOST_NOISE_SHARE = 0.5
"""Of the time, for measuring nodes one by one; the rest is for trying what follows from it."""
LEAST_MS = 0.005
"""What a profile cannot tell from nothing."""


class Mixed(NamedTuple):
    """What the search came to."""

    model: onnx.ModelProto
    accuracy: Accuracy
    skip: tuple[str, ...]
    why: Mapping[str, str]
    "Each node that was looked at -> its precision and what speaks for it, as in the record's plan."
    text: str


class Search:
    """One search: from an INT8 model and what its nodes cost to a better mix, in `seconds`."""

    def __init__(self, shop: Workshop, quantizer: StaticInt8, method: str, *, corrected: bool, seconds: float) -> None:
        self._shop, self._quantizer, self._method, self._corrected = shop, quantizer, method, corrected
        self._begun = time.monotonic()
        self._end = self._begun + seconds
        self._start = tuple(quantizer.skipped)
        self._back: dict[str, str] = {}
        "Nodes that went back to float -> why."
        self._trials = 0

    def run(self, model: onnx.ModelProto, measured: Accuracy) -> Mixed:
        """The best mix found, which is the INT8 model itself when nothing is better."""
        self._model, self._measured = model, measured
        self._costs = costs(
            self._shop, self._quantizer, self._method, self._begun + MOST_NOISE_SHARE * (self._end - self._begun)
        )
        if not self._holds(measured):
            self._for_accuracy()
        if self._holds(self._measured):
            self._for_speed()
        return Mixed(self._model, self._measured, (*self._start, *self._back), self._plan(), self._text())

    def _holds(self, measured: Accuracy) -> bool:
        return accuracy.why_unfit(measured, self._shop.model.accuracy_floor) is None

    def _for_accuracy(self) -> None:
        """Nodes back to float, the most noise for the least time first: 1, 2, 4, … until the floor is held, then the
        fewest that hold it.
        """
        order = by_noise(self._costs)
        held, low, count = None, 0, 1
        while order and time.monotonic() < self._end:
            tried = self._try(order[:count])
            if tried is not None and self._better(tried[1]):
                self._accept(tried, order[:count])
            if tried is not None and self._holds(tried[1]):
                held = count
                break
            if count == len(order):
                break
            low, count = count, min(2 * count, len(order))
        while held is not None and held - low > 1 and time.monotonic() < self._end:
            count = (low + held) // 2
            tried = self._try(order[:count])
            if tried is not None and self._holds(tried[1]):
                self._accept(tried, order[:count])
                held = count
            else:
                low = count

    def _better(self, measured: Accuracy) -> bool:
        return self._holds(measured) or measured.value > self._measured.value

    def _for_speed(self) -> None:
        """Nodes that take longer in INT8 than in float go back: all of them if that is faster, else one at a time."""
        losers = sorted((n for n, cost in self._costs.items() if cost.saves_ms < -LEAST_MS), key=self._saves)
        losers = [name for name in losers if name not in self._back]
        if len(losers) > 1 and self._is_faster_without(losers):
            return
        for name in losers:
            if time.monotonic() >= self._end:
                return
            self._is_faster_without([name])

    def _is_faster_without(self, names: Sequence[str]) -> bool:
        """Whether the whole, raced, is faster with these nodes in float and still fit; then it is the best so far."""
        made = self._make([*self._back, *names]) if time.monotonic() < self._end else None
        if made is None:
            return False
        before_ms, after_ms = self._race(made)
        if after_ms >= GAIN * before_ms:
            return False
        measured = self._shop.measure(self._shop.on_disk(made, "mixed"))
        if measured is None or not self._holds(measured):
            return False
        self._model, self._measured = made, measured
        which = "it" if len(names) == 1 else f"these {len(names)}"
        self._back |= dict.fromkeys(
            names, f"the whole takes {after_ms:.3g} ms so, {before_ms:.3g} with {which} in INT8"
        )
        return True

    def _saves(self, name: str) -> float:
        return self._costs[name].saves_ms

    def _race(self, made: onnx.ModelProto) -> list[float]:
        shop = self._shop
        paths = [shop.on_disk(self._model, "mixed-before"), shop.on_disk(made, "mixed-after")]
        return race(paths, shop.feed, [shop.opened_as(path) for path in paths], budget_s=1.0, bound=GAIN)

    def _try(self, names: Sequence[str]) -> tuple[onnx.ModelProto, Accuracy] | None:
        made = self._make(names)
        measured = None if made is None else self._shop.measure(self._shop.on_disk(made, "mixed"))
        return None if made is None or measured is None else (made, measured)

    def _make(self, names: Sequence[str]) -> onnx.ModelProto | None:
        """The INT8 model with further nodes in float; None when nothing of it is left in INT8."""
        self._trials += 1
        skip = (*self._start, *names)
        try:
            if not self._quantizer.place(skip).integer:
                return None
            return self._quantizer.make(self._method, skip=skip, corrected=self._corrected)
        except ArtifactError:
            return None

    def _accept(self, tried: tuple[onnx.ModelProto, Accuracy], names: Sequence[str]) -> None:
        self._model, self._measured = tried
        self._back = dict.fromkeys(names, "its noise for what it saves is the most")

    def _plan(self) -> dict[str, str]:
        found = {}
        for name, cost in self._costs.items():
            told = f" ({cost})" if str(cost) else ""
            found[name] = f"float: {self._back[name]}{told}" if name in self._back else f"int8{told}"
        return found

    def _text(self) -> str:
        seconds = time.monotonic() - self._begun
        known = sum(cost.noise_db is not None for cost in self._costs.values())
        return (
            f"{known} of {len(self._costs)} nodes measured one by one, {self._trials} mixes tried in {seconds:.0f} s; "
            f"{len(self._back)} nodes went back to float"
        )


def by_noise(found: Mapping[str, Cost]) -> list[str]:
    """Nodes in the order in which they should leave INT8: most noise power for each millisecond that it saves first.

    A node whose noise was not measured counts as the median of those that were.
    """
    powers = {name: 10 ** (-cost.noise_db / 10) for name, cost in found.items() if cost.noise_db is not None}
    middle = sorted(powers.values())[len(powers) // 2] if powers else 1.0
    return sorted(found, key=lambda name: -powers.get(name, middle) / max(found[name].saves_ms, LEAST_MS))
