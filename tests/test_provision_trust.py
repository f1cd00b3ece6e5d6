"""Repositories, and what a device must not believe: each attack is refused with its reason and leaves it as it was."""

from __future__ import annotations

import http.server
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from edgekit.cli.main import main
from edgekit.errors import ConfigError, ReleaseError, UnreachableError
from edgekit.provision import keys, slots, state, update
from edgekit.provision.release import Library
from edgekit.provision.repository import Repository
from edgekit.provision.settings import Settings
from edgekit.provision.trust import Trust
from tests.torture.small import Guarded, make

NOW = datetime.now(timezone.utc)


class World:
    """An operator with keys, a library and a repository; and a device that was provisioned with its first root."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.keys = folder, folder / "keys"
        self.library, self.repository = Library(folder / "library"), Repository(folder / "repo")
        self.device = folder / "device"
        keys.create(self.keys)
        self.repository.create(self.keys)
        self.publish("1.0", 10)
        slots.prepare(self.device)
        (self.device / "trust").mkdir()
        (self.device / "trust/root.json").write_bytes(self.repository.root_bytes())

    @property
    def url(self) -> str:
        return f"file://{self.repository.folder}"

    def publish(self, name: str, sequence: int, *, now: datetime | None = None, **how) -> None:
        stored = make(self.library, name, sequence=sequence)
        Repository(self.repository.folder, now=now).publish(self.library, stored, self.keys, **how)

    def look(self, *, now: datetime | None = None, url: str | None = None, group: str = "default"):
        found = Trust(self.device / "trust", url or self.url, now=now).offer(group)
        return None if found is None else found[0].release

    def metadata(self, pattern: str) -> Path:
        """The newest metadata file of that kind."""
        found = (self.repository.metadata).glob(pattern)
        return max(found, key=lambda path: int(path.name.split(".")[0]) if path.name[0].isdigit() else 0)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_device_sees_what_was_published_for_its_group_only(world: World):
    assert world.look() == "1.0"
    assert world.look(group="canary") is None
    world.publish("2.0", 20, groups=["canary"])
    assert (world.look(), world.look(group="canary")) == ("1.0", "2.0")


def test_the_metadata_of_many_releases_stays_small(world: World):
    for i in range(10):
        world.publish(f"2.{i}", 20 + i)
    assert world.metadata("*.targets.json").stat().st_size < 1500


def edit(path: Path, change: Callable[[dict], None]) -> None:
    table = json.loads(path.read_text())
    change(table["signed"])
    path.write_text(json.dumps(table))


def test_tampered_metadata_is_refused(world: World):
    edit(world.metadata("*.targets.json"), lambda s: s["targets"]["group/default.json"]["custom"].update(sequence=99))
    with pytest.raises(ReleaseError, match="not signed by the keys that may"):
        world.look()


def test_a_tampered_manifest_is_refused(world: World):
    path = next((world.repository.folder / "targets/group").glob("*.json"))
    path.write_bytes(path.read_bytes().replace(b"launch", b"lunch!"))
    with pytest.raises(ReleaseError, match="not what its metadata says"):
        world.look()


def test_older_metadata_than_was_seen_is_a_rollback_and_refused(world: World):
    shutil.copytree(world.repository.folder, world.folder / "old")
    world.publish("2.0", 20)
    assert world.look() == "2.0"
    with pytest.raises(ReleaseError, match="older than what was seen before"):
        world.look(url=f"file://{world.folder / 'old'}")


def test_metadata_that_has_expired_is_a_freeze_and_refused(world: World):
    world.publish("2.0", 20, now=NOW - timedelta(days=100))
    with pytest.raises(ReleaseError, match="expired"):
        world.look()


def test_a_board_whose_clock_starts_in_1970_still_notices_a_freeze(world: World):
    """A floor under the clock: the latest time that the repository signed, seen before the restart."""
    world.publish("2.0", 20, days=90, now=NOW)
    assert world.look() == "2.0"
    born = datetime(1970, 1, 1, 0, 5, tzinfo=timezone.utc)
    assert world.look(now=born) == "2.0"
    (world.device / "trust/clock-floor").write_text(str(int((NOW + timedelta(days=91)).timestamp())))
    with pytest.raises(ReleaseError, match="expired on"):
        world.look(now=born)


def test_a_clock_that_ran_ahead_once_does_not_lift_the_floor(world: World):
    with pytest.raises(ReleaseError, match="expired on"):
        world.look(now=NOW + timedelta(days=4000))
    assert world.look() == "1.0"


def test_targets_of_another_time_than_the_snapshot_are_mix_and_match_and_refused(world: World):
    old = world.metadata("*.targets.json").read_bytes()
    world.publish("2.0", 20)
    world.metadata("*.targets.json").write_bytes(old)
    with pytest.raises(ReleaseError, match="metadata"):
        world.look()


def test_a_stranger_who_signs_everything_with_own_keys_is_refused(world: World):
    stranger = World(world.folder / "stranger")
    stranger.publish("6.6.6", 666)
    with pytest.raises(ReleaseError, match="not signed by the keys that may"):
        world.look(url=stranger.url)
    with pytest.raises(ConfigError, match="is not the targets key"):
        Repository(world.repository.folder).publish(stranger.library, stranger.library.load("6.6.6"), stranger.keys)


def test_a_device_without_a_first_root_trusts_nobody(world: World):
    (world.device / "trust/root.json").unlink()
    with pytest.raises(ReleaseError, match="gets its first root when it is provisioned"):
        world.look()


@pytest.mark.parametrize("role", keys.ROLES)
def test_devices_follow_a_change_of_each_key_and_refuse_the_old_one(world: World, role: str, tmp_path: Path):
    assert world.look() == "1.0"
    old = tmp_path / "old-keys"
    shutil.copytree(world.keys, old)
    keys.create_one(tmp_path / "new", role)
    world.repository.rotate(world.keys, role, tmp_path / "new")
    keys.replace(world.keys, role, tmp_path / "new")
    world.repository.resign(world.keys)
    assert world.look() == "1.0"
    world.publish("2.0", 20)
    assert world.look() == "2.0"
    if role != "root":
        with pytest.raises(ConfigError, match="is not the"):
            Repository(world.repository.folder).refresh(old, targets=world.repository._targets())
    else:
        world.repository.rotate(old, "targets", old)
        with pytest.raises(ReleaseError, match="not signed by the keys that may"):
            world.look()


def test_a_repository_does_not_publish_an_older_release_unless_told(world: World):
    world.publish("2.0", 20)
    with pytest.raises(ReleaseError, match=r"group default has 2\.0, which is newer"):
        world.publish("1.5", 15)
    world.publish("1.5", 15, downgrade_allowed=True)
    assert world.look() == "1.5"


def test_a_group_has_a_name_that_is_no_path(world: World):
    with pytest.raises(ReleaseError, match="no name of a group"):
        world.publish("2.0", 20, groups=["../x"])
    with pytest.raises(ReleaseError, match="no name of a group"):
        world.look(group="../default")


def test_a_device_takes_an_older_release_only_when_the_downgrade_is_signed(world: World):
    root = world.device
    settings = Settings(repository=world.url)

    def commit() -> None:
        finding, stored = update.look(root, settings)
        assert finding.will_install
        slot, _ = update.bring(root, stored, settings)
        state.change(root, lambda t: state.mark_good(t, slot, 1.0))

    world.publish("2.0", 20)
    commit()
    # the same repository, but an operator who offers an older one to another group the device is moved to
    world.publish("1.5", 15, groups=["slow"])
    finding, stored = update.look(root, Settings(repository=world.url, group="slow"))
    assert (stored, finding.reason) == (None, "it is older than 2.0, and no downgrade was signed")
    world.publish("1.6", 16, downgrade_allowed=True)
    commit()
    assert slots.status(root).slots[1].release == "1.6"


def test_what_was_installed_or_failed_is_not_taken_again(world: World):
    root, settings = world.device, Settings(repository=world.url)
    _, stored = update.look(root, settings)
    slot, received = update.bring(root, stored, settings)
    assert received == sum(file.size_bytes for file in stored.release.files)
    state.change(root, lambda t: state.mark_good(t, slot, 1.0))
    assert update.look(root, settings)[0].reason == "it is installed and good"
    world.publish("2.0", 20)
    _, second = update.look(root, settings)
    slot, received = update.bring(root, second, settings)
    assert received < 500  # only the artifact changed
    state.change(root, lambda t: state.mark_bad(t, slot, "p99 41 ms", NOW.timestamp()) or "a")
    assert update.look(root, settings)[0].reason == "it failed here 1x: p99 41 ms"
    assert update.look(root, settings, retry_denied=True)[0].will_install


def test_an_application_can_hold_updates_back(world: World):
    from edgekit.errors import Cancelled

    settings = Settings(repository=world.url)
    _, stored = update.look(world.device, settings)
    (world.device / "shared/hold").write_text("a patient is connected\n")
    with pytest.raises(Cancelled, match="a patient is connected"):
        update.bring(world.device, stored, settings)
    (world.device / "shared/hold").unlink()
    assert update.bring(world.device, stored, settings)[0] == "a"


def test_keys_are_private_and_never_written_over(tmp_path: Path):
    keys.create(tmp_path / "keys")
    path = tmp_path / "keys/root.pem"
    assert path.stat().st_mode & 0o077 == 0
    with pytest.raises(ConfigError, match="never written over"):
        keys.create(tmp_path / "keys")
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        keys.load(tmp_path / "keys", "root")
    path.chmod(0o600)
    path.write_text("no key")
    with pytest.raises(ConfigError, match="not a private key"):
        keys.load(tmp_path / "keys", "root")
    with pytest.raises(ConfigError, match="edgekit keys create"):
        keys.load(tmp_path / "nowhere", "root")


# --- over http ---


class Endless(http.server.BaseHTTPRequestHandler):
    """Sends for ever, whatever is asked for."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            while True:
                self.wfile.write(b" " * 65536)
        except OSError:
            pass

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def serve() -> Iterator[Callable[[type[http.server.BaseHTTPRequestHandler]], str]]:
    servers = []

    def start(handler) -> str:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_metadata_without_end_is_cut_off(world: World, serve):
    with pytest.raises(ReleaseError, match="more than it may"):
        world.look(url=serve(Endless))


