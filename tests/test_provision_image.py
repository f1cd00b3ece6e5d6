"""The offline image: written for a stick, started by its own small program, as whole as what ssh would have brought."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgekit.cli.main import main
from edgekit.errors import ReleaseError
from edgekit.provision import slots
from edgekit.provision.image import write_image
from edgekit.provision.release import Library, Target, seal
from edgekit.provision.settings import Settings, read_settings
from tests.torture.small import Guarded, make

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere: devices run Linux")


def silent(_text: str, _share: float) -> None:
    """Nobody is watching."""


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(tmp_path / "library")


def starter(folder: Path, *words: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    """Run it as a user would. The small releases bring no edgekit of their own, so it is this one that installs."""
    env = dict(os.environ)
    env.pop("PYTHONPATH", None)
    return subprocess.run([python, str(folder / "install.py"), *words], capture_output=True, text=True, env=env)


def test_an_image_installs_itself_and_again_does_nothing(tmp_path, library):
    stored = make(library, "1.0")
    own = {"device.toml": b'device = "line-3"\n', "mqtt-password": b"secret\n"}
    settings = Settings(repository="file:///stick", group="canary")
    size = write_image(tmp_path / "stick", stored, library, silent, own=own, trust_root=b"{}", settings=settings)
    assert size == sum(file.size_bytes for file in stored.release.files)
    shutil.rmtree(library.folder)  # nothing but the stick goes along

    root = tmp_path / "device"
    done = starter(tmp_path / "stick", str(root), "--service", "none")
    assert done.returncode == 0, done.stderr
    assert "1.0: committed; 1.0 runs" in done.stdout
    assert (root / "shared/device.toml").read_bytes() == own["device.toml"]
    assert (root / "shared/mqtt-password").stat().st_mode & 0o777 == 0o600
    assert (root / "trust/root.json").read_bytes() == b"{}"
    assert read_settings(root) == settings
    again = starter(tmp_path / "stick", str(root), "--service", "none")
    assert "1.0 already, and it is good: nothing to do" in again.stdout


def test_in_an_image_build_the_verdict_waits_for_the_devices_first_start(tmp_path, library):
    stored = make(library, "1.0")
    root = tmp_path / "device"
    words = ["--release", "1.0", "--library", str(library.folder), "--service", "none", "--later"]
    assert main(["provision", f"local:{root}", *words]) == 0
    now = slots.status(root)
    assert {slot.slot: slot.state for slot in now.slots}["a"] == slots.SlotState.PENDING
    assert now.running is None
    with Guarded(root) as guard:  # the device starts for the first time
        guard.wait("a", "good")
    assert slots.status(root).slots[0].digest == stored.digest


def test_later_is_said_in_the_plan_and_the_answer(tmp_path, library, capsys):
    make(library, "1.0")
    words = ["provision", f"local:{tmp_path}/device", "--release", "1.0", "--library", str(library.folder), "--later"]
    assert main([*words, "--service", "none", "--dry-run"]) == 0
    assert "the guard judges it at the next start" in capsys.readouterr().out
    assert main([*words, "--service", "none"]) == 0
    assert "the guard judges it at the device's next start" in capsys.readouterr().out


def test_a_second_release_replaces_the_first_and_copies_only_what_is_new(tmp_path, library):
    first, second = make(library, "1.0"), make(library, "2.0")
    stick = tmp_path / "stick"
    assert write_image(stick, first, library, silent, own={"device.toml": b"x"}) > 1000
    assert write_image(stick, first, library, silent, own={}) == 0
    assert not (stick / "own").exists()
    assert write_image(stick, second, library, silent, own={}) == 300  # its artifact
    assert json.loads((stick / "order.json").read_text())["release"] == "2.0"
    blobs = {path.name for path in (stick / "library/blobs").iterdir()}
    assert blobs == {file.sha256 for file in second.release.files}
    assert [path.name for path in (stick / "library").glob("*.json")] == ["2.0.json"]


def test_nothing_on_the_stick_is_a_link_or_differs_by_case_only(tmp_path, library):
    write_image(tmp_path / "stick", make(library, "1.0"), library, silent, own={})
    names = [str(path.relative_to(tmp_path / "stick")) for path in (tmp_path / "stick").rglob("*")]
    assert not any(path.is_symlink() for path in (tmp_path / "stick").rglob("*"))
    assert len({name.casefold() for name in names}) == len(names)


def test_somebody_elses_folder_is_left_alone(tmp_path, library):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/holiday.jpg").write_bytes(b"x")
    with pytest.raises(ReleaseError, match=r"holds something that is not edgekit's"):
        write_image(tmp_path / "photos", make(library, "1.0"), library, silent, own={})
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["holiday.jpg"]


def test_a_damaged_library_is_found_before_the_stick_is_complete(tmp_path, library):
    stored = make(library, "1.0")
    library.blob(stored.release.files[0].sha256).write_bytes(b"rubbish")
    with pytest.raises(ReleaseError, match="is damaged; make the release again"):
        write_image(tmp_path / "stick", stored, library, silent, own={})
    assert not (tmp_path / "stick/order.json").exists()


def test_a_stick_that_was_not_written_to_its_end_says_so(tmp_path, library):
    stick = tmp_path / "stick"
    write_image(stick, make(library, "1.0"), library, silent, own={})
    (stick / "order.json").unlink()
    done = starter(stick, str(tmp_path / "device"))
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "install.py: order.json is missing or damaged: this folder was not written to its end; write it again"
    )
    assert not (tmp_path / "device").exists()


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("schema", 2, "is of another edgekit"),
        ("python", "3.99", "is for Python 3.99, this is 3."),
        ("machine", "vax", "is for vax, this is "),
    ],
)
def test_an_image_for_another_machine_says_so(tmp_path, library, key, value, problem):
    stick = tmp_path / "stick"
    write_image(stick, make(library, "1.0"), library, silent, own={})
    order = json.loads((stick / "order.json").read_text()) | {key: value}
    (stick / "order.json").write_text(json.dumps(order))
    done = starter(stick, str(tmp_path / "device"))
    assert done.returncode == 1
    assert problem in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_damaged_wheel_is_never_imported(tmp_path, library):
    stick = tmp_path / "stick"
    stored = make(library, "1.0")
    write_image(stick, stored, library, silent, own={})
    wheel = next(file for file in stored.release.files if file.is_wheel)
    (stick / "library/blobs" / wheel.sha256).write_bytes(b"PK rubbish")
    done = starter(stick, str(tmp_path / "device"))
    assert done.returncode == 1
    assert f"library/blobs/{wheel.sha256} is damaged" in done.stderr
    assert not (tmp_path / "device").exists()


def test_the_starter_is_plain_enough_to_refuse_an_old_python_in_words(tmp_path, library):
    """3.8 must get as far as the sentence: no syntax of later versions."""
    import ast

    write_image(tmp_path / "stick", make(library, "1.0"), library, silent, own={})
    ast.parse((tmp_path / "stick/install.py").read_text(), feature_version=(3, 7))
    done = starter(tmp_path / "stick", "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("usage: install.py [FOLDER]")


def test_the_verb_writes_it_for_the_machine_that_is_named(tmp_path, library, edgekit_home, capsys):
    import msgspec

    made = make(library, "1.0").release
    stored = seal(msgspec.structs.replace(made, name="arm", target=Target(machine="aarch64", python="3.11")))
    library.save(stored, {})
    words = ["--release", "arm", "--library", str(library.folder), "--device", "line-3", "--site", "lab"]
    assert main(["provision", "--offline-image", str(tmp_path / "stick"), *words]) == 0
    assert "on the device: install.py" in capsys.readouterr().out
    assert "for aarch64 with Python 3.11" in (tmp_path / "stick/README.txt").read_text()
    assert "python3.11 install.py" in (tmp_path / "stick/README.txt").read_text()
    assert 'device = "line-3"' in (tmp_path / "stick/own/device.toml").read_text()
    assert main(["provision", "--offline-image", str(tmp_path / "stick"), *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["copied_bytes"] == 0


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--dry-run", "--release", "1.0"], "install.py of the offline image takes it too"),
        ([], "say what to install"),
        (["--inventory", "x.toml"], "at a time"),
    ],
)
def test_flags_that_make_no_sense_for_a_stick_are_one_line(tmp_path, capsys, edgekit_home, words, problem):
    assert main(["provision", "--offline-image", str(tmp_path / "stick"), *words]) == 2
    assert problem in capsys.readouterr().err
