"""What a repository's words mean on a device: signed custom data, the clock's floor, failures in plain words."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

exceptions = pytest.importorskip("tuf.api.exceptions", reason="elsewhere: a device that updates has tuf")
pytest.importorskip("cryptography", reason="elsewhere: signing needs cryptography")

from tuf.api.metadata import TargetFile  # noqa: E402

from edgekit.errors import ConfigError, ReleaseError, UnreachableError  # noqa: E402
from edgekit.provision import keys  # noqa: E402
from edgekit.provision.release import Library  # noqa: E402
from edgekit.provision.repository import SIGNED_AT, Repository, offer_of  # noqa: E402
from edgekit.provision.trust import Fetcher, Trust, _explain  # noqa: E402
from tests.torture.small import make  # noqa: E402

NOW = datetime.now(timezone.utc).replace(microsecond=0)
UNSET = datetime(1970, 1, 1, tzinfo=timezone.utc)


# Signed custom data


CUSTOM = {"group": "hall", "release": "1.0", "sequence": 7, "downgrade_allowed": True}


def target(custom: Any) -> TargetFile:
    found = TargetFile.from_data("group/hall.json", b"manifest", ["sha256"])
    if custom is not None:
        found.unrecognized_fields["custom"] = custom
    return found


def test_an_offer_is_what_was_signed() -> None:
    offer = offer_of(target(CUSTOM))
    assert (offer.group, offer.release, offer.sequence, offer.downgrade_allowed) == ("hall", "1.0", 7, True)
    assert (offer.size_bytes, len(offer.digest)) == (8, 64)


@pytest.mark.parametrize("word", ["yes", 1, "true", None, [True]])
def test_a_downgrade_is_allowed_by_true_alone(word: Any) -> None:
    assert offer_of(target(CUSTOM | {"downgrade_allowed": word})).downgrade_allowed is False


@pytest.mark.parametrize("key", sorted(CUSTOM))
def test_a_target_that_does_not_tell_all_is_refused(key: str) -> None:
    with pytest.raises(ReleaseError, match="its signed custom data does not hold: KeyError"):
        offer_of(target({k: v for k, v in CUSTOM.items() if k != key}))


@pytest.mark.parametrize("custom", [None, [], "hall", 5, CUSTOM | {"sequence": "soon"}])
def test_custom_data_of_another_kind_is_refused(custom: Any) -> None:
    with pytest.raises(ReleaseError, match="its signed custom data does not hold"):
        offer_of(target(custom))


# Failures in words


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (exceptions.ExpiredMetadataError("x"), "its metadata has expired, so it may be held back"),
        (exceptions.BadVersionNumberError("x"), "its metadata is older than what was seen before"),
        (exceptions.EqualVersionNumberError("x"), "its metadata is older than what was seen before"),
        (exceptions.UnsignedMetadataError("x"), "its metadata is not signed by the keys that may"),
        (exceptions.LengthOrHashMismatchError("x"), "a file is not what its metadata says"),
        (exceptions.RepositoryError("x"), "its metadata does not hold"),
    ],
)
def test_every_kind_of_refusal_has_its_words(error: Any, words: str) -> None:
    assert _explain(error) == f"{words}: x"


# Fetching


def test_a_file_is_read_whole_from_a_stick(tmp_path: Path) -> None:
    (tmp_path / "root.json").write_bytes(b"x" * 200_000)
    assert b"".join(Fetcher()._fetch(f"file://{tmp_path}/root.json")) == b"x" * 200_000


@pytest.mark.parametrize("url", ["ftp://h/x", "gopher://h", "x", "data:,x"])
def test_other_ways_are_not_fetched(url: str) -> None:
    with pytest.raises(exceptions.DownloadError, match="is not fetched, only http, https and file"):
        Fetcher()._fetch(url)


def test_a_missing_file_is_404_as_a_server_would_say(tmp_path: Path) -> None:
    with pytest.raises(exceptions.DownloadHTTPError) as error:
        Fetcher()._fetch(f"file://{tmp_path}/2.root.json")
    assert error.value.status_code == 404


def test_a_server_that_is_not_there_is_not_reachable() -> None:
    with pytest.raises(exceptions.DownloadError, match="not reachable: "):
        Fetcher()._fetch("http://127.0.0.1:9/root.json")


# The clock's floor


class World:
    """A repository and a device that was handed its first root."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.keys, self.library = folder, folder / "keys", Library(folder / "library")
        keys.create(self.keys)
        self.at(NOW).create(self.keys)
        (folder / "trust").mkdir()
        (folder / "trust/root.json").write_bytes(self.at(NOW).root_bytes())

    def at(self, now: datetime) -> Repository:
        return Repository(self.folder / "repo", now=now)

    def publish(self, now: datetime, **how: Any) -> None:
        name = f"{now:%Y.%m.%d}"
        stored = make(self.library, name, sequence=int(now.timestamp()))
        self.at(now).publish(self.library, stored, self.keys, **how)

    def look(self, now: datetime) -> Any:
        return Trust(self.folder / "trust", f"file://{self.folder}/repo", now=now).offer("default")

    @property
    def floor(self) -> int:
        return int((self.folder / "trust/clock-floor").read_text())


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_floor_rises_with_what_is_signed_and_never_falls(world: World) -> None:
    world.publish(NOW)
    world.look(NOW)
    assert world.floor == int(NOW.timestamp())
    world.publish(NOW + timedelta(days=2))
    world.look(NOW + timedelta(days=2))
    assert world.floor == int((NOW + timedelta(days=2)).timestamp())
    world.look(UNSET)
    assert world.floor == int((NOW + timedelta(days=2)).timestamp())


