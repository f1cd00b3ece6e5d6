"""`edgekit infer` as a user types it: answers for real files, here and from a daemon, and one line for a mistake."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from edgekit.artifact import Artifact
from edgekit.catalog import load_model
from edgekit.cli.main import main
from edgekit.pipeline.generators import pages, speech, text_lines
from edgekit.runtimes.axes import session_axes

if TYPE_CHECKING:
    from edgekit.serve.engine import Engine

Image = pytest.importorskip("PIL.Image", reason="elsewhere: images need Pillow")
pytest.importorskip("onnxruntime", reason="elsewhere: the standard artifacts are ONNX")
pytestmark = pytest.mark.usefixtures("cached_home")

Standard = Callable[[str], Artifact]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("input") / "page.png"
    path.write_bytes(next(pages(1, 11)).raw)
    return path


@pytest.fixture(scope="module")
def digit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A held-out digit as a picture on paper, eight pixels wide; it is a 4."""
    with np.load(load_model("digits").folder / "evaluation.npz") as data:
        at = int(np.flatnonzero(data["labels"] == 4)[0])
        ink = data["image"][at, :, :, 0]
    path = tmp_path_factory.mktemp("input") / "four.png"
    Image.fromarray((255 - ink * 255).astype(np.uint8)).save(path)
    return path


def answer(capsys: Capture, *arguments: str | Path) -> dict[str, object]:
    assert main(["infer", *map(str, arguments), "--json"]) == 0
    value: dict[str, object] = json.loads(capsys.readouterr().out)
    return value


