"""Every shape that will be run, run until it stops getting faster: only then is the first answer like the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from edgekit.runtimes.warmup import random_inputs, warm_up
from edgekit.serve.pace import Pace
from edgekit.serve.signature import Signature

if TYPE_CHECKING:
    from edgekit.runtimes.session import Session

WARM_UP_S = 1.0
"""At most, for each shape: a large shape of a slow model must not keep a device from its work for minutes."""


def warm(session: Session, signature: Signature, pace: Pace, progress: Callable[[str], None]) -> None:
    """Also teaches `pace` what each shape takes. Raises what the session raises."""
    for specs in signature.shapes():
        inputs = random_inputs(specs) | dict(signature.constants)
        (done,) = warm_up(session, [inputs], max_s=WARM_UP_S)
        items = specs[0].shape[0] if signature.batch_axis is not None else 1
        assert isinstance(items, int), "the shapes of a signature are numbers"
        sent_bytes = sum(array.nbytes for name, array in inputs.items() if name not in signature.constants)
        for took_ms in done.times_ms[-5:]:
            pace.learn(sent_bytes // items, took_ms / items)
        shapes = ", ".join(str(list(spec.shape)) for spec in specs)
        runs = f"{done.first_ms:.2f} ms at first, {done.times_ms[-1]:.2f} ms after {len(done.times_ms)} runs"
        progress(f"warm: {shapes}: {runs}")
