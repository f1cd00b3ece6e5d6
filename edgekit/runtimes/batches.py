"""Whether several items in one inference get the answers that each gets alone: run and compared, not believed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgekit.runtimes.session import Session

SAME = 1e-3
"""A batch may differ from single answers by this share of the largest value: kernels sum in another order."""

Arrays = Mapping[str, np.ndarray]


def is_close(value: np.ndarray, wanted: np.ndarray) -> bool:
    """Whether two answers to the same items count as the same."""
    if value.dtype.kind != "f":
        return bool(np.array_equal(value, wanted))
    largest = float(np.abs(wanted).max(initial=0.0))
    return bool(np.allclose(value, wanted, rtol=SAME, atol=SAME * largest, equal_nan=True))


def why_mixed(session: Session, inputs: Arrays, outputs: Arrays, batch: int) -> str | None:
    """Why `outputs` are not those of `batch` single items, or None: for a session whose first axis is fixed at it.

    Its first and its last item, each in a batch of nothing but itself, must get the answer that they got among the
    others. Raises what `session.run` raises.
    """
    for name, value in outputs.items():
        if value.ndim == 0 or len(value) % batch or not len(value):
            return f"output '{name}' has shape {list(value.shape)} for {batch} items"
    for item in (0, batch - 1):
        alone = session.run({name: _repeated(value, item, batch) for name, value in inputs.items()})
        for name, value in outputs.items():
            rows = len(value) // batch
            mine = slice(item * rows, (item + 1) * rows)
            if (
                value.dtype == object
                or alone[name].shape != value.shape
                or not is_close(value[mine], alone[name][mine])
            ):
                return f"output '{name}' of an item depends on the items beside it"
    return None


def _repeated(value: np.ndarray, item: int, batch: int) -> np.ndarray:
    return np.repeat(value[item : item + 1], batch, axis=0) if value.ndim else value
