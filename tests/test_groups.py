"""A fleet by model, lane, board: every sample once, whatever the order, the duplicates and the grouping."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.collect.rollup import NOTHING
from edgekit.fleet import HISTORY_WINDOWS, merged_latency
from edgekit.groups import BY, UNKNOWN, Group, Listening, group, listen
from edgekit.telemetry.histogram import HistogramBuilder, quantile
from edgekit.telemetry.messages import (
    Birth,
    Histogram,
    LaneMetrics,
    Metrics,
    Received,
    State,
    Status,
    encode,
    topic,
)

NOON = 1_800_000_000.0


def latency(*values_ms: float) -> Histogram:
    builder = HistogramBuilder(max_scale=6)
    builder.record_many(list(values_ms))
    found = builder.histogram()
    assert found is not None
    return found


def lane(model: str = "digits", *values_ms: float, **more: Any) -> LaneMetrics:
    infer = latency(*values_ms) if values_ms else None
    return LaneMetrics(model=model, requests=len(values_ms), infer_ms=infer, **more)


def window(*lanes: LaneMetrics, seq: int = 0, epoch: int = 1, window_ms: int = 10_000) -> Metrics:
    return Metrics(epoch=epoch, seq=seq, t_unix_ms=0, t_mono_ms=0, window_ms=window_ms, lanes=lanes)


def said(payload: Any, *, site: str = "hall", device: str = "cam-1", leaf: str = "metrics") -> Received:
    return Received(topic=topic(site, device, leaf), payload=encode(payload), received_s=NOON)


def heard(*messages: Received) -> Listening:
    return listen(Listening(), messages, now_s=NOON)


def by(state: Listening, what: str) -> dict[str, Group]:
    return {found.name: found for found in group(state, what)}


def test_models_of_one_device_are_told_apart() -> None:
    state = heard(said(window(lane("fast", 1.0, 1.0), lane("slow", 50.0))))
    groups = by(state, "model")
    assert list(groups) == ["fast", "slow"]
    assert [groups[name].total.requests for name in groups] == [2, 1]
    assert quantile(groups["slow"].total.infer_ms, 0.5) == pytest.approx(50.0, rel=0.02)  # type: ignore[arg-type]


def test_one_model_over_many_devices_is_one_group_with_all_its_samples() -> None:
    state = heard(*(said(window(lane("digits", float(i + 1))), device=f"cam-{i}") for i in range(5)))
    (found,) = group(state, "model")
    assert (found.devices, found.total.requests) == (5, 5)
    assert found.total.infer_ms is not None
    assert (found.total.infer_ms.min, found.total.infer_ms.max) == (1.0, 5.0)


def test_a_site_is_its_devices_and_a_board_its_birth_certificates() -> None:
    birth = Birth(epoch=1, t_unix_ms=0, board="Raspberry Pi 5")
    state = heard(
        said(birth, leaf="birth"),
        said(window(lane("digits", 1.0))),
        said(window(lane("digits", 2.0)), device="cam-2"),
        said(window(lane("digits", 3.0)), site="yard", device="cam-1"),
    )
    assert {name: found.devices for name, found in by(state, "site").items()} == {"hall": 2, "yard": 1}
    assert {name: found.devices for name, found in by(state, "board").items()} == {"Raspberry Pi 5": 1, UNKNOWN: 2}


def test_lanes_and_artifacts_of_one_model_are_groups_too() -> None:
    state = heard(
        said(
            window(
                lane("digits", 1.0, lane="realtime", artifact="int8"),
                lane("digits", 9.0, 9.0, lane="tolerant", artifact="standard"),
            )
        )
    )
    assert {n: g.total.requests for n, g in by(state, "lane").items()} == {"realtime": 1, "tolerant": 2}
    assert {n: g.total.requests for n, g in by(state, "artifact").items()} == {"int8": 1, "standard": 2}
    assert [g.devices for g in group(state, "artifact")] == [1, 1]


def test_requests_a_second_are_over_the_windows_that_were_heard() -> None:
    state = heard(
        said(window(lane("digits", *[1.0] * 20), seq=0)),
        said(window(lane("digits", *[1.0] * 40), seq=1)),
        said(window(lane("digits", *[1.0] * 5), window_ms=1000), device="cam-2"),
    )
    (found,) = group(state, "model")
    assert found.qps == pytest.approx(60 / 20 + 5 / 1)


def test_errors_and_rejections_stay_apart() -> None:
    state = heard(said(window(lane("digits", 1.0, errors=2, rejected=3, cache_hits=4))))
    (found,) = group(state, "lane")
    assert (found.total.errors, found.total.rejected, found.total.cache_hits) == (2, 3, 4)


def test_a_window_that_comes_twice_counts_once() -> None:
    again = said(window(lane("digits", 1.0), seq=4))
    state = listen(heard(again), [again, again], now_s=NOON)
    (found,) = group(state, "model")
    assert found.total.requests == 1
    assert state.fleet.devices["hall", "cam-1"].duplicates == 2


def test_a_window_that_contradicts_itself_counts_nowhere() -> None:
    wrong = Histogram(scale=0, offset=0, counts=(1, 1), sum=1.0, count=99, min=1.0, max=2.0)
    state = heard(said(window(LaneMetrics(model="digits", requests=99, infer_ms=wrong))))
    assert group(state, "model") == []
    assert state.fleet.malformed == 1


@pytest.mark.parametrize(
    "message",
    [
        Received(topic="edgekit/v1/hall/cam-1/metrics", payload=b"{", received_s=NOON),
        Received(topic="edgekit/v1/hall/CAM/metrics", payload=encode(window(lane("digits", 1.0))), received_s=NOON),
        Received(topic="else/v1/hall/cam-1/metrics", payload=encode(window(lane("digits", 1.0))), received_s=NOON),
        Received(topic="edgekit/v1/hall/_all/metrics", payload=encode(window(lane("digits", 1.0))), received_s=NOON),
    ],
)
def test_what_is_no_window_of_a_device_is_not_heard(message: Received) -> None:
    assert heard(message).heard == {}


def test_a_device_that_is_cleared_away_is_gone_from_its_groups() -> None:
    state = heard(said(window(lane("digits", 1.0))))
    cleared = Received(topic=topic("hall", "cam-1", "status"), payload=b"", received_s=NOON)
    after = listen(state, [cleared], now_s=NOON)
    assert (group(after, "model"), after.heard) == ([], {})


def test_a_device_without_a_window_is_in_no_group_but_still_there() -> None:
    state = heard(said(Status(state=State.ONLINE, epoch=1), leaf="status"))
    assert group(state, "site") == []
    device = state.fleet.devices["hall", "cam-1"]
    assert state.of(device).of_model("digits") == NOTHING
    assert state.of(device).seconds == 0


def test_figures_reach_back_as_far_as_the_devices_own_and_no_further() -> None:
    half = HISTORY_WINDOWS // 2
    state = Listening()
    for seq in range(3 * half):
        state = listen(state, [said(window(lane("digits", 1.0), seq=seq))], now_s=NOON)
        device = state.fleet.devices["hall", "cam-1"]
        requests = state.of(device).of_model("digits").requests
        assert device.latency is not None
        assert min(seq + 1, half) <= requests <= HISTORY_WINDOWS
        assert requests == device.latency.count
    assert state.of(device).seconds == pytest.approx(requests * 10.0)


SAMPLES = st.lists(st.floats(0.01, 1e4), min_size=1, max_size=6)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["hall", "yard"]),
            st.sampled_from(["a", "b", "c"]),
            st.sampled_from(["digits", "ocr"]),
            st.sampled_from(["realtime", "tolerant"]),
            st.sampled_from(["standard", "int8"]),
            SAMPLES,
        ),
        max_size=8,
    )
)
def test_whatever_the_grouping_every_sample_is_in_exactly_one_group(rows: list[Any]) -> None:
    messages = []
    seqs: dict[tuple[str, str], int] = {}
    for site, device, model, name, artifact, values in rows:
        seq = seqs.get((site, device), 0)
        seqs[site, device] = seq + 1
        content = window(lane(model, *values, lane=name, artifact=artifact), seq=seq)
        messages.append(said(content, site=site, device=device))
    state = heard(*messages)
    total = sum(len(values) for *_, values in rows)
    merged = merged_latency(state.fleet.devices.values())
    for what in BY:
        groups = group(state, what)
        assert sum(found.total.requests for found in groups) == total
        assert sum(found.total.infer_ms.count for found in groups if found.total.infer_ms) == total
        assert [found.name for found in groups] == sorted({found.name for found in groups})
        if merged is not None:
            assert max(f.total.infer_ms.max for f in groups if f.total.infer_ms) == merged.max


@given(st.permutations(range(5)))
def test_the_order_in_which_windows_come_changes_nothing(order: list[int]) -> None:
    messages = [said(window(lane("digits", float(i + 1)), seq=i)) for i in range(5)]
    (found,) = group(heard(*(messages[i] for i in order)), "model")
    (wanted,) = group(heard(*messages), "model")
    assert (found.total.requests, found.devices, found.qps) == (5, 1, wanted.qps)
    assert found.total.infer_ms is not None
    assert wanted.total.infer_ms is not None
    assert found.total.infer_ms.counts == wanted.total.infer_ms.counts
