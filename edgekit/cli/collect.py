"""`edgekit collect`: record a fleet's windows, each once, and acknowledge them."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.cli.mqtt_options import add_mqtt_arguments, mqtt_config
from edgekit.cli.numbers import above_zero
from edgekit.errors import UsageError

if TYPE_CHECKING:
    from edgekit.collect.collector import Collector

_HOUR_S, _DAY_S = 3600.0, 86_400.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_mqtt_arguments(parser)
    parser.add_argument("--site", action="append", metavar="SITE", help="only this site (may be repeated)")
    parser.add_argument(
        "--data",
        metavar="FILE|URL",
        help="the history: a file (default: in edgekit's folder) or postgresql://USER@HOST/DB",
    )
    parser.add_argument(
        "--data-password-file", type=Path, metavar="FILE", help="of that database's user; else ~/.pgpass"
    )
    parser.add_argument("--print-schema", action="store_true", help="print the tables for a database and end")
    parser.add_argument("--keep-windows-h", type=float, default=2.0, metavar="HOURS", help="single windows (default 2)")
    parser.add_argument("--keep-5min-days", type=float, default=14.0, metavar="DAYS", help="default 14")
    parser.add_argument("--keep-hour-days", type=float, default=400.0, metavar="DAYS", help="default 400")
    parser.add_argument("--commit-ms", type=float, default=250.0, metavar="MS", help="store and acknowledge so often")
    parser.add_argument("--prometheus", metavar="[HOST:]PORT", help="serve /metrics there (default: not)")
    parser.add_argument("--record", type=Path, metavar="FILE", help="also write all traffic to this new file")
    parser.add_argument("--for", dest="seconds", type=float, metavar="SECONDS", help="end after this (default: never)")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON at the end")


def run(args: argparse.Namespace) -> int:
    above_zero(keep_windows_h=args.keep_windows_h, keep_5min_days=args.keep_5min_days, commit_ms=args.commit_ms)
    above_zero(keep_hour_days=args.keep_hour_days, **{"for": args.seconds})
    if args.print_schema:
        from edgekit.collect.postgres import schema_script

        print(schema_script(), end="")
        return 0
    from edgekit.collect.collector import Collector, Retention
    from edgekit.config import home
    from edgekit.telemetry.recording import RecordingWriter

    path = _history(args.data) or home().root / "collect" / "history.db"
    recording = RecordingWriter(args.record) if args.record else None
    collector = Collector(
        mqtt_config(args),
        path,
        password_file=args.data_password_file,
        sites=args.site,
        retention=Retention(
            windows_s=args.keep_windows_h * _HOUR_S,
            short_s=args.keep_5min_days * _DAY_S,
            long_s=args.keep_hour_days * _DAY_S,
        ),
        commit_s=args.commit_ms / 1000,
        recording=recording,
    )
    endpoint = _serve(collector, args.prometheus) if args.prometheus else ""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: collector.stop())
    if args.seconds is not None:
        threading.Timer(args.seconds, collector.stop).start()
    print(f"edgekit collect: {path}{endpoint}", file=sys.stderr)
    collector.run(on_state=lambda state: print(f"edgekit collect: broker: {state}", file=sys.stderr))
    if recording is not None:
        recording.close()
    counts = collector.view()[2]
    print(json.dumps(counts) if args.json else _as_text(counts))
    return 0


def _history(data: str | None) -> Path | str | None:
    from edgekit.collect.history import SCHEMES

    if data is None or data.startswith(SCHEMES):
        return data
    if "://" in data:
        raise UsageError(f"--data {data}: a file, or {SCHEMES[0]}USER@HOST/DATABASE")
    return Path(data)


def _as_text(counts: dict[str, Any]) -> str:
    delay = counts["delay_p99_ms"]
    late = f"; stored {delay:.0f} ms after their end or sooner (p99)" if delay is not None else ""
    return (
        f"{counts['windows']} windows of {counts['devices']} devices, {counts['duplicates']} sent again, "
        f"{counts['malformed']} messages not ours{late}"
    )


def _serve(collector: Collector, where: str) -> str:
    """Start the endpoint; what to add to the first line. Raises UsageError for what is no address."""
    host, _, port = where.rpartition(":")
    if not port.isdigit() or not 0 <= int(port) < 65_536:
        raise UsageError(f"--prometheus {where}: not PORT or HOST:PORT")
    from edgekit.collect.prometheus import serve

    return f"; metrics on http://{host or '127.0.0.1'}:{serve(collector.view, host or '127.0.0.1', int(port))}/metrics"
