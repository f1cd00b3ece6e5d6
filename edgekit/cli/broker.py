"""`edgekit broker`: an MQTT broker with passwords and access rules, or one to try out on this machine alone."""

from __future__ import annotations

import argparse
import json
import secrets
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit.cli.numbers import within

if TYPE_CHECKING:
    from edgekit.telemetry.access import User
    from edgekit.telemetry.broker import Broker

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, default=1883, help="default 1883; 0 for any free one")
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (default 127.0.0.1: this machine alone)")
    parser.add_argument("--dir", type=Path, help="settings, passwords and retained messages (default in the home)")
    parser.add_argument(
        "--device",
        action="append",
        default=[],
        metavar="SITE/DEVICE",
        help="a device that may connect; kept for the next start (may be repeated)",
    )
    parser.add_argument("--anonymous", action="store_true", help="no passwords; on this machine alone, to try out")
    parser.add_argument("--kind", choices=("mosquitto", "amqtt"), help="default mosquitto where it is installed")
    parser.add_argument("--json", action="store_true", help="print where it listens as JSON")


def run(args: argparse.Namespace) -> int:
    from edgekit.config import home
    from edgekit.errors import BrokerError, UsageError
    from edgekit.telemetry.broker import INSTALL, find_mosquitto, start_broker

    within(0, 65535, port=args.port)
    folder = args.dir or home().root / "broker"
    has_rules = args.kind != "amqtt" and find_mosquitto() is not None
    if args.anonymous and args.device:
        raise UsageError("--anonymous lets everyone in; leave --device out")
    wants_rules = bool(args.device) or args.host not in LOOPBACK
    users = None if args.anonymous or not (has_rules or wants_rules) else load_users(folder, args.device)
    leave = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: leave.set())
    with start_broker(folder, port=args.port, host=args.host, users=users, kind=args.kind) as broker:
        if not has_rules:
            print(
                f"edgekit broker: amqtt is for trying out: no passwords, this machine only. For more: {INSTALL}",
                file=sys.stderr,
            )
        print(as_json(broker, users, folder) if args.json else as_text(broker, users, folder), flush=True)
        while not leave.wait(0.5):
            if broker.process.poll() is not None:
                raise BrokerError(f"{broker.host}:{broker.port}", f"{broker.kind} ended; see {broker.log}")
    return 0


def load_users(folder: Path, devices: Sequence[str]) -> list[User]:
    """The roles and every device ever named, with passwords that are made once and kept in files of their own."""
    from edgekit.telemetry.access import Role, User

    secrets_folder = folder / "secrets"
    known = {f"{p.parent.name}/{p.name}" for p in secrets_folder.glob("devices/*/*") if not p.name.startswith(".")}
    wanted: list[tuple[str, Role]] = [(role.value, role) for role in Role if role is not Role.DEVICE]
    wanted += [(name, Role.DEVICE) for name in sorted(known.union(devices))]
    users = []
    for name, role in wanted:
        User(name=name, role=role, password="")  # refuses a bad name before it becomes a path
        users.append(User(name=name, role=role, password=_password(secret_path(folder, name, role.value))))
    return users


def secret_path(folder: Path, name: str, role: str) -> Path:
    """Where a user's password is kept."""
    return folder / "secrets" / ("devices" if role == "device" else "") / name


def as_text(broker: Broker, users: Sequence[User] | None, folder: Path) -> str:
    """Where it listens and how to connect."""
    lines = [f"{broker.kind} listens on {broker.host}:{broker.port}"]
    host = broker.host if broker.host != "0.0.0.0" else "THIS_MACHINE"
    options = f"--host {host} --port {broker.port}"
    if users is None:
        lines += ["anyone on this machine may connect", "", "a device's edgekit.toml:"]
        lines += ["    [mqtt]", f'    host = "{host}"', f"    port = {broker.port}"]
    else:
        for user in users:
            path = secret_path(folder, user.name, user.role.value)
            lines.append(f"    {user.role.value:10} {user.name:32} password in {path}")
        lines += ["", "a device's edgekit.toml, with its password file copied there:"]
        lines += ["    [mqtt]", f'    host = "{host}"', f"    port = {broker.port}"]
        lines += ['    username = "SITE/DEVICE"', '    password_file = "/etc/edgekit/mqtt-password"']
        options += f" --username reader --password-file {secret_path(folder, 'reader', 'reader')}"
        if not any(user.role.value == "device" for user in users):
            lines += ["", "no device may connect yet: start with --device SITE/DEVICE for each"]
    lines += ["", "to watch:", f"    edgekit fleet {options}", f"    edgekit-console {options}"]
    return "\n".join(lines)


def as_json(broker: Broker, users: Sequence[User] | None, folder: Path) -> str:
    """The same for programs; `users` is null when everyone may connect."""

    def listed(user: User) -> dict[str, str]:
        path = secret_path(folder, user.name, user.role.value)
        return {"name": user.name, "role": user.role.value, "password_file": str(path)}

    known = None if users is None else [listed(user) for user in users]
    return json.dumps({"kind": broker.kind, "host": broker.host, "port": broker.port, "users": known})


def _password(path: Path) -> str:
    from edgekit.files import write_atomic

    if not path.exists():
        write_atomic(path, f"{secrets.token_hex(20)}\n".encode(), mode=0o600)
    return path.read_text().strip()
