"""Jobs through a session: one, one step of a sequence, or several as a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from edgekit.serve.batching import Batching, run_joined
from edgekit.serve.job import Job
from edgekit.serve.sequences import Sequences
from edgekit.serve.signature import Signature

if TYPE_CHECKING:
    import numpy as np

    from edgekit.runtimes.session import Session


def run_jobs(
    session: Session, signature: Signature, batching: Batching | None, sequences: Sequences, jobs: Sequence[Job]
) -> list[Mapping[str, np.ndarray]]:
    """The outputs of each; more than one job only with `batching`.

    Raises what the session raises, and RequestError about a sequence.
    """
    first = jobs[0]
    if batching is None or first.step is not None:
        inputs = first.inputs
        if signature.constants:
            inputs = {**signature.constants, **inputs}
        if first.step is None:
            return [session.run(inputs)]
        outputs = session.run({**inputs, **sequences.before(first.step)})
        sequences.after(first.step, outputs)
        return [outputs]
    return run_joined(session, batching, [job.inputs for job in jobs], [job.items for job in jobs])
