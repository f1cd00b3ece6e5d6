"""`edgekit keys` and `edgekit repo`: what each step prints, writes and refuses, as a user types it."""

from __future__ import annotations

import json
import stat
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from edgekit.cli.main import main
from edgekit.provision import keys
from edgekit.provision.release import Library
from edgekit.provision.repository import Repository
from tests.torture.small import make

pytest.importorskip("cryptography", reason="elsewhere: signing needs cryptography")

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def ring(tmp_path: Path, capsys: Capture) -> Path:
    assert main(["keys", "create", str(tmp_path / "keys")]) == 0
    capsys.readouterr()
    return tmp_path / "keys"


@pytest.fixture
def repo(ring: Path, tmp_path: Path, capsys: Capture) -> Path:
    assert main(["repo", "create", "--repo", str(tmp_path / "repo"), "--keys", str(ring)]) == 0
    capsys.readouterr()
    return tmp_path / "repo"


@pytest.fixture
def library(tmp_path: Path) -> Library:
    found = Library(tmp_path / "library")
    for name, sequence in (("1.0", 10), ("2.0", 20)):
        make(found, name, sequence=sequence)
    return found


def publish(repo: Path, ring: Path, library: Library, release: str, *more: str) -> int:
    words = ["--repo", str(repo), "--keys", str(ring), "--library", str(library.folder)]
    return main(["repo", "publish", release, *words, *more])


def ids(folder: Path) -> dict[str, str]:
    return {role: str(keys.load(folder, role).public_key.keyid) for role in keys.ROLES}


