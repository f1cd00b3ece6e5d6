"""The vocabulary of declared pre- and post-processing. Declarations only; `edgekit.pipeline` carries them out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec


class _Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="step"):
    pass


class DecodeImage(_Step, frozen=True, tag="decode_image"):
    """Bytes of an image file -> (height, width, channels) uint8, turned upright as its EXIF tag says."""

    color: Literal["rgb", "bgr", "gray"] = "rgb"


class Resize(_Step, frozen=True, tag="resize"):
    """(height, width, channels) of any size -> of exactly `height` x `width`.

    A size given as text is one of the model's axes. With `bucket` the axis takes the smallest allowed value
    that holds the image without shrinking it (the largest where none does), unless the caller binds it.
    """

    height: int | str
    width: int | str
    fit: Literal["stretch", "letterbox", "left"] = "stretch"
    "letterbox: keep the aspect, centre; left: keep the aspect, start at the left edge; the rest is `pad`."
    pad: float = 0.0
    enlarge: bool = True
    "False: an image that is smaller than the target is only padded."
    bucket: bool = False


class Invert(_Step, frozen=True, tag="invert"):
    """255 - x: dark ink on white paper -> light strokes on black."""


class Normalize(_Step, frozen=True, tag="normalize"):
    """(x * scale - mean) / std in float32; `mean` and `std` have one value, or one a channel."""

    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)


class Layout(_Step, frozen=True, tag="layout"):
    """(height, width, channels) -> a batch of one in this order of axes."""

    order: Literal["nchw", "nhwc"]


class DecodeWav(_Step, frozen=True, tag="decode_wav"):
    """Bytes of a PCM WAV file -> (samples,) float32 in -1..1, mono, resampled to `rate_hz`."""

    rate_hz: int


class Frames(_Step, frozen=True, tag="frames"):
    """(samples,) -> (frames, 1, context + size): every frame carries the last `context` samples before it.

    The frames are fed one after the other; the first has silence before it, the last is padded with it.
    """

    size: int
    context: int = 0


class ByteFeatures(_Step, frozen=True, tag="byte_features"):
    """The bytes of any file -> (1, begin + end) int32: its first and last bytes without outer white space.

    At most `block` bytes of either end are looked at; what is missing is `padding`, at the inner side.
    """

    begin: int
    end: int
    block: int
    padding: int


PreStep = DecodeImage | Resize | Invert | Normalize | Layout | DecodeWav | Frames | ByteFeatures


class Softmax(_Step, frozen=True, tag="softmax"):
    """Logits -> probabilities along the last axis."""


class TopK(_Step, frozen=True, tag="top_k"):
    """(1, classes) scores -> the `k` best labels. `labels` names a file beside the manifest, one label a line."""

    labels: str
    k: int = 5


class ContentType(_Step, frozen=True, tag="content_type"):
    """(1, classes) scores -> the type of a file, or a general one where the model is not sure.

    Below its threshold a label falls back to `txt` (the content is text) or `unknown`. Files that are shorter than
    `min_bytes` are decided by their content alone. Source: Magika, python client, "high confidence" mode.
    """

    labels: str
    threshold: float = 0.5
    thresholds: Mapping[str, float] = {}
    rename: Mapping[str, str] = {}
    min_bytes: int = 8


class DbBoxes(_Step, frozen=True, tag="db_boxes"):
    """(1, 1, height, width) text probability -> rotated boxes in the source image's pixels.

    Source: Liao et al., "Real-time Scene Text Detection with Differentiable Binarization", 2020.
    """

    threshold: float = 0.3
    box_threshold: float = 0.5
    unclip_ratio: float = 1.6
    min_side: int = 3
    max_boxes: int = 1000


class Ctc(_Step, frozen=True, tag="ctc"):
    """(1, steps, classes) probabilities -> text: best class a step, repeats merged, class 0 is the blank.

    `alphabet` names a file beside the manifest, one character a line, for the classes from 1 on.
    """

    alphabet: str


class SpeechSegments(_Step, frozen=True, tag="speech_segments"):
    """(frames, 1) speech probabilities -> segments, entered at one threshold and left at a lower one."""

    enter: float = 0.5
    leave: float = 0.35
    min_speech_ms: int = 250
    min_silence_ms: int = 100
    pad_ms: int = 30


PostStep = Softmax | TopK | ContentType | DbBoxes | Ctc | SpeechSegments
