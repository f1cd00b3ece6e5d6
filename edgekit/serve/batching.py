"""Several requests in one inference: which sizes, for how long to collect, and whether the artifact allows it at all.

A batch is collected only while others are known to be about: a client that is alone never waits.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from time import perf_counter

import numpy as np

from edgekit.device.memory import available_bytes
from edgekit.device.tree import Tree
from edgekit.errors import EdgekitError
from edgekit.runtimes.batches import is_close
from edgekit.runtimes.session import Session
from edgekit.runtimes.warmup import random_inputs
from edgekit.serve.job import Job, Line
from edgekit.serve.signature import Signature

DEFAULT_MOST = 8
"""Items at once where neither the configuration nor a selection says how many."""
MEMORY_SHARE = 0.5
"""Of what is available: a batch may take this much and no more, since others want memory too."""
GAIN = 0.9
"""Batches are worth it when an item costs at most this share of what it costs alone."""
WORSE = 1.25
"""Beyond a size at which an item costs this much more than at best, larger ones are not tried."""
PADDING = 0.25
"""A batch is filled up to the next size when at most this share of it is padding."""
_MEMORY_OF = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """`sizes` ascend from 1; every one of them is warm."""

    sizes: tuple[int, ...]
    preferred: int
    "As many are not kept waiting for more."
    window_ms: float

    @property
    def max(self) -> int:
        return self.sizes[-1]

    def size_for(self, count: int) -> int:
        """The warm size to run `count` items in, padded."""
        return next(size for size in self.sizes if size >= count)

    def take(self, count: int) -> int:
        """How many of `count` waiting items to run now: all, unless the padding would be too much."""
        count = min(count, self.max)
        size = self.size_for(count)
        if size == count or size - count <= PADDING * size:
            return count
        return max(size for size in self.sizes if size <= count)


class Window:
    """How long a lane collects, learnt from who was about at the last batches. Of one thread."""

    def __init__(self, batching: Batching) -> None:
        self.batching = batching
        self._demand: deque[int] = deque([1], maxlen=_MEMORY_OF)
        self.closed: Counter[str] = Counter()
        "Why batches were closed."

    def wait_ms(self, held: int, *, waited_ms: float, slack_ms: float) -> float:
        """How much longer to wait with `held` items, 0 to run; `slack_ms` is what their deadlines leave."""
        if held >= min(self.batching.preferred, max(self._demand)):
            return 0.0
        return max(0.0, min(self.batching.window_ms - waited_ms, slack_ms))

    def close(self, held: int, left: int, *, waited_ms: float, slack_ms: float) -> str:
        """Note a batch of `held` items that is about to run while `left` more wait, and give the reason it closed."""
        most = max(self._demand)
        if held >= self.batching.max:
            why = "full"
        elif held >= self.batching.preferred:
            why = "preferred"
        elif most == 1 and held == 1:
            why = "alone"
        elif held >= most:
            why = "all"
        elif slack_ms <= 0:
            why = "deadline"
        elif waited_ms >= self.batching.window_ms:
            why = "window"
            self._demand.clear()  # those who were about have gone: wait no more for them
        else:
            why = "size"
        self._demand.append(held + left)
        self.closed[why] += 1
        return why


def gather(line: Line, jobs: list[Job], window: Window, slack_ms: Callable[[Job, int], float]) -> None:
    """Add to `jobs` what fits into one inference with the first, waiting for more while that is worth it.

    `slack_ms` tells how long a job with a deadline may still wait when it runs together with so many items.
    """
    most = window.batching.max
    began_s = perf_counter()
    held = jobs[0].items
    while True:
        jobs += (more := line.take_alike(jobs[0], most - held))
        held += sum(job.items for job in more)
        slack = min((slack_ms(job, held) for job in jobs if job.deadline_ms is not None), default=1e9)
        waited_ms = (perf_counter() - began_s) * 1e3
        wait_ms = 0.0 if line.is_ending else window.wait_ms(held, waited_ms=waited_ms, slack_ms=slack)
        if wait_ms <= 0:
            break
        line.wait(wait_ms / 1e3)
    surplus = held - window.batching.take(held)
    while len(jobs) > 1 and surplus >= jobs[-1].items:
        surplus -= jobs[-1].items
        held -= jobs[-1].items
        line.put_back(jobs.pop())
    window.close(held, len(line), waited_ms=waited_ms, slack_ms=slack)


def sizes_up_to(most: int) -> tuple[int, ...]:
    """1, 2, 4, … and `most`: few enough to be warm, close enough for little padding."""
    return (*(1 << i for i in range(math.ceil(math.log2(most)))), most) if most > 1 else (1,)


def joined(parts: Sequence[Mapping[str, np.ndarray]], size: int) -> dict[str, np.ndarray]:
    """Inputs one after the other along their first axis, filled up to `size` with the last item again."""
    result = {}
    for name, first in parts[0].items():
        whole = np.empty((size, *first.shape[1:]), first.dtype)
        at = 0
        for part in parts:
            array = part[name]
            whole[at : at + len(array)] = array
            at += len(array)
        whole[at:] = whole[at - 1]
        result[name] = whole
    return result


def run_joined(
    session: Session, batching: Batching, parts: Sequence[Mapping[str, np.ndarray]], counts: Sequence[int]
) -> list[Mapping[str, np.ndarray]]:
    """One inference of all `parts`, which hold `counts` items; the outputs of each, as views of the whole."""
    size = batching.size_for(sum(counts))
    if size == counts[0]:
        return [session.run(parts[0])]
    outputs = session.run(joined(parts, size))
    ends = accumulate(counts)
    return [
        {name: value[end - count : end] for name, value in outputs.items()}
        for count, end in zip(counts, ends, strict=True)
    ]


def why_not_batched(session: Session, signature: Signature) -> str | None:
    """The reason why several items in one inference are not the same as one after the other, or None.

    Run and compared, not believed: a free first axis may be something else than a batch, and kernels that quantise
    by the range of the whole tensor answer differently beside other items.
    """
    if signature.batch_axis is None:
        return "its first axis is fixed, or not that of every input"
    shapes = next(signature.shapes())
    items = [random_inputs(shapes, seed=seed) for seed in (1, 2)]
    try:
        alone = [session.run(item) for item in items]
        both = session.run(joined(items, 2))
    except EdgekitError as error:
        return f"two items at once fail: {error}"
    for name, value in both.items():
        if value.ndim == 0 or len(value) != 2 * len(alone[0][name]):
            return f"output {name} has shape {list(value.shape)} for two items"
        apart = np.concatenate([answer[name] for answer in alone])
        if value.dtype == object or not is_close(value, apart):
            return f"output {name} of an item depends on the items beside it"
    return None


def sizes_that_pay(
    session: Session, signature: Signature, sizes: Sequence[int], tree: Tree
) -> tuple[tuple[int, ...], str]:
    """Those of `sizes` that are worth it on this machine, and why not the others (empty when all are).

    Up to the size at which an item costs least, if that is clearly less than alone. What does not fit into a share of
    the available memory is left out: the peak of each size foretells that of the next, which is never tried in vain.
    """
    item = random_inputs(next(signature.shapes()))
    each_ms: list[float] = []
    why = ""
    for i, size in enumerate(sizes):
        inputs = joined([item], size)
        peak = _peak_bytes(partial(session.run, inputs), tree)
        each_ms.append(_fastest_ms(partial(session.run, inputs)) / size)
        if each_ms[-1] > WORSE * min(each_ms):
            break
        free = available_bytes(tree)
        if i + 1 < len(sizes) and peak and free and peak / size * sizes[i + 1] > MEMORY_SHARE * free:
            need = peak / size * sizes[i + 1] / 2**20
            why = f"{sizes[i + 1]} at once would take {need:.0f} of {free / 2**20:.0f} MiB"
            break
    best = min(range(len(each_ms)), key=each_ms.__getitem__)
    if each_ms[best] > GAIN * each_ms[0]:
        best = 0
    if not why and best + 1 < len(sizes):
        beyond = min(best + 1, len(each_ms) - 1)
        why = f"{sizes[beyond]} at once take {each_ms[beyond]:.2f} ms each, {sizes[best]} {each_ms[best]:.2f} ms"
    return tuple(sizes[: best + 1]), why


def _fastest_ms(work: Callable[[], object], runs: int = 5, max_s: float = 1.0) -> float:
    times_s: list[float] = []
    while len(times_s) < runs and sum(times_s) < max_s:
        began_s = perf_counter()
        work()
        times_s.append(perf_counter() - began_s)
    return min(times_s) * 1e3


def _peak_bytes(work: Callable[[], object], tree: Tree) -> int | None:
    """What `work` took at most beyond what was there before. None: this kernel does not tell."""
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as refs:
            refs.write("5")  # the peak begins anew; source: proc(5), since Linux 4.0
    except OSError:
        work()
        return None
    before = _status_bytes(tree, "VmRSS")
    work()
    after = _status_bytes(tree, "VmHWM")
    return None if before is None or after is None else max(0, after - before)


def _status_bytes(tree: Tree, field: str) -> int | None:
    for line in (tree.text("proc/self/status") or "").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return None
