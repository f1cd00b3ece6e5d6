"""Text boxes out of a probability map: connected regions, the smallest rectangle around each, grown back to the text.

Works on runs (stretches of one row), so that its cost goes with the amount of text, not with the image's area.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edgekit.pipeline.answers import Box
from edgekit.pipeline.image import Placement
from edgekit.steps import DbBoxes

Array = np.ndarray[Any, Any]


def db_boxes(probability: Array, step: DbBoxes, placement: Placement) -> tuple[Box, ...]:
    """(height, width) text probability -> boxes in the source image's pixels, in reading order."""
    # One pixel more to the right and below joins strokes that one weak pixel parts; and it makes the pixel centres of
    # the grown mask the pixel edges of the real one, so all that follows is in edges.
    mask = probability > step.threshold
    mask[1:] |= mask[:-1].copy()
    mask[:, 1:] |= mask[:, :-1].copy()
    boxes = []
    regions = sorted(regions_of(mask), key=lambda runs: -int((runs[:, 2] - runs[:, 1]).sum()))
    for runs in regions[: step.max_boxes]:
        corners = smallest_rectangle(_outline(runs))
        if min(_sides(corners)) < step.min_side:
            continue
        score = _mean_inside(probability, corners)
        if score < step.box_threshold:
            continue
        grown = _grow(corners, step.unclip_ratio)
        if min(_sides(grown)) < step.min_side + 2:
            continue
        boxes.append(Box(polygon=_to_source(grown, placement), score=round(score, 4)))
    return tuple(_reading_order(boxes))


def regions_of(mask: Array) -> list[Array]:
    """(height, width) bool -> the 8-connected regions, each as (runs, 3) int: row, first column, end."""
    height, width = mask.shape
    padded = np.zeros((height, width + 2), np.int8)
    padded[:, 1:-1] = mask
    change = np.diff(padded, axis=1)
    rows, starts = np.nonzero(change == 1)
    ends = np.nonzero(change == -1)[1]
    if not len(rows):
        return []
    # On one line of numbers, a row is `pitch` long; runs touch when they overlap one row further on, diagonals too.
    pitch = width + 2
    start_at, end_at = rows * pitch + starts, rows * pitch + ends
    first = np.searchsorted(end_at, start_at + pitch, side="left")
    last = np.searchsorted(start_at, end_at + pitch, side="right")
    parent = list(range(len(rows)))
    for above, (low, high) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        for below in range(low, high):
            _join(parent, above, below)
    roots = np.array([_root(parent, i) for i in range(len(parent))])
    runs = np.stack([rows, starts, ends], axis=1)
    order = np.argsort(roots, kind="stable")
    cuts = np.flatnonzero(np.diff(roots[order])) + 1
    return [runs[piece] for piece in np.split(order, cuts)]


def _root(parent: list[int], i: int) -> int:
    while parent[i] != i:
        parent[i] = parent[parent[i]]
        i = parent[i]
    return i


def _join(parent: list[int], a: int, b: int) -> None:
    a, b = _root(parent, a), _root(parent, b)
    if a != b:
        parent[max(a, b)] = min(a, b)


def _outline(runs: Array) -> Array:
    """The convex hull of a region as (points, 2) float x, y, by Andrew's monotone chain."""
    first = np.stack([runs[:, 1], runs[:, 0]], axis=1)
    final = np.stack([runs[:, 2] - 1, runs[:, 0]], axis=1)
    points = sorted(set(map(tuple, np.concatenate([first, final]).tolist())))
    if len(points) < 3:
        return np.array(points, float)
    hull: list[tuple[int, int]] = []
    for chain in (points, points[::-1]):
        base = len(hull)
        for x, y in chain:
            while len(hull) >= base + 2 and _turn(hull[-2], hull[-1], (x, y)) <= 0:
                hull.pop()
            hull.append((x, y))
        hull.pop()
    return np.array(hull, float)


