"""`edgekit broker`: an MQTT broker with passwords, access rules and TLS, or one to try out on this machine alone."""

from __future__ import annotations

import argparse
import contextlib
import json
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit.cli.mqtt_options import PORT, TLS_PORT
from edgekit.cli.numbers import within
from edgekit.errors import BrokerError, UsageError

if TYPE_CHECKING:
    from edgekit.telemetry.access import User
    from edgekit.telemetry.broker import Broker, Tls

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, help=f"default {PORT}, with TLS {TLS_PORT}; 0 for any free one")
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
    parser.add_argument("--tls", action="store_true", help="encrypt, with an authority of its own kept in its folder")
    parser.add_argument(
        "--client-certificates", action="store_true", help="clients must bring a certificate too (implies --tls)"
    )
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="HOST",
        help="a name or address by which clients reach it, for its certificate (may be repeated)",
    )
    parser.add_argument(
        "--rabbitmq", action="store_true", help="start nothing: print users and rights as RabbitMQ's definitions"
    )
    parser.add_argument("--json", action="store_true", help="print where it listens as JSON")


def run(args: argparse.Namespace) -> int:
    from edgekit.config import home
    from edgekit.telemetry.broker import INSTALL, find_mosquitto, start_broker

    within(0, 65535, port=args.port)
    folder: Path = args.dir or home().root / "broker"
    encrypts = args.tls or args.client_certificates
    if args.name and not encrypts:
        raise UsageError("--name is for the certificate; give --tls too")
    if args.anonymous and (args.device or args.client_certificates):
        raise UsageError("--anonymous lets everyone in; leave --device and --client-certificates out")
    if args.rabbitmq:
        return _print_definitions(args, folder)
    has_rules = args.kind != "amqtt" and find_mosquitto() is not None
    wants_rules = bool(args.device) or args.host not in LOOPBACK
    users = None if args.anonymous or not (has_rules or wants_rules) else load_users(folder, args.device)
    tls = _tls(folder, args, users) if encrypts else None
    port = args.port if args.port is not None else TLS_PORT if tls else PORT
    leave, again = threading.Event(), threading.Event()
    with (
        _signals({"SIGTERM": leave.set, "SIGINT": leave.set, "SIGHUP": again.set}),
        start_broker(folder, port=port, host=args.host, users=users, kind=args.kind, tls=tls) as broker,
    ):
        if not has_rules:
            print(
                f"edgekit broker: amqtt is for trying out: no passwords, this machine only. For more: {INSTALL}",
                file=sys.stderr,
            )
        show = as_json if args.json else as_text
        print(show(broker, users, folder, tls), flush=True)
        while not leave.wait(0.2):
            if broker.process.poll() is not None:
                raise BrokerError(f"{broker.host}:{broker.port}", f"{broker.kind} ended; see {broker.log}")
            if again.is_set() and users is not None:
                again.clear()
                users = load_users(folder, args.device)
                if encrypts:
                    _tls(folder, args, users)
                broker.reload(users)
                print("edgekit broker: users and certificates read anew", file=sys.stderr, flush=True)
    return 0


@contextlib.contextmanager
def _signals(acts: Mapping[str, Callable[[], None]]) -> Iterator[None]:
    """Handles signals by name, where this system has them, and gives them back at the end."""
    numbers = {getattr(signal, name): act for name, act in acts.items() if hasattr(signal, name)}
    before = {number: signal.signal(number, lambda *_, act=act: act()) for number, act in numbers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print_definitions(args: argparse.Namespace, folder: Path) -> int:
    from edgekit.telemetry.access_rabbitmq import rabbitmq_definitions

    print(rabbitmq_definitions(load_users(folder, args.device)), end="")
    return 0


def _tls(folder: Path, args: argparse.Namespace, users: Sequence[User] | None) -> Tls:
    """The certificates: the broker's made anew for every start, the clients' made once."""
    from edgekit.telemetry.broker import Tls
    from edgekit.telemetry.certificates import Authority

    authority = Authority(folder / "certificates")
    own = [args.host] if args.host not in ("0.0.0.0", "::") else []
    authority.server(folder / "certificates/broker.pem", [*args.name, *own, socket.gethostname(), *LOOPBACK])
    if args.client_certificates:
        for user in users or ():
            authority.client(certificate_path(folder, user.name, user.role.value), user.name)
    return Tls(
        certificate=folder / "certificates/broker.pem",
        authority=authority.certificate,
        clients_too=args.client_certificates,
    )


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


def certificate_path(folder: Path, name: str, role: str) -> Path:
    """Where a user's key and certificate are kept, in one file."""
    return folder / "certificates" / ("devices" if role == "device" else "") / f"{name}.pem"


def as_text(broker: Broker, users: Sequence[User] | None, folder: Path, tls: Tls | None = None) -> str:
    """Where it listens and how to connect."""
    lines = [f"{broker.kind} listens on {broker.host}:{broker.port}" + (" with TLS" if tls else "")]
    host = broker.host if broker.host != "0.0.0.0" else "THIS_MACHINE"
    options = f"--host {host} --port {broker.port}"
    settings = ["    [mqtt]", f'    host = "{host}"', f"    port = {broker.port}"]
    if tls is not None:
        settings += ["    tls = true", '    ca_file = "/etc/edgekit/authority.pem"']
        options += f" --ca-file {tls.authority}"
    if tls is not None and tls.clients_too:
        settings += [f'    {key} = "/etc/edgekit/device.pem"' for key in ("certificate_file", "key_file")]
        pem = certificate_path(folder, "reader", "reader")
        options += f" --certificate-file {pem} --key-file {pem}"
    if users is None:
        lines += ["anyone on this machine may connect", "", "a device's edgekit.toml:", *settings]
    else:
        for user in users:
            path = secret_path(folder, user.name, user.role.value)
            lines.append(f"    {user.role.value:10} {user.name:32} password in {path}")
            if tls is not None and tls.clients_too:
                lines.append(f"    {'':43} certificate in {certificate_path(folder, user.name, user.role.value)}")
        files = "its password file" + (" and certificates" if tls else "")
        lines += ["", f"a device's edgekit.toml, with {files} copied there:", *settings]
        lines += ['    username = "SITE/DEVICE"', '    password_file = "/etc/edgekit/mqtt-password"']
        options += f" --username reader --password-file {secret_path(folder, 'reader', 'reader')}"
        if not any(user.role.value == "device" for user in users):
            lines += ["", "no device may connect yet: start with --device SITE/DEVICE for each"]
    if tls is not None:
        lines += ["", f"clients trust {tls.authority}: copy it to them"]
    lines += ["", "to watch:", f"    edgekit fleet {options}", f"    edgekit-console {options}"]
    return "\n".join(lines)


def as_json(broker: Broker, users: Sequence[User] | None, folder: Path, tls: Tls | None = None) -> str:
    """The same for programs; `users` is null when everyone may connect, `ca_file` without TLS."""

    def listed(user: User) -> dict[str, str]:
        role = user.role.value
        found = {"name": user.name, "role": role, "password_file": str(secret_path(folder, user.name, role))}
        if tls is not None and tls.clients_too:
            found["certificate_file"] = str(certificate_path(folder, user.name, role))
        return found

    known = None if users is None else [listed(user) for user in users]
    where = {"kind": broker.kind, "host": broker.host, "port": broker.port}
    return json.dumps(where | {"ca_file": str(tls.authority) if tls else None, "users": known})


def _password(path: Path) -> str:
    from edgekit.files import write_atomic

    if not path.exists():
        write_atomic(path, f"{secrets.token_hex(20)}\n".encode(), mode=0o600)
    return path.read_text().strip()
