"""What an operator gives one device and no other: its name, its broker, its password. It lies in ROOT/shared.

The password is never a word of a command: it goes from file to file, over ssh through stdin.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgekit.config import NAME_PATTERN, DaemonConfig
from edgekit.errors import ConfigError, UsageError
from edgekit.files import write_atomic
from edgekit.own import OWN
from edgekit.strict import read_toml

PASSWORD, AUTHORITY = "mqtt-password", "mqtt-ca.pem"
FILES = (OWN, PASSWORD, AUTHORITY)
"""All that a device may be given, by its name in ROOT/shared."""
Own = Mapping[str, bytes]
"""File name -> content."""
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """Where the device reports to."""

    host: str
    port: int = 1883
    authority: bytes | None = None
    "PEM of the certificate authority that signed the broker's certificate: turns TLS on."


def broker_at(text: str, *, authority: bytes | None = None) -> Broker:
    """From HOST or HOST:PORT; 8883 is the default port with an authority, else 1883. Raises UsageError."""
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        host, port = text, ""
    number = (8883 if authority else 1883) if not port else int(port) if port.isdecimal() else 0
    host = host.removeprefix("[").removesuffix("]")
    if not host or not 1 <= number <= 65535 or re.search(r"[\s/@]", host):
        raise UsageError(f"'{text}' is no broker; give HOST or HOST:PORT")
    return Broker(host=host, port=number, authority=authority)


def own_files(
    root: str, *, site: str | None, device: str | None, broker: Broker | None = None, password: bytes | None = None
) -> dict[str, bytes]:
    """The files for a device whose folder is `root`. Raises UsageError for what no daemon could use."""
    for key, name in (("--site", site), ("--device", device)):
        if name is not None and not re.fullmatch(NAME_PATTERN, name):
            raise UsageError(f"{key} {name!r} must be 1 to 63 of a-z, 0-9, '_' and '-'")
    if password is not None and broker is None:
        raise UsageError("a broker's password is of no use without --broker")
    if password is not None and (device is None or site is None):
        raise UsageError("a device signs in as SITE/DEVICE: say both, --site and --device")
    lines = [f"{key} = {json.dumps(name)}" for key, name in (("site", site), ("device", device)) if name is not None]
    files = {}
    if broker is not None:
        lines += ["", "[mqtt]", f"host = {json.dumps(broker.host)}", f"port = {broker.port}"]
        if password is not None:
            lines.append(f'username = "{site}/{device}"')
            lines.append(f"password_file = {json.dumps(f'{root}/shared/{PASSWORD}')}")
            files[PASSWORD] = password.strip() + b"\n"
        if broker.authority is not None:
            lines += ["tls = true", f"ca_file = {json.dumps(f'{root}/shared/{AUTHORITY}')}"]
            files[AUTHORITY] = broker.authority
    return {OWN: ("\n".join(lines) + "\n").encode(), **files} if lines else {}


def read_own(path: Path) -> dict[str, bytes]:
    """From one device.toml, or a folder that holds such files. Raises ConfigError for what no daemon would read."""
    names = [name for name in FILES if (path / name).is_file()] if path.is_dir() else [OWN]
    files = {name: path / name if path.is_dir() else path for name in names}
    if OWN not in files:
        raise ConfigError(path, OWN, "is missing from this folder; it says what is the device's own")
    found = {}
    for name, file in files.items():
        try:
            found[name] = file.read_bytes()
        except OSError as e:
            raise ConfigError(file, None, f"cannot be read: {e.strerror}") from e
        if len(found[name]) > _MAX_BYTES:
            raise ConfigError(file, None, f"has {len(found[name])} bytes; that is no such file")
    read_toml(files[OWN], DaemonConfig)
    return found


def write_own(root: Path, own: Own) -> bool:
    """Put the files into ROOT/shared, the password before what names it. True when anything was not so already."""
    changed = False
    for name in sorted(own, key=lambda name: name == OWN):
        path = root / "shared" / name
        mode = 0o600 if name == PASSWORD else 0o640
        if not path.exists() or path.read_bytes() != own[name]:
            write_atomic(path, own[name], mode=mode)
            changed = True
    return changed


def is_so(root: Path, own: Own) -> bool:
    """Whether the device was given exactly this before."""
    paths = {root / "shared" / name: content for name, content in own.items()}
    return all(path.exists() and path.read_bytes() == content for path, content in paths.items())
