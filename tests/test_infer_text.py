"""Answers as a person reads them, and the progress that is shown while waiting for one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from edgekit.cli.infer_text import describe, times
from edgekit.cli.progress import bytes_bar
from edgekit.pipeline.answers import (
    Answer,
    Box,
    Boxes,
    Label,
    Labels,
    Segment,
    Segments,
    Tensors,
    TensorSummary,
    Text,
)

CORNERS = ((1.2, 2.0), (30.6, 2.0), (30.6, 9.9), (1.2, 9.9))


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (Text(text="Ab 1", score=0.987), "Ab 1  (0.99)"),
        (Text(text="", score=0.0), "(no text)"),
        (Labels(labels=(Label(name="cat", score=0.9), Label(name="dog", score=0.0004))), "  90.0%  cat"),
        (Labels(labels=(Label(name="cat", score=0.0004),)), "   0.0%  cat"),
        (Boxes(width=40, height=20, boxes=()), "0 boxes in 40 x 20 pixels"),
        (
            Segments(duration_s=4.0, segments=(Segment(start_s=0.5, end_s=1.75),)),
            "1.25 s of speech in 4.00 s\n      0.50 s -     1.75 s",
        ),
    ],
)
def test_each_kind_of_answer_reads_well(answer: Answer, text: str) -> None:
    assert describe(answer) == text


def test_boxes_show_their_corners_or_what_was_read_in_them() -> None:
    answer = Boxes(width=40, height=20, boxes=(Box(polygon=CORNERS, score=0.8),))
    assert describe(answer).splitlines() == ["1 box in 40 x 20 pixels", "    1  0.80  1,2  31,2  31,10  1,10"]
    line = describe(answer, [Text(text="hello", score=0.9)]).splitlines()[1]
    assert line.split() == ["1", "0.80", "1,2", "29", "x", "8", "hello", "(0.90)"]


def test_tensors_show_their_range_when_they_have_one() -> None:
    full = TensorSummary(name="y", dtype="float32", shape=(1, 3), minimum=-1.5, maximum=2.0, argmax=2)
    empty = TensorSummary(name="z", dtype="float32", shape=(0,), minimum=None, maximum=None, argmax=None)
    assert describe(Tensors(outputs=(full, empty))).splitlines() == [
        "y: float32 [1, 3], -1.5 to 2, largest at 2",
        "z: float32 [0]",
    ]


def test_times_say_what_ran_and_that_a_first_run_is_slow() -> None:
    facts = {"artifact": "int8", "chosen_by": "--artifact", "runtime": "litert", "threads": 2, "load_ms": 3.04}
    facts |= {"inferences": 1, "infer_ms": 1.26}
    assert times(facts) == "int8 on litert, 2 threads: load 3.0 ms, infer 1.3 ms (a first run, not warmed up)"
    assert times(facts | {"chosen_by": "selection"}).startswith("int8 (selected) on litert")
    assert times(facts | {"chosen_by": "nothing selected yet"}).startswith("int8 (nothing selected yet) on litert")
    facts = {"url": "http://pi:8080", "artifact": "int8", "round_trip_ms": 9.0, "infer_ms": 4.0, "inferences": 188}
    assert times(facts) == "int8 at http://pi:8080: round trip 9.0 ms, infer 4.0 ms (188 inferences)"
    assert times(facts | {"inferences": 1}).endswith("infer 4.0 ms")


def test_progress_is_silent_when_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with bytes_bar("fetching") as bar:
        bar(1, 10)
        bar(10, 10)
    assert capsys.readouterr() == ("", "")


@pytest.mark.skipif(os.name == "nt", reason="elsewhere: pseudo-terminals are a POSIX matter")
def test_progress_is_shown_on_a_terminal_and_only_on_stderr() -> None:
    script = (
        "from edgekit.cli.progress import bytes_bar\n"
        "with bytes_bar('fetching net') as bar:\n"
        "    for done in range(0, 4001, 1000): bar(done, 4000)\n"
        "print('answer')\n"
    )
    leader, follower = os.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=follower, env=environment
    ) as child:
        os.close(follower)
        out, _ = child.communicate(timeout=30)
        seen = os.read(leader, 100_000).decode()
    os.close(leader)
    assert out == b"answer\n"
    assert "fetching net" in seen