def _turn(a: tuple[int, int], b: tuple[int, int], c: tuple[int, int]) -> int:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def smallest_rectangle(hull: Array) -> Array:
    """(points, 2) convex hull -> (4, 2) corners of the smallest rectangle around it, clockwise from the top left.

    One of its sides lies on a side of the hull (Freeman and Shapira, 1975), so every side is tried.
    """
    edges = np.roll(hull, -1, axis=0) - hull
    lengths = np.hypot(edges[:, 0], edges[:, 1])
    edges, lengths = edges[lengths > 0], lengths[lengths > 0]
    along = edges / lengths[:, None] if len(edges) else np.array([[1.0, 0.0]])
    across = np.stack([-along[:, 1], along[:, 0]], axis=1)
    u, v = hull @ along.T, hull @ across.T
    low_u, high_u, low_v, high_v = u.min(0), u.max(0), v.min(0), v.max(0)
    best = int(np.argmin((high_u - low_u) * (high_v - low_v)))
    pairs = ((low_u, low_v), (high_u, low_v), (high_u, high_v), (low_u, high_v))
    corners = np.array([a[best] * along[best] + b[best] * across[best] for a, b in pairs])
    return _clockwise_from_top_left(corners)


def _clockwise_from_top_left(corners: Array) -> Array:
    """Of the rectangle's turns, the one whose first side runs most nearly to the right."""
    centre = corners.mean(axis=0)
    angles = np.arctan2(corners[:, 1] - centre[1], corners[:, 0] - centre[0])
    ordered = corners[np.argsort(angles)]  # y points down, so rising angles turn clockwise
    sides = np.roll(ordered, -1, axis=0) - ordered
    return np.roll(ordered, -int(np.argmax(sides[:, 0] - np.abs(sides[:, 1]))), axis=0)


def _sides(corners: Array) -> tuple[float, float]:
    """(width, height) of a rectangle."""
    width = float(np.hypot(*(corners[1] - corners[0])))
    return width, float(np.hypot(*(corners[3] - corners[0])))


def _mean_inside(probability: Array, corners: Array) -> float:
    """Mean probability of the pixels whose centres lie inside a convex quadrilateral."""
    height, width = probability.shape
    left, top = np.floor(corners.min(axis=0)).astype(int).clip(0, (width - 1, height - 1))
    right, bottom = np.ceil(corners.max(axis=0)).astype(int).clip(0, (width - 1, height - 1))
    y, x = np.mgrid[top : bottom + 1, left : right + 1]
    inside = np.ones(x.shape, bool)
    for (ax, ay), (bx, by) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        inside &= (bx - ax) * (y + 0.5 - ay) - (by - ay) * (x + 0.5 - ax) >= -1e-6
    return float(probability[top : bottom + 1, left : right + 1][inside].mean()) if inside.any() else 0.0


def _grow(corners: Array, ratio: float) -> Array:
    """The rectangle moved outwards by area * ratio / perimeter on each side (DB paper, equation 10)."""
    width, height = _sides(corners)
    distance = width * height * ratio / (2 * (width + height))
    right, down = (corners[1] - corners[0]) / width, (corners[3] - corners[0]) / height
    signs = ((-1, -1), (1, -1), (1, 1), (-1, 1))
    return np.array([c + distance * (sx * right + sy * down) for c, (sx, sy) in zip(corners, signs, strict=True)])


def _to_source(corners: Array, at: Placement) -> tuple[tuple[float, float], ...]:
    """Corners in the resized image -> corners in the source image, kept inside it."""
    x = ((corners[:, 0] - at.left) / at.scale_x).clip(0, at.width)
    y = ((corners[:, 1] - at.top) / at.scale_y).clip(0, at.height)
    return tuple((round(float(a), 1), round(float(b), 1)) for a, b in zip(x, y, strict=True))


def _reading_order(boxes: list[Box]) -> list[Box]:
    """Boxes whose tops differ by less than half a line's height read left to right."""
    boxes = sorted(boxes, key=lambda box: box.polygon[0][1])
    lines: list[list[Box]] = []
    for box in boxes:
        (_, top), (_, bottom) = box.polygon[0], box.polygon[3]
        if lines and top - lines[-1][0].polygon[0][1] < (bottom - top) / 2:
            lines[-1].append(box)
        else:
            lines.append([box])
    return [box for line in lines for box in sorted(line, key=lambda box: box.polygon[0][0])]
