"""The operator's signing keys: made, kept as files that only their owner reads, and loaded to sign."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit.errors import ConfigError, RuntimeUnavailable
from edgekit.files import sync_folder

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner

ROLES = ("root", "targets", "online")
"""`root` and `targets` belong on a stick in a drawer; `online` signs snapshot and timestamp, again and again."""


def create(folder: Path) -> dict[str, str]:
    """A new Ed25519 key for each role. Returns role -> key id. Raises ConfigError when one exists already."""
    for role in ROLES:
        if path_of(folder, role).exists():
            raise ConfigError(path_of(folder, role), None, "there is a key already; it is never written over")
    return {role: create_one(folder, role) for role in ROLES}


def create_one(folder: Path, role: str) -> str:
    """A new key for one role, written so that only its owner can read it. Returns the key id."""
    signer = _crypto().generate_ed25519()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(path_of(folder, role), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(signer.private_bytes)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(folder)
    return str(signer.public_key.keyid)


def load(folder: Path, role: str) -> CryptoSigner:
    """Raises ConfigError: no such key, readable by others, or not a key."""
    path = path_of(folder, role)
    try:
        if os.name == "posix" and path.stat().st_mode & 0o077:
            raise ConfigError(path, None, f"others can read this key; to mend it: chmod 600 {path}")
        data = path.read_bytes()
    except OSError as e:
        mend = f"; make keys with: edgekit keys create {folder}" if isinstance(e, FileNotFoundError) else ""
        raise ConfigError(path, None, f"cannot be read: {e.strerror}{mend}") from e
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    signer = _crypto()
    try:
        return signer(load_pem_private_key(data, None))
    except (ValueError, TypeError) as e:
        raise ConfigError(path, None, f"is not a private key: {e}") from e


def replace(folder: Path, role: str, new_folder: Path) -> None:
    """Put a role's new key in the place of the old, which is kept beside it as ROLE.pem.old."""
    os.replace(path_of(folder, role), path_of(folder, role).with_suffix(".pem.old"))
    os.replace(path_of(new_folder, role), path_of(folder, role))
    sync_folder(folder)


def path_of(folder: Path, role: str) -> Path:
    return folder / f"{role}.pem"


def _crypto() -> type[CryptoSigner]:
    try:
        import cryptography  # noqa: F401 - securesystemslib would only fail later, and less clearly
        from securesystemslib.signer import CryptoSigner
    except ModuleNotFoundError as e:
        raise RuntimeUnavailable("signing", f"{e.name} is missing", "pip install 'tuf' 'cryptography'") from e
    return CryptoSigner
