"""From messages to views: what makes a new one, and how a failing reader is told."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable

import numpy as np
import pytest

from edgekit.errors import ConfigError
from edgekit.telemetry.messages import Received, State, topic
from edgekit_tui.feed import Folder, View
from edgekit_tui.worker import Feed, tidy
from tests.tui import simulated
from tests.tui.simulated import NOW_S, Feeder, lived


def started() -> tuple[Feeder, Folder]:
    source = Feeder()
    return source, Folder(source, endpoint="here:1883")


def test_the_first_step_gives_a_view_even_without_data() -> None:
    source, folder = started()
    source.connected = False
    view = folder.step(NOW_S)
    assert view is not None
    assert (view.rows, view.link.connected, view.link.was_connected) == ((), False, False)


def test_no_change_gives_no_view() -> None:
    _, folder, _ = lived(windows=3)
    assert folder.step(NOW_S + 0.1) is None
    assert folder.step(NOW_S + 1.5) is None, "a second passed, and no device became late by it"


def test_time_alone_makes_a_silent_device_late() -> None:
    _, folder, before = lived(windows=12)
    after = folder.step(NOW_S + 30)
    assert after is not None
    assert after.totals.states != before.totals.states
    assert "online" not in after.totals.states


def test_a_lost_and_regained_link_is_told_with_its_time() -> None:
    source, folder, _ = lived(windows=3)
    source.connected, source.state = False, "connection refused"
    lost = folder.step(NOW_S + 0.2)
    assert lost is not None
    assert (lost.link.connected, lost.link.was_connected, lost.link.since_s) == (False, True, NOW_S + 0.2)
    source.connected = True
    regained = folder.step(NOW_S + 0.4)
    assert regained is not None
    assert regained.link.connected


def test_a_lost_link_raises_no_alert_for_the_devices_behind_it() -> None:
    source, folder, before = lived(windows=12)
    source.connected = False
    view = before
    for later in range(60, 600, 60):
        view = folder.step(NOW_S + later) or view
    assert view.totals.states.get("online", 0) == 0
    assert view.alerts == before.alerts
    source.connected = True
    back = folder.step(NOW_S + 600)
    assert back is not None
    assert back.alerts == before.alerts


def test_rubbish_on_the_wire_is_counted_and_changes_nothing_else() -> None:
    source, folder, before = lived(windows=3)
    source.messages = [
        Received(topic=topic("berlin", "gate-north", "metrics"), payload=b"{not json", received_s=NOW_S),
        Received(topic=topic("berlin", "gate-north", "birth"), payload=b"\xff\x00", received_s=NOW_S),
    ]
    after = folder.step(NOW_S + 0.1)
    assert after is not None
    assert after.totals.malformed == 2
    assert after.rows == before.rows


def test_the_trend_holds_the_fleet_as_it_was_while_watching() -> None:
    _, _, view = lived(windows=20)
    assert len(view.trend) == 20
    assert all(point.p99_ms is not None and point.qps > 0 for point in view.trend)


def post_until(enough: Callable[[View], bool], source: Feeder) -> View:
    """Run a real feed until it posts a view that is enough."""
    done, views = threading.Event(), []

    def post(view: View) -> None:
        views.append(view)
        if enough(view):
            done.set()

    feed = Feed(source, Folder(source, endpoint="here:1883"), post=post, failed=pytest.fail)
    feed.start()
    try:
        assert done.wait(5)
    finally:
        feed.stop()
    return views[-1]


def test_the_worker_posts_what_the_source_has_and_stops_it_at_the_end() -> None:
    source = Feeder()
    source.messages = [simulated.status("lab", "one", State.ONLINE, NOW_S)]
    view = post_until(lambda view: bool(view.rows), source)
    assert view.rows[0].device == "one"
    assert source.started
    assert source.stopped


def test_a_failing_source_reaches_the_screen_instead_of_dying_unseen() -> None:
    class Broken(Feeder):
        def start(self) -> None:
            raise ConfigError("ca.pem", None, "not a certificate")

    errors: list[BaseException] = []
    told = threading.Event()
    source = Broken()
    feed = Feed(
        source,
        Folder(source, endpoint="here:1883"),
        post=lambda _: None,
        failed=lambda error: (errors.append(error), told.set()),
    )
    feed.start()
    assert told.wait(5)
    feed.stop()
    assert str(errors[0]) == "ca.pem: not a certificate"


def test_a_quiet_fleet_costs_no_views() -> None:
    source = Feeder()
    rng = np.random.default_rng(2)
    source.messages = [simulated.window("porto", "dock-1", 0, NOW_S, rng=rng)]
    folder = Folder(source, endpoint="here:1883")
    views = [folder.step(NOW_S + tick / 10) for tick in range(60)]
    assert sum(view is not None for view in views) == 1


def test_tidying_collects_young_cycles_and_spares_what_stays() -> None:
    class Loop:
        """Refers to itself."""

        def __init__(self) -> None:
            self.me = self

    seen = weakref.ref(Loop())
    kept, before = Loop(), gc.get_freeze_count()
    try:
        tidy()
        assert seen() is None
        assert gc.get_freeze_count() > before
        assert kept.me is kept
    finally:
        gc.unfreeze()


def test_a_small_fleet_is_left_to_the_collector() -> None:
    source = Feeder()
    source.messages = [simulated.status("lab", "one", State.ONLINE, NOW_S)]
    before = gc.get_freeze_count()
    post_until(lambda view: bool(view.rows), source)
    assert gc.get_freeze_count() == before
