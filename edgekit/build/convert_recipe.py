"""The model as LiteRT files, in float and in full INT8, each judged in the LiteRT runtime that will serve it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import onnx

from edgekit.artifact import Artifact
from edgekit.build import store
from edgekit.build.convert import Converted, convert, python_of, tools_of
from edgekit.build.further import Made, Recipe, keep
from edgekit.build.workshop import Refusal, Workshop
from edgekit.errors import ArtifactError, InputError, RuntimeUnavailable
from edgekit.runtimes.available import installed_version
from edgekit.runtimes.session import SessionSettings, open_session

FLOAT, INT8 = "standard-litert", "flash-int8-litert"
RUNTIME = "litert"
SETTINGS = SessionSettings(runtime=RUNTIME, providers=())
LOG = "convert.log"
_FAILED = "failed"


def recipes() -> tuple[Recipe, Recipe]:
    """As `further` makes them: one conversion gives both."""
    return (
        Recipe(FLOAT, partial(_artifact, name=FLOAT), partial(_key, name=FLOAT), _absent),
        Recipe(INT8, partial(_artifact, name=INT8), partial(_key, name=INT8), _absent),
    )


def _absent(shop: Workshop) -> str | None:  # noqa: ARG001 - the shape of Recipe.absent
    """What is missing here, with the command that brings it."""
    if installed_version(RUNTIME) is None:
        return "ai-edge-litert is not installed; pip install 'edgekit-deploy[litert]'"
    try:
        _tools()  # a folder that was begun and not finished must not end the build of everything else
    except RuntimeUnavailable as e:
        return str(e)
    return None


def _key(shop: Workshop, *, name: str) -> str:
    """The hash of everything that the file depends on, the converting environment included."""
    return store.key_of({"shop": shop.key(name), RUNTIME: installed_version(RUNTIME) or "", **_tools()})


def _tools() -> Mapping[str, str]:
    return tools_of(python_of())


def _artifact(shop: Workshop, key: str, *, name: str) -> Artifact:
    found = _converted(shop)
    path = found.floats if name == FLOAT else found.int8
    if path is None:
        raise Refusal(
            "no calibration data: give --calibration FILE.npz, one array per input with a leading sample axis"
        )
    facts = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    if name == INT8:
        _check_integers(facts)
    said = {
        **shop.graph_recipe,
        "converted": "onnx2tf, direct to LiteRT; inputs keep their order of axes",
        "sizes": ", ".join(f"{tensor} {list(value.shape)}" for tensor, value in shop.feed.items()),
    }
    if name == INT8:
        said["quantised"] = "ai-edge-quantizer, int8 activations and weights; inputs and outputs stay float32"
        said["ranges"] = f"min-max over {len(shop.samples.feeds)} samples"
    made = Made(
        name,
        path.read_bytes(),
        "tflite",
        "float32" if name == FLOAT else "int8",
        said,
        SETTINGS,
        calibrated=name == INT8,
        node_counts=_operators(path),
        tools={**_tools(), "ai-edge-litert": installed_version(RUNTIME) or ""},
        axes=_fixed(shop),
        notes=_notes(facts) if name == INT8 else (),
    )
    try:
        return keep(shop, made, key)
    except (ArtifactError, InputError) as e:
        raise Refusal(f"LiteRT does not run it on the model's own data: {e}") from e


def _converted(shop: Workshop) -> Converted:
    """The files, made on first use. Raises Refusal with the tools' own reason, and again without trying again."""
    folder = shop.scratch / RUNTIME
    floats, int8, failed = folder / "float.tflite", folder / "int8.tflite", folder / _FAILED
    if failed.is_file():
        raise Refusal(failed.read_text(encoding="utf-8"))
    if floats.is_file():
        return Converted(floats, int8 if int8.is_file() else None)
    folder.mkdir()
    source = shop.on_disk(at_sizes_of(shop.spelled_out, shop.feed), "to-litert")
    log = shop.home.artifacts(shop.model.name) / LOG
    try:
        return convert(source, folder, inputs=list(shop.feed), feeds=_alike(shop), log=log)
    except (ArtifactError, RuntimeUnavailable) as e:
        reason = e.problem if isinstance(e, ArtifactError) else str(e)
        failed.write_text(reason, encoding="utf-8")
        raise Refusal(reason) from e


def _alike(shop: Workshop) -> list[Mapping[str, Any]]:
    """The calibration feeds that have the sizes of the first: a LiteRT file takes one size."""
    wanted = {name: value.shape for name, value in shop.feed.items()}
    return [feed for feed in shop.samples.feeds if {n: v.shape for n, v in feed.items()} == wanted]


def at_sizes_of(model: onnx.ModelProto, feed: Mapping[str, Any]) -> onnx.ModelProto:
    """A copy whose inputs have the sizes that they have in `feed`."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for value in made.graph.input:
        for dimension, size in zip(value.type.tensor_type.shape.dim, feed[value.name].shape, strict=True):
            dimension.dim_value = size
    del made.graph.value_info[:]
    return made


def _fixed(shop: Workshop) -> dict[str, int]:
    """The manifest's axes, which all have one size in a LiteRT file: that of the data."""
    sizes = {spec.name: shop.feed[spec.name].shape for spec in shop.model.inputs if spec.name in shop.feed}
    return {
        axis: sizes[spec.name][i]
        for spec in shop.model.inputs
        for i, axis in enumerate(spec.shape)
        if isinstance(axis, str) and spec.name in sizes
    }


def _operators(path: Path) -> dict[str, int]:
    session = open_session(path, SETTINGS)
    try:
        return dict(getattr(session, "operator_kinds")())  # noqa: B009 - LiteRT's sessions alone have it
    finally:
        session.close()


def _check_integers(facts: Mapping[str, Any]) -> None:
    if not facts["int8_bytes"]:
        raise Refusal("ai-edge-quantizer quantised nothing of it")


def _notes(facts: Mapping[str, Any]) -> tuple[str, ...]:
    floats: Mapping[str, int] = facts["float_operators"]
    if not floats:
        return ()
    text = ", ".join(f"{kind} ×{count}" for kind, count in floats.items())
    return (f"stays in float: {text}",)
