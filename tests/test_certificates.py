"""Certificates: one authority that stays, a server's anew each time, clients' once; keys for their owner alone."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from edgekit.errors import RuntimeUnavailable
from edgekit.telemetry import certificates
from edgekit.telemetry.certificates import Authority

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


def told(path: Path, *what: str) -> str:
    """What openssl says of a certificate."""
    command = ["openssl", "x509", "-in", str(path), "-noout", *what]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_authority_is_made_once_and_signs_for_both_sides(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    first = authority.certificate.read_bytes()
    assert Authority(tmp_path).certificate.read_bytes() == first
    authority.server(tmp_path / "server.pem", ["broker.example", "192.0.2.7", "::1", "broker.example"])
    authority.client(tmp_path / "deep/er/client.pem", "hall/cam-1")
    for name, purpose in (("server.pem", "sslserver"), ("deep/er/client.pem", "sslclient")):
        verify = ["openssl", "verify", "-x509_strict", "-purpose", purpose, "-CAfile", str(authority.certificate)]
        done = subprocess.run([*verify, str(tmp_path / name)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        other = "sslclient" if purpose == "sslserver" else "sslserver"
        verify[verify.index(purpose)] = other
        assert subprocess.run([*verify, str(tmp_path / name)], capture_output=True, check=False).returncode != 0
        ssl.create_default_context().load_cert_chain(tmp_path / name, tmp_path / name)
    names = told(tmp_path / "server.pem", "-ext", "subjectAltName")
    assert names.count("broker.example") == 1
    assert "IP Address:192.0.2.7" in names
    assert "O = hall, CN = cam-1" in told(tmp_path / "deep/er/client.pem", "-subject")
    issuer = told(tmp_path / "server.pem", "-issuer").partition("=")[2]
    assert issuer != told(tmp_path / "server.pem", "-subject").partition("=")[2]


def test_names_as_long_as_they_may_be_fit(tmp_path: Path) -> None:
    Authority(tmp_path).client(tmp_path / "c.pem", f"{'s' * 63}/{'d' * 63}")
    assert "d" * 63 in told(tmp_path / "c.pem", "-subject")


def test_a_clients_certificate_stays_and_a_servers_is_new(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    before = {}
    for _ in range(2):
        authority.server(tmp_path / "server.pem", ["localhost"])
        authority.client(tmp_path / "client.pem", "reader")
        now = {name: (tmp_path / name).read_bytes() for name in ("server.pem", "client.pem")}
        before, after = now, before
    assert before["client.pem"] == after["client.pem"]
    assert before["server.pem"] != after["server.pem"]
    assert told(tmp_path / "server.pem", "-serial") != told(tmp_path / "client.pem", "-serial")


def test_only_their_owner_reads_keys(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        authority = Authority(tmp_path)
        authority.server(tmp_path / "server.pem", ["localhost"])
        authority.client(tmp_path / "client.pem", "reader")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"authority.key": 0o600, "authority.pem": 0o644, "server.pem": 0o600, "client.pem": 0o600}


def test_without_openssl_or_where_it_fails_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeUnavailable, match=r"could not make a certificate: .+"):
        Authority(tmp_path / "a").server(tmp_path / "x.pem", ["a,b\n=c"])
    assert not (tmp_path / "x.pem").exists()
    monkeypatch.setattr(certificates.shutil, "which", lambda _name: None)
    with pytest.raises(RuntimeUnavailable, match="openssl: not installed; it makes the certificates"):
        Authority(tmp_path / "b")
    assert not list((tmp_path / "b").glob("*"))
