"""Brings an engine to what a configuration asks: load, warm, switch, drain, free, without a failed request between."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from edgekit.artifact import STANDARD
from edgekit.catalog import load_model
from edgekit.config import CacheConfig, DaemonConfig, Home, ModelConfig
from edgekit.device.probe import Facts
from edgekit.errors import ConfigError
from edgekit.manifest import Model
from edgekit.serve.admission import admitted, is_same
from edgekit.serve.alternatives import careful_plan, faster_plan, standard_plan
from edgekit.serve.cache import ResultCache
from edgekit.serve.cascade import Cascade
from edgekit.serve.certainty import threshold_for
from edgekit.serve.engine import Engine, ServedModel
from edgekit.serve.failures import Ledger
from edgekit.serve.guard import FRUGAL, NORMAL, REFUSING, give_back
from edgekit.serve.lane import CAREFUL, REALTIME, SHADOW, TOLERANT, Lane
from edgekit.serve.opening import load_lane
from edgekit.serve.plan import Plan, make_plan, make_tolerant_plan
from edgekit.serve.precedence import Precedence
from edgekit.serve.shadow import DEFAULT_SHARE, Shadow
from edgekit.telemetry.messages import ModelState
from edgekit.telemetry.reporter import Recorder

logger = logging.getLogger(__name__)

NO_MEMORY = "the device has too little memory left to work safely"
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
    on_failure: Callable[[str, str, bool], None] = lambda *_: None
    "(model, how, whether it is given up); called on the thread that answers."
    ledger: Ledger | None = None
    stuck_s: float = 10.0
    plans: dict[tuple[str, str], Plan] = field(default_factory=dict)
    "What is served, by model and lane."
    level: int = NORMAL
    "Of the memory guard: what is loaded keeps within it."
    strained: dict[str, Plan] = field(default_factory=dict)
    "What models run instead of what was selected for them, since that is too slow at the moment."
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
        self.stuck_s = config.health.stuck_s
        self._set_cache(config.cache)
        self._be_frugal()
        if not self.engine.models:  # at the start: known at once, ready later; afterwards only what is ready is known
            for _, model in wanted:
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

    def record_failure(self, lane: Lane, how: str) -> bool:
        """Count a failure of a lane's runtime, on disk first; whether it is one too many."""
        if self.ledger is None:
            return False
        self.ledger.record(lane.producer, how)
        return self.ledger.is_out(lane.producer)

    def relieve(self, name: str) -> str | None:
        """Let a model run the fastest measured candidate from the next `apply` on; which and why, or None: no other."""
        plan = self.plans[name, REALTIME]
        other = faster_plan(plan, home=self.home, threads=self.facts.cpu.cores_usable or 1)
        if other is None:
            return None
        self.strained[name] = other
        return f"{other.label}: {other.reasons[0]}"

    def _on_failure(self, lane: Lane, how: str) -> None:
        self.on_failure(lane.model, how, self.record_failure(lane, how))

    def _be_frugal(self) -> None:
        """What memory is short for goes first, before anything is loaded."""
        self.engine.refusal = NO_MEMORY if self.level >= REFUSING else None
        cache = self.engine.cache
        if cache is not None:
            cache.is_paused = self.level >= FRUGAL
            if cache.is_paused:
                cache.clear()
        if self.level >= FRUGAL:
            for served in list(self.engine.models.values()):
                if served.lane is not None:
                    served.lane.on_answer = None
                served.cascade = None
                self._free(served, CAREFUL)
                self._free(served, SHADOW)
                self._free(served, TOLERANT)
            give_back()

    def _load_all(self, wanted: list[tuple[ModelConfig, Model]]) -> None:
        cores = self.facts.cpu.cores_usable or 1
        share = max(1, cores // len(wanted))
        if len(wanted) > 1:
            logger.info("%d models share %d cores: %d thread%s each", len(wanted), cores, share, "s" * (share > 1))
        for settings, model in wanted:
            self.on_progress(f"loading {model.name}")
            self._load_model(settings, model, share)

    def _load_model(self, wanted: ModelConfig, model: Model, share: int) -> None:
        served = self.engine.models.get(model.name) or ServedModel(model.name, model.version)
        plan = make_plan(
            model, wanted, home=self.home, facts=self.facts, threads=share, progress=lambda t, _: self.on_progress(t)
        )
        if (other := self.strained.get(model.name)) is not None:
            plan = other if other.wanted == wanted else plan
        plan = admitted(
            plan,
            current=self.plans.get((model.name, plan.lane)),
            level=self.level,
            home=self.home,
            threads=share,
            ledger=self.ledger,
        )
        self._log(plan)
        if served.lane is None:
            self.tell(plan.state("loading"))
        self._serve(served, plan)
        served.version = model.version
        self.engine.models[model.name] = served
        second = None
        if wanted.tolerant is not None and self.level < FRUGAL:
            second = make_tolerant_plan(
                model, wanted, home=self.home, facts=self.facts, progress=lambda t, _: self.on_progress(t)
            )
            self._log(second)
            self._serve(served, second)
        else:
            self._free(served, TOLERANT)
        self._set_cascade(served, plan)
        self._set_shadow(served, plan)
        self.tell(_with_tolerant(plan.state("ready"), second))

    def _set_cascade(self, served: ServedModel, plan: Plan) -> None:
        """The standard beside a compressed artifact, for what that is not sure of."""
        if plan.wanted.policy != "cascade" or self.level >= FRUGAL or plan.artifact.record.name == STANDARD:
            if plan.wanted.policy == "cascade":
                why = "memory is short" if self.level >= FRUGAL else "the standard is what was selected"
                logger.warning("%s: no cascade: %s", plan.model.name, why)
            served.cascade = None
            self._free(served, CAREFUL)
            return
        second = careful_plan(plan, home=self.home)
        threshold, unsure = threshold_for(plan, second, home=self.home, progress=self.on_progress)
        self._serve(served, second)
        lane = served.by_name(CAREFUL)
        assert lane is not None, "it has just been loaded"
        served.cascade = Cascade(lane, threshold)
        logger.info("%s: a margin below %.4f is unsure: %.1f %% of inputs", plan.model.name, threshold, 100 * unsure)

    def _set_shadow(self, served: ServedModel, plan: Plan) -> None:
        """Compare the real-time lane's answers with the standard's, where that is another artifact and not too dear."""
        share, lane, tolerant = plan.wanted.shadow, served.ready_lane(), served.tolerant
        beside = tolerant is not None and tolerant.artifact == STANDARD
        share = (DEFAULT_SHARE if beside else 0.0) if share is None else share
        if lane.artifact == STANDARD or share == 0 or self.level >= FRUGAL:
            lane.on_answer = None
            self._free(served, SHADOW)
            return
        if beside:
            self._free(served, SHADOW)
        else:
            self._serve(served, standard_plan(plan, home=self.home))
        reference = tolerant if tolerant is not None and beside else served.standard
        assert reference is not None, "one of the two has just been loaded"
        shadow = Shadow(reference, share, tell=self._note_shadow, is_quiet=lambda: self.engine.is_hot)
        lane.on_answer = shadow.offer

    def _note_shadow(self, lane: Lane, agreed: bool) -> None:
        lane.counts.compare(agreed)
        if self.recorder is not None:
            self.recorder.shadow(model=lane.model, lane=lane.name, artifact=lane.artifact, agreed=agreed)

    def _log(self, plan: Plan) -> None:
        lane = "" if plan.lane == REALTIME else f" ({plan.lane})"
        logger.info("%s%s: %s: %s", plan.model.name, lane, plan.label, "; ".join(plan.reasons))

    def _serve(self, served: ServedModel, plan: Plan) -> None:
        """Load the lane beside the one there is, switch, then let the old one finish. Nothing to do when they agree."""
        key = (served.name, plan.lane)
        if is_same(self.plans.get(key), plan):
            return
        lane = self._load_marked(plan)
        if plan.lane != REALTIME:
            _check_alike(served.ready_lane(), lane)
        lane.on_death, lane.on_failure = self.on_death, self._on_failure
        old = served.swap(plan.lane, lane)
        self.plans[key] = plan
        self._drain(old)

    def _load_marked(self, plan: Plan) -> Lane:
        """A runtime in our own process may end it while it opens the model already."""
        mark = self.ledger.mark(plan.producer) if self.ledger is not None and not plan.is_isolated else None
        if mark is not None:
            mark.up()
        try:
            lane = load_lane(
                plan, self.recorder, precedence=self._precedence, cache=self.engine.cache, stuck_s=self.stuck_s
            )
        finally:
            if mark is not None:
                mark.down()
        lane.mark = mark
        return lane

    def _free(self, served: ServedModel, name: str) -> None:
        self.plans.pop((served.name, name), None)
        self._drain(served.swap(name, None))

    def _remove(self, name: str) -> None:
        served = self.engine.models.pop(name)
        self.strained.pop(name, None)
        served.cascade = None
        for lane in (CAREFUL, SHADOW, TOLERANT, REALTIME):
            self._free(served, lane)
        logger.info("%s: not served any more", name)

    def _drain(self, lane: Lane | None) -> None:
        if lane is None:
            return
        if lane.close(DRAIN_S):
            give_back()
            if self.ledger is not None and lane.mark is not None:
                self.ledger.release(lane.mark)
        else:
            logger.error("%s: a replaced lane is stuck in an inference; its memory is not freed", lane.model)


def _check_alike(first: Lane, second: Lane) -> None:
    """Both lanes of a model are one model to its clients. Raises ConfigError."""
    a, b = first.signature.one_item(), second.signature.one_item()
    if (a.inputs, a.axes) != (b.inputs, b.axes) or [o.name for o in a.outputs] != [o.name for o in b.outputs]:
        second.close(1.0)
        problem = f"{second.artifact} has other tensors than {first.artifact}; the lanes of a model must look alike"
        raise ConfigError(first.model, "tolerant", problem)


def _with_tolerant(state: ModelState, plan: Plan | None) -> ModelState:
    if plan is None:
        return state
    why = f"tolerant lane: {plan.label}: {plan.reasons[0]}"
    return msgspec.structs.replace(state, reasons=(*state.reasons, why))
