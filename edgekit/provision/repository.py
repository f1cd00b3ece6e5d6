"""A repository of releases as static files: The Update Framework's metadata, manifests, and content by hash.

One target a group, `group/NAME.json`: the manifest of the release that the group is to have. Who gets what, and
whether a downgrade is allowed, is signed there. Source: theupdateframework.github.io/specification/latest
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from tuf.api.metadata import Metadata, MetaFile, Root, Snapshot, TargetFile, Targets, Timestamp

from edgekit.errors import ConfigError, ReleaseError
from edgekit.files import write_atomic
from edgekit.provision import keys
from edgekit.provision.release import Library, Stored

GROUP = re.compile(r"^[a-z0-9_-]{1,63}$")
ROOT_DAYS = 365
DEFAULT_DAYS = 90
"""Of targets, snapshot and timestamp. A stick that is not renewed in time is refused, so the operator may set it."""
SIGNED_AT = "x-edgekit-signed-unix-s"
"""When the timestamp was signed: the floor of the clock on boards that have none."""
_SIGNERS = {"root": "root", "targets": "targets", "snapshot": "online", "timestamp": "online"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a group is to have, as signed. `digest` is the manifest's, which `Stored.digest` is too."""

    group: str
    release: str
    digest: str
    sequence: int
    downgrade_allowed: bool
    size_bytes: int
    "Of the manifest."


