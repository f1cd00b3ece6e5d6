"""How accurate an artifact is in the runtime that would serve it: another runtime's or CPU's figure proves nothing."""

from __future__ import annotations

import hashlib
import logging
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from edgekit.artifact import STANDARD, Accuracy, Artifact
from edgekit.bench.candidates import Candidate, to_record
from edgekit.bench.conditions import this_device
from edgekit.bench.record import Measurement
from edgekit.config import Home
from edgekit.errors import ConfigError, EdgekitError, RuntimeUnavailable
from edgekit.fetch import all_artifacts
from edgekit.files import write_atomic
from edgekit.manifest import Model
from edgekit.runtimes.available import installed_runtimes
from edgekit.runtimes.axes import session_axes
from edgekit.runtimes.session import RUNTIMES, SessionSettings
from edgekit.strict import read_json

if TYPE_CHECKING:
    from edgekit.build.accuracy import Reference

logger = logging.getLogger(__name__)


class Verifier:
    """Judges the candidates of one model; the standard runs once, and every result is kept on disk."""

    def __init__(self, model: Model, home: Home) -> None:
        self._model, self._home = model, home

    def judge(self, measurement: Measurement, candidate: Candidate) -> Measurement:
        """The measurement with the accuracy of its artifact in its own runtime.

        Where that cannot be measured (no evaluation data), what build measured stands, and `accuracy_note` says so.
        """
        if measurement.failure is not None:
            return measurement
        try:
            accuracy = self._accuracy(candidate)
        except EdgekitError as e:
            return self._as_built(measurement, candidate, str(e))
        if accuracy is None:
            return self._as_built(measurement, candidate, "the model declares no evaluation data")
        from edgekit.build.accuracy import why_unfit

        why = why_unfit(accuracy, self._model.accuracy_floor) if candidate.artifact.record.name != STANDARD else None
        return msgspec.structs.replace(
            measurement,
            accuracy_value=accuracy.value,
            accuracy_ratio=accuracy.ratio,
            fit=why is None,
            why_unfit=why,
            accuracy_note=f"{accuracy.sample_count} samples in {accuracy.runtime} on this CPU",
        )

    def recall(self, measurement: Measurement, candidate: Candidate) -> Measurement:
        """As `judge`, if that was measured before; else nothing speaks against it yet."""
        if self._place(candidate).is_file():
            return self.judge(measurement, candidate)
        return msgspec.structs.replace(measurement, accuracy_ratio=1.0, fit=True, why_unfit=None)

    def _as_built(self, measurement: Measurement, candidate: Candidate, why: str) -> Measurement:
        built = candidate.artifact.record.accuracy
        where = f"as measured in {built.runtime} on {built.isa}" if built else "not measured"
        return msgspec.structs.replace(measurement, accuracy_note=f"{where}: {why}")

    def _accuracy(self, candidate: Candidate) -> Accuracy | None:
        """From the store, else measured now. None without evaluation data. Raises EdgekitError."""
        from edgekit.build import accuracy  # deferred: the build extra is not on every device

        path = self._place(candidate)
        if path.is_file():
            try:
                return read_json(path, Accuracy)
            except ConfigError as e:
                logger.info("measured again: %s", e)
        if self._reference is None:
            return None
        record = candidate.artifact.record
        settings = candidate.settings.one_item()  # what runs in batches was seen to answer them as one by one
        found = accuracy.measure(self._reference, candidate.artifact.path, settings, _isa())
        logger.info("%s in %s: %.4f", record.name, settings.runtime, found.value)
        write_atomic(path, msgspec.json.encode(found))
        return found

    @cached_property
    def _reference(self) -> Reference | None:
        """The yardstick on the evaluation samples; None without samples. Raises EdgekitError."""
        from edgekit.build import accuracy
        from edgekit.pipeline.data import evaluation

        samples = tuple(evaluation(self._model))
        if not samples:
            return None
        yardstick, runtime = self._yardstick()
        settings = SessionSettings(runtime=runtime, axes=session_axes(self._model, {}, yardstick.record.axes))
        return accuracy.refer(self._model, yardstick.path, settings, samples)

    def _yardstick(self) -> tuple[Artifact, str]:
        """The standard, or where nothing installed reads it, another float32 file of the model.

        Raises RuntimeUnavailable when there is none.
        """
        for artifact in all_artifacts(self._model, self._home):  # the standard comes first
            if artifact.record.precision != "float32" or artifact.record.made_from_sha256 is not None:
                continue
            for runtime in installed_runtimes():
                if RUNTIMES[runtime] == artifact.record.format:
                    return artifact, runtime
        raise RuntimeUnavailable(self._model.source.format, "no installed runtime reads the standard to compare with")

    def _place(self, candidate: Candidate) -> Path:
        settings = to_record(candidate.settings)
        identity = [
            candidate.artifact.record.sha256,
            self._model.source.sha256,
            self._model.version,
            settings.runtime,
            settings.runtime_version,
            settings.delegate,
            settings.providers,
            settings.session_options,
            _isa(),
        ]
        key = hashlib.sha256(msgspec.json.encode(identity, order="deterministic")).hexdigest()[:32]
        return self._home.measurements(self._model.name) / "accuracy" / f"{key}.json"


def _isa() -> str:
    device = this_device()
    return f"{device['architecture']} {device['isa']}"
