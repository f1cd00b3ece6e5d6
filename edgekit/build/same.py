"""Whether two files compute the same: the largest difference of their outputs on real inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from edgekit.build import ort
from edgekit.runtimes.session import SessionSettings, open_session


def difference(
    left: tuple[Path, SessionSettings], right: tuple[Path, SessionSettings], feeds: Iterable[Mapping[str, np.ndarray]]
) -> float:
    """Over all outputs and feeds, relative to an output's largest value where that exceeds 1; infinite for NaN."""
    before, after = open_session(*left), open_session(*right)
    worst = 0.0
    try:
        for feed in feeds:
            expected, found = before.run(feed), after.run(feed)
            for name in expected:
                apart = ort.difference(expected[name], found[name])
                worst = max(worst, apart if apart == apart else float("inf"))  # NaN is unequal to itself
    finally:
        before.close()
        after.close()
    return worst
