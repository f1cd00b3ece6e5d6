"""Who may read and write what at a broker; mosquitto's password file and access rules. Pure but for the salt.

A device's user name is "<site>/<device>", so that one rule serves them all: it writes its own subtree and reads only
what is meant for it. Role names hold no slash, so a role never matches a device's rule. For RabbitMQ the same rights
are written down by `access_rabbitmq`.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from edgekit.errors import UsageError
from edgekit.telemetry.messages import EVERYONE, ROOT

_ITERATIONS = 101
"""mosquitto's own default. Generated passwords have 160 random bits; stretching them would only slow reconnects."""

_DEVICE = re.compile(r"[a-z0-9_-]{1,63}/[a-z0-9_-]{1,63}")
_ROLE_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,63}")

DEVICE_WRITES = ("status", "birth", "metrics", "event", "reply", "reported", "summary")
DEVICE_READS = ("command", "desired", "ack", "status")
DISCOVERY = "homeassistant/device"
"""Below it a device may describe itself to Home Assistant, as SITE/DEVICE/config."""


class Role(str, Enum):
    """What a user of the broker is. Each may do as little as its work needs."""

    DEVICE = "device"
    READER = "reader"
    "Reads everything; may ask devices to introduce themselves again."
    OPERATOR = "operator"
    "A reader that may also send commands."
    COLLECTOR = "collector"
    "Reads what devices say and acknowledges windows; it runs unattended, so it can neither command nor pretend."
    STEWARD = "steward"
    "A reader that may also clear what is retained of a device, and so forget it."


ROLE_READS: Mapping[Role, Sequence[str]] = {
    Role.READER: ("#",),
    Role.OPERATOR: ("#",),
    Role.COLLECTOR: ("+/+/metrics", "+/+/status", "+/+/birth", "+/+/event", "+/+/reply"),
    Role.STEWARD: ("#",),
}
"""Topic filters below the root."""
ROLE_WRITES: Mapping[Role, Sequence[str]] = {
    Role.READER: (),
    Role.OPERATOR: ("+/+/command", "+/+/desired"),
    Role.COLLECTOR: ("+/+/ack",),
    Role.STEWARD: ("+/+/status", "+/+/birth"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """One user of the broker."""

    name: str
    role: Role
    password: str

    def __post_init__(self) -> None:
        wanted = _DEVICE if self.role is Role.DEVICE else _ROLE_NAME
        if not wanted.fullmatch(self.name):
            form = "SITE/DEVICE of a-z, 0-9, '_' and '-'" if self.role is Role.DEVICE else "letters, digits, '_.-'"
            raise UsageError(f"'{self.name}' cannot be a {self.role.value}'s name; it must be {form}")
        if self.role is Role.DEVICE and EVERYONE in self.name.split("/"):
            raise UsageError(f"'{self.name}': '{EVERYONE}' stands for everyone and is no name")

    def __repr__(self) -> str:
        return f"User(name={self.name!r}, role={self.role.value!r})"


def password_file(users: Iterable[User]) -> str:
    """The users in mosquitto's password format: PBKDF2 with SHA-512 and a salt each. Source: mosquitto_passwd(1)."""
    return "".join(f"{user.name}:{_hashed(user.password)}\n" for user in users)


def access_rules(users: Iterable[User]) -> str:
    """The access rules in mosquitto's format. Source: mosquitto.conf(5), acl_file."""
    lines = [f"pattern write {ROOT}/%u/{leaf}" for leaf in DEVICE_WRITES]
    lines += [f"pattern write {DISCOVERY}/%u/config"]
    lines += [f"pattern read {ROOT}/%u/{leaf}" for leaf in DEVICE_READS]
    lines += [f"pattern read {ROOT}/+/{EVERYONE}/rebirth"]
    for user in users:
        if user.role is Role.DEVICE:
            continue
        lines += ["", f"user {user.name}"]
        lines += [f"topic read {ROOT}/{filter_}" for filter_ in ROLE_READS[user.role]]
        lines += [f"topic write {ROOT}/{filter_}" for filter_ in (*ROLE_WRITES[user.role], f"+/{EVERYONE}/rebirth")]
    return "\n".join(lines) + "\n"


def _hashed(password: str) -> str:
    salt = os.urandom(12)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, _ITERATIONS)
    return f"$7${_ITERATIONS}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"
