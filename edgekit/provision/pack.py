"""Makes a release of a daemon's configuration: artifacts, wheels, samples to judge it by, and how it is started."""

from __future__ import annotations

import hashlib
import platform
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from edgekit.artifact import RECORD_NAME, STANDARD, Artifact, sha256_of
from edgekit.bench.candidates import candidates
from edgekit.bench.stats import SAMPLES_FOR_P99
from edgekit.catalog import FORMATS, load_model
from edgekit.config import DaemonConfig, Home, ModelConfig, load_daemon_config
from edgekit.errors import ConfigError, ReleaseError, RuntimeUnavailable
from edgekit.fetch import all_artifacts, cached_path, standard_artifact
from edgekit.manifest import Model
from edgekit.own import CONFIG, OWN
from edgekit.provision import wheelhouse
from edgekit.provision.health import write_samples
from edgekit.provision.release import LaunchSpec, Library, Objective, Release, ReleaseFile, Stored, Target, seal
from edgekit.provision.wheel import installed_bytes

if TYPE_CHECKING:
    from edgekit.runtimes.session import Session

SAMPLE_COUNT = 32
CHECK_S = 60.0
Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a release is to be made of."""

    name: str
    "Empty: made of the content."
    sequence: int
    config: Path
    target: Target
    requirements: Path | None = None
    "Hash-locked. None: the target's own Python has edgekit already."
    wheels: tuple[Path, ...] = ()
    "Further wheels, such as edgekit-deploy's own."
    p99_ms: Mapping[str, float] = field(default_factory=dict)
    "Model -> bound; else the configuration's `latency_ms`."
    soak_s: float = 30.0
    ready_s: float = 120.0


def this_machine() -> Target:
    """The machine and Python that run us."""
    return Target(machine=platform.machine(), python=f"{sys.version_info.major}.{sys.version_info.minor}")


class Box:
    """The files of a release as they come together."""

    def __init__(self) -> None:
        self.files: list[ReleaseFile] = []
        self.sources: dict[str, Path] = {}

    def put(self, path: str, source: Path, *, is_wheel: bool = False) -> None:
        digest = sha256_of(source)
        size = installed_bytes(source) if is_wheel else 0
        self.sources[digest] = source
        file = ReleaseFile(
            path=path, sha256=digest, size_bytes=source.stat().st_size, is_wheel=is_wheel, installed_bytes=size
        )
        if all(known.path != path for known in self.files):
            self.files.append(file)


def pack(order: Order, library: Library, home: Home, progress: Progress) -> Stored:
    """Make the release and put it into the library.

    Raises ConfigError, ReleaseError, FetchError, ArtifactError, RuntimeUnavailable: whatever one of its parts lacks.
    """
    config = load_daemon_config(order.config)
    _check_config(config, order.config)
    box = Box()
    with tempfile.TemporaryDirectory(prefix="edgekit-release-") as temp:
        folder = Path(temp)
        box.put(CONFIG, order.config)
        objectives = []
        for i, wanted in enumerate(config.model):
            progress(f"packing {wanted.name}", i / len(config.model))
            model, artifacts = _put_model(box, wanted, order, home)
            objectives.append(_objective(box, model, artifacts, wanted, order, folder, home))
        _put_wheels(box, order, folder, progress)
        release = Release(
            name=order.name,
            sequence=order.sequence,
            target=order.target if any(file.is_wheel for file in box.files) else Target(),
            launch=_launch(objectives, order, has_wheels=any(file.is_wheel for file in box.files)),
            files=tuple(sorted(box.files, key=lambda file: file.path)),
            objectives=tuple(objectives),
        )
        if not release.name:
            release = msgspec.structs.replace(release, name=_content_name(release))
            if (library.folder / f"{release.name}.json").exists():
                return library.load(release.name)
        stored = seal(release)
        library.save(stored, box.sources)
    return stored


def _content_name(release: Release) -> str:
    """A name made of what it holds, so that the same content is the same release whenever it is made."""
    what = msgspec.json.encode(
        (release.files, release.launch, release.objectives, release.target), order="deterministic"
    )
    models = "-".join(objective.model for objective in release.objectives)[:40]
    return f"{models}-{hashlib.sha256(what).hexdigest()[:12]}"


def _check_config(config: DaemonConfig, path: Path) -> None:
    if config.http.unix_socket is not None or config.http.port == 0:
        raise ConfigError(path, "http.port", "a release needs a fixed TCP port, so that its health can be asked there")
    for key, given in (("http.token_file", config.http.token_file), ("mqtt.password_file", config.mqtt.password_file)):
        if given is not None and not Path(given).is_absolute():
            raise ConfigError(path, key, f"'{given}' must be absolute: it is the device's own file, not the release's")


def _put_model(box: Box, wanted: ModelConfig, order: Order, home: Home) -> tuple[Model, list[Artifact]]:
    """Put what serves the model into the box; the model, and the artifacts of which the device will run one."""
    given = Path(wanted.name)
    if given.suffix.lower() in FORMATS:
        if given.is_absolute() or ".." in given.parts:
            problem = f"'{wanted.name}' must lie below the folder of {order.config.name}: it goes into the release"
            raise ConfigError(order.config, "model.name", problem)
        model = load_model(str(order.config.parent / given))
        box.put(given.as_posix(), order.config.parent / given)
        return model, all_artifacts(model, home)
    model = load_model(wanted.name)
    known = all_artifacts(model, home)
    # What one runtime saved for this very CPU is of no use on another machine: its portable twin goes.
    chosen = [
        a
        for a in known
        if (a.record.name == wanted.artifact if wanted.artifact else a.record.fit and "isa" not in a.record.bound_to)
    ]
    if not chosen:
        names = ", ".join(a.record.name for a in known)
        raise ConfigError(
            order.config, "model.artifact", f"there is no '{wanted.artifact}' of {model.name}, only {names}"
        )
    if model.source.file is None:
        standard = standard_artifact(model, home)
        box.put(f"home/{cached_path(model.source, home).relative_to(home.root).as_posix()}", standard.path)
    for artifact in chosen:
        folder = home.artifacts(model.name) / artifact.record.name
        if artifact.path.is_relative_to(folder):  # built here; what lies beside the manifest comes with the wheel
            artifact.verify()
            below = f"home/{folder.relative_to(home.root).as_posix()}"
            box.put(f"{below}/{artifact.path.relative_to(folder).as_posix()}", artifact.path)
            box.put(f"{below}/{RECORD_NAME}", folder / RECORD_NAME)
    return model, chosen


def _objective(
    box: Box, model: Model, artifacts: Sequence[Artifact], wanted: ModelConfig, order: Order, folder: Path, home: Home
) -> Objective:
    """Samples with the standard's answers, and the bounds. Accuracy: what the artifacts reach here, less one sample."""
    from edgekit.pipeline.metrics import agreement  # deferred: numpy

    feeds, expected = _answers(model, standard_artifact(model, home), wanted)
    likeness = [1.0]
    for artifact in artifacts:
        if artifact.record.name != STANDARD and not artifact.record.requires:
            likeness.append(agreement(expected, _answers(model, artifact, wanted, feeds)[1]))
    path = folder / f"{model.name}.npz"
    write_samples(path, feeds, expected)
    box.put(f"health/{model.name}.npz", path)
    return Objective(
        model=model.name,
        samples=f"health/{model.name}.npz",
        p99_ms=order.p99_ms.get(model.name, wanted.latency_ms),
        accuracy=max(0.0, min(likeness) - 1.0 / len(feeds)),
        memory_bytes=None if wanted.memory_mb is None else int(wanted.memory_mb * 2**20),
    )