def refusal(capsys: Capture, *arguments: str | Path) -> tuple[int, str]:
    """(exit code, the one line on stderr); nothing may be on stdout."""
    code = main(["infer", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return code, err


def test_an_image_gives_boxes_and_a_drawing_of_them(
    capsys: Capture, standard: Standard, page: Path, tmp_path: Path
) -> None:
    standard("ocr-detector")
    drawn = tmp_path / "boxes.png"
    value = answer(capsys, "ocr-detector", "--input", page, "--output", drawn)
    boxes = value["answer"]["boxes"]  # type: ignore[index]
    assert len(boxes) == len(next(pages(1, 11)).label)
    before, after = (np.asarray(Image.open(path).convert("RGB")).astype(int) for path in (page, drawn))
    assert before.shape == after.shape
    red = (after[:, :, 0] > 200) & (after[:, :, 1] < 60)
    for box in boxes:
        x, y = (int(value) for value in box["polygon"][1])
        assert red[max(0, y - 3) : y + 4, max(0, x - 4) : x + 4].any(), "a corner is drawn where the answer says"


def test_a_line_gives_its_text(capsys: Capture, standard: Standard, tmp_path: Path) -> None:
    standard("ocr-recognizer")
    made = next(text_lines(1, 4))
    (tmp_path / "line.png").write_bytes(made.raw)
    assert main(["infer", "ocr-recognizer", "--input", str(tmp_path / "line.png")]) == 0
    out, err = capsys.readouterr()
    assert isinstance(made.label, str)
    assert out.split("  (")[0].replace(" ", "").strip() == made.label.replace(" ", "")
    assert "standard (nothing selected yet) on onnxruntime" in err
    assert all(part in err for part in ("load ", "preprocess ", "infer ", "postprocess "))


def test_a_page_is_read_line_by_line(capsys: Capture, standard: Standard, page: Path) -> None:
    standard("ocr-detector"), standard("ocr-recognizer")
    value = answer(capsys, "ocr-detector", "--input", page, "--read", "ocr-recognizer", "--axis", "side=640")
    boxes, texts = value["answer"]["boxes"], value["texts"]  # type: ignore[index]
    assert len(boxes) == len(texts) >= 3  # type: ignore[arg-type]
    assert all(text["score"] > 0.85 for text in texts)  # type: ignore[union-attr, index]
    assert main(["infer", "ocr-detector", "--input", str(page), "--read", "ocr-recognizer", "--axis", "side=640"]) == 0
    out = capsys.readouterr().out
    assert all(text["text"] in out for text in texts)  # type: ignore[union-attr, index]


@pytest.mark.parametrize(
    ("model", "reader", "message"),
    [("digits", "ocr-recognizer", "digits finds no boxes to read"), ("ocr-detector", "digits", "it reads no text")],
)
def test_reading_needs_boxes_and_a_reader(
    capsys: Capture, standard: Standard, page: Path, model: str, reader: str, message: str
) -> None:
    standard(model)
    code, line = refusal(capsys, model, "--input", page, "--read", reader)
    assert (code, message in line) == (2, True)


def test_a_sound_gives_segments_of_speech(capsys: Capture, standard: Standard, tmp_path: Path) -> None:
    standard("voice-activity")
    made = next(speech(1, 2))
    (tmp_path / "talk.wav").write_bytes(made.raw)
    value = answer(capsys, "voice-activity", "--input", tmp_path / "talk.wav")
    found = value["answer"]["segments"]  # type: ignore[index]
    assert value["inferences"] == 188  # six seconds in frames of 32 ms
    assert len(found) == len(made.label)
    for segment, (start, end) in zip(found, made.label, strict=True):
        assert segment["start_s"] == pytest.approx(start, abs=0.2)
        assert segment["end_s"] == pytest.approx(end, abs=0.4)
    assert main(["infer", "voice-activity", "--input", str(tmp_path / "talk.wav")]) == 0
    assert "s of speech in 6.00 s" in capsys.readouterr().out


def test_any_file_gives_its_type(capsys: Capture, standard: Standard) -> None:
    standard("file-type")
    assert main(["infer", "file-type", "--input", __file__]) == 0
    assert capsys.readouterr().out.splitlines()[0].split()[1] == "python"


@pytest.mark.parametrize("artifact", ["standard", "int8", "litert", "litert-int8"])
def test_every_artifact_of_digits_reads_a_digit(capsys: Capture, digit: Path, artifact: str) -> None:
    if artifact.startswith("litert"):
        pytest.importorskip("ai_edge_litert", reason="elsewhere: LiteRT is not installed")
    value = answer(capsys, "digits", "--input", digit, "--artifact", artifact)
    assert value["artifact"] == artifact
    assert value["answer"]["labels"][0]["name"] == "4"  # type: ignore[index]


def test_tensors_go_in_and_come_out_as_npz(capsys: Capture, tmp_path: Path) -> None:
    digits = load_model("digits")
    with np.load(digits.folder / "evaluation.npz") as data:
        np.savez(tmp_path / "in.npz", image=data["image"][:1])
        label = str(data["labels"][0])
    value = answer(capsys, "digits", "--input", tmp_path / "in.npz", "--output", tmp_path / "out.npz")
    assert value["answer"]["labels"][0]["name"] == label  # type: ignore[index]
    with np.load(tmp_path / "out.npz") as outputs:
        assert str(outputs["logits"].argmax()) == label
    bare = answer(capsys, digits.folder / "digits.onnx", "--input", tmp_path / "in.npz")
    assert bare["answer"]["kind"] == "tensors"  # type: ignore[index]
    assert str(bare["answer"]["outputs"][0]["argmax"]) == label  # type: ignore[index]


def test_dynamic_axes_of_a_users_own_model_follow_from_the_tensors(
    capsys: Capture, data_dir: Path, tmp_path: Path
) -> None:
    for batch, length in ((1, 7), (2, 16)):
        ids = np.ones((batch, length), np.int64)
        np.savez(tmp_path / "in.npz", input_ids=ids, attention_mask=ids, token_type_ids=ids * 0)
        model = data_dir / "minilm/minilm_l6_f32.onnx"
        value = answer(capsys, model, "--input", tmp_path / "in.npz")
        assert value["answer"]["outputs"][0]["shape"] == [batch, length, 384]  # type: ignore[index]


def test_an_axis_can_be_chosen_among_those_allowed(capsys: Capture, standard: Standard, page: Path) -> None:
    standard("ocr-detector")
    small = answer(capsys, "ocr-detector", "--input", page, "--axis", "side=320")
    large = answer(capsys, "ocr-detector", "--input", page, "--axis", "side=640")
    assert small["answer"] != large["answer"]
    for axis, message in (("side=333", "ocr-detector has side: 320, 640, 960"), ("depth=320", "has side: 320")):
        code, line = refusal(capsys, "ocr-detector", "--input", page, "--axis", axis)
        assert code == 2
        assert message in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--input", "absent.png"), "--input absent.png: cannot be read: No such file or directory"),
        (("--input", __file__), "not one that Pillow can read"),
        (("--input", "PAGE", "--artifact", "tiny"), "digits has standard, int8, litert, litert-int8"),
        (("--input", "PAGE", "--output", "x.png"), "digits finds no boxes to draw"),
        (("--input", "PAGE", "--axis", "side"), "expected NAME=SIZE"),
        (("--input", "PAGE", "--axis", "side=0"), "expected NAME=SIZE"),
        (("--input", "PAGE", "--axis", "side=9"), "digits has no dynamic axes"),
        (("--input", "PAGE", "--url", "http://127.0.0.1:9", "--artifact", "int8"), "with --url the daemon has chosen"),
        (("--input", "PAGE", "--url", "not a url"), "expected http://HOST:PORT"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line_and_exit_2(
    capsys: Capture, page: Path, arguments: tuple[str, ...], message: str
) -> None:
    code, line = refusal(capsys, "digits", *(page if word == "PAGE" else word for word in arguments))
    assert code == 2
    assert message in line


def test_an_npz_with_other_names_is_said_to_have_them(capsys: Capture, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", picture=np.zeros((1, 8, 8, 1), np.float32))
    code, line = refusal(capsys, "digits", "--input", tmp_path / "in.npz")
    assert code == 2
    assert "holds picture; digits takes image" in line


def test_an_output_that_cannot_be_written_is_exit_2(capsys: Capture, digit: Path) -> None:
    code, line = refusal(capsys, "digits", "--input", digit, "--output", "/proc/none/out.npz")
    assert code == 2
    assert "cannot be written" in line


def test_an_unknown_model_is_exit_3_and_a_damaged_one_exit_5(capsys: Capture, digit: Path, tmp_path: Path) -> None:
    code, line = refusal(capsys, "digit", "--input", digit)
    assert code == 3
    assert "did you mean digits?" in line
    np.savez(tmp_path / "in.npz", image=np.zeros((1, 8, 8, 1), np.float32))
    whole = (load_model("digits").folder / "digits.onnx").read_bytes()
    for name, content in (("text.onnx", b"hello\n" * 9), ("cut.onnx", whole[:9000]), ("empty.onnx", b"")):
        (tmp_path / name).write_bytes(content)
        code, line = refusal(capsys, tmp_path / name, "--input", tmp_path / "in.npz")
        assert code == 5
        assert name in line
    code, line = refusal(capsys, tmp_path / "absent.onnx", "--input", tmp_path / "in.npz")
    assert (code, "absent.onnx: no such file" in line) == (5, True)


@pytest.mark.parametrize(
    "name",
    [
        "tflm/person_detect.tflite",
        "tflm/audio_preprocessor_int8.tflite",
        "coral/mobilenet_v1_0.25_128_quant_edgetpu.tflite",
    ],
)
def test_models_that_cannot_run_are_refused_in_one_line(
    capsys: Capture, data_dir: Path, tmp_path: Path, name: str
) -> None:
    pytest.importorskip("ai_edge_litert", reason="elsewhere: LiteRT is not installed")
    np.savez(tmp_path / "in.npz", x=np.zeros((1, 1), np.int8))
    code, line = refusal(capsys, data_dir / name, "--input", tmp_path / "in.npz")
    assert code == 5
    assert Path(name).name in line


def serve_model(engine: Engine, name: str, path: Path, artifact: str) -> None:
    from edgekit.runtimes.session import SessionSettings, open_session
    from edgekit.serve.engine import Lane
    from edgekit.serve.signature import signature_of

    model = load_model(name)
    settings = SessionSettings(axes=session_axes(model, {}))
    session = open_session(path, settings)
    signature = signature_of(model, session.inputs, session.outputs, overrides={})
    lane = Lane(model=name, name="realtime", artifact=artifact, session=session, signature=signature, recorder=None)
    lane.warm_up()
    lane.start()
    engine.add(name, model.version).lane = lane


@pytest.fixture(scope="module")
def daemon(standard: Standard) -> Iterator[str]:
    """A real daemon's HTTP side with digits and voice-activity loaded; its address."""
    uvloop = pytest.importorskip("uvloop", reason="elsewhere: the daemon's loop")
    from edgekit.serve.engine import Engine
    from edgekit.serve.http import HttpServer
    from edgekit.serve.routes import Routes

    engine = Engine()
    serve_model(engine, "digits", load_model("digits").folder / "digits-int8.onnx", "int8")
    serve_model(engine, "voice-activity", standard("voice-activity").path, "standard")
    listener = socket.create_server(("127.0.0.1", 0))
    loop = uvloop.new_event_loop()
    is_up, stop = threading.Event(), asyncio.Event()

    async def serve() -> None:
        routes = Routes(engine)
        server = routes.server = HttpServer(routes, token=None, max_request_bytes=1 << 20, max_connections=4)
        await server.start(listener)
        is_up.set()
        await stop.wait()
        await server.drain(2.0)

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert is_up.wait(10)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()
    engine.close()


def test_a_daemon_answers_as_this_process_does(capsys: Capture, daemon: str, digit: Path) -> None:
    here = answer(capsys, "digits", "--input", digit, "--artifact", "int8")
    there = answer(capsys, "digits", "--input", digit, "--url", daemon)
    assert there["answer"] == here["answer"]
    assert there["artifact"] == "int8"
    assert main(["infer", "digits", "--input", str(digit), "--url", daemon]) == 0
    assert f"int8 at {daemon}: " in capsys.readouterr().err


def test_a_daemon_is_fed_the_state_of_a_stateful_model(capsys: Capture, daemon: str, tmp_path: Path) -> None:
    (tmp_path / "talk.wav").write_bytes(next(speech(1, 2)).raw)
    here = answer(capsys, "voice-activity", "--input", tmp_path / "talk.wav")
    there = answer(capsys, "voice-activity", "--input", tmp_path / "talk.wav", "--url", daemon)
    assert there["answer"] == here["answer"]
    assert there["inferences"] == 188


def test_a_daemon_that_is_not_there_or_lacks_the_model_says_so(
    capsys: Capture, daemon: str, digit: Path, tmp_path: Path
) -> None:
    code, line = refusal(capsys, "digits", "--input", digit, "--url", "http://127.0.0.1:9")
    assert (code, "127.0.0.1:9" in line) == (4, True)
    np.savez(tmp_path / "in.npz", image=np.zeros((1, 8, 8, 1), np.float32))
    other = tmp_path / "other.onnx"
    other.write_bytes((load_model("digits").folder / "digits.onnx").read_bytes())
    code, line = refusal(capsys, other, "--input", tmp_path / "in.npz", "--url", daemon)
    assert code == 5
    assert "other" in line


def test_answers_survive_a_round_trip_through_json(capsys: Capture, digit: Path) -> None:
    from edgekit.pipeline.answers import Answer

    value = answer(capsys, "digits", "--input", digit)
    again = msgspec.json.decode(msgspec.json.encode(msgspec.convert(value["answer"], Answer)))
    assert again == value["answer"]
