"""Audio steps: WAV -> samples -> frames, and frame probabilities -> segments of speech."""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from edgekit.errors import InputError
from edgekit.pipeline.answers import Segment
from edgekit.steps import Frames, SpeechSegments

Array = np.ndarray[Any, Any]

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_ZERO_CROSSINGS = 16
_RATES_HZ = (1_000, 1_000_000)
"""What a recorder can mean; beyond it a damaged header would ask for any amount of memory."""


def decode_wav(raw: bytes, rate_hz: int) -> Array:
    """A WAV file (PCM of 8, 16, 24, 32 bits or float32) -> (samples,) float32 in -1..1, mono, at `rate_hz`.

    Raises InputError: not a WAV, a compressed one, no samples. Source: RIFF/WAVE, Microsoft "Multiple Channel Audio
    Data"; read here because the standard library's reader refuses float and, before 3.12, the extensible format.
    """
    kind, channels, source_hz, bits, data = _chunks(raw)
    if kind == _PCM and bits in _PCM_READERS:
        samples = _PCM_READERS[bits](data)
    elif kind == _FLOAT and bits == 32:
        samples = np.frombuffer(data[: len(data) // 4 * 4], "<f4")
    else:
        raise InputError("WAV", f"holds format {kind} with {bits} bits; PCM (8 to 32 bits) or float32 is needed")
    samples = samples[: len(samples) // channels * channels].reshape(-1, channels).mean(axis=1, dtype=np.float32)
    if not len(samples):
        raise InputError("WAV", "holds no samples")
    if not np.isfinite(samples).all():
        raise InputError("WAV", "holds samples that are not numbers")
    return resample(samples, source_hz, rate_hz)


def _chunks(raw: bytes) -> tuple[int, int, int, int, bytes]:
    """(format, channels, rate_hz, bits, sample bytes) of a WAV file."""
    stream = io.BytesIO(raw)
    header = stream.read(12)
    if len(header) < 12 or header[:4] != b"RIFF" or header[8:] != b"WAVE":
        raise InputError("WAV", "not a WAV file")
    layout: tuple[int, int, int, int] | None = None
    while len(head := stream.read(8)) == 8:
        name, size = struct.unpack("<4sI", head)
        # A recorder that was cut off, or that streams, leaves a size beyond the end: what is there is taken.
        body = stream.read(size + size % 2)[:size]
        if name == b"fmt " and len(body) >= 16:
            kind, channels, rate_hz, _, _, bits = struct.unpack("<HHIIHH", body[:16])
            if kind == _EXTENSIBLE and len(body) >= 26:
                kind = struct.unpack("<H", body[24:26])[0]
            layout = (kind, channels, rate_hz, bits)
        if name == b"data" and layout is not None:
            if not layout[1] or not _RATES_HZ[0] <= layout[2] <= _RATES_HZ[1]:
                raise InputError("WAV", f"says {layout[1]} channels at {layout[2]} Hz")
            return (*layout, body)
    raise InputError("WAV", "cut off: it has no sound data")


def _pcm24(data: bytes) -> Array:
    triples = np.frombuffer(data[: len(data) // 3 * 3], np.uint8).reshape(-1, 3).astype(np.int32)
    return ((triples[:, 0] << 8 | triples[:, 1] << 16 | triples[:, 2] << 24) >> 8).astype(np.float32) / 2**23


_PCM_READERS: dict[int, Callable[[bytes], Array]] = {
    8: lambda data: (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / 128,
    16: lambda data: np.frombuffer(data[: len(data) // 2 * 2], "<i2").astype(np.float32) / 2**15,
    24: _pcm24,
    32: lambda data: np.frombuffer(data[: len(data) // 4 * 4], "<i4").astype(np.float32) / 2**31,
}


def resample(samples: Array, source_hz: int, target_hz: int) -> Array:
    """Band-limited resampling with a Hann-windowed sinc. (n,) float32 -> (ceil(n * target / source),) float32.

    Source: Julius O. Smith, "Digital Audio Resampling Home Page".
    """
    if source_hz == target_hz:
        return samples
    ratio = target_hz / source_hz
    cutoff = min(1.0, ratio)  # of the source's Nyquist frequency
    half = math.ceil(_ZERO_CROSSINGS / cutoff)
    padded = np.pad(samples, (half, half + 1))
    count = math.ceil(len(samples) * ratio)
    out = np.empty(count, np.float32)
    taps = np.arange(-half + 1, half + 1)
    for first in range(0, count, 8192):  # bounds the (outputs, taps) working set
        at = np.arange(first, min(first + 8192, count)) / ratio
        whole = np.floor(at).astype(np.int64)
        distance = taps[None, :] - (at - whole)[:, None]
        window = np.cos(np.clip(distance / half, -1, 1) * np.pi / 2) ** 2
        weights = (cutoff * np.sinc(cutoff * distance) * window).astype(np.float32)
        out[first : first + len(at)] = (padded[whole[:, None] + taps[None, :] + half] * weights).sum(axis=1)
    return out


def frames(samples: Array, step: Frames) -> Array:
    """(n,) -> (ceil(n / size), 1, context + size)."""
    count = max(1, math.ceil(len(samples) / step.size))
    padded = np.zeros(step.context + count * step.size, np.float32)
    padded[step.context : step.context + len(samples)] = samples
    windows = np.lib.stride_tricks.sliding_window_view(padded, step.context + step.size)[:: step.size]
    return np.ascontiguousarray(windows[:, None, :])


def speech_segments(
    scores: Sequence[float], step: SpeechSegments, *, frame_s: float, duration_s: float
) -> list[Segment]:
    """Frame probabilities -> segments: hysteresis, short gaps closed, short bursts dropped, a little padding added."""
    spans: list[list[float]] = []
    speaking = False
    for i, score in enumerate(scores):
        if not speaking and score >= step.enter:
            spans.append([i * frame_s, (i + 1) * frame_s])
            speaking = True
        elif speaking and score < step.leave:
            speaking = False
        elif speaking:
            spans[-1][1] = (i + 1) * frame_s
    joined: list[list[float]] = []
    for start, end in spans:
        if joined and start - joined[-1][1] < step.min_silence_ms / 1000:
            joined[-1][1] = end
        else:
            joined.append([start, end])
    pad_s = step.pad_ms / 1000
    return [
        Segment(start_s=round(max(0.0, start - pad_s), 3), end_s=round(min(duration_s, end + pad_s), 3))
        for start, end in joined
        if min(end, duration_s) - start >= step.min_speech_ms / 1000
    ]
