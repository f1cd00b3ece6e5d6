"""What every payload is made of: a frozen struct, and numbers and words with limits."""

from __future__ import annotations

from typing import Annotated

import msgspec

# Limits make hostile numbers a decoding error here instead of an overflow somewhere later.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""What JSON readers in every language hold exactly."""
Millis = Annotated[float, msgspec.Meta(ge=0.0, le=1e15)]
Total = Annotated[float, msgspec.Meta(ge=0.0, le=1e30)]
Number = Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]
Ratio = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Word = Annotated[str, msgspec.Meta(max_length=256)]
Text = Annotated[str, msgspec.Meta(max_length=4096)]


class Payload(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The base of all payloads: what has its default value is left out.

    A frozen tree holds no cycle, so the garbage collector need not walk it: a large fleet is millions of them.
    """
