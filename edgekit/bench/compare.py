"""Flash against standard, figure by figure, and which of the published penalties are found here. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import msgspec

from edgekit.bench.causes import causes
from edgekit.bench.figure import PUBLISHED, Figure, percent, unmeasured
from edgekit.bench.record import Measurement, Start
from edgekit.bench.stats import speed_up
from edgekit.bench.why import Why

_ARTICLE_TEMPORARY_GB = 1.8


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What `bench --compare --json` prints."""

    model: str
    standard: str
    flash: str
    figures: tuple[Figure, ...]
    findings: tuple[str, ...]


def compare(
    standard: Measurement,
    flash: Measurement,
    *,
    starts: tuple[Sequence[Start], Sequence[Start]] = ((), ()),
    scenarios: Mapping[str, tuple[Measurement, Measurement] | str] | None = None,
    whys: tuple[Why, Why] | None = None,
) -> Comparison:
    """Every figure that the reference articles print, for this pair.

    Args:
        starts: further cold starts of each, so that a difference can be told from chance.
        scenarios: name -> the two measured at other sizes, or why they cannot be. Names as in `PUBLISHED`.
        whys: where the time of the two goes, for the causes that the articles name; None leaves them out.

    Raises ValueError when one of the two has no latency.
    """
    figures = [_time("time per task", standard, flash), *_starts(standard, flash, starts), *_memory(standard, flash)]
    figures += [_stability(standard, flash), _quality(standard, flash), _size(standard, flash)]
    figures.append(_after_idle(standard, flash))
    for name, pair in (scenarios or {}).items():
        if isinstance(pair, str):
            figures.append(unmeasured(name, "ms", pair))
        else:
            figures.append(_time(name, *pair))
    figures += causes(*whys) if whys else []
    return Comparison(
        model=standard.model,
        standard=standard.candidate,
        flash=flash.candidate,
        figures=tuple(figures),
        findings=tuple(findings(figures)),
    )


def findings(figures: Sequence[Figure]) -> list[str]:
    """Which of the published penalties were found here, in sentences."""
    lines = []
    for figure in figures:
        published = figure.published_ratio
        if published is None or figure.delta_ratio is None or figure.name == "size":
            continue
        here, there = percent(figure.delta_ratio), percent(published)
        if figure.is_penalty is None:
            lines.append(f"{figure.name}: cannot be told here ({here} by the figures); the articles have {there}")
        elif figure.is_penalty:
            lines.append(f"{figure.name}: penalty found, Flash {here}; the articles have {there}")
        else:
            lines.append(f"{figure.name}: no penalty here, Flash {here}; the articles have {there}")
    return lines


def _time(name: str, standard: Measurement, flash: Measurement) -> Figure:
    """Paired where they were measured in turns; a penalty only when it is proven."""
    if standard.latency is None or flash.latency is None:
        if name in ("time per task",):
            raise ValueError(f"nothing to compare: {standard.failure or flash.failure or 'not measured'}")
        return unmeasured(name, "ms", standard.failure or flash.failure or "not measured")
    times, least, most = speed_up(standard, flash)
    sure = True if most < 1 else False if least > 1 else None
    note = f"{1 / most - 1:+.1%} to {1 / least - 1:+.1%} at 99 % confidence".replace("-", "−")
    return Figure(
        name=name,
        unit="ms",
        standard=standard.latency.typical_ms,
        flash=flash.latency.typical_ms,
        delta_ratio=1 / times - 1,
        published_ratio=PUBLISHED.get(name),
        is_penalty=False if sure is None and 1 / least - 1 < 0.03 else sure,
        note=note,
    )


