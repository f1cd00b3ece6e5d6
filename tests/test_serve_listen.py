"""Sockets: bound early, refused in one line, cleaned up after a crash."""

from __future__ import annotations

import os
import socket
import stat

import pytest

from edgekit.config import HttpConfig
from edgekit.errors import ConfigError
from edgekit.serve.listen import listen, read_token, url_of


def test_any_free_port_is_told_by_its_url():
    with listen(HttpConfig(port=0), "edgekit.toml") as listener:
        port = listener.getsockname()[1]
        assert url_of(listener) == f"http://127.0.0.1:{port}"
        socket.create_connection(("127.0.0.1", port)).close()


def test_ipv6_is_written_in_brackets():
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with listen(HttpConfig(host="::1", port=0), "edgekit.toml") as listener:
        assert url_of(listener).startswith("http://[::1]:")


@pytest.mark.parametrize(
    ("http", "key", "words"),
    [
        ({"port": 70_000}, "http.port", "70000 is not a port"),
        ({"port": -1}, "http.port", "-1 is not a port"),
        ({"host": "no.such.host.invalid"}, "http.host", "is not an address"),
        ({"host": "203.0.113.1", "port": 0}, "http.port", "cannot be listened on"),
        ({"unix_socket": "/no/such/folder/s"}, "http.unix_socket", "No such file or directory"),
        ({"unix_socket": "/tmp/" + "x" * 200}, "http.unix_socket", "too long"),
    ],
)
def test_what_cannot_be_listened_on_names_its_key(http, key, words):
    with pytest.raises(ConfigError, match=words) as caught:
        listen(HttpConfig(**http), "edgekit.toml")
    assert (caught.value.path, caught.value.key) == ("edgekit.toml", key)


def test_a_taken_port_and_a_taken_socket_are_not_shared(tmp_path):
    with listen(HttpConfig(port=0), "x") as first:
        port = first.getsockname()[1]
        with pytest.raises(ConfigError, match=f"{port} on 127.0.0.1 is taken by another program"):
            listen(HttpConfig(port=port), "x")
    path = str(tmp_path / "s")
    with listen(HttpConfig(unix_socket=path), "x"), pytest.raises(ConfigError, match="taken by another program"):
        listen(HttpConfig(unix_socket=path), "x")


def test_the_socket_of_a_killed_daemon_is_replaced_and_a_file_is_not(tmp_path):
    path = tmp_path / "s"
    listen(HttpConfig(unix_socket=str(path)), "x").close()
    assert path.exists()
    with listen(HttpConfig(unix_socket=str(path)), "x") as listener:
        assert url_of(listener) == f"unix:{path}"
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o660
    path.unlink()
    path.write_text("precious")
    with pytest.raises(ConfigError, match="taken by another program"):
        listen(HttpConfig(unix_socket=str(path)), "x")
    assert path.read_text() == "precious"


def test_a_token_comes_from_a_file_that_holds_one(tmp_path):
    path = tmp_path / "token"
    path.write_text("  swordfish\n")
    assert read_token(HttpConfig(token_file=str(path)), "x") == "swordfish"
    assert read_token(HttpConfig(), "x") is None
    for content, words in ((b" \n", "is empty"), (b"\xff\xfe", "cannot be read")):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=words):
            read_token(HttpConfig(token_file=str(path)), "x")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_token(HttpConfig(token_file=str(tmp_path / "absent")), "x")
