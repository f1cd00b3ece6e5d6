"""What a request's parameters ask for, in edgekit's words and in Triton's."""

from __future__ import annotations

import pytest

from edgekit.errors import RequestError
from edgekit.serve import parameters
from edgekit.serve.parameters import Step


@pytest.mark.parametrize(
    ("given", "wanted"),
    [(None, None), (0, None), (1, "realtime"), (2, "tolerant"), (7, "tolerant"), ("realtime", "realtime")],
)
def test_a_priority_is_a_lane_whether_by_name_or_by_tritons_number(given, wanted):
    assert parameters.priority({"priority": given}) == wanted


@pytest.mark.parametrize("given", [-1, True, 1.0, "urgent", ["realtime"]])
def test_another_priority_is_refused(given):
    with pytest.raises(RequestError, match="must be 'realtime' or 'tolerant'"):
        parameters.priority({"priority": given})


def test_a_deadline_is_ours_in_ms_or_tritons_in_microseconds():
    assert parameters.deadline_ms({"deadline_ms": 25}) == 25
    assert parameters.deadline_ms({"timeout": 25_000}) == 25
    assert parameters.deadline_ms({"deadline_ms": 10, "timeout": 25_000}) == 10
    assert parameters.deadline_ms({}) is None
    for wrong in ({"deadline_ms": 0}, {"timeout": "1"}, {"timeout": True}, {"deadline_ms": float("nan")}):
        with pytest.raises(RequestError, match="must be a number above 0"):
            parameters.deadline_ms(wrong)


def test_a_sequence_has_an_id_a_start_and_an_end():
    first = parameters.step({"sequence_id": 7, "sequence_start": True, "sequence_end": False})
    assert first == Step(id=7, is_first=True, is_last=False)
    assert parameters.step({"sequence_id": "a", "sequence_end": True}) == Step(id="a", is_first=False, is_last=True)
    for absent in ({}, {"sequence_id": 0}, {"sequence_id": ""}, {"sequence_id": None}):
        assert parameters.step(absent) is None
    for wrong in ({"sequence_id": 1.5}, {"sequence_id": "x" * 129}, {"sequence_id": True}):
        with pytest.raises(RequestError, match="sequence_id must be"):
            parameters.step(wrong)
    with pytest.raises(RequestError, match="sequence_start is 1"):
        parameters.step({"sequence_id": 1, "sequence_start": 1})
