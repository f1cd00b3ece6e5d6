"""Brings an engine to what a configuration asks: load, warm, switch, drain, free, without a failed request between."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from edgekit.catalog import load_model
from edgekit.config import CacheConfig, DaemonConfig, Home, ModelConfig
from edgekit.device.probe import Facts
from edgekit.errors import ConfigError
from edgekit.manifest import Model
from edgekit.serve.cache import ResultCache
from edgekit.serve.engine import Engine, ServedModel
from edgekit.serve.lane import REALTIME, TOLERANT, Lane
from edgekit.serve.opening import load_lane
from edgekit.serve.plan import Plan, make_plan, make_tolerant_plan
from edgekit.serve.precedence import Precedence
from edgekit.telemetry.messages import ModelState
from edgekit.telemetry.reporter import Recorder

logger = logging.getLogger(__name__)

DRAIN_S = 30.0
"""A lane that was replaced gets this long for what it has begun; the memory of one that does not end is not freed."""


@dataclass(kw_only=True)
class Loader:
    """Not thread-safe: one load at a time. `tell` hears of every model as it loads; `on_death` of a lane that died."""

    engine: Engine
    home: Home
    facts: Facts
    recorder: Recorder | None
    tell: Callable[[ModelState], None] = lambda _: None
    on_progress: Callable[[str], None] = lambda _: None
    on_death: Callable[[], None] = lambda: None
    plans: dict[tuple[str, str], Plan] = field(default_factory=dict)
    "What is served, by model and lane."
    _cache_config: CacheConfig = field(default_factory=CacheConfig)
    _precedence: Precedence = field(default_factory=Precedence)

    def apply(self, config: DaemonConfig, source: str) -> None:
        """Serve what `config` lists, as it says; lanes that it does not change go on untouched.

        Raises ConfigError (before anything is changed) and what choosing, fetching, verifying and opening raise: what
        was served before then is still.
        """
        wanted = [(settings, load_model(settings.name)) for settings in config.model]
        names = [model.name for _, model in wanted]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(source, "model", f"'{name}' is listed twice")
        self._set_cache(config.cache)
        for _, model in wanted:
            if model.name not in self.engine.models:
                self.engine.add(model.name, model.version)
        self._load_all(wanted)
        for name in [name for name in self.engine.models if name not in names]:
            self._remove(name)

    def _set_cache(self, wanted: CacheConfig) -> None:
        """A cache of another size begins empty, and the lanes that are kept go on with the new one."""
        if wanted == self._cache_config:
            return
        self._cache_config = wanted
        cache = ResultCache(max_bytes=int(wanted.mb * 2**20), ttl_s=wanted.ttl_s) if wanted.mb > 0 else None
        self.engine.cache = cache
        for (model, name), plan in self.plans.items():
            lane = self.engine.models[model].by_name(name)
            if lane is not None and plan.is_cached:
                lane.cache = cache

    def _load_all(self, wanted: list[tuple[ModelConfig, Model]]) -> None:
        cores = self.facts.cpu.cores_usable or 1
        share = max(1, cores // len(wanted))
        if len(wanted) > 1:
            logger.info("%d models share %d cores: %d thread%s each", len(wanted), cores, share, "s" * (share > 1))
        for settings, model in wanted:
            self.on_progress(f"loading {model.name}")
            self._load_model(settings, model, share)

    def _load_model(self, wanted: ModelConfig, model: Model, share: int) -> None:
        served = self.engine.models[model.name]
        plan = make_plan(
            model, wanted, home=self.home, facts=self.facts, threads=share, progress=lambda t, _: self.on_progress(t)
        )
        self._log(plan)
        self.tell(plan.state("loading"))
        self._serve(served, plan)
        second = None
        if wanted.tolerant is not None:
            second = make_tolerant_plan(
                model, wanted, home=self.home, facts=self.facts, progress=lambda t, _: self.on_progress(t)
            )
            self._log(second)
            self._serve(served, second)
        else:
            self._free(served, TOLERANT)
        self.tell(_with_tolerant(plan.state("ready"), second))

    def _log(self, plan: Plan) -> None:
        lane = "" if plan.lane == REALTIME else f" ({plan.lane})"
        logger.info("%s%s: %s: %s", plan.model.name, lane, plan.label, "; ".join(plan.reasons))

    def _serve(self, served: ServedModel, plan: Plan) -> None:
        """Load the lane beside the one there is, switch, then let the old one finish. Nothing to do when they agree."""
        key = (served.name, plan.lane)
        if _is_same(self.plans.get(key), plan):
            return
        lane = load_lane(plan, self.recorder, precedence=self._precedence, cache=self.engine.cache)
        if plan.lane == TOLERANT:
            _check_alike(served.ready_lane(), lane)
        lane.on_death = self.on_death
        old = served.swap(plan.lane, lane)
        self.plans[key] = plan
        self._drain(old)

    def _free(self, served: ServedModel, name: str) -> None:
        self.plans.pop((served.name, name), None)
        self._drain(served.swap(name, None))

    def _remove(self, name: str) -> None:
        served = self.engine.models.pop(name)
        for lane in (TOLERANT, REALTIME):
            self._free(served, lane)
        logger.info("%s: not served any more", name)

    def _drain(self, lane: Lane | None) -> None:
        if lane is not None and not lane.close(DRAIN_S):
            logger.error("%s: a replaced lane is stuck in an inference; its memory is not freed", lane.model)


def _is_same(old: Plan | None, new: Plan) -> bool:
    return old is not None and (old.artifact, old.settings, old.wanted) == (new.artifact, new.settings, new.wanted)


def _check_alike(first: Lane, second: Lane) -> None:
    """Both lanes of a model are one model to its clients. Raises ConfigError."""
    a, b = first.signature, second.signature
    if (a.inputs, a.axes) != (b.inputs, b.axes) or [o.name for o in a.outputs] != [o.name for o in b.outputs]:
        second.close(1.0)
        problem = f"{second.artifact} has other tensors than {first.artifact}; the lanes of a model must look alike"
        raise ConfigError(first.model, "tolerant", problem)


def _with_tolerant(state: ModelState, plan: Plan | None) -> ModelState:
    if plan is None:
        return state
    why = f"tolerant lane: {plan.label}: {plan.reasons[0]}"
    return msgspec.structs.replace(state, reasons=(*state.reasons, why))