def test_an_unset_clock_still_sees_that_metadata_has_expired(world: World) -> None:
    world.publish(NOW, days=30)
    world.look(NOW)
    (world.folder / "trust/clock-floor").write_text(str(int((NOW + timedelta(days=60)).timestamp())))
    end, floor = (f"{NOW + timedelta(days=days):%Y-%m-%d}" for days in (30, 60))
    with pytest.raises(ReleaseError, match=f"its timestamp expired on {end}, and it is {floor} at least"):
        world.look(UNSET)


@pytest.mark.parametrize("text", ["", "soon", "1e9"])
def test_a_floor_that_is_no_number_counts_as_none_and_is_written_anew(text: str, world: World) -> None:
    (world.folder / "trust/clock-floor").write_text(text)
    world.publish(NOW)
    assert world.look(NOW) is not None
    assert world.floor == int(NOW.timestamp())


def test_a_device_without_a_first_root_says_when_it_would_get_one(world: World) -> None:
    (world.folder / "trust/root.json").unlink()
    with pytest.raises(ReleaseError, match=r"root\.json is missing: a device gets its first root when it is prov"):
        world.look(NOW)


@pytest.mark.parametrize("group", ["Hall", "a/b", "../x", ""])
def test_a_group_that_is_no_name_asks_nobody(group: str, world: World) -> None:
    with pytest.raises(ReleaseError, match="is no name of a group"):
        Trust(world.folder / "trust", "http://127.0.0.1:9").offer(group)


def test_a_folder_that_is_no_repository_is_unreachable(world: World, tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match=r"there is no file://.*timestamp\.json"):
        Trust(world.folder / "trust", f"file://{tmp_path}/nowhere").offer("default")


# The repository's own side


def test_until_when_devices_believe_is_the_earliest_end(world: World) -> None:
    assert world.at(NOW).valid_until() is None
    world.publish(NOW, days=30)
    assert world.at(NOW).valid_until() == NOW + timedelta(days=30)
    world.at(NOW + timedelta(days=5)).refresh(world.keys, days=10)
    assert world.at(NOW).valid_until() == NOW + timedelta(days=15)


def test_every_signing_is_a_version_more(world: World) -> None:
    world.publish(NOW)
    world.publish(NOW + timedelta(days=1))
    names = sorted(path.name for path in (world.folder / "repo/metadata").iterdir())
    assert names == [
        "1.root.json", "1.snapshot.json", "1.targets.json", "2.snapshot.json", "2.targets.json", "timestamp.json",
    ]  # fmt: skip


def test_a_timestamp_says_when_it_was_signed(world: World) -> None:
    import json

    world.publish(NOW)
    signed = json.loads((world.folder / "repo/metadata/timestamp.json").read_text())["signed"]
    assert signed[SIGNED_AT] == int(NOW.timestamp())


def test_nothing_was_published_yet_is_said(world: World) -> None:
    with pytest.raises(ConfigError, match="nothing was published here yet"):
        world.at(NOW).refresh(world.keys)
    assert world.at(NOW).offers() == []
    world.at(NOW).resign(world.keys)
