"""An answer as a person reads it, and one line about where the time went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgekit.pipeline.answers import Answer, Boxes, Labels, Segments, Text


def describe(answer: Answer, texts: Sequence[Text] | None = None) -> str:
    """One line an item. `texts` are what was read in each box."""
    if isinstance(answer, Boxes):
        return _boxes(answer, texts)
    if isinstance(answer, Text):
        return f"{answer.text}  ({answer.score:.2f})" if answer.text else "(no text)"
    if isinstance(answer, Labels):
        likely = [label for i, label in enumerate(answer.labels) if i == 0 or label.score >= 0.001]
        return "\n".join(f"{label.score:7.1%}  {label.name}" for label in likely)
    if isinstance(answer, Segments):
        spoken_s = sum(s.end_s - s.start_s for s in answer.segments)
        rows = [f"{spoken_s:.2f} s of speech in {answer.duration_s:.2f} s"]
        return "\n".join(rows + [f"  {s.start_s:8.2f} s - {s.end_s:8.2f} s" for s in answer.segments])
    return "\n".join(
        f"{o.name}: {o.dtype} {list(o.shape)}"
        + ("" if o.minimum is None else f", {o.minimum:.6g} to {o.maximum:.6g}, largest at {o.argmax}")
        for o in answer.outputs
    )


def _boxes(answer: Boxes, texts: Sequence[Text] | None) -> str:
    count = len(answer.boxes)
    rows = [f"{count} box{'es' * (count != 1)} in {answer.width} x {answer.height} pixels"]
    for i, box in enumerate(answer.boxes):
        xs, ys = zip(*box.polygon, strict=True)
        corners = "  ".join(f"{x:.0f},{y:.0f}" for x, y in box.polygon)
        place = f"{min(xs):5.0f},{min(ys):<5.0f} {max(xs) - min(xs):5.0f} x {max(ys) - min(ys):<5.0f}"
        rows.append(f"  {i + 1:3}  {box.score:.2f}  " + (f"{place} {describe(texts[i])}" if texts else corners))
    return "\n".join(rows)


def times(facts: Mapping[str, Any]) -> str:
    """What ran, and how long each part took."""
    if "url" in facts:
        where = f"{facts.get('artifact', 'an artifact')} at {facts['url']}"
    else:
        by = {"selection": " (selected)", "--artifact": ""}.get(facts["chosen_by"], f" ({facts['chosen_by']})")
        where = f"{facts['artifact']}{by} on {facts['runtime']}, {facts['threads']} threads"
    names = ("load_ms", "preprocess_ms", "round_trip_ms", "infer_ms", "postprocess_ms", "read_ms")
    parts = [f"{name.removesuffix('_ms').replace('_', ' ')} {facts[name]:.1f} ms" for name in names if name in facts]
    count = facts["inferences"]
    note = f"{count} inferences" if count > 1 else "a first run, not warmed up" if "load_ms" in facts else ""
    return f"{where}: {', '.join(parts)}" + (f" ({note})" if note else "")
