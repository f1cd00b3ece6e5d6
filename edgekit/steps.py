"""The vocabulary of declared pre- and post-processing. Declarations only; `edgekit.pipeline` carries them out."""

from __future__ import annotations

import msgspec


class _Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="step"):
    pass


class DecodeImage(_Step, tag="decode_image"):
    """Bytes of a JPEG, PNG or BMP -> (height, width, 3) uint8."""

    color: str = "rgb"


class Softmax(_Step, tag="softmax"):
    """Logits -> probabilities along the last axis."""


PreStep = DecodeImage
PostStep = Softmax
