"""What OpenVINO compiled before, beside the artifact it was compiled from: found by everything that invalidates it.

Written by `edgekit build`, never by a session. A session that finds none, or a damaged one, compiles as it always did.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from edgekit.artifact import sha256_of
from edgekit.files import write_atomic
from edgekit.manifest import TensorSpec
from edgekit.runtimes.ahead import isa_here

logger = logging.getLogger(__name__)

_THREADS = "INFERENCE_NUM_THREADS"
"""Given anew when a compiled model is imported, so one file serves every number."""
_DIGEST_BYTES = 32


def place(path: Path, inputs: Sequence[TensorSpec], device: str, options: Mapping[str, object], version: str) -> Path:
    """Where the compiled form of the model at `path` lies: its name is the hash of all that it depends on.

    Model, release of OpenVINO, device, this CPU's features, shapes and options; not the number of threads.
    """
    parts = {
        "model": sha256_of(path),
        "version": version,
        "device": device,
        "isa": isa_here(),
        "inputs": [[spec.name, spec.dtype, *spec.shape] for spec in inputs],
        "options": {name: str(value) for name, value in options.items() if name != _THREADS},
    }
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return path.parent / f"openvino-{key[:24]}.blob"


def any_beside(path: Path) -> bool:
    """Whether there is anything to look for: without it no time goes into hashing the model."""
    return next(path.parent.glob("openvino-*.blob"), None) is not None


def save(where: Path, compiled: bytes) -> None:
    """Write it atomically, its SHA-256 first, and remove what was compiled from other things. Raises OSError."""
    write_atomic(where, hashlib.sha256(compiled).digest() + compiled)
    for other in where.parent.glob("openvino-*.blob"):
        if other != where:
            other.unlink(missing_ok=True)


def load(where: Path) -> bytes | None:
    """What was saved, or None: not there, or not what was written, which is logged."""
    try:
        content = where.read_bytes()
    except FileNotFoundError:
        return None
    digest, compiled = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    if hashlib.sha256(compiled).digest() != digest:
        logger.warning("%s is damaged and not used; `edgekit build` makes it again", where)
        return None
    return compiled
