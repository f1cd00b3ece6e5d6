"""The same model over the fleet: groups with true percentiles, standard and Flash side by side."""

from __future__ import annotations

import numpy as np
import pytest

from edgekit_tui import models
from edgekit_tui.draw import UNICODE
from edgekit_tui.rows import Row
from edgekit_tui.totals import Cell, cells_of
from tests.tui.changed import replace
from tests.tui.simulated import STANDARD, histogram, lived_view

VIEW = lived_view()
HEALTHY = next(row for row in VIEW.rows if row.device == "mail-scan")


def kind_of(row: Row) -> str:
    return models.kind_of(cells_of([row])[0])


def test_a_group_has_the_percentile_of_all_its_samples() -> None:
    a, b = histogram(np.full(900, 10.0)), histogram(np.full(100, 100.0))
    rows = [replace(HEALTHY, latency=a), replace(HEALTHY, device="b", latency=b)]
    one = models.group("both", cells_of(rows))
    assert one.samples == 1000
    assert one.p50_ms == pytest.approx(10, rel=0.05)
    assert one.p99_ms == pytest.approx(100, rel=0.05), "an average of percentiles would be 55"
    assert models.group("gone", cells_of([replace(rows[0], state="offline")])).p50_ms is None


def test_standard_and_flash_are_compared_on_the_same_board() -> None:
    rows = [row for row in VIEW.rows if row.model == "ocr-detector"]
    lines = ["".join(text for text, _ in line) for line in models.side_by_side(cells_of(rows), 110, UNICODE)]
    orin = next(line for line in lines if "Orin Nano" in line)
    assert "1.4x faster" in orin
    assert "no comparison" in next(line for line in lines if "Pi 5" in line)
    assert lines[-1].split() == ["geometric", "mean", "of", "1", "board", "that", "run", "both", "1.4x", "faster"]
    kinds = {row.device: kind_of(row) for row in rows}
    assert {device for device, kind in kinds.items() if kind == models.STANDARD} == set(STANDARD)
    slower = [replace(row, latency=histogram([90.0] * 700)) if kind_of(row) == "flash" else row for row in rows]
    assert any("slower" in line[-1][0] for line in models.side_by_side(cells_of(slower), 110, UNICODE))


def compared(**boards: tuple[float, float]) -> list[Cell]:
    """Standard and Flash of one model on each board, by their latency in ms."""
    return [
        Cell(model="m", board=board, artifact=precision, precision=precision, rows=2, qps=1.0, over=0,
             latency=histogram([at_ms] * 700))
        for board, both in boards.items() for precision, at_ms in zip(("float32", "int8"), both, strict=True)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("flash_ms", "says", "ink"),
    [(5.0, "2.0x faster", "good"), (9.7, "1.03x faster", "good"), (9.93, "the same", "text"),
     (10.1, "the same", "text"), (10.35, "1.03x slower", "bad"), (30.0, "3.0x slower", "bad")],
)  # fmt: skip
def test_flash_is_faster_slower_or_the_same(flash_ms: float, says: str, ink: str) -> None:
    cells = compared(board=(10.0, flash_ms))
    line = models.side_by_side(cells, 110, UNICODE)[1]
    assert (line[-1][0].strip(), line[-1][1]) == (says, ink)


def test_gains_of_boards_are_meant_geometrically() -> None:
    cells = compared(a=(10.0, 5.0), b=(10.0, 1.25))
    assert "".join(text for text, _ in models.side_by_side(cells, 110, UNICODE)[-1]).split() == [
        "geometric", "mean", "of", "2", "boards", "that", "run", "both", "4.0x", "faster",
    ]  # fmt: skip
    line = "".join(text for text, _ in models.side_by_side(cells, 110, UNICODE)[1])
    assert line.split()[:5] == ["a", "10.0/10.0", "n2", "5.00/5.00", "n2"]
    none = "".join(text for text, _ in models.side_by_side(cells[:1], 110, UNICODE)[-1])
    assert "of 0 boards" in none
    assert none.endswith("no comparison")


def test_a_line_of_a_group_tells_what_it_counts() -> None:
    cells = [replace(cell, over=over, latency=None) for cell, over in zip(compared(a=(1, 1)), (0, 3), strict=True)]
    (_, one), (_, two) = models.table("artifact", models.groups(cells, lambda cell: cell.artifact), 80, UNICODE)[1]
    assert "".join(text for text, _ in one).split() == ["float32", "2", "–", "–", "0", "1", "–"]
    assert "".join(text for text, _ in two).split() == ["int8", "2", "–", "–", "0", "1", "3"]
    assert (one[-1][1], two[-1][1]) == ("faint", "bad")
    few = models.groups([replace(cells[0], latency=histogram([1.0] * 10))], lambda cell: cell.artifact)
    assert "~" in "".join(text for text, _ in models.table("artifact", few, 80, UNICODE)[1][0][1])


def test_a_model_that_has_no_precision_is_neither() -> None:
    assert kind_of(replace(HEALTHY, precision="")) == ""