def test_creating_makes_a_private_key_for_each_role_and_says_what_to_keep(tmp_path: Path, capsys: Capture) -> None:
    assert main(["keys", "create", str(tmp_path / "k")]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = ids(tmp_path / "k")
    assert [line.split()[0] for line in lines[:3]] == list(keys.ROLES)
    assert [line.split()[1] for line in lines[:3]] == [found[role] for role in keys.ROLES]
    assert lines[3] == "keep root.pem and targets.pem off line; whoever has them decides what your devices run"
    for role in keys.ROLES:
        assert stat.S_IMODE(keys.path_of(tmp_path / "k", role).stat().st_mode) == 0o600
    assert len(set(found.values())) == 3


def test_creating_as_json_is_the_ids_alone(tmp_path: Path, capsys: Capture) -> None:
    assert main(["keys", "create", str(tmp_path / "k"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == ids(tmp_path / "k")


def test_a_second_creation_writes_over_nothing(ring: Path, capsys: Capture) -> None:
    before = ids(ring)
    assert main(["keys", "create", str(ring)]) == 3
    assert "there is a key already; it is never written over" in capsys.readouterr().err
    assert ids(ring) == before


def test_showing_tells_which_keys_a_repository_trusts(ring: Path, repo: Path, tmp_path: Path, capsys: Capture) -> None:
    assert main(["keys", "show", str(ring), "--repo", str(repo)]) == 0
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == ["trusted"] * 3
    keys.create(tmp_path / "strange")
    assert main(["keys", "show", str(tmp_path / "strange"), "--repo", str(repo)]) == 0
    out = capsys.readouterr().out
    assert out.count("NOT trusted by this repository") == 3
    assert main(["keys", "show", str(ring)]) == 0
    assert "trusted" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.unlink(), "cannot be read: No such file or directory; make keys with: edgekit keys create"),
        (lambda path: path.chmod(0o644), "others can read this key; to mend it: chmod 600"),
        (lambda path: path.write_bytes(b"not a key"), "is not a private key: "),
    ],
)
def test_a_key_that_cannot_be_used_is_one_line_and_exit_3(spoil, words: str, ring: Path, capsys: Capture) -> None:
    spoil(ring / "targets.pem")
    assert main(["keys", "show", str(ring)]) == 3
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1
    assert str(ring / "targets.pem") in err


@pytest.mark.parametrize("role", keys.ROLES)
def test_rotating_replaces_one_key_keeps_the_old_one_and_signs_a_new_root(
    role: str, ring: Path, repo: Path, capsys: Capture
) -> None:
    before = ids(ring)
    assert main(["keys", "rotate", role, str(ring), "--repo", str(repo), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    after = ids(ring)
    assert told == {"role": role, "old": before[role], "new": after[role], "root_version": 2}
    assert {r for r in keys.ROLES if before[r] != after[r]} == {role}
    assert (ring / f"{role}.pem.old").is_file()
    trusted = {keyid for r in Repository(repo).root().roles.values() for keyid in r.keyids}
    assert after[role] in trusted
    assert before[role] not in trusted
    assert not list(ring.glob(".new-*")), "no half-made key is left"


def test_a_dry_run_says_what_would_happen_and_changes_nothing(ring: Path, repo: Path, capsys: Capture) -> None:
    before = ids(ring)
    assert main(["keys", "rotate", "online", str(ring), "--repo", str(repo), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert out == f"would replace the online key {before['online'][:12]} and sign root version 2\n"
    assert ids(ring) == before
    assert Repository(repo).root().version == 1


def test_devices_offers_survive_a_rotation_of_the_targets_key(
    ring: Path, repo: Path, library: Library, capsys: Capture
) -> None:
    assert publish(repo, ring, library, "1.0") == 0
    before = Repository(repo).offers()
    assert main(["keys", "rotate", "targets", str(ring), "--repo", str(repo)]) == 0
    assert "targets: " in capsys.readouterr().out
    assert Repository(repo).offers() == before
    assert publish(repo, ring, library, "2.0") == 0


# Repositories


def test_a_repository_is_made_once(repo: Path, ring: Path, capsys: Capture) -> None:
    assert main(["repo", "create", "--repo", str(repo), "--keys", str(ring)]) == 3
    assert "is a repository already" in capsys.readouterr().err


@pytest.mark.parametrize("step", ["show", "publish", "refresh"])
def test_a_folder_that_is_no_repository_says_how_to_make_one(
    step: str, tmp_path: Path, ring: Path, library: Library, capsys: Capture
) -> None:
    words = {
        "show": [],
        "publish": ["1.0", "--library", str(library.folder), "--keys", str(ring)],
        "refresh": ["--keys", str(ring)],
    }[step]
    assert main(["repo", step, *words, "--repo", str(tmp_path / "none")]) == 3
    assert "is no repository; make one with: edgekit repo create" in capsys.readouterr().err


def test_publishing_offers_a_release_to_each_group(ring: Path, repo: Path, library: Library, capsys: Capture) -> None:
    assert publish(repo, ring, library, "1.0", "--group", "canary", "--group", "hall") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{repo}: root version 1"
    digest = library.load("1.0").digest[:12]
    assert [line.split() for line in lines[1:3]] == [
        [group, "1.0", digest, "sequence", "10"] for group in ("canary", "hall")
    ]
    assert lines[3].startswith("  devices believe it until ")


def test_without_a_group_it_is_the_default_one_and_json_tells_until_when(
    ring: Path, repo: Path, library: Library, capsys: Capture
) -> None:
    assert publish(repo, ring, library, "1.0", "--days", "7", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    (offer,) = told["offers"]
    assert (offer["group"], offer["release"], offer["sequence"]) == ("default", "1.0", 10)
    assert offer["downgrade_allowed"] is False
    until = datetime.fromisoformat(told["valid_until"])
    left = until - datetime.now(timezone.utc)
    assert timedelta(days=6, hours=23) < left <= timedelta(days=7)


def test_an_older_release_is_offered_only_when_the_downgrade_is_asked_for(
    ring: Path, repo: Path, library: Library, capsys: Capture
) -> None:
    assert publish(repo, ring, library, "2.0") == 0
    capsys.readouterr()
    assert publish(repo, ring, library, "1.0") == 5
    err = capsys.readouterr().err
    assert "group default has 2.0, which is newer; --allow-downgrade offers the older one" in err
    assert publish(repo, ring, library, "1.0", "--allow-downgrade") == 0
    assert "downgrade allowed" in capsys.readouterr().out


@pytest.mark.parametrize("group", ["Hall", "a/b", "..", "", "x" * 64])
def test_a_group_has_a_name_that_is_no_path(
    group: str, ring: Path, repo: Path, library: Library, capsys: Capture
) -> None:
    assert publish(repo, ring, library, "1.0", "--group", group) == 5
    assert "is no name of a group: 1 to 63 of a-z" in capsys.readouterr().err
    assert Repository(repo).offers() == []


@pytest.mark.parametrize("days", ["0", "-3"])
def test_metadata_that_would_expire_at_once_is_refused(days: str, ring: Path, repo: Path, capsys: Capture) -> None:
    assert main(["repo", "refresh", "--repo", str(repo), "--keys", str(ring), "--days", days]) == 2
    assert capsys.readouterr().err == "edgekit repo: --days must be 1 or more\n"


def test_refreshing_moves_the_end_and_keeps_the_offers(
    ring: Path, repo: Path, library: Library, capsys: Capture
) -> None:
    assert publish(repo, ring, library, "1.0", "--days", "90", "--json") == 0
    before = json.loads(capsys.readouterr().out)
    assert main(["repo", "refresh", "--repo", str(repo), "--keys", str(ring), "--days", "3", "--json"]) == 0
    after = json.loads(capsys.readouterr().out)
    assert after["offers"] == before["offers"]
    assert after["valid_until"] < before["valid_until"]


def test_refreshing_before_anything_was_published_says_so(ring: Path, repo: Path, capsys: Capture) -> None:
    assert main(["repo", "refresh", "--repo", str(repo), "--keys", str(ring)]) == 3
    assert "nothing was published here yet" in capsys.readouterr().err


def test_an_empty_repository_shows_no_offer_and_no_end(repo: Path, capsys: Capture) -> None:
    assert main(["repo", "show", "--repo", str(repo), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"offers": [], "valid_until": None}
    assert main(["repo", "show", "--repo", str(repo)]) == 0
    assert capsys.readouterr().out == f"{repo}: root version 1\n"


def test_a_strangers_keys_publish_nothing(tmp_path: Path, repo: Path, library: Library, capsys: Capture) -> None:
    keys.create(tmp_path / "strange")
    assert publish(repo, tmp_path / "strange", library, "1.0") == 3
    assert f"is not the targets key of {repo}" in capsys.readouterr().err
    assert Repository(repo).offers() == []


def test_an_unknown_release_names_those_there_are(ring: Path, repo: Path, library: Library, capsys: Capture) -> None:
    assert publish(repo, ring, library, "9.9") == 5
    assert f"no such release in {library.folder}, which holds: 1.0, 2.0" in capsys.readouterr().err