def _starts(standard: Measurement, flash: Measurement, more: tuple[Sequence[Start], Sequence[Start]]) -> list[Figure]:
    """The cold start and its parts: medians; a penalty only when Flash's best is worse than the standard's worst."""
    mine = [start for start in (standard.start, *more[0]) if start]
    its = [start for start in (flash.start, *more[1]) if start]
    if not mine or not its:
        return [unmeasured("cold start", "ms", "not measured")]
    found = []
    for name, part in (("cold start", "total_ms"), ("  import", "import_ms"), ("  load", "load_ms"), ("  first query", "first_ms")):  # fmt: skip  # noqa: E501
        ours = [getattr(start, part) for start in mine]
        theirs = [getattr(start, part) for start in its]
        apart = max(ours) < min(theirs) if max(ours) < min(theirs) or max(theirs) < min(ours) else None
        found.append(
            Figure(
                name=name,
                unit="ms",
                standard=median(ours),
                flash=median(theirs),
                delta_ratio=median(theirs) / median(ours) - 1,
                published_ratio=PUBLISHED.get(name),
                is_penalty=apart if min(len(ours), len(theirs)) > 1 else None,
                note=f"median of {min(len(ours), len(theirs))} cold starts",
            )
        )
    return found


def _memory(standard: Measurement, flash: Measurement) -> list[Figure]:
    ours, theirs = standard.start, flash.start
    temporary = (ours.temporary_bytes if ours else None, theirs.temporary_bytes if theirs else None)
    note = f"the articles have {_ARTICLE_TEMPORARY_GB} GB for Flash, of a model of other size"
    return [
        _bytes("temporary memory at load", *temporary, note=note),
        _bytes("memory after load", *(start.loaded_bytes if start else None for start in (ours, theirs))),
        _bytes("memory at peak", standard.peak_memory_bytes, flash.peak_memory_bytes),
    ]


def _bytes(name: str, standard: int | None, flash: int | None, *, note: str | None = None) -> Figure:
    if standard is None or flash is None:
        return unmeasured(name, "bytes", "this system does not tell")
    delta = flash / standard - 1 if standard else None
    return Figure(
        name=name,
        unit="bytes",
        standard=standard,
        flash=flash,
        delta_ratio=delta,
        is_penalty=flash > 1.03 * standard,
        note=note,
    )


def _after_idle(standard: Measurement, flash: Measurement) -> Figure:
    """Low latency means: somebody asks now and then, and waits. That query finds cold caches and a lowered clock."""
    ours, theirs = standard.after_idle_ms, flash.after_idle_ms
    if ours is None or theirs is None:
        return unmeasured("low latency", "ms", "not measured")
    return Figure(
        name="low latency",
        unit="ms",
        standard=ours,
        flash=theirs,
        delta_ratio=theirs / ours - 1,
        published_ratio=PUBLISHED["low latency"],
        is_penalty=theirs > 1.1 * ours,
        note="the first query after a pause, median of the rounds; a penalty when over 10 % slower",
    )


def _stability(standard: Measurement, flash: Measurement) -> Figure:
    ours = standard.latency.spread_ratio if standard.latency else None
    theirs = flash.latency.spread_ratio if flash.latency else None
    if not ours or theirs is None:
        return unmeasured("stability", "±", "not measured")
    return Figure(
        name="stability",
        unit="±",
        standard=ours,
        flash=theirs,
        delta_ratio=theirs / ours - 1,
        published_ratio=PUBLISHED["stability"],
        is_penalty=theirs > 2 * ours and theirs > 0.05,
        note="half of what lies between the 5th and 95th percentile; a penalty when twice as wide and over ±5 %",
    )


def _quality(standard: Measurement, flash: Measurement) -> Figure:
    if flash.accuracy_ratio is None:
        return unmeasured("quality", "ratio", flash.accuracy_note or "its accuracy is not known")
    ours = standard.accuracy_ratio if standard.accuracy_ratio is not None else 1.0
    return Figure(
        name="quality",
        unit="ratio",
        standard=ours,
        flash=flash.accuracy_ratio,
        delta_ratio=flash.accuracy_ratio / ours - 1 if ours else None,
        published_ratio=PUBLISHED["quality"],
        is_penalty=flash.accuracy_ratio < 0.99 * ours,
        note=flash.accuracy_note,
    )


def _size(standard: Measurement, flash: Measurement) -> Figure:
    return Figure(
        name="size",
        unit="bytes",
        standard=standard.size_bytes,
        flash=flash.size_bytes,
        delta_ratio=flash.size_bytes / standard.size_bytes - 1,
        published_ratio=PUBLISHED["size"],
        is_penalty=flash.size_bytes > standard.size_bytes,
    )
