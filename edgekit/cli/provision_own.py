"""What `edgekit provision` gives one device alone: its name, its broker, and a password that is made for it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgekit.provision.enrol import Own

DEFAULT_SITE = "default"


def own_of(args: argparse.Namespace, root: str, find_device: Callable[[], str | None]) -> Own:
    """The files for the device whose folder is `root`. `find_device` says its hardware's name, if it has one.

    Raises UsageError for flags that do not go together, ConfigError for a file that no daemon would read.
    """
    from edgekit.errors import UsageError
    from edgekit.provision import enrol

    flags = ("site", "device", "broker", "broker_ca", "broker_dir", "mqtt_password_file")
    given = [f"--{name.replace('_', '-')}" for name in flags if getattr(args, name) is not None]
    if args.own is not None:
        if given:
            raise UsageError(f"--own says it all; leave {', '.join(given)} out")
        return enrol.read_own(args.own)
    if not given:
        return {}
    broker = None
    if args.broker is not None:
        authority = _read(args.broker_ca) if args.broker_ca else None
        broker = enrol.broker_at(args.broker, authority=authority)
    elif lost := [flag for flag in given if flag not in ("--site", "--device")]:
        raise UsageError(f"{', '.join(lost)} needs --broker HOST")
    site, device = args.site, args.device
    password = _read(args.mqtt_password_file) if args.mqtt_password_file else None
    if args.broker_dir is not None or password is not None:
        site, device = site or DEFAULT_SITE, device or find_device()
        if device is None:
            raise UsageError("this device has no name of its own that could be read; give it one with --device ID")
        if args.broker_dir is not None:
            password = _issue(args, f"{site}/{device}")
    return enrol.own_files(root, site=site, device=device, broker=broker, password=password)


def _issue(args: argparse.Namespace, name: str) -> bytes:
    """The password of the broker's user `name`, made now unless it has one."""
    from edgekit.cli.broker import load_users, secret_path
    from edgekit.errors import UsageError

    if not args.broker_dir.is_dir():
        raise UsageError(f"--broker-dir {args.broker_dir} is no folder; it is that of: edgekit broker --dir")
    path = secret_path(args.broker_dir, name, "device")
    is_new = not path.exists()
    if is_new and args.dry_run:
        return b"(made when it is not a dry run)"
    if is_new:
        load_users(args.broker_dir, [name])
        tell = "pkill -HUP -f 'edgekit broker'"
        print(f"{name} may now sign in; a broker that runs already must be told: {tell}", file=sys.stderr)
    return _read(path)


def _read(path: object) -> bytes:
    from pathlib import Path

    from edgekit.errors import ConfigError

    try:
        return Path(str(path)).read_bytes()
    except OSError as e:
        raise ConfigError(str(path), None, f"cannot be read: {e.strerror}") from e
