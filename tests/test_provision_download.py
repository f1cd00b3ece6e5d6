"""Payloads over real HTTP: resumed, slowed, cancelled; every misbehaving server ends bounded and in clear words."""

from __future__ import annotations

import hashlib
import http.server
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgekit.errors import Cancelled, ReleaseError, UnreachableError
from edgekit.provision.download import Download, Manners
from edgekit.provision.release import ReleaseFile

DATA = os.urandom(600_000)
FILE = ReleaseFile(path="model.onnx", sha256=hashlib.sha256(DATA).hexdigest(), size_bytes=len(DATA))
FAST = Manners(backoff_s=(0.01, 0.01), stall_s=0.4)


class Server(http.server.ThreadingHTTPServer):
    """`faults` are taken one a request; when there are none left, it behaves."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.faults: list[str] = []
        self.ranges: list[str] = []
        self.has_ranges = True
        self.sent_bytes = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        fault = self.server.faults.pop(0) if self.server.faults else ""
        asked = self.headers.get("Range", "")
        self.server.ranges.append(asked)
        if fault.isdigit():
            self.send_error(int(fault))
            return
        begin = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.server.has_ranges else 0
        body = DATA[begin:]
        if fault == "wrong":
            body = bytes(len(body))
        self.send_response(206 if begin else 200)
        if begin:
            where = begin + 1 if fault == "shifted" else begin
            self.send_header("Content-Range", f"bytes {where}-{len(DATA) - 1}/{len(DATA)}")
        self.send_header("Content-Length", str(len(body) + (10**9 if fault == "more" else 0)))
        self.end_headers()
        self.send(body, fault)

    def send(self, body: bytes, fault: str) -> None:
        try:
            if fault in ("cut", "stall"):
                body = body[: int(len(body) * 0.99)]
            self.wfile.write(body)
            self.server.sent_bytes += len(body)
            if fault == "stall":
                time.sleep(1.0)
            while fault == "more":
                self.wfile.write(bytes(65536))
        except OSError:
            pass
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield found
    found.shutdown()
    found.server_close()


def bring(server: Server, to: Path, manners: Manners = FAST) -> Download:
    download = Download(server.url, manners)
    download(FILE, to)
    assert to.read_bytes() == DATA
    return download


def test_a_file_arrives_whole_and_its_bytes_are_counted(server: Server, tmp_path: Path):
    assert bring(server, tmp_path / "part").received_bytes == len(DATA)


@pytest.mark.parametrize("fault", ["cut", "stall"])
def test_what_broke_off_at_99_percent_is_resumed_and_not_sent_again(server: Server, tmp_path: Path, fault: str):
    server.faults = [fault]
    assert bring(server, tmp_path / "part").received_bytes == len(DATA)
    assert server.ranges == ["", f"bytes={int(len(DATA) * 0.99)}-"]


def test_a_download_goes_on_after_a_restart_of_the_device(server: Server, tmp_path: Path):
    (tmp_path / "part").write_bytes(DATA[:400_000])
    assert bring(server, tmp_path / "part").received_bytes == 200_000


def test_a_server_without_ranges_sends_all_and_nothing_is_mixed(server: Server, tmp_path: Path):
    server.has_ranges = False
    (tmp_path / "part").write_bytes(DATA[:400_000])
    assert bring(server, tmp_path / "part").received_bytes == len(DATA)


def test_a_range_that_is_not_the_one_asked_for_is_not_appended(server: Server, tmp_path: Path):
    server.faults = ["shifted"]
    (tmp_path / "part").write_bytes(DATA[:400_000])
    bring(server, tmp_path / "part")


@pytest.mark.parametrize("rotten", [b"x" * 400_000, b"x" * len(DATA), b"x" * (len(DATA) + 5)])
def test_a_rotten_part_is_thrown_away_and_fetched_anew(server: Server, tmp_path: Path, rotten: bytes):
    (tmp_path / "part").write_bytes(rotten)
    bring(server, tmp_path / "part")


def test_busy_servers_are_asked_again(server: Server, tmp_path: Path):
    server.faults = ["503", "429"]
    bring(server, tmp_path / "part")
    assert len(server.ranges) == 3


@pytest.mark.parametrize("status", ["404", "403", "410"])
def test_what_another_try_would_not_mend_is_tried_once(server: Server, tmp_path: Path, status: str):
    server.faults = [status] * 9
    with pytest.raises(ReleaseError, match=f"the server answers {status}"):
        bring(server, tmp_path / "part")
    assert len(server.ranges) == 1


def test_a_server_that_always_fails_is_given_up_with_the_reason_and_the_count(server: Server, tmp_path: Path):
    server.faults = ["500"] * 9
    with pytest.raises(UnreachableError, match=r"the server answers 500 .*tried 3 times"):
        bring(server, tmp_path / "part")
    with pytest.raises(UnreachableError, match="not reachable"):
        Download("http://127.0.0.1:9", FAST)(FILE, tmp_path / "part")


def test_a_download_without_end_is_cut_at_the_signed_size(server: Server, tmp_path: Path):
    server.faults = ["more"]
    with pytest.raises(ReleaseError, match="sends more than the 600000 bytes that were signed"):
        bring(server, tmp_path / "part")
    assert (tmp_path / "part").stat().st_size <= len(DATA) + 65536


def test_a_server_that_sends_rubbish_for_ever_is_bounded_in_bytes(server: Server, tmp_path: Path):
    server.faults = ["wrong"] * 9
    download = Download(server.url, Manners(backoff_s=(0.0,) * 8, stall_s=1.0))
    with pytest.raises(ReleaseError, match="gave up after twice its size"):
        download(FILE, tmp_path / "part")
    assert download.received_bytes <= 4 * len(DATA)


def test_the_rate_is_kept(server: Server, tmp_path: Path):
    started = time.monotonic()
    bring(server, tmp_path / "part", Manners(bytes_per_s=1_000_000))
    assert 0.5 <= time.monotonic() - started < 5


def test_a_cancelled_download_stops_soon_and_keeps_what_came(server: Server, tmp_path: Path):
    wanted = threading.Event()
    threading.Timer(0.3, wanted.set).start()
    with pytest.raises(Cancelled):
        bring(server, tmp_path / "part", Manners(bytes_per_s=200_000, is_cancelled=wanted.is_set))
    have = (tmp_path / "part").stat().st_size
    assert 0 < have < len(DATA)
    assert bring(server, tmp_path / "part").received_bytes == len(DATA) - have


def test_a_stick_is_read_as_a_server_is(tmp_path: Path):
    blob = tmp_path / "stick/blobs" / FILE.sha256
    blob.parent.mkdir(parents=True)
    with pytest.raises(ReleaseError, match="there is no such file"):
        Download(f"file://{tmp_path}/stick", FAST)(FILE, tmp_path / "part")
    blob.write_bytes(DATA)
    (tmp_path / "part").write_bytes(DATA[:400_000])
    download = Download(f"file://{tmp_path}/stick", FAST)
    download(FILE, tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == DATA
    assert download.received_bytes == 200_000


def test_every_blob_is_asked_for_by_its_hash(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    paths: list[str] = []
    answer: Callable[[Handler], None] = Handler.do_GET
    monkeypatch.setattr(Handler, "do_GET", lambda self: (paths.append(self.path), answer(self))[1])
    bring(server, tmp_path / "part")
    assert paths == [f"/blobs/{FILE.sha256}"]
