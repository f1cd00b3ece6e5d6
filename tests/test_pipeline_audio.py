"""Sound steps: every kind of WAV that recorders write, resampling without aliases, frames, and segments of speech."""

from __future__ import annotations

import io
import struct
import wave
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.errors import InputError
from edgekit.pipeline.audio import decode_wav, frames, resample, speech_segments
from edgekit.steps import Frames, SpeechSegments


def tone(hz: float, *, rate_hz: int, seconds: float = 0.5, level: float = 0.5) -> np.ndarray:
    return (level * np.sin(2 * np.pi * hz * np.arange(int(rate_hz * seconds)) / rate_hz)).astype(np.float32)


def riff(layout: bytes, data: bytes, *, extra: bytes = b"") -> bytes:
    body = b"WAVE" + b"fmt " + struct.pack("<I", len(layout)) + layout + extra
    body += b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def header(kind: int, channels: int, rate_hz: int, bits: int) -> bytes:
    block = channels * bits // 8
    return struct.pack("<HHIIHH", kind, channels, rate_hz, rate_hz * block, block, bits)


def pcm(samples: np.ndarray, bits: int) -> bytes:
    if bits == 8:
        return np.round(samples * 127 + 128).astype(np.uint8).tobytes()
    whole = np.round(samples.astype(np.float64) * (2 ** (bits - 1) - 1)).astype("<i4")
    if bits == 24:
        return whole.view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    return whole.astype(f"<i{bits // 8}").tobytes()


@pytest.mark.parametrize(("bits", "error"), [(8, 0.01), (16, 1e-4), (24, 1e-6), (32, 1e-6)])
def test_every_pcm_width_gives_the_same_sound(bits: int, error: float) -> None:
    sound = tone(440, rate_hz=16000)
    decoded = decode_wav(riff(header(1, 1, 16000, bits), pcm(sound, bits)), 16000)
    assert decoded.dtype == np.float32
    assert np.abs(decoded - sound).max() < error


def test_float_and_extensible_files_are_read_too() -> None:
    sound = tone(440, rate_hz=16000)
    assert np.array_equal(decode_wav(riff(header(3, 1, 16000, 32), sound.astype("<f4").tobytes()), 16000), sound)
    guid = struct.pack("<HHIH", 22, 16, 4, 1) + bytes.fromhex("000000001000800000aa00389b71")
    extensible = riff(header(0xFFFE, 1, 16000, 16) + guid, pcm(sound, 16))
    assert np.abs(decode_wav(extensible, 16000) - sound).max() < 1e-4


def test_what_the_standard_library_writes_is_read_and_channels_are_mixed() -> None:
    left, right = tone(440, rate_hz=16000), np.zeros(8000, np.float32)
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(pcm(np.stack([left, right], axis=1).reshape(-1), 16))
    assert np.abs(decode_wav(out.getvalue(), 16000) - left / 2).max() < 1e-4


def test_other_chunks_odd_ones_too_are_stepped_over() -> None:
    sound = tone(440, rate_hz=16000)
    extra = b"LIST" + struct.pack("<I", 5) + b"hello\0"
    assert len(decode_wav(riff(header(1, 1, 16000, 16), pcm(sound, 16), extra=extra), 16000)) == len(sound)


