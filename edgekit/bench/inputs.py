"""The inputs that every query of a measurement uses: realistic ones where the model declares data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from edgekit.bench.protocol import Opened
from edgekit.manifest import Model
from edgekit.pipeline.data import example
from edgekit.runtimes.warmup import random_inputs


def write_inputs(path: Path, model: Model, opened: Opened, axes: Mapping[str, int], batch: int = 1) -> None:
    """Write the inputs of one query, as the loaded artifact takes them, to an .npz; seeded noise for a bare file.

    Raises what `pipeline.data.example` raises (CatalogError, InputError).
    """
    made = example(model, opened.inputs, axes, batch) if model.inputs else random_inputs(opened.inputs)
    np.savez(path, **made)
