"""From a plan to a lane: the artifact verified, opened, found fit for batches or not, and warm."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter

from edgekit.config import BatchConfig
from edgekit.device.tree import Tree
from edgekit.runtimes.axes import OPEN
from edgekit.runtimes.session import Session, open_session
from edgekit.serve.batching import DEFAULT_MOST, Batching, sizes_that_pay, sizes_up_to, why_not_batched
from edgekit.serve.cache import ResultCache
from edgekit.serve.lane import LOWERED, REALTIME, Lane
from edgekit.serve.plan import Plan
from edgekit.serve.precedence import Precedence, run_lowered
from edgekit.serve.remote import RemoteSession
from edgekit.serve.signature import Signature, signature_of
from edgekit.telemetry.reporter import Recorder

logger = logging.getLogger(__name__)


def load_lane(
    plan: Plan,
    recorder: Recorder | None,
    *,
    precedence: Precedence | None = None,
    cache: ResultCache | None = None,
    stuck_s: float = 10.0,
) -> Lane:
    """The artifact verified, opened and warm at every configured shape. Raises what each of those raises.

    A runtime in a process of its own is replaced when it does not answer within `stuck_s`.
    """
    name = plan.model.name
    plan.artifact.verify()
    started = perf_counter()
    session = _open(plan, stuck_s, precedence)
    logger.info("%s: sha256 holds; loaded in %.0f ms", name, (perf_counter() - started) * 1e3)
    session, signature, batching = _batched(plan, session, partial(_open, stuck_s=stuck_s, precedence=precedence))
    lane = Lane(
        model=name,
        name=plan.lane,
        artifact=plan.artifact.record.name,
        session=session,
        signature=signature,
        recorder=recorder,
        precedence=precedence,
        producer=plan.producer,
        cache=cache if plan.is_cached else None,
        batching=batching,
        is_lowered=plan.lane in LOWERED and not plan.is_isolated,
        is_anywhere=plan.lane == REALTIME and not plan.is_isolated and not plan.is_accelerated,
    )
    if plan.lane == REALTIME:
        lane.counts.bound_ms = plan.wanted.latency_ms
    lane.warm_up(lambda text: logger.info("%s: %s", name, text))
    lane.start()
    return lane


def _open(plan: Plan, stuck_s: float, precedence: Precedence | None) -> Session:
    path, is_lowered = plan.artifact.path, plan.lane in LOWERED
    if plan.is_isolated:
        above = precedence if is_lowered else None
        return RemoteSession(path, plan.settings, stuck_s=stuck_s, is_lowered=is_lowered, precedence=above)
    work = partial(open_session, path, plan.settings)
    return run_lowered(work) if is_lowered else work()


def _signature(plan: Plan, session: Session, sizes: tuple[int, ...] = (1,)) -> Signature:
    return signature_of(plan.model, session.inputs, session.outputs, overrides=plan.wanted.axes, batch_sizes=sizes)


def _batched(
    plan: Plan, session: Session, reopen: Callable[[Plan], Session]
) -> tuple[Session, Signature, Batching | None]:
    """The session with its signature, opened anew with a fixed first axis when batching is wanted and not possible."""
    wanted = plan.batch
    if wanted is None:
        return session, _signature(plan, session), None
    sizes = sizes_up_to(wanted.max or DEFAULT_MOST)
    signature = _signature(plan, session, sizes)
    why = why_not_batched(session, signature)
    paying, why_no_more = (sizes[:1], why) if why else sizes_that_pay(session, signature, sizes, Tree(Path("/")))
    if len(paying) > 1:
        if why_no_more:
            logger.info("%s: batches of %d at most: %s", plan.model.name, paying[-1], why_no_more)
        return session, _signature(plan, session, paying), _batching(wanted, paying)
    logger.warning("%s: no batching: %s", plan.model.name, why_no_more)
    session.close()
    session = reopen(replace(plan, settings=replace(plan.settings, axes=_closed(plan))))
    return session, _signature(plan, session), None


def _closed(plan: Plan) -> dict[str, int]:
    """The axes with every first one that was only left open for batching at 1."""
    names = {f"{spec.name}[0]" for spec in plan.model.inputs if spec.shape and isinstance(spec.shape[0], int)}
    bare = not plan.model.inputs
    return {
        axis: 1 if size == OPEN and (axis in names or (bare and axis.endswith("[0]"))) else size
        for axis, size in plan.settings.axes.items()
    }


def _batching(wanted: BatchConfig, sizes: tuple[int, ...]) -> Batching:
    preferred = min(wanted.preferred or (sizes[-1] + 1) // 2, sizes[-1])
    return Batching(sizes=sizes, preferred=preferred, window_ms=wanted.window_ms)