def test_a_recording_that_was_cut_off_gives_what_is_there() -> None:
    whole = riff(header(1, 1, 16000, 16), pcm(tone(440, rate_hz=16000), 16))
    assert len(decode_wav(whole[:-2001], 16000)) == 8000 - 1001


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"", "not a WAV file"),
        (b"ID3\x03 an mp3", "not a WAV file"),
        (b"RIFF\x00\x00\x00\x00AVI LIST", "not a WAV file"),
        (b"RIFF\x04\x00\x00\x00WAVE", "cut off"),
        (riff(header(1, 1, 16000, 16), b""), "holds no samples"),
        (riff(header(0x55, 1, 16000, 0), b"mp3 inside"), "holds format 85 with 0 bits"),
        (riff(header(1, 0, 16000, 16), b"1234"), "says 0 channels at 16000 Hz"),
        (riff(header(1, 1, 0, 16), b"1234"), "says 1 channels at 0 Hz"),
        (riff(header(1, 1, 2_000_000_000, 16), b"1234"), "says 1 channels at 2000000000 Hz"),
        (riff(header(3, 1, 16000, 32), struct.pack("<f", float("nan"))), "not numbers"),
    ],
)
def test_what_cannot_be_read_is_said(raw: bytes, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        decode_wav(raw, 16000)


@given(st.binary(max_size=120), st.integers(0, 44))
def test_no_bytes_make_the_reader_crash(noise: bytes, at: int) -> None:
    raw = riff(header(1, 1, 16000, 16), pcm(tone(440, rate_hz=16000, seconds=0.01), 16))
    with suppress(InputError):
        assert decode_wav(raw[:at] + noise + raw[at + len(noise) :], 16000).ndim == 1


@pytest.mark.parametrize("source_hz", [8000, 11025, 22050, 44100, 48000])
def test_resampling_keeps_a_tone_in_pitch_level_and_time(source_hz: int) -> None:
    wanted = tone(1000, rate_hz=16000)
    made = resample(tone(1000, rate_hz=source_hz), source_hz, 16000)
    assert abs(len(made) - len(wanted)) <= 1
    middle = slice(1000, 7000)  # the ends ring, as any filter's do
    assert np.abs(made[middle] - wanted[middle]).max() < 0.01


def test_resampling_down_removes_what_would_fold_back() -> None:
    made = resample(tone(12000, rate_hz=48000), 48000, 16000)
    assert np.abs(made[1000:-1000]).max() < 0.005  # 40 dB below; without a filter it would be a loud 4 kHz


def test_frames_follow_each_other_and_carry_their_context() -> None:
    made = frames(np.arange(1, 1101, dtype=np.float32), Frames(size=512, context=64))
    assert made.shape == (3, 1, 576)
    assert not made[0, 0, :64].any()
    assert made[0, 0, 64] == 1
    assert made[1, 0, :64].tolist() == list(range(449, 513))
    assert made[1, 0, 64] == 513
    assert made[2, 0, 64 + 1100 - 1024 - 1] == 1100
    assert not made[2, 0, 64 + 1100 - 1024 :].any()


def segments(scores: list[float], **changes: int | float) -> list[tuple[float, float]]:
    step = SpeechSegments(**({"min_speech_ms": 0, "min_silence_ms": 0, "pad_ms": 0} | changes))
    found = speech_segments(scores, step, frame_s=0.1, duration_s=len(scores) / 10)
    return [(s.start_s, s.end_s) for s in found]


def test_speech_is_entered_at_one_threshold_and_left_at_a_lower_one() -> None:
    assert segments([0.4, 0.6, 0.4, 0.6, 0.2, 0.4]) == [(0.1, 0.4)]
    assert segments([0.4, 0.45, 0.4]) == []
    assert segments([0.9, 0.9, 0.9]) == [(0.0, 0.3)]


def test_short_gaps_are_closed_and_short_bursts_dropped() -> None:
    scores = [0.9, 0.9, 0.9, 0.1, 0.9, 0.9, 0.1, 0.1, 0.1, 0.9, 0.1]
    assert segments(scores, min_silence_ms=150, min_speech_ms=250) == [(0.0, 0.6)]
    assert segments(scores, min_silence_ms=0, min_speech_ms=0) == [(0.0, 0.3), (0.4, 0.6), (0.9, 1.0)]


def test_padding_stays_inside_the_sound() -> None:
    assert segments([0.9, 0.1, 0.1, 0.1, 0.9], pad_ms=50) == [(0.0, 0.15), (0.35, 0.5)]


def test_a_real_recording_decodes(data_dir: Path) -> None:
    sound = decode_wav((data_dir / "tflm/yes_1000ms.wav").read_bytes(), 16000)
    assert len(sound) == 16000
    assert 0.01 < np.abs(sound).max() <= 1.0
