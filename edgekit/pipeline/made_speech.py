"""Speech-like sound with known boundaries: voiced vowels and fricatives from a source-filter model, between pauses.

Source: Klatt, "Software for a cascade/parallel formant synthesizer", 1980; formants from Peterson and Barney, 1952.
"""

from __future__ import annotations

import io
import wave
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

RATE_HZ = 16_000
_BANDWIDTHS_HZ = (80.0, 110.0, 150.0, 200.0)
_VOWELS_HZ = (
    (730.0, 1090.0, 2440.0, 3400.0),
    (270.0, 2290.0, 3010.0, 3600.0),
    (300.0, 870.0, 2240.0, 3300.0),
    (530.0, 1840.0, 2480.0, 3500.0),
    (570.0, 840.0, 2410.0, 3300.0),
    (660.0, 1720.0, 2410.0, 3400.0),
    (490.0, 1350.0, 1690.0, 3200.0),
)


def made_speech(seed: int, *, duration_s: float = 6.0) -> tuple[bytes, tuple[tuple[float, float], ...]]:
    """(a 16 kHz WAV, the (start, end) of every stretch of speech in seconds)."""
    rng = np.random.default_rng(seed)
    sound = np.zeros(int(duration_s * RATE_HZ))
    spans = []
    pitch_hz = rng.uniform(90, 230)
    at = rng.uniform(0.5, 1.2)
    while at < duration_s - 1.3:
        phrase = _phrase(rng, pitch_hz, seconds=float(rng.uniform(0.8, min(2.2, duration_s - at - 0.4))))
        first = int(at * RATE_HZ)
        sound[first : first + len(phrase)] += phrase
        spans.append((round(at, 3), round(at + len(phrase) / RATE_HZ, 3)))
        at += len(phrase) / RATE_HZ + rng.uniform(0.6, 1.4)
    noise = _noise(rng, len(sound)) * 10 ** (rng.uniform(-48, -30) / 20)
    sound = sound * 10 ** (rng.uniform(-16, -6) / 20) + noise
    return _wav(sound), tuple(spans)


def _phrase(rng: np.random.Generator, pitch_hz: float, *, seconds: float) -> Array:
    """Syllables without a pause, the pitch falling towards the end; peak 1."""
    pieces = []
    count = max(2, round(seconds / 0.22))
    for i in range(count):
        fall = 1.15 - 0.3 * i / count + rng.normal(0, 0.04)
        if rng.random() < 0.6:
            pieces.append(_fricative(rng, seconds=rng.uniform(0.04, 0.09)))
        pieces.append(_vowel(rng, pitch_hz * fall, seconds=rng.uniform(0.11, 0.2)))
    sound = np.concatenate(pieces)
    return np.asarray(sound / np.abs(sound).max())


def _vowel(rng: np.random.Generator, pitch_hz: float, *, seconds: float) -> Array:
    """Glottal pulses with jitter through four resonators that glide from one vowel to the next."""
    n = int(seconds * RATE_HZ)
    wander = np.cumsum(rng.normal(0, 0.6, n)) * 0.02
    phase = np.cumsum((pitch_hz * np.linspace(1.04, 0.96, n) + wander) / RATE_HZ)
    open_share = phase % 1.0
    # Rosenberg's glottal flow, differentiated: a slow rise and a sharp close give speech its spectrum.
    flow = np.where(open_share < 0.6, 0.5 * (1 - np.cos(np.pi * open_share / 0.4)) * (open_share < 0.4), 0.0)
    flow = np.where((open_share >= 0.4) & (open_share < 0.56), np.cos(np.pi * (open_share - 0.4) / 0.32), flow)
    source = np.diff(flow, prepend=0.0) + rng.normal(0, 0.003, n)
    start, end = rng.choice(len(_VOWELS_HZ), 2)
    out = source
    size = rng.uniform(0.92, 1.15)
    for k in range(4):
        track = np.linspace(_VOWELS_HZ[start][k], _VOWELS_HZ[end][k], n) * size
        out = _resonate(out, track, _BANDWIDTHS_HZ[k])
    out /= np.abs(out).max() + 1e-9
    return out * _fade(n, 0.02) * rng.uniform(0.7, 1.0)


def _resonate(source: Array, centre_hz: Array, bandwidth_hz: float) -> Array:
    """A second-order resonator whose centre glides."""
    r = float(np.exp(-np.pi * bandwidth_hz / RATE_HZ))
    a = (2 * r * np.cos(2 * np.pi * centre_hz / RATE_HZ)).tolist()
    gain = (1 - np.asarray(a) + r * r).tolist()
    out, before, last, square = [], 0.0, 0.0, r * r
    for x, a_now, g in zip(source.tolist(), a, gain, strict=True):
        before, last = last, g * x + a_now * last - square * before
        out.append(last)
    return np.array(out)


def _fricative(rng: np.random.Generator, *, seconds: float) -> Array:
    """A hiss such as s or f: noise with its bass taken away."""
    n = int(seconds * RATE_HZ)
    hiss = np.diff(rng.normal(0, 1, n + 1))
    return np.asarray(hiss / np.abs(hiss).max() * 0.25 * _fade(n, 0.01))


def _fade(n: int, seconds: float) -> Array:
    edge = min(n // 2, int(seconds * RATE_HZ))
    shape = np.ones(n)
    shape[:edge] = np.sin(np.linspace(0, np.pi / 2, edge)) ** 2
    shape[n - edge :] = shape[:edge][::-1]
    return shape


def _noise(rng: np.random.Generator, n: int) -> Array:
    """Room noise: white noise with a falling spectrum, and mains hum."""
    spectrum = np.fft.rfft(rng.normal(0, 1, n))
    spectrum /= np.maximum(1.0, np.arange(len(spectrum)) * RATE_HZ / n / 300) ** 0.7
    noise = np.fft.irfft(spectrum, n)
    hum = np.sin(2 * np.pi * 50 * np.arange(n) / RATE_HZ) * rng.uniform(0, 0.5)
    return np.asarray(noise / (noise.std() + 1e-9) + hum)


def _wav(sound: Array) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE_HZ)
        file.writeframes((sound.clip(-1, 1) * 32767).astype("<i2").tobytes())
    return out.getvalue()
