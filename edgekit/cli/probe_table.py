"""The facts as text: what there is, how much, how it is known, and what is wrong. Drawn by hand: it costs no import."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from edgekit.device.accelerators import Accelerator
from edgekit.device.probe import Facts

_LABEL_WIDTH = 15
_MARK = {True: "✓", False: "✗", None: "?"}
Row = tuple[str, str]


def render(facts: Facts, width: int) -> str:
    """The facts at most `width` columns wide (never under 60)."""
    width = max(60, min(width, 120))
    sections = (
        ("Board", _board(facts)),
        ("Memory", _memory(facts)),
        ("CPU", _cpu(facts)),
        ("Accelerators", _accelerators(facts)),
        ("Runtimes", _runtimes(facts)),
        ("System", _system(facts)),
    )
    lines: list[str] = []
    for title, rows in sections:
        lines += [f"── {title} " + "─" * (width - len(title) - 4)]
        for label, text in rows:
            lines += _wrapped(label, text, width)
        lines.append("")
    notes = _notes(facts)
    if notes:
        lines += ["── Worth knowing " + "─" * (width - 17)]
        for note in notes:
            lines += _wrapped("!", note, width, label_width=1)
    return "\n".join(lines).rstrip()


def size(value: int | None) -> str:
    """Bytes as MiB or GiB; "unknown" for None."""
    if value is None:
        return "unknown"
    mib = value / (1024 * 1024)
    return f"{mib / 1024:.2f} GiB" if mib >= 1024 else f"{mib:.0f} MiB"


def _wrapped(label: str, text: str, width: int, *, label_width: int = _LABEL_WIDTH) -> list[str]:
    indent = 2 + label_width + 2
    pieces = textwrap.wrap(text, max(20, width - indent), break_long_words=False) or [""]
    first = f"  {label:<{label_width}}  {pieces[0]}"
    return [first, *(" " * indent + piece for piece in pieces[1:])]


def _board(facts: Facts) -> Iterator[Row]:
    board = facts.board
    yield "name", board.name or "unknown: neither device tree nor DMI names it"
    if board.soc:
        yield "chip", board.soc
    yield "profile", f"{board.profile} ({board.matched_by})" if board.profile else "none matches"
    if board.support:
        yield "support", f"{board.support}: {board.support_reason}"
    yield "device id", facts.device_id or "none: no serial number or built-in network port to take one from"
    if board.virtual:
        yield "virtual", board.virtual


def _memory(facts: Facts) -> Iterator[Row]:
    memory = facts.memory
    yield "total", size(memory.total_bytes) + (" (MemTotal)" if memory.total_bytes else "")
    by = f"limited by {memory.limits[0].source}" if memory.limits else "no limit below the total"
    yield "usable", f"{size(memory.usable_bytes)} ({by})" if memory.usable_bytes else "unknown"
    yield "available", size(memory.available_bytes)
    shared = {"unified": "unified: CPU and accelerators share it", "discrete": "discrete: the accelerator has its own"}
    yield "model", shared.get(memory.model or "", "cannot tell whether an accelerator shares it")
    if memory.declared_bytes:
        yield "declared", f"{size(memory.declared_bytes)} by the board's maker"
    if memory.contiguous_bytes:
        yield "CMA pool", f"{size(memory.contiguous_bytes)} of the total"


def _cpu(facts: Facts) -> Iterator[Row]:
    cpu = facts.cpu
    bits = f", {cpu.userland_bits}-bit programs" if cpu.userland_bits else ""
    yield "architecture", f"{cpu.architecture or 'unknown'}{bits}"
    if cpu.model:
        yield "model", cpu.model
    quota = f" under a quota of {cpu.quota_cores:g}" if cpu.quota_cores is not None else ""
    yield "cores", f"{cpu.cores_usable or 'unknown'} usable of {cpu.cores_online or 'unknown'} online{quota}"
    for cluster in cpu.clusters if len(cpu.clusters) > 1 else ():
        clock = f" to {cluster.max_hz / 1e9:.2f} GHz" if cluster.max_hz else ""
        yield "", f"{len(cluster.cores)} × {cluster.name}{clock}"
    if cpu.features is None:
        yield "features", "unknown: no /proc/cpuinfo"
    else:
        yield "features", ", ".join(cpu.features) or "none that speeds inference up"
        yield "INT8", _int8(cpu.features)


def _int8(features: Iterable[str]) -> str:
    have = set(features)
    best = [name for name in ("amx_int8", "avx512_vnni", "avx_vnni", "svei8mm", "i8mm", "asimddp") if name in have]
    if best:
        return f"✓ dot products in hardware ({', '.join(best)})"
    return "✗ no dot-product instruction: INT8 may well be slower than float here"


def _accelerators(facts: Facts) -> Iterator[Row]:
    if not facts.accelerators:
        yield "", "none found"
    for accelerator in facts.accelerators:
        yield f"{_MARK[accelerator.usable]} {accelerator.kind}"[:_LABEL_WIDTH], accelerator.name
        abilities = list(_abilities(accelerator))
        if abilities:
            yield "", " · ".join(abilities)
        yield "", f"seen: {accelerator.evidence}"
        if accelerator.usable is not True:
            word = "not usable" if accelerator.usable is False else "perhaps usable"
            yield "", f"{word}: {accelerator.why_not_usable}"


def _abilities(accelerator: Accelerator) -> Iterator[str]:
    if accelerator.compute_capability:
        yield f"compute capability {accelerator.compute_capability}"
    if accelerator.precisions:
        yield ", ".join(accelerator.precisions)
    if accelerator.int8 is False:
        yield "no fast INT8"
    if accelerator.sparsity_2_4:
        yield "2:4 sparsity"
    if accelerator.dla_cores:
        yield f"{accelerator.dla_cores} DLA"
    if accelerator.cores:
        yield f"{accelerator.cores} cores"
    if accelerator.memory_bytes:
        yield f"{size(accelerator.memory_bytes)} of its own"


def _runtimes(facts: Facts) -> Iterator[Row]:
    for runtime in facts.runtimes:
        source = f" ({runtime.distribution})" if runtime.distribution != runtime.name else ""
        yield f"{_MARK[not runtime.problems]} {runtime.name}"[:_LABEL_WIDTH], f"{runtime.version}{source}"
        for problem in runtime.problems:
            yield "", problem
    if not facts.runtimes:
        yield "", "not looked at: this is a captured file tree"
    elif len(facts.runtimes) == 1:
        yield "", "no inference runtime is installed in this Python"


def _system(facts: Facts) -> Iterator[Row]:
    yield "system", facts.os.name or "unknown"
    yield "kernel", facts.os.kernel or "unknown"
    if facts.os.l4t:
        yield "Jetson Linux", facts.os.l4t
    if facts.os.container:
        yield "container", facts.os.container
    if facts.power.mode or facts.power.governor:
        yield "power", ", ".join(filter(None, (facts.power.mode, facts.power.governor)))
    parts = (facts.storage.medium, facts.storage.filesystem)
    held = size(facts.storage.total_bytes) if facts.storage.total_bytes else None
    yield "storage", ", ".join(filter(None, (*parts, held))) or "unknown"


def _notes(facts: Facts) -> list[str]:
    notes = [*facts.board.notes, *facts.memory.notes, *facts.cpu.notes, *facts.notes]
    if facts.storage.writeback:
        notes.append("/ is mounted with data=writeback: a power cut may leave old blocks in new files")
    return notes
