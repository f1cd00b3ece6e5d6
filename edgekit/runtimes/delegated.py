"""How many of a LiteRT model's operators a delegate took, told from the interpreter's list of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgekit.runtimes.session import Placement

CPU = "CPU"
_DELEGATE = "DELEGATE"


def placement_of(interpreter: Any, delegate: str) -> Placement | None:
    """Operators that `delegate` and the CPU kernels run; None when this runtime does not tell.

    The interpreter keeps the replaced operators in its list and adds one DELEGATE node for each part it handed over.
    An operator belongs to a part when the part's outputs can be traced back to it without leaving the part's inputs.
    """
    describe = getattr(interpreter, "_get_ops_details", None)
    if describe is None:
        return None
    nodes = describe()
    parts = [node for node in nodes if node["op_name"] == _DELEGATE]
    originals = [node for node in nodes if node["op_name"] != _DELEGATE]
    producer = {int(tensor): i for i, node in enumerate(originals) for tensor in node["outputs"]}
    taken: set[int] = set()
    for part in parts:
        taken |= _inside(part, originals, producer)
    left = len(originals) - len(taken)
    counts = {delegate: len(taken), CPU: left}
    return Placement(
        ops_by_provider={name: count for name, count in counts.items() if count},
        partitions=len(parts) + _runs_left(originals, taken),
        asked_for=(delegate,),
    )


def _inside(part: Any, originals: Sequence[Any], producer: dict[int, int]) -> set[int]:
    edge = {int(tensor) for tensor in part["inputs"]}
    found: set[int] = set()
    pending = [int(tensor) for tensor in part["outputs"]]
    while pending:
        tensor = pending.pop()
        op = producer.get(tensor)
        if tensor in edge or op is None or op in found:
            continue
        found.add(op)
        pending += [int(source) for source in originals[op]["inputs"]]
    return found


def _runs_left(originals: Sequence[Any], taken: set[int]) -> int:
    """Stretches of operators that stayed on the CPU, in the file's order."""
    left = [i for i in range(len(originals)) if i not in taken]
    return sum(i == 0 or (i - 1) not in left for i in left)
