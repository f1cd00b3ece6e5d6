"""An authority of a broker's own, and the certificates that it signs, made with the openssl command.

A key and its certificate are one file: so it can be replaced in one step, and whoever needs both takes them from it.
"""

from __future__ import annotations

import ipaddress
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from edgekit.errors import RuntimeUnavailable
from edgekit.files import write_atomic

AUTHORITY_DAYS, SERVER_DAYS, CLIENT_DAYS = 3650, 825, 3650
INSTALL = "sudo apt install openssl"
_CONFIG = """[req]
distinguished_name = name
prompt = no
[name]
{name}
[authority]
basicConstraints = critical,CA:TRUE
keyUsage = critical,keyCertSign,cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = serverAuth
authorityKeyIdentifier = keyid
subjectAltName = {alternatives}
[client]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = clientAuth
authorityKeyIdentifier = keyid
"""
"""Of our own, so that nothing depends on the system's openssl.cnf. Source: x509v3_config(5)."""


class Authority:
    """Signs for one broker. `certificate` is what clients must trust; it is made once and kept."""

    def __init__(self, folder: Path) -> None:
        """Raises RuntimeUnavailable without openssl, OSError."""
        self.certificate = folder / "authority.pem"
        self._key = folder / "authority.key"
        if not (self.certificate.exists() and self._key.exists()):
            key, certificate = _new("authority", {"CN": "edgekit broker authority"}, AUTHORITY_DAYS, signer=None)
            write_atomic(self._key, key, mode=0o600)
            write_atomic(self.certificate, certificate)

    def server(self, path: Path, names: Sequence[str]) -> None:
        """A new key and certificate for a server that is reached by these names or addresses."""
        signer = (self.certificate, self._key)
        pair = _new("server", {"CN": "edgekit broker"}, SERVER_DAYS, signer=signer, alternatives=_alternatives(names))
        write_atomic(path, b"".join(pair), mode=0o600)

    def client(self, path: Path, name: str) -> None:
        """A key and certificate for a client; kept where there is one."""
        if path.exists():
            return
        site, _, device = name.rpartition("/")
        subject = {"O": site, "CN": device} if site else {"CN": device}  # each holds 64 characters, both do not
        pair = _new("client", subject, CLIENT_DAYS, signer=(self.certificate, self._key))
        write_atomic(path, b"".join(pair), mode=0o600)


def _alternatives(names: Sequence[str]) -> str:
    return ",".join(f"{'IP' if _is_address(name) else 'DNS'}:{name}" for name in dict.fromkeys(names))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _new(
    kind: str, subject: dict[str, str], days: int, *, signer: tuple[Path, Path] | None, alternatives: str = "DNS:none"
) -> tuple[bytes, bytes]:
    """A key and its certificate, PEM."""
    with tempfile.TemporaryDirectory() as made:  # only we may read it
        folder = Path(made)
        name = "\n".join(f"{key} = {value}" for key, value in subject.items())
        (folder / "openssl.cnf").write_text(_CONFIG.format(name=name, alternatives=alternatives))
        request = ["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "key"]
        request += ["-config", "openssl.cnf"]
        if signer is None:
            _openssl(folder, *request, "-x509", "-days", str(days), "-extensions", kind, "-out", "pem")
        else:
            _openssl(folder, *request, "-out", "csr")
            by = ["-CA", str(signer[0].resolve()), "-CAkey", str(signer[1].resolve())]
            by += ["-set_serial", str(int.from_bytes(os.urandom(8), "big"))]
            by += ["-extfile", "openssl.cnf", "-extensions", kind, "-days", str(days)]
            _openssl(folder, "x509", "-req", "-in", "csr", *by, "-out", "pem")
        return (folder / "key").read_bytes(), (folder / "pem").read_bytes()


def _openssl(folder: Path, *words: str) -> None:
    command = shutil.which("openssl")
    if command is None:
        raise RuntimeUnavailable("openssl", "not installed; it makes the certificates", INSTALL)
    done = subprocess.run([command, *words], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise RuntimeUnavailable("openssl", f"could not make a certificate: {said[-1] if said else 'no reason given'}")
