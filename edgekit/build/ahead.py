"""Ahead of time: an artifact as onnxruntime would run it here, saved, so that loading it needs no optimising.

The weights then lie as this CPU's kernels want them, so the file is bound to this CPU and this very release. Made when
artifacts are built, never while a request waits.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import msgspec

from edgekit.artifact import Accuracy, Artifact, sha256_of
from edgekit.build import ort, store
from edgekit.build.race import load_race, race
from edgekit.build.same import difference
from edgekit.build.workshop import MIB, Refusal, Workshop
from edgekit.errors import ArtifactError
from edgekit.files import write_atomic
from edgekit.runtimes.ahead import AS_SAVED, binding_here

SUFFIX = "-ort"
RUNTIME = "onnxruntime"
NOT_SLOWER = 1.07
"""Of the twin's latency: loading is what it saves, and a busy machine makes races uncertain."""
PAYS = 0.8
"""The share of its twin's loading time that it must stay below."""
SAME = 1e-4


def key(shop: Workshop, twin: Artifact) -> str:
    """The hash of everything that the saved form of `twin` depends on."""
    return store.key_of(
        {"twin": twin.record.sha256, "recipe": SUFFIX, "shop": shop.key(SUFFIX), **binding_here(RUNTIME)}
    )


def save_optimized(shop: Workshop, twin: Artifact, *, must_pay: bool = True) -> Artifact:
    """`twin` in its saved form, checked against it and timed beside it. Raises Refusal, ArtifactError (disk full).

    Its axes stay open as they are in `twin`: it serves the same sizes. `must_pay` False: whatever it saves or costs.
    """
    if shop.target.isa != shop.here:
        raise Refusal("is made on the device itself: it fits one CPU only")
    name = twin.record.name + SUFFIX
    draft = shop.scratch / f"{name}.onnx"
    try:
        ort.open_model(twin.path, twin.path, save=draft)
    except ArtifactError as e:
        raise Refusal(e.problem) from e
    before = shop.opened_as(twin.path)
    after = replace(shop.opened_as(draft), session_options=AS_SAVED)
    feeds = shop.samples.feeds[:2] or (shop.feed,)
    worst = difference((twin.path, before), (draft, after), feeds)
    if not worst <= SAME:
        raise Refusal(f"its outputs differ from those of {twin.record.name} by {worst:.1e}")
    portable_ms, own_ms = race([twin.path, draft], shop.feed, [before, after], budget_s=2.0, bound=NOT_SLOWER)
    if must_pay and own_ms > NOT_SLOWER * portable_ms:
        raise Refusal(f"slower than {twin.record.name} once loaded: {own_ms:.3g} against {portable_ms:.3g} ms")
    portable_load_ms, own_load_ms = load_race([twin.path, draft], [before, after])
    if must_pay and own_load_ms > PAYS * portable_load_ms:
        raise Refusal(f"loads in {own_load_ms:.3g} ms, {twin.record.name} in {portable_load_ms:.3g}: not worth a file")
    load = f"{own_load_ms:.1f} ms against {portable_load_ms:.1f} ms for {twin.record.name}"
    found = {"loads in": load, **_speed(twin, portable_ms, own_ms)}
    return _keep(shop, twin, draft, found, twin.record.accuracy or _as_compared(len(feeds), shop.here))


def _keep(shop: Workshop, twin: Artifact, draft: Path, found: dict[str, str], accuracy: Accuracy) -> Artifact:
    """The file, then its record: the twin's, but for what makes it another file."""
    name = twin.record.name + SUFFIX
    made, folder = key(shop, twin), shop.home.artifacts(shop.model.name) / name
    path = folder / f"{name}-{made[:8]}.onnx"
    size = draft.stat().st_size
    if (free := shutil.disk_usage(shop.home.root).free) < 2 * size:
        raise ArtifactError(path, f"needs {2 * size // MIB} MiB of disk, {free // MIB} MiB are free")
    try:
        write_atomic(path, draft.read_bytes())
    except OSError as e:
        raise ArtifactError(path, f"cannot be written: {e.strerror or e}") from e
    notes = (f"as onnxruntime runs {twin.record.name} here; for this CPU and this release of onnxruntime only",)
    record = msgspec.structs.replace(
        twin.record,
        name=name,
        file=path.name,
        sha256=sha256_of(path),
        size_bytes=size,
        made_from_sha256=shop.standard.record.sha256,
        recipe={**twin.record.recipe, store.KEY: made, **found},
        accuracy=accuracy,
        bound_to=binding_here(RUNTIME),
        twin_of=twin.record.name,
        notes=notes,
    )
    return store.save(folder, record)


def _as_compared(count: int, isa: str) -> Accuracy:
    """Of a float twin without evaluation data: the outputs just compared were the same."""
    return Accuracy(metric="agreement", value=1.0, standard_value=1.0, sample_count=count, runtime=RUNTIME, isa=isa)


def _speed(twin: Artifact, portable_ms: float, own_ms: float) -> dict[str, str]:
    """The twin's speed against the standard, carried over by the race between the two."""
    try:
        ratio = float(twin.record.recipe.get("speed", "1.00×").split("×")[0])
    except ValueError:
        return {}
    return {"speed": f"{ratio * portable_ms / own_ms:.2f}× the standard's here, by way of {twin.record.name}"}
