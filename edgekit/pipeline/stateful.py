"""Running prepared inputs through a session: once, or frame by frame for a model that carries state between frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from edgekit.manifest import Model

Array = np.ndarray[Any, Any]
Run = Callable[[Mapping[str, Array]], dict[str, Array]]
"""One inference: every input by name -> every output by name (`Session.run`)."""


def run_prepared(model: Model, infer: Run, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], int]:
    """(outputs, number of inferences). A stateful model walks its frames; its outputs get a leading frame axis."""
    if not model.is_stateful:
        return infer({**inputs, **first_state(model)[0]}), 1
    per_frame = [outputs for _, outputs in walk(model, infer, inputs)]
    answers = [name for name in per_frame[0] if name not in model.state.values()]
    return {name: np.stack([outputs[name] for outputs in per_frame]) for name in answers}, len(per_frame)


def walk(model: Model, infer: Run, inputs: Mapping[str, Array]) -> Iterator[tuple[dict[str, Array], dict[str, Array]]]:
    """Every (feed, outputs) of a stateful model, each fed with the state that the one before left."""
    constants, state = first_state(model)
    for i in range(len(next(iter(inputs.values())))):
        feed = {name: value[i] for name, value in inputs.items()} | constants | state
        outputs = infer(feed)
        state = {into: outputs[out] for into, out in model.state.items()}
        yield feed, outputs


def first_state(model: Model) -> tuple[dict[str, Array], dict[str, Array]]:
    """(the constant inputs, the state inputs as zeros)."""
    by_name = {spec.name: spec for spec in model.inputs}
    shapes = {
        name: model.bound_shape(spec) for name, spec in by_name.items() if name in {*model.constants, *model.state}
    }
    constants = {name: np.full(shapes[name], value, by_name[name].dtype) for name, value in model.constants.items()}
    return constants, {name: np.zeros(shapes[name], by_name[name].dtype) for name in model.state}