def test_a_repository_over_http_is_believed_for_its_signatures(world: World, serve):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(world.repository.folder))  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    assert world.look(url=serve(Quiet)) == "1.0"


def test_a_repository_that_is_not_there_is_unreachable_and_says_so(world: World):
    with pytest.raises(UnreachableError, match="refused"):
        world.look(url="http://127.0.0.1:9")
    with pytest.raises(UnreachableError, match="is not fetched"):
        world.look(url="ftp://127.0.0.1")


def test_an_update_of_one_artifact_costs_that_artifact_and_little_more(world: World, serve):
    """Metadata, manifest and payload together, as the server counts them."""
    sent = [0]

    class Counting(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(world.repository.folder))  # type: ignore[arg-type]

        def copyfile(self, source, outputfile) -> None:
            data = source.read()
            sent[0] += len(data)
            outputfile.write(data)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    settings = Settings(repository=serve(Counting))
    for name, sequence in (("2.0", 20), ("3.0", 30)):
        stored = make(world.library, name, sequence=sequence, artifact=name.encode() * 100_000)
        world.repository.publish(world.library, stored, world.keys)
        sent[0] = 0
        _, offered = update.look(world.device, settings)
        assert offered is not None
        slot, received = update.bring(world.device, offered, settings)
        state.change(world.device, lambda t, slot=slot: state.mark_good(t, slot, 1.0) or slot)
    assert received == 300_000
    assert sent[0] < 300_000 + 12_000


