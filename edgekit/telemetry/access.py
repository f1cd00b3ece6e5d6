"""Who may read and write what at a mosquitto broker: password file and access rules. Pure but for the salt.

A device's user name is "<site>/<device>", so that one rule serves them all: it writes its own subtree and reads only
what is meant for it. Role names hold no slash, so a role never matches a device's rule.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from edgekit.errors import UsageError
from edgekit.telemetry.messages import EVERYONE, ROOT

_ITERATIONS = 101
"""mosquitto's own default. Generated passwords have 160 random bits; stretching them would only slow reconnects."""

_DEVICE = re.compile(r"[a-z0-9_-]{1,63}/[a-z0-9_-]{1,63}")
_ROLE_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,63}")

_DEVICE_WRITES = ("status", "birth", "metrics", "event", "reply", "reported")
_DEVICE_READS = ("command", "desired", "ack", "status")


class Role(str, Enum):
    """What a user of the broker is."""

    DEVICE = "device"
    READER = "reader"
    "Reads everything; may ask devices to introduce themselves again."
    OPERATOR = "operator"
    "A reader that may also send commands."
    COLLECTOR = "collector"
    "A reader that may also acknowledge windows, and forget devices."


_ROLE_WRITES = {
    Role.READER: (),
    Role.OPERATOR: ("+/+/command", "+/+/desired"),
    Role.COLLECTOR: ("+/+/ack", "+/+/status", "+/+/birth"),  # to forget a device is to clear the last two
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
    lines = [f"pattern write {ROOT}/%u/{leaf}" for leaf in _DEVICE_WRITES]
    lines += [f"pattern read {ROOT}/%u/{leaf}" for leaf in _DEVICE_READS]
    lines += [f"pattern read {ROOT}/+/{EVERYONE}/rebirth"]
    for user in users:
        if user.role is Role.DEVICE:
            continue
        lines += ["", f"user {user.name}", f"topic read {ROOT}/#", f"topic write {ROOT}/+/{EVERYONE}/rebirth"]
        lines += [f"topic write {ROOT}/{filter_}" for filter_ in _ROLE_WRITES[user.role]]
    return "\n".join(lines) + "\n"


def _hashed(password: str) -> str:
    salt = os.urandom(12)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, _ITERATIONS)
    return f"$7${_ITERATIONS}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"
