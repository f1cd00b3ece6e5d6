"""`edgekit run`: the on-device daemon, by a configuration file or by flags alone."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.cli.numbers import above_zero, parse_axes

if TYPE_CHECKING:
    from edgekit.config import DaemonConfig, ModelConfig
    from edgekit.serve.birth import Ready

COMMAND_LINE = "the command line"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="*", help="models to serve: names, or .onnx or .tflite files")
    parser.add_argument("--config", type=Path, help="edgekit.toml; the flags below win over it")
    parser.add_argument("--own", type=Path, metavar="FILE", help="what this device says of itself; wins over --config")
    parser.add_argument("--artifact", help="run this artifact instead of selecting one")
    parser.add_argument("--latency-ms", type=float, help="the latency that the selection must hold")
    parser.add_argument("--threads", type=int, help="threads a model; else as measured, within the usable cores")
    parser.add_argument("--axis", action="append", default=[], metavar="NAME=SIZE", help="size of a dynamic axis")
    parser.add_argument("--site", help="where the device stands, for telemetry")
    parser.add_argument("--device", help="the device's name; else from its serial number")
    parser.add_argument("--host", help="address to listen on; else 127.0.0.1")
    parser.add_argument("--port", type=int, help="port to listen on, 0 for any free one; else 8080")
    parser.add_argument("--unix-socket", help="listen on this socket instead of a port")
    parser.add_argument("--token-file", help="file with the bearer token that clients must send")
    parser.add_argument("--mqtt-host", help="broker for telemetry; without one there is none")
    parser.add_argument("--mqtt-port", type=int, help="else 1883")
    parser.add_argument("--window", type=float, metavar="SECONDS", help="length of a telemetry window; else 10")
    parser.add_argument("--json", action="store_true", help="say that it is ready as one line of JSON")


def run(args: argparse.Namespace) -> int:
    import logging

    from edgekit.config import check_daemon_config, home, supervisor
    from edgekit.errors import RuntimeUnavailable, UsageError
    from edgekit.own import load_device_config

    above_zero(latency_ms=args.latency_ms, window=args.window)
    if bool(args.model) == bool(args.config):
        raise UsageError("give the models to serve, or --config edgekit.toml, one of the two")
    if args.own and not args.config:
        raise UsageError("--own goes with --config")
    source = str(args.config) if args.config else COMMAND_LINE

    def reread() -> DaemonConfig:
        base = load_device_config(args.config, args.own) if args.config else None
        return check_daemon_config(configured(base, args), source)

    config = reread()
    try:
        from edgekit.serve.daemon import Daemon  # deferred: it needs numpy and the server's libraries
    except ModuleNotFoundError as e:
        if e.name != "httptools":
            raise
        raise RuntimeUnavailable("serve", "httptools is missing", "pip install httptools uvloop") from e
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    daemon = Daemon(
        config,
        source=source,
        home=home(),
        supervisor=supervisor(),
        reread=reread if args.config else None,
        announce=announce_json if args.json else announce,
    )
    return daemon.run()


def announce(ready: Ready) -> None:
    print(f"listening on {ready.url}", flush=True)


def announce_json(ready: Ready) -> None:
    import msgspec

    print(msgspec.json.encode(ready).decode(), flush=True)


def configured(base: DaemonConfig | None, args: argparse.Namespace) -> DaemonConfig:
    """`base` with what the flags say. Raises UsageError for flags that do not go together."""
    from msgspec.structs import replace

    from edgekit.config import DaemonConfig, ModelConfig
    from edgekit.errors import UsageError

    if args.unix_socket is not None and not (args.host is None and args.port is None):
        raise UsageError("--unix-socket listens instead of --host and --port; leave them out")
    config = base or DaemonConfig(model=tuple(ModelConfig(name=name) for name in args.model))
    if (args.artifact or args.axis) and len(config.model) != 1:
        raise UsageError("--artifact and --axis speak of one model; with several, use --config")
    http = _given(host=args.host, port=args.port, unix_socket=args.unix_socket, token_file=args.token_file)
    mqtt = _given(host=args.mqtt_host, port=args.mqtt_port, window_s=args.window)
    if mqtt and args.mqtt_host is None and config.mqtt.host is None:
        raise UsageError("--mqtt-port and --window speak of a broker; name it with --mqtt-host")
    return replace(
        config,
        **_given(site=args.site, device=args.device),
        http=replace(config.http, **http),
        mqtt=replace(config.mqtt, **mqtt),
        model=tuple(_with_flags(model, args) for model in config.model),
    )


def _with_flags(model: ModelConfig, args: argparse.Namespace) -> ModelConfig:
    from msgspec.structs import replace

    given = _given(artifact=args.artifact, latency_ms=args.latency_ms, threads=args.threads)
    return replace(model, **given, axes=dict(model.axes) | parse_axes(args.axis))


def _given(**flags: Any) -> dict[str, Any]:
    """The flags that were given."""
    return {name: value for name, value in flags.items() if value is not None}
