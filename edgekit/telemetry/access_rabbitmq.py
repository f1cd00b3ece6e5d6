"""The same users and rights for RabbitMQ and its MQTT plugin, as definitions that a cluster imports. Pure but for salt.

RabbitMQ turns topics into routing keys (a slash becomes a dot) and a subscription into a queue named after the client
id, so rights are regular expressions over both, spelled out for each device: its own patterns know no user name with a
slash. Source: rabbitmq.com, "Authentication, Authorisation, Access Control", topic authorisation; `rabbitmqctl
import_definitions`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

from edgekit.telemetry.access import DEVICE_READS, DEVICE_WRITES, DISCOVERY, ROLE_READS, ROLE_WRITES, Role, User
from edgekit.telemetry.messages import EVERYONE, ROOT

_EXCHANGE = "amq.topic"
_ANY_LEVEL = r"[^.#]+"
"""One level, also where a filter has a wildcard for one."""


def rabbitmq_definitions(users: Iterable[User], *, vhost: str = "/") -> str:
    """The definitions as JSON text: users with hashed passwords, what each may do, and on which topics."""
    found = list(users)
    definitions: dict[str, list[dict[str, Any]]] = {
        "vhosts": [{"name": vhost}],
        "users": [_user(user) for user in found],
        "permissions": [{"user": user.name, "vhost": vhost, **_resources(user)} for user in found],
        "topic_permissions": [
            {"user": user.name, "vhost": vhost, "exchange": _EXCHANGE, **_topics(user)} for user in found
        ],
    }
    return json.dumps(definitions, indent=2) + "\n"


def _user(user: User) -> dict[str, Any]:
    salt = os.urandom(4)
    digest = base64.b64encode(salt + hashlib.sha256(salt + user.password.encode()).digest()).decode()
    hashing = "rabbit_password_hashing_sha256"
    return {"name": user.name, "password_hash": digest, "hashing_algorithm": hashing, "tags": []}


def _resources(user: User) -> dict[str, str]:
    """Its own queues, and the exchange of all MQTT messages."""
    ids = {Role.DEVICE: re.escape(user.name), Role.COLLECTOR: "edgekit-collector-[0-9a-f]+"}
    queue = f"mqtt-subscription-{ids.get(user.role, 'edgekit-reader-[0-9a-f]+')}qos[01]"
    either = f"^({re.escape(_EXCHANGE)}|{queue})$"
    return {"configure": f"^{queue}$", "write": either, "read": either}


def _topics(user: User) -> dict[str, str]:
    if user.role is not Role.DEVICE:
        writes = (*ROLE_WRITES[user.role], f"+/{EVERYONE}/rebirth")
        return {"write": _pattern(f"{ROOT}/{f}" for f in writes), "read": _pattern(_under_root(ROLE_READS[user.role]))}
    site, _, _ = user.name.partition("/")
    writes = (*(f"{ROOT}/{user.name}/{leaf}" for leaf in DEVICE_WRITES), f"{DISCOVERY}/{user.name}/config")
    reads = [f"{ROOT}/{user.name}/{leaf}" for leaf in DEVICE_READS]
    reads += [f"{ROOT}/{of}/{EVERYONE}/rebirth" for of in (site, EVERYONE)]
    return {"write": _pattern(writes), "read": _pattern(reads)}


def _under_root(filters: Sequence[str]) -> list[str]:
    return [f"{ROOT}/{filter_}" for filter_ in filters]


def _pattern(filters: Iterable[str]) -> str:
    """Matches the routing keys that topic filters stand for."""
    return f"^({'|'.join(_key(filter_) for filter_ in filters)})$"


def _key(filter_: str) -> str:
    levels = {"+": _ANY_LEVEL, "#": ".+"}
    return r"\.".join(levels.get(level) or re.escape(level) for level in filter_.split("/"))
