"""A user's own model kept as a manifest: it loads through the catalog and calibrates and judges with the same data."""

from __future__ import annotations

import numpy as np
import pytest

from edgekit.build import Options
from edgekit.build.calibrate import fingerprint
from edgekit.build.own import write_manifest
from edgekit.build.samples import gather, with_options
from edgekit.catalog import MANIFEST_NAME, data_folder, load_model
from edgekit.cli.main import main
from edgekit.errors import ArtifactError, UsageError

DIGITS = data_folder("models") / "digits" / "digits.onnx"
COUNT = 80


@pytest.fixture
def own(tmp_path):
    """A folder with a model file, samples and labels, as a user has them."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "my.onnx").write_bytes(DIGITS.read_bytes())
    np.savez(folder / "samples.npz", image=np.random.default_rng(1).random((COUNT, 8, 8, 1), np.float32))
    np.save(folder / "labels.npy", np.arange(COUNT) % 10)
    np.save(folder / "scores.npy", np.linspace(0, 5, COUNT // 2))
    return folder


def options(own, metric="top1", labels="labels.npy"):
    return Options(calibration=own / "samples.npz", labels=own / labels if labels else None, metric=metric)


@pytest.mark.parametrize(
    ("metric", "labels"), [("top1", "labels.npy"), ("spearman", "scores.npy"), ("agreement", None), (None, None)]
)
def test_the_manifest_gives_the_same_samples_labels_and_metric(own, tmp_path, metric, labels):
    model, said = load_model(str(own / "my.onnx")), options(own, metric, labels)
    write_manifest(model, said, tmp_path / "kept")
    again = load_model(str(tmp_path / "kept"))
    assert (again.name, again.version, again.metric) == (model.name, model.version, metric or model.metric)
    assert again.source.sha256 == model.source.sha256
    assert again.accuracy_floor == model.accuracy_floor
    before = gather(with_options(model, said), own / "my.onnx", said)
    after = gather(again, tmp_path / "kept" / "my.onnx", Options())
    assert fingerprint(before.feeds) == fingerprint(after.feeds)
    assert [sample.label for sample in before.judged] == [sample.label for sample in after.judged]
    assert len(after.judged) == len(before.judged) > 0


def test_the_folder_is_whole_in_itself(own, tmp_path):
    kept = tmp_path / "kept"
    write_manifest(load_model(str(own / "my.onnx")), options(own), kept)
    for path in own.iterdir():
        path.unlink()
    model = load_model(str(kept))
    assert (kept / model.source.file).read_bytes() == DIGITS.read_bytes()
    assert len(gather(model, kept / model.source.file, Options()).judged) > 0
    assert not list(kept.glob(".*"))


def test_it_may_lie_beside_the_model_itself(own):
    written = write_manifest(load_model(str(own / "my.onnx")), options(own), own)
    assert written.source.file == "my.onnx"
    assert load_model(str(own)) == written


def test_without_data_only_the_model_is_kept(own, tmp_path):
    write_manifest(load_model(str(own / "my.onnx")), Options(), tmp_path / "kept")
    assert load_model(str(tmp_path / "kept")).data.calibration is None
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [MANIFEST_NAME, "my.onnx"]


def test_what_is_there_is_not_replaced_unless_asked(own, tmp_path):
    kept, model = tmp_path / "kept", load_model(str(own / "my.onnx"))
    write_manifest(model, options(own), kept)
    before = (kept / MANIFEST_NAME).read_bytes()
    with pytest.raises(UsageError, match="is there already; --overwrite replaces it"):
        write_manifest(model, options(own, "agreement", None), kept)
    assert (kept / MANIFEST_NAME).read_bytes() == before
    assert write_manifest(model, options(own, "agreement", None), kept, overwrite=True).metric == "agreement"


def test_a_disk_that_fills_up_leaves_the_old_manifest_right(own, tmp_path, monkeypatch):
    kept, model = tmp_path / "kept", load_model(str(own / "my.onnx"))
    write_manifest(model, options(own), kept)
    before = load_model(str(kept))
    written = []

    def full(path, data, **_):
        written.append(path.name)
        if path.name == MANIFEST_NAME:
            raise OSError(28, "No space left on device")
        path.write_bytes(data)

    monkeypatch.setattr("edgekit.build.own.write_atomic", full)
    with pytest.raises(ArtifactError, match="cannot be written: No space left on device"):
        write_manifest(model, options(own, "agreement", None), kept, overwrite=True)
    assert written[-1] == MANIFEST_NAME
    assert load_model(str(kept)) == before
    assert (kept / before.data.calibration).is_file()


def test_another_model_of_the_same_name_does_not_replace_the_file(own, tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "my.onnx").write_bytes(b"someone else's")
    written = write_manifest(load_model(str(own / "my.onnx")), options(own), kept)
    assert (kept / "my.onnx").read_bytes() == b"someone else's"
    assert written.source.file == f"my-{written.source.sha256[:8]}.onnx"


@pytest.mark.parametrize(
    ("name", "said"), [("digits", "digits has a manifest"), ("kept", "my has a manifest")], ids=["catalog", "written"]
)
def test_a_model_that_has_a_manifest_needs_none(own, tmp_path, name, said):
    write_manifest(load_model(str(own / "my.onnx")), Options(), tmp_path / "kept")
    model = load_model(name if name == "digits" else str(tmp_path / name))
    with pytest.raises(UsageError, match=said):
        write_manifest(model, Options(), tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("shape", [(COUNT - 1,), (COUNT, 2)])
def test_labels_that_do_not_fit_are_said_before_anything_lasts(own, tmp_path, shape):
    np.save(own / "labels.npy", np.zeros(shape))
    with pytest.raises(UsageError, match=f"expected one label for each of {COUNT}"):
        write_manifest(load_model(str(own / "my.onnx")), options(own), tmp_path / "kept")
    assert not (tmp_path / "kept" / MANIFEST_NAME).exists()


def test_a_summary_with_quotes_and_umlauts_is_still_toml(own, tmp_path):
    (own / 'ein "schönes" modell.onnx').write_bytes(DIGITS.read_bytes())
    model = load_model(str(own / 'ein "schönes" modell.onnx'))
    written = write_manifest(model, Options(), tmp_path / "kept")
    assert written.summary == model.summary
    assert (tmp_path / "kept" / written.source.file).is_file()


def test_the_verb_keeps_it_and_builds_from_it(own, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("EDGEKIT_HOME", str(tmp_path / "home"))
    seen = []
    monkeypatch.setattr("edgekit.build.recipes._make_all", lambda shop, standard: seen.append(shop) or _empty(standard))
    kept = str(tmp_path / "kept")
    said = ["build", str(own / "my.onnx"), "--calibration", str(own / "samples.npz")]
    assert main([*said, "--labels", str(own / "labels.npy"), "--metric", "top1", "--write-manifest", kept]) == 1
    assert f"edgekit build {kept}" in capsys.readouterr().err
    assert main(["build", kept]) == 1
    first, second = seen
    assert first.key("any") == second.key("any")
    assert main([*said, "--write-manifest", kept]) == 2
    assert "--overwrite" in capsys.readouterr().err


def _empty(standard):
    from edgekit.build.recipes import Report

    return Report([standard], {}, True)
