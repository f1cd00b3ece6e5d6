"""Integer types whose products this machine's CPU sums exactly, so that a test judges the builder and not the CPU."""

from __future__ import annotations

from typing import Any

from edgekit.build.grids import Types
from edgekit.build.quantize import target_of
from edgekit.device.probe import probe

WEIGHT_BITS = target_of(probe().cpu).types.weight_bits
"""7 on x86 without VNNI, whose 16-bit sums of two products would saturate."""
LOST_DB = 6.02 * (8 - WEIGHT_BITS)
"""A bit less in each weight is 6 dB less signal to quantisation noise, at most."""


def exact(**fields: Any) -> Types:
    return Types(weight_bits=WEIGHT_BITS, **fields)
