"""The updater with a real broker, web server and guard: woken, refused, cut off, held up and taken back."""

from __future__ import annotations

import http.server
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from edgekit.cli.main import main
from edgekit.cli.slots import why_no_updater
from edgekit.config import MqttConfig
from edgekit.errors import SlotError
from edgekit.provision import errand as er
from edgekit.provision import keys, slots, stage, update
from edgekit.provision.follow import Follower
from edgekit.provision.release import Library
from edgekit.provision.repository import Repository
from edgekit.provision.settings import Settings, write_settings
from edgekit.telemetry.broker import Broker, find_mosquitto, start_broker
from edgekit.telemetry.connection import Outgoing
from edgekit.telemetry.desired import Desired, Reported, Step
from edgekit.telemetry.link import Link, Opening
from edgekit.telemetry.messages import Received, decode, encode, topic
from tests.torture.small import Guarded, make
from tests.waiting import until

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed"),
]
SITE = "hall"
CONFIG = b'[[model]]\nname = "digits"\n'


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with start_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


class Server(http.server.SimpleHTTPRequestHandler):
    """The repository over HTTP, with ranges. `stall`: long answers hang half way; `down`: 503 for all."""

    folder, stall, down = "", False, False
    asked: ClassVar[list[str]] = []

    def __init__(self, *args: Any) -> None:
        super().__init__(*args, directory=self.folder)

    def do_GET(self) -> None:
        self.asked.append(self.path)
        start = int(self.headers.get("Range", "bytes=0-")[6:-1])
        if self.down:
            self.send_error(503)
        elif start:
            data = (Path(self.folder) / self.path[1:]).read_bytes()
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            self.wfile.write(data[start:])
        else:
            super().do_GET()

    def copyfile(self, source: Any, outputfile: Any) -> None:
        data = source.read()
        if self.stall and "/blobs/" in self.path and len(data) > 50_000:
            outputfile.write(data[: len(data) // 2])
            outputfile.flush()
            end_s = time.monotonic() + 20
            while type(self).stall and time.monotonic() < end_s:
                time.sleep(0.02)
                outputfile.write(b"")
            return  # the connection closes before its end
        outputfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Stage:
    """An operator with a repository behind a web server, one provisioned device, and someone who listens to it."""

    def __init__(self, folder: Path, broker: Broker, device: str) -> None:
        self.folder, self.broker, self.name = folder, broker, device
        self.keys, self.root = folder / "keys", folder / "device"
        self.library, self.repository = Library(folder / "library"), Repository(folder / "repo")
        handler = type("Here", (Server,), {"folder": str(folder / "repo"), "asked": []})
        self.handler: Any = handler
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.guard = Guarded(self.root)
        self.guard.wait("a", "good")
        self.said: list[Reported] = []
        self.link = Link(
            self.mqtt,
            client_id=f"operator-{device}",
            subscriptions=(topic(SITE, device, "reported"),),
            opening=Opening,
            on_message=self._hear,
        )
        self.link.start()
        self.follower: Follower | None = None
        self.thread: threading.Thread | None = None
        assert until(lambda: self.link.state.connected)

    @property
    def mqtt(self) -> MqttConfig:
        return MqttConfig(host="127.0.0.1", port=self.broker.port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def publish(self, name: str, sequence: int, *, groups: tuple[str, ...] = ("default",), **how: Any) -> str:
        stored = make(self.library, name, sequence=sequence, **how)
        self.repository.publish(self.library, stored, self.keys, groups=groups)
        return stored.digest

    def follow(self, **settings: Any) -> None:
        given = Settings(**({"repository": self.url} | settings))
        self.follower = Follower(self.root, given, self.mqtt, site=SITE, device=self.name)
        self.thread = threading.Thread(target=self.follower.run, daemon=True)
        self.thread.start()

    def leave(self) -> None:
        """The updater ends as by a signal."""
        if self.follower is not None and self.thread is not None:
            self.follower.stop()
            self.thread.join(20)
            assert not self.thread.is_alive()
        self.follower = None

    def desire(self, release: str | None, *, id: str = "r1", digest: str = "") -> None:
        payload = b"" if release is None else encode(Desired(release=release, id=id, digest=digest))
        self.link.send(Outgoing(topic(SITE, self.name, "desired"), payload, retain=True))

    def await_step(self, step: Step, timeout_s: float = 20.0, **fields: Any) -> Reported:
        """The first report of that step and with those fields; AssertionError with all that was said."""

        def found() -> Reported | None:
            match = (r for r in self.said if r.step is step and all(getattr(r, k) == v for k, v in fields.items()))
            return next(match, None)

        assert until(lambda: found() is not None, timeout_s), self.said
        report = found()
        assert report is not None
        return report

    def close(self) -> None:
        self.handler.stall = False
        self.desire(None)
        self.leave()
        self.guard.stop()
        self.link.stop()
        self.server.shutdown()
        self.server.server_close()

    def _hear(self, message: Received) -> None:
        if message.payload:
            said = decode("reported", message.payload)
            assert isinstance(said, Reported)
            self.said.append(said)


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys, a repository that offers 1.0, and a device that has committed it."""
    folder = tmp_path_factory.mktemp("made-once")
    keys.create(folder / "keys")
    repository, library, root = Repository(folder / "repo"), Library(folder / "library"), folder / "device"
    repository.create(folder / "keys")
    repository.publish(library, make(library, "1.0", sequence=10), folder / "keys")
    slots.prepare(root)
    (root / "trust").mkdir()
    (root / "trust/root.json").write_bytes(repository.root_bytes())
    stage.install(root, library.load("1.0"), stage.from_folder(library.blob))
    with Guarded(root) as guard:
        guard.wait("a", "good")
    return folder


@pytest.fixture
def device(made_once: Path, tmp_path: Path, broker: Broker, request: pytest.FixtureRequest) -> Iterator[Stage]:
    name = f"cam-{abs(hash(request.node.name)) % 10**8}"
    shutil.copytree(made_once, tmp_path / "here", symlinks=True)
    made = Stage(tmp_path / "here", broker, name)
    yield made
    made.close()


def test_desired_wakes_it_and_every_state_is_reported_until_the_release_is_committed(device: Stage):
    digest = device.publish("2.0", 20)
    device.follow()
    device.await_step(Step.IDLE, running="1.0")
    device.desire("2.0", digest=digest)
    done = device.await_step(Step.COMMITTED, running="2.0")
    times = (done.installed_unix_s, done.booted_unix_s, done.healthy_unix_s, done.committed_unix_s)
    assert None not in times
    assert list(times) == sorted(times)  # type: ignore[type-var]
    assert (done.desired, done.desired_id, done.running_digest) == ("2.0", "r1", digest)
    assert done.received_bytes > 0
    assert until(lambda: not device.thread.is_alive())  # its own release's updater is to go on
    device.desire("2.0", digest=digest, id="r2")
    device.follow()
    device.await_step(Step.COMMITTED, desired_id="r2")
    assert slots.status(device.root).active == "b"


def test_a_bad_release_is_reported_with_its_measured_reason_and_the_old_one_runs(device: Stage):
    device.publish("2.0", 20, check="no")
    device.follow()
    device.desire("2.0")
    back = device.await_step(Step.ROLLED_BACK, running="1.0")
    assert "p99 41.0 ms of 700 samples, the objective is 10.0 ms" in back.reason
    assert (back.healthy_unix_s, back.committed_unix_s) == (None, None)
    assert back.installed_unix_s is not None
    device.desire("2.0", id="again")
    refused = device.await_step(Step.REFUSED, desired_id="again")
    assert refused.reason.startswith("it failed here 1x: p99 41.0 ms")


def test_a_wish_of_a_stranger_is_refused_with_its_reason(device: Stage):
    device.publish("2.0", 20, groups=("canary",))
    device.publish("1.0", 10)
    device.follow()
    for release, digest, id, reason in (
        ("6.6.6", "", "s1", "what is signed for group default is 1.0, not 6.6.6"),
        ("2.0", "", "s2", "what is signed for group default is 1.0, not 2.0"),
        ("1.0", "ab" * 32, "s3", "not the desired abababababab"),
    ):
        device.desire(release, digest=digest, id=id)
        assert reason in device.await_step(Step.REFUSED, desired_id=id).reason
    device.link.send(Outgoing(topic(SITE, device.name, "desired"), b'{"release": 5}', retain=True))
    assert until(lambda: "what is desired cannot be read" in device.said[-1].reason)
    assert device.said[-1].running == "1.0"
    assert slots.status(device.root).slots[1].state == "empty"


def test_a_signed_but_older_release_without_permission_is_refused(device: Stage):
    device.publish("0.9", 5, groups=("slow",))
    device.follow(group="slow")
    device.desire("0.9")
    assert device.await_step(Step.REFUSED).reason == "it is older than 1.0, and no downgrade was signed"


def test_a_group_for_which_nothing_is_signed_and_a_foreign_repository_are_refused(device: Stage):
    device.follow(group="nobody")
    device.desire("1.0")
    assert "has nothing for group nobody, and 1.0 was desired" in device.await_step(Step.REFUSED).reason
    device.leave()
    (device.root / "trust/root.json").unlink()
    device.desire("1.0", id="r2")
    device.follow()
    assert "gets its first root when it is provisioned" in device.await_step(Step.REFUSED, desired_id="r2").reason


def test_a_repository_that_does_not_answer_is_tried_again(device: Stage, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(er, "FIRST_WAIT_S", 0.2)
    device.publish("2.0", 20)
    device.handler.down = True
    device.follow()
    device.desire("2.0")
    waiting = device.await_step(Step.WAITING, attempts=2)
    assert "503" in waiting.reason
    device.handler.down = False
    assert device.await_step(Step.COMMITTED).desired == "2.0"


def test_a_wish_taken_back_ends_the_download_and_the_same_wish_again_resumes_it(device: Stage):
    device.publish("2.0", 20, artifact=b"x" * 400_000)
    device.handler.stall = True
    device.follow()
    device.desire("2.0")
    device.await_step(Step.FETCHING)
    parts = device.root / "store"
    assert until(lambda: any(p.stat().st_size >= 200_000 for p in parts.glob("*.part")))
    device.desire(None)
    device.handler.stall = False
    assert device.await_step(Step.CANCELLED).reason == "it was taken back"
    assert slots.status(device.root).active == "a"
    device.handler.asked.clear()
    device.desire("2.0", id="r2")
    done = device.await_step(Step.COMMITTED, desired_id="r2")
    assert done.received_bytes < 300_000


def test_another_wish_replaces_one_that_is_under_way(device: Stage):
    device.publish("2.0", 20, artifact=b"x" * 400_000)
    device.handler.stall = True
    device.follow()
    device.desire("2.0")
    device.await_step(Step.FETCHING)
    assert until(lambda: any(device.root.glob("store/*.part")))
    device.publish("3.0", 30)
    device.desire("3.0", id="r2")
    device.handler.stall = False
    assert device.await_step(Step.COMMITTED).running == "3.0"


def test_while_the_application_holds_updates_back_it_waits_and_says_why(device: Stage, monkeypatch):
    from edgekit.provision import fetching

    monkeypatch.setattr(fetching, "HELD_S", 0.1)
    device.publish("2.0", 20)
    hold = device.root / "shared" / update.HOLD
    hold.write_text("a patient is connected\n")
    device.follow()
    device.desire("2.0")
    assert until(lambda: any("a patient is connected" in r.reason for r in device.said))
    time.sleep(0.3)
    assert {r.step for r in device.said} <= {Step.IDLE, Step.WAITING}
    hold.unlink()
    assert device.await_step(Step.COMMITTED).running == "2.0"


def test_a_restart_in_the_middle_of_a_download_goes_on_even_without_the_broker(device: Stage):
    device.publish("2.0", 20, artifact=b"x" * 400_000)
    device.handler.stall = True
    device.follow()
    device.desire("2.0")
    device.await_step(Step.FETCHING)
    assert until(lambda: any(device.root.glob("store/*.part")))
    device.handler.stall = False
    device.leave()
    assert er.read_errand(device.root).release == "2.0"
    settings = Settings(repository=device.url)
    alone = Follower(device.root, settings, MqttConfig(host="127.0.0.1", port=9), site=SITE, device=device.name)
    thread = threading.Thread(target=alone.run, daemon=True)
    thread.start()
    device.guard.wait("b", "good")
    thread.join(20)
    device.follow()
    assert device.await_step(Step.COMMITTED, running="2.0").desired_id == "r1"


def test_a_cut_between_staging_and_the_switch_is_completed(device: Stage, monkeypatch: pytest.MonkeyPatch):
    device.publish("2.0", 20)

    def cut(*_: object) -> None:
        raise SlotError("b", "the power went", rolled_back=False)

    monkeypatch.setattr(slots, "switch", cut)
    device.follow()
    device.desire("2.0")
    assert until(lambda: (e := er.read_errand(device.root)) is not None and e.slot == "b")
    device.leave()
    assert slots.status(device.root).slots[1].state == "staged"
    monkeypatch.undo()
    er.write_errand(device.root, er.Errand(release="2.0", id="r1", slot="b", slot_digest=digest_of(device, "2.0")))
    device.follow()
    assert device.await_step(Step.COMMITTED).running == "2.0"


def digest_of(device: Stage, name: str) -> str:
    return device.library.load(name).digest


def test_the_verdict_that_came_while_the_updater_was_away_is_reported(device: Stage):
    device.publish("2.0", 20, check="no")
    stored = device.library.load("2.0")
    slot = stage.install(device.root, stored, stage.from_folder(device.library.blob))
    er.write_errand(device.root, er.Errand(release="2.0", id="r1", slot=slot, slot_digest=stored.digest))
    device.guard.wait("b", "bad")
    device.follow()
    assert "p99 41.0 ms" in device.await_step(Step.ROLLED_BACK, running="1.0").reason


def test_two_updaters_of_one_device_do_not_fight(device: Stage):
    device.follow()
    device.await_step(Step.IDLE)
    second = Follower(device.root, Settings(repository=device.url), device.mqtt, site=SITE, device=device.name)
    with pytest.raises(SlotError, match="another updater follows"):
        second.run()


def test_a_reader_that_asks_is_answered_although_nothing_changed(device: Stage):
    """Where a broker keeps what is retained from wildcards, this is how a rollout finds its devices."""
    device.follow()
    device.await_step(Step.IDLE)
    device.said.clear()
    device.link.send(Outgoing(topic(SITE, "_all", "rebirth"), b"{}"))
    assert device.await_step(Step.IDLE).group == "default"


def test_what_neither_slot_needs_goes_after_the_commit_but_not_while_another_fills_a_slot(device: Stage):
    device.publish("2.0", 20)
    device.follow()
    device.desire("2.0")
    device.await_step(Step.COMMITTED)
    device.leave()
    left = device.root / "store" / "of-another-updater.part"
    left.write_bytes(b"x")
    with slots.updating(device.root):
        device.said.clear()
        device.follow()
        device.await_step(Step.COMMITTED)
        assert left.exists()
        device.leave()
    device.follow()
    assert until(lambda: not left.exists())


def test_the_command_follows_says_whom_and_ends_by_a_signal(device: Stage):
    device.publish("2.0", 20, extra={"edgekit.toml": CONFIG})
    with_config(device)
    words = ["update", "--follow", "--root", str(device.root), "--repository", device.url]
    process = subprocess.Popen([sys.executable, "-m", "edgekit.cli.main", *words], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line == f"following {SITE}/{device.name} for {device.root}: {device.url}, group default\n"
        device.desire("2.0")
        device.await_step(Step.COMMITTED, running="2.0")
        assert process.stdout.readline() == line  # it began anew, with the release that is active now
    finally:
        process.terminate()
        process.communicate(timeout=20)
    assert process.returncode == 0


def with_config(device: Stage) -> None:
    """What a release of a real daemon brings, and what is the device's own."""
    mine = f'site = "{SITE}"\ndevice = "{device.name}"\n[mqtt]\nhost = "127.0.0.1"\nport = {device.broker.port}\n'
    (device.root / "shared/device.toml").write_text(mine)
    (device.root / "a/edgekit.toml").write_bytes(CONFIG)


@pytest.mark.parametrize(
    ("spoil", "code", "problem"),
    [
        (lambda d: (d.root / "shared/device.toml").write_text(""), 3, "without a broker nothing can tell this device"),
        (lambda d: (d.root / "active").unlink(), 5, "has no release yet: install one with edgekit provision"),
        (lambda d: (d.root / "shared/device.toml").write_text("devise = 1"), 3, "devise: is the release's to say"),
    ],
    ids=["no-broker", "no-release", "typing-slip"],
)
def test_a_device_that_cannot_follow_says_why_in_one_line(device: Stage, capsys, spoil, code, problem):
    device.guard.stop()
    with_config(device)
    spoil(device)
    assert main(["update", "--follow", "--root", str(device.root), "--repository", device.url]) == code
    said = capsys.readouterr().err
    assert problem in said
    assert said.count("\n") == 1


def test_without_a_repository_there_is_nothing_to_follow(device: Stage, capsys):
    assert main(["update", "--follow", "--root", str(device.root)]) == 3
    assert "this device was not told where to look" in capsys.readouterr().err


def test_a_release_that_could_bring_no_further_one_is_not_healthy(device: Stage, monkeypatch: pytest.MonkeyPatch):
    assert why_no_updater(device.root) is None
    write_settings(device.root, Settings(repository=device.url))
    assert why_no_updater(device.root) is None
    monkeypatch.setitem(sys.modules, "edgekit.provision.trust", None)
    assert "with it no update would ever come again" in str(why_no_updater(device.root))
