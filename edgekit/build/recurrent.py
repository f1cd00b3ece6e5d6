"""INT8 for recurrent layers: the static INT8 artifact with its LSTMs quantised too, their inputs at run time.

Their weights are most of a small speech model. Only onnxruntime has such a kernel, so the artifact is bound to it.
"""

from __future__ import annotations

import onnx

from edgekit.build import store
from edgekit.build.edit import Graph
from edgekit.build.quantize import dynamic_int8
from edgekit.build.workshop import RUNTIME, Draft, Refusal, Workshop
from edgekit.errors import ArtifactError

RECURRENT_OPS = ("LSTM",)
LEAST_VALUES = 16 * 1024
"""Weights of a layer below which a file does not get noticeably smaller."""


def on_top_of(static: str, shop: Workshop) -> Draft:
    """The artifact of recipe `static` with its LSTMs in INT8. Raises Refusal: no LSTM, or no such artifact."""
    layers = recurrent_layers(Graph(shop.graph))
    if not layers:
        raise Refusal("it has no recurrent layer with constant weights")
    built = store.find(shop.folder(static), shop.key(static))
    if built is None:
        raise Refusal(f"there is no {static} to build on")
    try:
        made = dynamic_int8(onnx.load(str(built.path)), shop.target.types, ops=RECURRENT_OPS)
    except ArtifactError as e:
        raise Refusal(e.problem) from e
    recipe = {name: text for name, text in built.record.recipe.items() if name not in (store.KEY, "speed")}
    recipe["recurrent layers"] = f"dynamic INT8, {len(layers)} of them"
    plan = {**built.record.plan, **dict.fromkeys((f"LSTM {name}" for name in layers), "int8: quantised at run time")}
    return Draft(made, recipe, calibrated=True, bound_to={"runtime": RUNTIME}, plan=plan)


def recurrent_layers(graph: Graph) -> list[str]:
    """LSTMs whose weights are constant and worth it, by their first output that is used."""
    found = []
    for node in graph.nodes:
        weights = [graph.constant(name) for name in node.input[1:3]] if node.op_type == "LSTM" else []
        if weights and all(w is not None and w.size >= LEAST_VALUES for w in weights):
            found.append(next(name for name in node.output if name))
    return found