def _answers(
    model: Model, artifact: Artifact, wanted: ModelConfig, feeds: list[dict[str, Any]] | None = None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(feeds, outputs) of single inferences; `feeds` None: from the model's evaluation data, else noise."""
    from edgekit.runtimes.session import open_session

    found = candidates(model, [artifact], cores=1, threads=[1], axes=wanted.axes)
    if not found:
        raise RuntimeUnavailable(
            artifact.record.format, f"no installed runtime reads {artifact.path.name} to judge it by"
        )
    session = open_session(artifact.path, found[0].settings)
    try:
        feeds = feeds or _feeds(model, session)
        return feeds, [session.run(feed) for feed in feeds]
    finally:
        session.close()


def _feeds(model: Model, session: Session) -> list[dict[str, Any]]:
    from edgekit.pipeline.data import evaluation
    from edgekit.pipeline.stateful import first_state, walk
    from edgekit.runtimes.warmup import random_inputs

    feeds: list[dict[str, Any]] = []
    for sample in evaluation(model):
        if model.is_stateful:
            feeds += [feed for feed, _ in walk(model, session.run, sample.inputs)][:SAMPLE_COUNT]
        else:
            feeds.append({**sample.inputs, **first_state(model)[0]})
        if len(feeds) >= SAMPLE_COUNT:
            break
    if not feeds:
        return [random_inputs(session.inputs, seed=i) for i in range(SAMPLE_COUNT // 4)]
    shapes = {name: value.shape for name, value in feeds[0].items()}
    return [feed for feed in feeds[:SAMPLE_COUNT] if {n: v.shape for n, v in feed.items()} == shapes]


def _put_wheels(box: Box, order: Order, folder: Path, progress: Progress) -> None:
    wheels = list(order.wheels)
    if order.requirements is not None:
        progress("downloading wheels", 0.5)
        wheels += wheelhouse.collect(order.requirements, order.target, folder)
    for wheel in wheels:
        if problem := wheelhouse.why_unfit(wheel.name, order.target):
            raise ReleaseError(wheel.name, problem)
        box.put(wheel.name, wheel, is_wheel=True)


def _launch(objectives: Sequence[Objective], order: Order, *, has_wheels: bool) -> LaunchSpec:
    edgekit = ("{python}", "-m", "edgekit.cli.main")
    # 662 samples of each bounded model at twice its bound, and the accuracy samples of all
    bounded_s = sum(SAMPLES_FOR_P99 * 2 * objective.p99_ms / 1e3 for objective in objectives if objective.p99_ms)
    seconds = CHECK_S + bounded_s
    own = ("--own", f"{{root}}/shared/{OWN}")
    env = {
        "EDGEKIT_HOME": "{slot}/home",
        "PYTHONNOUSERSITE": "1",
        "PYTHONSAFEPATH": "1",  # the slot is the working folder, not a place to import from
        "PYTHONPYCACHEPREFIX": "{root}/cache",
    }
    return LaunchSpec(
        run=(*edgekit, "run", "--config", CONFIG, *own),
        check=(*edgekit, "slots", "--self-check", "{slot}", *own, "--pid", "{pid}", "--seconds", f"{seconds:.0f}"),
        env=env | ({"PYTHONPATH": "{slot}/site"} if has_wheels else {}),
        ready_s=order.ready_s,
        check_s=min(seconds * 1.5 + 30, 3600.0),
        soak_s=order.soak_s,
    )
