"""`edgekit bench --export FILE` and `--merge FILE`: what one device measured serves the next of its kind."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

import msgspec

from edgekit.bench import store
from edgekit.bench.conditions import this_device
from edgekit.bench.record import Measurement
from edgekit.catalog import load_model
from edgekit.config import home
from edgekit.errors import ConfigError, UsageError
from edgekit.files import write_atomic


def run_share(args: argparse.Namespace) -> int:
    """Merge first, then export. Raises UsageError (files that cannot be read or written), ConfigError (nonsense)."""
    model = load_model(args.model)
    folder, counts = home().measurements(model.name), Counter[str]()
    for name in args.merge or ():
        found = _read(Path(name), model.name)
        counts["merged"] += store.save(folder, [row for row in found if row.latency is not None])
        counts["serve_here"] += sum(dict(row.device) == this_device() for row in found)
    if args.export:
        rows = store.load_all(folder)
        try:
            write_atomic(Path(args.export), msgspec.json.format(msgspec.json.encode(rows), indent=2))
        except OSError as e:
            raise UsageError(f"--export {args.export}: {e.strerror}") from e
        counts["exported"] = len(rows)
    if args.json:
        print(json.dumps(counts))
        return 0
    if args.merge:
        print(f"{model.name}: {counts['merged']} merged; {counts['serve_here']} were taken on a machine like this one")
    if args.export:
        print(f"{model.name}: {counts['exported']} written to {args.export}")
    return 0


def _read(path: Path, model: str) -> list[Measurement]:
    try:
        data = path.read_bytes()
    except OSError as e:
        raise UsageError(f"--merge {path}: {e.strerror}") from e
    try:
        rows = msgspec.json.decode(data, type=list[Measurement])
    except msgspec.DecodeError as e:
        raise ConfigError(path, None, f"not the export of edgekit bench: {e}") from e
    for row in rows:
        if row.model != model:
            raise ConfigError(path, "model", f"holds measurements of {row.model}, not of {model}")
    return rows
