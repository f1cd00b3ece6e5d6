"""Real models and labelled data made by others, as `edgekit build` takes a user's own: a file, an .npz, labels."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from edgekit.runtimes.session import SessionSettings, open_session

TOKENS = 32
"""MiniLM's inputs are padded to this; most of the sentences are shorter."""
PAIRS = 512


class Own(NamedTuple):
    """A model with data, prepared in a folder."""

    name: str
    path: Path
    calibration: Path
    labels: Path | None
    metric: str


def efficientnet(data: Path, folder: Path) -> Own:
    """EfficientNet-Lite0 on photographs; (RGB - 127) / 128, NCHW, class = first number of the file's name."""
    photos = sorted((data / "imagenet_samples_224").glob("*.jp*g"))
    classes = [int(photo.name.split("_")[0]) for photo in photos]
    # of so many samples build calibrates with every 13th; as their publisher asks, those are of classes that end in 0
    calibrating = iter([i for i, c in enumerate(classes) if c % 10 == 0])
    judging = [i for i, c in enumerate(classes) if c % 10]
    order = [i for n, judged in enumerate(judging) for i in ([next(calibrating), judged] if n % 12 == 0 else [judged])]
    images = np.stack([(np.asarray(Image.open(photos[i]).convert("RGB"), np.float32) - 127) / 128 for i in order])
    np.savez(folder / "photos.npz", input=images.transpose(0, 3, 1, 2))
    np.save(folder / "classes.npy", np.array([classes[i] for i in order]))
    return Own(
        "efficientnet-lite0",
        data / "efficientnet_lite0/efficientnet_lite0_f32.onnx",
        folder / "photos.npz",
        folder / "classes.npy",
        "top1",
    )


def minilm(data: Path, folder: Path) -> Own:
    """MiniLM on pairs of sentences that people scored, padded to `TOKENS`; Spearman of the cosines."""
    tokenize, pairs = word_pieces(data / "minilm/tokenizer.json"), []
    for file in sorted((data / "sts").glob("*.tsv")):
        rows = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()]
        pairs += [(float(row[0]), row[1], row[2]) for row in rows if len(row) >= 3 and row[0]]
    pairs = pairs[:: len(pairs) // PAIRS][:PAIRS]
    ids = np.zeros((2 * len(pairs), TOKENS), np.int64)
    for i, sentence in enumerate(s for pair in pairs for s in pair[1:]):
        found = tokenize(sentence)[:TOKENS]
        ids[i, : len(found)] = found
    mask = (ids != 0).astype(np.int64)
    np.savez(folder / "pairs.npz", input_ids=ids, attention_mask=mask, token_type_ids=np.zeros_like(ids))
    np.save(folder / "scores.npy", np.array([pair[0] for pair in pairs]))
    return Own("minilm", data / "minilm/minilm_l6_f32.onnx", folder / "pairs.npz", folder / "scores.npy", "spearman")


def word_pieces(path: Path) -> Callable[[str], list[int]]:
    """The uncased WordPiece tokeniser that a BERT's tokenizer.json describes, [CLS] and [SEP] included."""
    vocabulary = json.loads(path.read_text(encoding="utf-8"))["model"]["vocab"]

    def words(text: str) -> list[str]:
        plain = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")
        return "".join(c if c.isalnum() or c.isspace() else f" {c} " for c in plain).split()

    def pieces(word: str) -> list[int]:
        found, start = [], 0
        while start < len(word):
            for end in range(len(word), start, -1):
                piece = ("##" if start else "") + word[start:end]
                if piece in vocabulary:
                    found.append(vocabulary[piece])
                    start = end
                    break
            else:
                return [vocabulary["[UNK]"]]
        return found

    def tokenize(text: str) -> list[int]:
        return [vocabulary["[CLS]"], *(i for word in words(text) for i in pieces(word)), vocabulary["[SEP]"]]

    return tokenize


class Pair:
    """A LiteRT model in float and, as its publisher quantised it, in INT8; real inputs and what they are worth."""

    def __init__(self, standard: Path, int8: Path, reals: list[np.ndarray], labels: list[int] | None) -> None:
        self.standard, self.int8, self._reals, self._labels = standard, int8, reals, labels
        self._classes: dict[Path, list[int]] = {}

    def feeds(self, path: Path) -> list[dict[str, np.ndarray]]:
        """The inputs in the type that the file takes."""
        session = open_session(path, SessionSettings(runtime="litert", providers=()))
        spec, grids = session.inputs[0], session.quantization
        session.close()
        if spec.dtype == "float32":
            return [{spec.name: real} for real in self._reals]
        grid, limits = grids[spec.name], np.iinfo(spec.dtype)
        steps = [np.clip(np.rint(r / grid.scale) + grid.zero_point, limits.min, limits.max) for r in self._reals]
        return [{spec.name: step.astype(spec.dtype)} for step in steps]

    def score(self, path: Path) -> float:
        """Share of right classes; without labels, of classes as the standard finds them."""
        truth = self._labels or self._found(self.standard)
        return float(np.mean([a == b for a, b in zip(self._found(path), truth, strict=True)]))

    def _found(self, path: Path) -> list[int]:
        if path not in self._classes:
            session = open_session(path, SessionSettings(runtime="litert", providers=()))
            outputs = [next(iter(session.run(feed).values())) for feed in self.feeds(path)]
            session.close()
            self._classes[path] = [int(np.argmax(output)) for output in outputs]
        return self._classes[path]


def kws(data: Path) -> Pair:
    """Keyword spotting of MLPerf Tiny: 1000 spectrograms, stored on the INT8 model's grid; class = end of the name."""
    folder = data / "mlperf_tiny"
    files = sorted((folder / "kws01").glob("*.bin"))
    stored = [np.fromfile(file, np.int8).astype(np.float32).reshape(1, 49, 10, 1) for file in files]
    reals = [((values - 83) * 0.584703).astype(np.float32) for values in stored]
    labels = [int(file.stem.rsplit("_", 1)[1]) for file in files]
    return Pair(folder / "kws_ref_model_float32.tflite", folder / "kws_ref_model.tflite", reals, labels)


def resnet(data: Path) -> Pair:
    """The larger CIFAR ResNet of MLPerf Tiny on photographs of 32×32, 0..255; judged by agreement."""
    folder = data / "mlperf_tiny"
    photos = sorted((data / "imagenet_samples_224").glob("*.jp*g"))
    small = [np.asarray(Image.open(p).convert("RGB").resize((32, 32)), np.float32)[None] for p in photos]
    names = "pretrainedResnet_large_float.tflite", "pretrainedResnet_large_int8.tflite"
    return Pair(folder / names[0], folder / names[1], small, None)


def vww(data: Path) -> Pair:
    """Is there a person? MLPerf Tiny's visual wake words on photographs of 96×96, 0..1; judged by agreement."""
    folder = data / "mlperf_tiny"
    photos = sorted((data / "imagenet_samples_224").glob("*.jp*g"))
    small = [np.asarray(Image.open(p).convert("RGB").resize((96, 96)), np.float32)[None] / 255 for p in photos]
    return Pair(folder / "vww_96_float.tflite", folder / "vww_96_int8.tflite", small, None)
