"""`edgekit infer`: every bad input is one clear line and exit 2, whichever runtime would have run it."""

from __future__ import annotations

import io
import json
import struct
import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgekit.artifact import Artifact
from edgekit.catalog import load_model
from edgekit.cli.main import main

pytest.importorskip("onnxruntime", reason="elsewhere: the standard artifacts are ONNX")
Image = pytest.importorskip("PIL.Image", reason="elsewhere: images need Pillow")
pytestmark = pytest.mark.usefixtures("cached_home")

Capture = pytest.CaptureFixture[str]
Standard = Callable[[str], Artifact]
DIGITS = load_model("digits")
GOOD = np.zeros((1, 8, 8, 1), np.float32)


@pytest.fixture
def refusal(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """(exit code, the one line); run in a folder of its own so that a short name is a file's."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str | Path) -> tuple[int, str]:
        code = main(["infer", *map(str, arguments)])
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1, err
        assert err.startswith("edgekit infer: ")
        return code, err.removeprefix("edgekit infer: ").rstrip()

    return run


def wav(samples: bytes, *, channels: int = 1, width: int = 2, rate_hz: int = 16_000) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate_hz)
        file.writeframes(samples)
    return buffer.getvalue()


# Tensors

TENSORS: list[tuple[str, dict[str, np.ndarray], str]] = [
    ("int64", {"image": GOOD.astype(np.int64)}, "image: is int64, the model takes float32"),
    ("float64", {"image": GOOD.astype(np.float64)}, "image: is float64, the model takes float32"),
    ("words", {"image": np.array(["a"])}, "image: is str32, the model takes float32"),
    ("other name", {"picture": GOOD}, "picture"),
    ("one too many", {"image": GOOD, "more": GOOD}, "image, more"),
    ("nothing", {}, "holds nothing"),
]


@pytest.mark.parametrize("artifact", ["standard", "litert"])
@pytest.mark.parametrize(("case", "tensors", "words"), TENSORS, ids=[case for case, _, _ in TENSORS])
def test_tensors_of_the_wrong_name_or_kind_are_exit_2_in_every_runtime(
    case: str, tensors: dict[str, np.ndarray], words: str, artifact: str, refusal: Callable[..., tuple[int, str]]
) -> None:
    if artifact == "litert":
        pytest.importorskip("ai_edge_litert", reason="elsewhere: LiteRT is not installed")
    np.savez("in.npz", **tensors)
    code, line = refusal("digits", "--input", "in.npz", "--artifact", artifact)
    assert code == 2
    assert line.startswith("--input")
    assert words in line or (case == "nothing" and "image" in line)


@pytest.mark.parametrize("shape", [(1, 9, 8, 1), (8, 8, 1), (2, 8, 8, 1), (1, 8, 8, 3)])
def test_tensors_of_the_wrong_shape_say_both_shapes(
    shape: tuple[int, ...], refusal: Callable[..., tuple[int, str]]
) -> None:
    np.savez("in.npz", image=np.zeros(shape, np.float32))
    code, line = refusal("digits", "--input", "in.npz")
    assert (code, line) == (2, f"--input in.npz: image: has shape {list(shape)}, the model takes [1, 8, 8, 1]")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not an .npz of plain arrays: No data left in file"),
        (b"just some words\n", "not an .npz of plain arrays"),
        (b"PK\x03\x04 cut short", "not an .npz of plain arrays: "),
        (None, "no such file"),
    ],
)
def test_a_file_that_only_claims_to_hold_tensors(
    content: bytes | None, words: str, refusal: Callable[..., tuple[int, str]]
) -> None:
    if content is not None:
        Path("in.npz").write_bytes(content)
    code, line = refusal("digits", "--input", "in.npz")
    assert code == 2
    assert line.startswith(f"--input in.npz: {words}")
    assert "pickle" not in line, "numpy's advice is no help here"


def test_python_objects_are_never_loaded(refusal: Callable[..., tuple[int, str]]) -> None:
    np.savez("in.npz", image=np.array([{"a": 1}], dtype=object))
    code, line = refusal("digits", "--input", "in.npz")
    assert code == 2
    assert "in.npz: not an .npz of plain arrays: it holds Python objects" in line


def test_a_single_array_under_the_name_of_many_is_said_to_be_one(refusal: Callable[..., tuple[int, str]]) -> None:
    np.save("one.npy", GOOD)
    Path("one.npy").rename("in.npz")
    assert refusal("digits", "--input", "in.npz") == (
        2,
        "--input in.npz: not an .npz of plain arrays: it holds a single array",
    )


def test_a_bare_file_takes_tensors_alone(refusal: Callable[..., tuple[int, str]]) -> None:
    Image.new("L", (8, 8)).save("x.png")
    code, line = refusal(DIGITS.folder / "digits.onnx", "--input", "x.png")
    assert (code, line) == (2, "--input x.png: digits declares no preprocessing: give its tensors as an .npz")


# Images


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not one that Pillow can read"),
        (b"just some words\n", "not one that Pillow can read"),
        (b"\x89PNG\r\n\x1a\n" + b"junk" * 20, "damaged"),
        (b"\xff\xd8\xff\xe0junk", ""),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_a_file_that_is_no_image(content: bytes | None, words: str, refusal: Callable[..., tuple[int, str]]) -> None:
    if content is not None:
        Path("x.png").write_bytes(content)
    code, line = refusal("digits", "--input", "x.png")
    assert code == 2
    assert line.startswith(f"--input x.png: {words}")


def test_an_image_that_is_cut_off_is_refused_and_not_guessed(refusal: Callable[..., tuple[int, str]]) -> None:
    buffer = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(buffer, "JPEG")
    Path("x.jpg").write_bytes(buffer.getvalue()[: len(buffer.getvalue()) // 2])
    code, line = refusal("digits", "--input", "x.jpg")
    assert code == 2
    assert "damaged" in line


def test_a_folder_is_no_input(refusal: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    assert refusal("digits", "--input", tmp_path) == (2, f"--input {tmp_path}: cannot be read: Is a directory")


# Sounds


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a WAV file"),
        (b"just some words\n", "not a WAV file"),
        (b"RIFF\x24\0\0\0WAVE", ""),
        (wav(b""), "holds no samples"),
        (wav(b"\0"), "holds no samples"),
        (
            b"RIFF....WAVEfmt \x10\0\0\0" + struct.pack("<HHIIHH", 0x55, 1, 16000, 0, 0, 16) + b"data\x04\0\0\0abcd",
            "holds format 85",
        ),
        (wav(b"\0\0" * 99, rate_hz=7), ""),
    ],
)
def test_a_file_that_is_no_sound(
    content: bytes, words: str, standard: Standard, refusal: Callable[..., tuple[int, str]]
) -> None:
    standard("voice-activity")
    Path("x.wav").write_bytes(content)
    code, line = refusal("voice-activity", "--input", "x.wav")
    assert code == 2
    assert line.startswith(f"--input x.wav: {words}")


def test_a_sound_of_noise_that_is_no_number_is_refused(
    standard: Standard, refusal: Callable[..., tuple[int, str]]
) -> None:
    standard("voice-activity")
    samples = np.array([0.1, np.nan, 0.2], "<f4").tobytes()
    head = b"RIFF....WAVEfmt \x10\0\0\0" + struct.pack("<HHIIHH", 3, 1, 16000, 64000, 4, 32)
    Path("x.wav").write_bytes(head + b"data" + struct.pack("<I", len(samples)) + samples)
    assert refusal("voice-activity", "--input", "x.wav") == (2, "--input x.wav: holds samples that are not numbers")


def test_a_sound_too_short_for_speech_is_an_honest_none(standard: Standard, tmp_path: Path, capsys: Capture) -> None:
    """Five samples are a sound, if a short one: the answer is that nobody speaks, not an error."""
    standard("voice-activity")
    (tmp_path / "x.wav").write_bytes(wav(b"\0\0" * 5))
    assert main(["infer", "voice-activity", "--input", str(tmp_path / "x.wav"), "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["answer"]["segments"] == []
    assert value["inferences"] == 1


def test_a_picture_is_no_sound(standard: Standard, refusal: Callable[..., tuple[int, str]]) -> None:
    standard("voice-activity")
    Image.new("L", (8, 8)).save("x.png")
    assert refusal("voice-activity", "--input", "x.png") == (2, "--input x.png: not a WAV file")


# Flags


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--axis", "side=²"], 2, "--axis side=²: expected NAME=SIZE"),
        (["--axis", "=3"], 2, "expected NAME=SIZE"),
        (["--artifact", "tiny"], 2, "--artifact tiny: digits has standard, int8, litert, litert-int8"),
        (["--output", "boxes.png"], 2, "digits finds no boxes to draw; an .npz takes its output tensors"),
        (["--output", "/proc/none/out.npz"], 2, "--output /proc/none/out.npz: cannot be written"),
        (["--read", "ocr-recognizer"], 2, "--read ocr-recognizer: digits finds no boxes to read"),
        (["--url", "ftp://a"], 2, "'ftp://a' is not the address of a daemon; expected http://HOST:PORT"),
        (["--url", "http://127.0.0.1:9", "--artifact", "int8"], 2, "with --url the daemon has chosen"),
        (["--url", "http://127.0.0.1:9", "--token-file", "/nowhere"], 2, "--token-file /nowhere: cannot be read"),
        (["--url", "http://127.0.0.1:9"], 4, "127.0.0.1:9"),
    ],
)
def test_a_flag_that_makes_no_sense_is_one_line(
    arguments: list[str], code: int, words: str, refusal: Callable[..., tuple[int, str]]
) -> None:
    np.savez("in.npz", image=GOOD)
    got, line = refusal("digits", "--input", "in.npz", *arguments)
    assert (got, words in line) == (code, True), line


def test_a_picture_of_boxes_needs_a_format_that_exists_before_any_work(refusal: Callable[..., tuple[int, str]]) -> None:
    code, line = refusal("ocr-detector", "--input", "absent.png", "--output", "boxes.gif")
    assert (code, line) == (2, "--output boxes.gif: expected .png, .jpg, .bmp, .webp or .npz")


def test_offline_a_model_that_is_not_here_is_exit_4(
    refusal: Callable[..., tuple[int, str]], edgekit_home: Path
) -> None:
    Path("x.wav").write_bytes(wav(b"\0\0" * 512))
    code, line = refusal("voice-activity", "--input", "x.wav", "--offline")
    assert code == 4
    assert "voice-activity is not in the cache" in line


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [(("digit",), 3, "did you mean digits?"), (("/nowhere/a.onnx",), 5, "no such file"), (("",), 3, "no such model")],
)
def test_a_model_that_is_none(
    words: tuple[str], code: int, problem: str, refusal: Callable[..., tuple[int, str]]
) -> None:
    got, line = refusal(*words, "--input", "x.png")
    assert (got, problem in line) == (code, True), line


# The answer


def test_the_answer_is_on_stdout_and_the_talk_on_stderr(tmp_path: Path, capsys: Capture) -> None:
    np.savez(tmp_path / "in.npz", image=GOOD)
    assert main(["infer", "digits", "--input", str(tmp_path / "in.npz")]) == 0
    out, err = capsys.readouterr()
    assert "%" in out
    assert "ms" not in out
    assert err.startswith("standard (nothing selected yet) on onnxruntime, ")
    assert "a first run, not warmed up" in err


def test_json_says_what_ran_and_how_long_each_part_took(tmp_path: Path, capsys: Capture) -> None:
    np.savez(tmp_path / "in.npz", image=GOOD)
    assert main(["infer", "digits", "--input", str(tmp_path / "in.npz"), "--artifact", "int8", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    value = json.loads(out)
    assert (value["model"], value["artifact"], value["runtime"], value["inferences"]) == (
        "digits", "int8", "onnxruntime", 1,
    )  # fmt: skip
    assert all(value[part] >= 0 for part in ("load_ms", "preprocess_ms", "infer_ms", "postprocess_ms"))
    assert "texts" not in value