def test_the_command_line_makes_keys_publishes_and_updates(world: World, tmp_path: Path, capsys):
    words = ["--repo", str(tmp_path / "r"), "--keys", str(tmp_path / "k")]
    assert main(["keys", "create", str(tmp_path / "k")]) == 0
    assert "keep root.pem and targets.pem off line" in capsys.readouterr().out
    assert main(["repo", "create", *words]) == 0
    assert main(["repo", "publish", "1.0", "--library", str(world.library.folder), *words, "--days", "7"]) == 0
    assert "renew with: edgekit repo refresh" in capsys.readouterr().out
    assert main(["keys", "show", str(tmp_path / "k"), "--repo", str(world.repository.folder)]) == 0
    assert capsys.readouterr().out.count("NOT trusted by this repository") == 3
    assert main(["keys", "rotate", "online", str(tmp_path / "k"), "--repo", str(tmp_path / "r")]) == 0
    assert "root version 2" in capsys.readouterr().out
    assert main(["repo", "refresh", *words]) == 0
    capsys.readouterr()

    root = f"--root={world.device}"
    assert main(["update", root, "--check"]) == 3
    assert "this device was not told where to look" in capsys.readouterr().err
    assert main(["update", root, "--check", "--repository", f"file://{tmp_path}/r"]) == 5
    assert "not signed by the keys that may" in capsys.readouterr().err
    (world.device / "trust/root.json").write_bytes(Repository(tmp_path / "r").root_bytes())
    shutil.rmtree(world.device / "trust/metadata")
    assert main(["update", root, "--check", "--repository", f"file://{tmp_path}/r"]) == 0
    assert "offers 1.0: it is new" in capsys.readouterr().out
    assert main(["update", root, "--no-wait", "--repository", f"file://{tmp_path}/r"]) == 0
    with Guarded(world.device) as guarded:
        guarded.wait("a", "good")
    assert main(["update", root, "--repository", f"file://{tmp_path}/r"]) == 0
    assert "it is installed and good" in capsys.readouterr().out
    assert main(["update", root, "--check", "--repository", f"file://{tmp_path}/r"]) == 1


@pytest.mark.parametrize(
    "victim", ["timestamp.json", "snapshot.json", "targets.json", "root_history/2.root.json", "root.json"]
)
@pytest.mark.parametrize("damage", [b"", b"{", None], ids=["emptied", "cut", "gone"])
def test_a_device_recovers_from_metadata_that_a_power_cut_damaged(world: World, tmp_path: Path, victim: str, damage):
    keys.create_one(tmp_path / "new", "online")
    world.repository.rotate(world.keys, "online", tmp_path / "new")
    keys.replace(world.keys, "online", tmp_path / "new")
    world.repository.resign(world.keys)
    assert world.look() == "1.0"
    path = world.device / "trust/metadata" / victim
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    assert world.look() == "1.0"