class Repository:
    """A folder that any web server can serve, and that may as well be a USB stick."""

    def __init__(self, folder: Path, *, now: datetime | None = None) -> None:
        self.folder = folder
        self._now = now or datetime.now(timezone.utc)

    @property
    def metadata(self) -> Path:
        return self.folder / "metadata"

    def create(self, keys_folder: Path) -> None:
        """Version 1 of the root. Raises ConfigError when there is one."""
        if (self.metadata / "1.root.json").exists():
            raise ConfigError(self.metadata, None, "is a repository already")
        root = Root(version=1, expires=self._expires(ROOT_DAYS), consistent_snapshot=True)
        for role, key in _SIGNERS.items():
            root.add_key(keys.load(keys_folder, key).public_key, role)
        self._sign_root(root, [keys_folder])

    def rotate(self, keys_folder: Path, role: str, new_folder: Path) -> int:
        """Replace the key of `role` by the one in `new_folder`; the new root is signed by both. Returns its version."""
        root = self.root()
        new = keys.load(new_folder, role).public_key
        for name, key in _SIGNERS.items():
            if key == role:
                for keyid in list(root.roles[name].keyids):
                    root.revoke_key(keyid, name)
                root.add_key(new, name)
        root.version += 1
        root.expires = self._expires(ROOT_DAYS)
        self._sign_root(root, [keys_folder, new_folder] if role == "root" else [keys_folder])
        return root.version

    def publish(
        self,
        library: Library,
        stored: Stored,
        keys_folder: Path,
        *,
        groups: Sequence[str] = ("default",),
        downgrade_allowed: bool = False,
        days: int = DEFAULT_DAYS,
    ) -> None:
        """Offer a release to groups. What a device reads last is written last: content, manifest, metadata, timestamp.

        Raises ReleaseError for a group's name that is none, or a downgrade that is not allowed; ConfigError.
        """
        targets = self._targets()
        for file in stored.release.files:
            blob = self.folder / "blobs" / file.sha256
            if not blob.exists():
                write_atomic(blob, library.blob(file.sha256).read_bytes())
        for group in groups:
            before = next((offer for offer in self.offers() if offer.group == group), None)
            self._check(stored, group, before, downgrade_allowed=downgrade_allowed)
            path = f"group/{group}.json"
            custom = {
                "group": group,
                "release": stored.release.name,
                "sequence": stored.release.sequence,
                "downgrade_allowed": downgrade_allowed,
            }
            target = TargetFile.from_data(path, stored.raw, ["sha256"])
            target.unrecognized_fields["custom"] = custom
            targets.targets[path] = target
            write_atomic(self.folder / "targets" / "group" / f"{stored.digest}.{group}.json", stored.raw)
        targets.version = self._latest("targets") + 1
        self.refresh(keys_folder, targets=targets, days=days)

    def _check(self, stored: Stored, group: str, before: Offer | None, *, downgrade_allowed: bool) -> None:
        name = stored.release.name
        if not GROUP.match(group):
            raise ReleaseError(name, f"'{group}' is no name of a group: 1 to 63 of a-z, 0-9, '_' and '-'")
        if before and before.sequence > stored.release.sequence and not downgrade_allowed:
            problem = f"group {group} has {before.release}, which is newer; --allow-downgrade offers the older one"
            raise ReleaseError(name, problem)

    def refresh(self, keys_folder: Path, *, targets: Targets | None = None, days: int = DEFAULT_DAYS) -> None:
        """Sign targets (when given), snapshot and timestamp anew, so that they hold for `days` more.

        Raises ConfigError when nothing was ever published, or for a key that is not the repository's.
        """
        self._check_keys(keys_folder, ("online",) if targets is None else ("targets", "online"))
        if targets is not None:
            targets.expires = self._expires(days)
            self._sign(Metadata(targets), "targets", keys_folder, f"{targets.version}.targets.json")
        elif self._latest("targets") == 0:
            raise ConfigError(self.folder, None, "nothing was published here yet")
        current = targets or self._targets()
        snapshot = Snapshot(version=self._latest("snapshot") + 1, expires=self._expires(days))
        snapshot.meta["targets.json"] = MetaFile(version=current.version)
        self._sign(Metadata(snapshot), "snapshot", keys_folder, f"{snapshot.version}.snapshot.json")
        path = self.metadata / "timestamp.json"
        before = Metadata[Timestamp].from_file(str(path)).signed.version if path.exists() else 0
        timestamp = Timestamp(
            version=before + 1,
            expires=self._expires(days),
            snapshot_meta=MetaFile(version=snapshot.version),
            unrecognized_fields={SIGNED_AT: int(self._now.timestamp())},
        )
        self._sign(Metadata(timestamp), "timestamp", keys_folder, "timestamp.json")

    def resign(self, keys_folder: Path, *, days: int = DEFAULT_DAYS) -> None:
        """Sign everything below the root anew, as after a change of keys."""
        if self._latest("targets"):
            targets = self._targets()
            targets.version += 1
            self.refresh(keys_folder, targets=targets, days=days)

    def valid_until(self) -> datetime | None:
        """When devices stop believing it; None before anything was published."""
        if not self._latest("targets"):
            return None
        timestamp = Metadata[Timestamp].from_file(str(self.metadata / "timestamp.json")).signed
        return min(timestamp.expires, self._targets().expires, self.root().expires)

    def offers(self) -> list[Offer]:
        """What each group is to have."""
        found = []
        for target in self._targets().targets.values() if self._latest("targets") else ():
            found.append(offer_of(target))
        return sorted(found, key=lambda offer: offer.group)

    def root(self) -> Root:
        """The newest root. Raises ConfigError when there is none."""
        version = self._latest("root")
        if version == 0:
            problem = "is no repository; make one with: edgekit repo create"
            raise ConfigError(self.folder, None, problem)
        return Metadata[Root].from_file(str(self.metadata / f"{version}.root.json")).signed

    def root_bytes(self) -> bytes:
        """The newest root, as a device gets it when it is provisioned: over ssh, never on first use."""
        self.root()
        return (self.metadata / f"{self._latest('root')}.root.json").read_bytes()

    def _targets(self) -> Targets:
        version = self._latest("targets")
        if version == 0:
            return Targets(version=1)
        return Metadata[Targets].from_file(str(self.metadata / f"{version}.targets.json")).signed

    def _latest(self, role: str) -> int:
        names = (path.name.split(".")[0] for path in self.metadata.glob(f"*.{role}.json"))
        return max((int(name) for name in names if name.isdigit()), default=0)

    def _expires(self, days: int) -> datetime:
        return (self._now + timedelta(days=days)).replace(microsecond=0)

    def _check_keys(self, folder: Path, wanted: Sequence[str]) -> None:
        root = self.root()
        for role, key in _SIGNERS.items():
            if key in wanted and keys.load(folder, key).public_key.keyid not in root.roles[role].keyids:
                raise ConfigError(keys.path_of(folder, key), None, f"is not the {role} key of {self.folder}")

    def _sign_root(self, root: Root, folders: Sequence[Path]) -> None:
        metadata = Metadata(root)
        for folder in folders:
            metadata.sign(keys.load(folder, "root"), append=True)
        write_atomic(self.metadata / f"{root.version}.root.json", metadata.to_bytes())

    def _sign(
        self, metadata: Metadata[Targets] | Metadata[Snapshot] | Metadata[Timestamp], role: str, folder: Path, name: str
    ) -> None:
        metadata.sign(keys.load(folder, _SIGNERS[role]))
        write_atomic(self.metadata / name, metadata.to_bytes())


def offer_of(target: TargetFile) -> Offer:
    """A target's signed custom data. Raises ReleaseError when it does not tell all that decides."""
    custom = target.unrecognized_fields.get("custom")
    try:
        assert isinstance(custom, dict)
        return Offer(
            group=str(custom["group"]),
            release=str(custom["release"]),
            digest=target.hashes["sha256"],
            sequence=int(custom["sequence"]),
            downgrade_allowed=custom["downgrade_allowed"] is True,
            size_bytes=target.length,
        )
    except (AssertionError, KeyError, ValueError) as e:
        raise ReleaseError(target.path, f"its signed custom data does not hold: {e!r}") from e
