"""Every address that a user may give: what is none is one line of ours, wherever it is given."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.cli.main import main
from edgekit.errors import EdgekitError, UnreachableError, UsageError
from edgekit.manifest import Model, Source, problem_in
from edgekit.serve.client import Client

Capture = pytest.CaptureFixture[str]

NONE = [
    "http://127.0.0.1:99999",
    "http://127.0.0.1:x",
    "http://127.0.0.1:-1",
    "http://[::1",
    "http://[zz]:80",
    "http://",
    "http:///v2",
    "//127.0.0.1:8080",
    "127.0.0.1:8080",
    "localhost",
    "",
    "http:",
    "ftp://127.0.0.1",
    "file:///etc/passwd",
]


@pytest.mark.parametrize("url", NONE)
def test_what_is_no_address_of_a_daemon_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError) as error:
        Client(url)
    assert str(error.value) == f"'{url}' is not the address of a daemon; expected http://HOST:PORT"


@given(st.text(max_size=30))
def test_any_text_is_an_address_or_a_usage_error(text: str) -> None:
    for url in (text, f"http://{text}", f"http://h:{text}"):
        with contextlib.suppress(UsageError):
            assert Client(url).url == url


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("http://127.0.0.1:8080", "127.0.0.1", 8080),
        ("http://pi.local", "pi.local", 80),
        ("http://[::1]:9", "::1", 9),
        ("http://h:8080/", "h", 8080),
    ],
)
def test_an_address_has_a_host_and_a_port(url: str, host: str, port: int) -> None:
    client = Client(url)
    assert (client._connection.host, client._connection.port) == (host, port)


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999", "http://[::1", "nonsense", "ftp://127.0.0.1"])
def test_infer_says_it_in_one_line_and_exit_2(url: str, tmp_path: Path, capsys: Capture) -> None:
    np.savez(tmp_path / "in.npz", image=np.zeros((1, 8, 8, 1), np.float32))
    assert main(["infer", "digits", "--input", str(tmp_path / "in.npz"), "--url", url]) == 2
    err = capsys.readouterr().err
    assert err == f"edgekit infer: '{url}' is not the address of a daemon; expected http://HOST:PORT\n"


# Of a model's source


def with_url(url: str) -> Model:
    source = Source(url=url, sha256="a" * 64, size_bytes=1)
    return Model(name="m", version="1", task="t", source=source)


@pytest.mark.parametrize(
    "url",
    ["", "model.onnx", "https://", "https://h:99999/m", "https://[::1/m", "https://h/a b", "https://h/\n", "//h/m"],
)
def test_a_manifests_address_that_is_none_is_said_by_key(url: str) -> None:
    assert problem_in(with_url(url)) == (
        "source.url",
        f"'{url}' is not an address such as https://host/model.onnx",
    )


@pytest.mark.parametrize("url", ["https://h/m.onnx", "https://h:8443/a/b.onnx?x=1", "http://127.0.0.1:8000/m.onnx"])
def test_an_address_of_a_source_is_accepted(url: str) -> None:
    assert problem_in(with_url(url)) is None


# Of a repository


@pytest.fixture
def believed(tmp_path: Path) -> Any:
    pytest.importorskip("tuf", reason="elsewhere: a device that updates has tuf")
    pytest.importorskip("cryptography", reason="elsewhere: signing needs cryptography")
    from edgekit.provision import keys
    from edgekit.provision.repository import Repository
    from edgekit.provision.trust import Trust

    keys.create(tmp_path / "keys")
    repository = Repository(tmp_path / "repo")
    repository.create(tmp_path / "keys")
    (tmp_path / "trust").mkdir()
    (tmp_path / "trust" / "root.json").write_bytes(repository.root_bytes())
    return lambda url: Trust(tmp_path / "trust", url).offer("default")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:99999", "is no address"),
        ("http://[::1", "is no address"),
        ("http://h:0", "is no address"),
        ("http://a b/", "is no address"),
        ("ftp://h", "'ftp' is not fetched, only http, https and file"),
        ("repo", "'' is not fetched, only http, https and file"),
    ],
)
def test_a_repositorys_address_that_is_none_is_one_error(url: str, words: str, believed: Any) -> None:
    with pytest.raises(EdgekitError) as error:
        believed(url)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_stick_whose_name_has_a_space_is_looked_at(believed: Any, tmp_path: Path) -> None:
    (tmp_path / "my stick").mkdir()
    (tmp_path / "repo").rename(tmp_path / "my stick" / "repo")
    with pytest.raises(UnreachableError, match=r"there is no file://.*/my stick/repo/metadata/timestamp\.json"):
        believed(f"file://{tmp_path}/my stick/repo")
