"""A model served inside a program of one's own: `from edgekit import Engine`.

The same choice of artifact, the same warm-up, lanes and telemetry as the daemon's; numpy in, numpy out, no network.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from edgekit.catalog import board_tables
from edgekit.config import DaemonConfig, Home, ModelConfig, MqttConfig, check_daemon_config
from edgekit.config import home as users_home
from edgekit.device.probe import Facts, probe
from edgekit.errors import EdgekitError
from edgekit.manifest import TensorSpec
from edgekit.serve import engine as held
from edgekit.serve.birth import birth, device_name
from edgekit.serve.job import Answer, Job, Outcome
from edgekit.serve.loader import Loader
from edgekit.serve.readings import SystemMeter
from edgekit.telemetry.messages import ModelState
from edgekit.telemetry.reporter import Recorder, Reporter

CALLER = "Engine.open"


class Engine:
    """One model, warm. May be used from several threads at once; `close` it, or use it in a `with`."""

    def __init__(self, config: DaemonConfig, *, home: Home, facts: Facts) -> None:
        """See `open`."""
        self._engine, self._recorder = held.Engine(), Recorder()
        self._states: dict[str, ModelState] = {}
        loader = Loader(engine=self._engine, home=home, facts=facts, recorder=self._recorder, tell=self._remember)
        loader.apply(config, CALLER)
        (self._model,) = self._engine.models.values()
        self._reporter = self._report(config, home, facts) if config.mqtt.host is not None else None

    @classmethod
    def open(
        cls,
        model: str | Path,
        *,
        home: Home | None = None,
        site: str = "default",
        device: str | None = None,
        mqtt: MqttConfig | None = None,
        **wanted: Any,
    ) -> Engine:
        """A model by its catalog name, or a .onnx or .tflite file, ready to answer.

        Args:
            home: where artifacts, measurements and selections lie; None: the user's.
            site, device: who speaks when there is telemetry; None: the hardware's serial number.
            mqtt: a broker to report to.
            wanted: as a `[[model]]` table of `edgekit.toml` says it: `latency_ms=25`, `artifact="standard"`, …

        Without a stored selection it measures briefly first. Raises ConfigError for what is not known there, and what
        choosing, fetching, verifying and opening raise.
        """
        entry = ModelConfig(name=str(model))
        unknown = wanted.keys() - set(entry.__struct_fields__)
        if unknown:
            known = ", ".join(name for name in entry.__struct_fields__ if name != "name")
            raise TypeError(f"{CALLER}: unknown {', '.join(sorted(unknown))}; there are {known}")
        config = DaemonConfig(
            site=site, device=device, mqtt=mqtt or MqttConfig(), model=(msgspec.structs.replace(entry, **wanted),)
        )
        check_daemon_config(config, CALLER)
        return cls(config, home=home or users_home(), facts=probe(profiles=board_tables()))

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def state(self) -> ModelState:
        """What was chosen, and why."""
        return self._states[self._model.name]

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self._model.ready_lane().signature.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return self._model.ready_lane().signature.outputs

    def infer(self, inputs: Mapping[str, np.ndarray], **how: Any) -> dict[str, np.ndarray]:
        """Every output by name. `how` and errors as `answer`."""
        return dict(self.answer(inputs, **how).outputs)

    def answer(self, inputs: Mapping[str, np.ndarray], **how: Any) -> Answer:
        """The outputs and where the time went; `how`: priority, deadline_ms, no_cache, step.

        Raises InputError, RequestError (a deadline that cannot be met; the engine is closed), ArtifactError.
        """
        return self._engine.infer(self._model.name, inputs, **how)

    async def infer_async(
        self, inputs: Mapping[str, np.ndarray], *, priority: str | None = None, deadline_ms: float | None = None
    ) -> dict[str, np.ndarray]:
        """`infer` without holding up the loop; cancelled, it is not run if it has not begun."""
        self._model.ready_lane().signature.check_arrays(inputs)
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Outcome] = loop.create_future()

        def settle(outcome: Outcome) -> None:
            if not answered.done():
                answered.set_result(outcome)

        def done(outcome: Outcome) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, outcome)

        job = Job(inputs=inputs, done=done, deadline_ms=deadline_ms)
        self._model.submit(job, priority)
        try:
            outcome = await answered
        except asyncio.CancelledError:
            job.cancel()
            raise
        if isinstance(outcome, EdgekitError):
            raise outcome
        return dict(outcome.outputs)

    def close(self) -> None:
        """Finish what is under way, free the model, say goodbye to the broker. Idempotent."""
        self._engine.close()
        if self._reporter is not None:
            self._reporter.stop("closed")
            self._reporter = None

    def _remember(self, state: ModelState) -> None:
        self._states[state.model] = state

    def _report(self, config: DaemonConfig, home: Home, facts: Facts) -> Reporter:
        device = device_name(config, facts, CALLER)
        reporter = Reporter(
            config.mqtt,
            site=config.site,
            device=device,
            state_folder=home.daemon(device),
            birth=lambda epoch: birth(epoch, config, facts, self._states.values()),
            readings=SystemMeter(memory_total_bytes=facts.memory.usable_bytes).read,
            recorder=self._recorder,
        )
        reporter.start()
        return reporter
