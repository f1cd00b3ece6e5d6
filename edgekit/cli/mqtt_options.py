"""The options that say where the broker is, for every verb that reads a fleet."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from edgekit.cli.numbers import within

if TYPE_CHECKING:
    from edgekit.config import MqttConfig

TLS_PORT, PORT = 8883, 1883


def add_mqtt_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --host, --port, the credentials and the certificates."""
    where = parser.add_argument_group("broker")
    where.add_argument("--host", default="127.0.0.1", help="the MQTT broker (default 127.0.0.1)")
    where.add_argument("--port", type=int, help=f"its port (default {PORT}, with TLS {TLS_PORT})")
    where.add_argument("--username")
    where.add_argument("--password-file", metavar="FILE", help="a file that holds only the password")
    where.add_argument("--tls", action="store_true", help="encrypt, and trust the system's authorities")
    where.add_argument("--ca-file", metavar="FILE", help="trust this authority instead (implies --tls)")
    where.add_argument("--certificate-file", metavar="FILE", help="our own certificate (implies --tls)")
    where.add_argument("--key-file", metavar="FILE", help="the key of our certificate")


def mqtt_config(args: argparse.Namespace) -> MqttConfig:
    """The settings that the options make."""
    from edgekit.config import MqttConfig

    within(1, 65535, port=args.port)
    tls = bool(args.tls or args.ca_file or args.certificate_file)
    return MqttConfig(
        host=args.host,
        port=args.port or (TLS_PORT if tls else PORT),
        username=args.username,
        password_file=args.password_file,
        tls=tls,
        ca_file=args.ca_file,
        certificate_file=args.certificate_file,
        key_file=args.key_file,
    )
