"""TLS with real clients: answers, refusals, a new certificate without a restart, and what is no certificate."""

from __future__ import annotations

import contextlib
import datetime
import http.client
import ipaddress
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from edgekit.config import HttpConfig, load_daemon_config
from edgekit.errors import ConfigError, UnreachableError, UsageError
from edgekit.serve.client import Client
from edgekit.serve.tls import Tls, read_tls

x509 = pytest.importorskip("cryptography.x509", reason="the certificates of these tests are made with cryptography")
pytest.importorskip("onnxruntime", reason="the artifact that is served runs in onnxruntime")

IMAGE = {"image": np.zeros((1, 8, 8, 1), np.float32)}


def write_certificate(folder: Path, name: str = "daemon", *, password: bytes | None = None) -> tuple[Path, Path]:
    """A self-signed one for 127.0.0.1, and its key."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.timezone.utc)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    coat = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    paths = folder / f"{name}.pem", folder / f"{name}.key"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption_algorithm=coat)
    )
    return paths


class Run:
    """`edgekit run` with a certificate."""

    def __init__(self, folder: Path) -> None:
        self.certificate, self.key = write_certificate(folder)
        self.config = folder / "edgekit.toml"
        self.config.write_text(
            f'[http]\nport = 0\nmax_request_bytes = 100000\ncertificate_file = "{self.certificate}"\n'
            f'key_file = "{self.key}"\n[[model]]\nname = "digits"\nartifact = "standard"\nthreads = 1\n'
        )
        self.errors = (folder / "err").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "edgekit.cli.main", "run", "--config", str(self.config), "--json"],
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=os.environ | {"EDGEKIT_HOME": str(folder / "home")},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, (folder / "err").read_text()
        self.url: str = json.loads(line)["url"]
        self.port = int(self.url.rpartition(":")[2])

    def said(self) -> str:
        return Path(self.errors.name).read_text()

    def client(self) -> Client:
        return Client(self.url, ca_file=str(self.certificate))

    def serial(self) -> int:
        """Of the certificate that a new connection is shown."""
        return x509.load_pem_x509_certificate(
            ssl.get_server_certificate(("127.0.0.1", self.port)).encode()
        ).serial_number

    def hang_up(self) -> None:
        self.process.send_signal(signal.SIGHUP)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.errors.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    run = Run(tmp_path_factory.mktemp("tls"))
    yield run
    run.stop()


def wait_for(found: Callable[[], bool]) -> bool:
    until = time.monotonic() + 20
    while not found():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def test_it_says_https_and_answers_over_one_connection(run):
    assert run.url.startswith("https://127.0.0.1:")
    with run.client() as client:
        assert client.is_ready()
        first, about = client.infer("digits", IMAGE)
        again, _ = client.infer("digits", IMAGE)
    assert about["artifact"] == "standard"
    assert np.array_equal(first["logits"], again["logits"])


def test_tritonclient_asks_over_tls_too(run):
    triton = pytest.importorskip("tritonclient.http", reason="the client is tritonclient")
    client = triton.InferenceServerClient(
        f"127.0.0.1:{run.port}",
        ssl=True,
        ssl_context_factory=lambda: ssl.create_default_context(cafile=run.certificate),
    )
    image = triton.InferInput("image", [1, 8, 8, 1], "FP32")
    image.set_data_from_numpy(IMAGE["image"])
    assert client.infer("digits", [image]).as_numpy("logits").shape == (1, 10)
    client.close()


def test_a_refusal_arrives_whole_and_ends_the_connection(run):
    trusted = ssl.create_default_context(cafile=run.certificate)
    connection = http.client.HTTPSConnection("127.0.0.1", run.port, context=trusted, timeout=20)
    connection.request("POST", "/v2/models/digits/infer", b"x" * 99_999, {"Content-Length": "100001"})
    answer = connection.getresponse()
    assert answer.status == 413
    assert "at most 100000 are accepted" in json.loads(answer.read())["error"]
    connection.close()
    with run.client() as client:
        assert client.is_ready()


def test_whom_the_client_does_not_trust_it_does_not_ask(run, tmp_path):
    other, _ = write_certificate(tmp_path, "other")
    with (
        Client(run.url, ca_file=str(other)) as client,
        pytest.raises(UnreachableError, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        client.infer("digits", IMAGE)


def test_plain_http_and_noise_end_nothing_but_their_own_connection(run):
    for words in (b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x00\xff" + bytes(50), b"\0" * 300):
        with socket.create_connection(("127.0.0.1", run.port), timeout=20) as client:
            client.sendall(words)
            client.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                while client.recv(4096):  # an alert, perhaps, and then the end
                    pass
    with run.client() as client:
        assert client.is_ready()


def test_a_new_certificate_is_shown_without_a_restart_and_connections_live_on(run):
    before = run.serial()
    with run.client() as old:
        old.infer("digits", IMAGE)
        write_certificate(run.certificate.parent)
        run.hang_up()
        assert wait_for(lambda: run.serial() != before)
        old.infer("digits", IMAGE)
    with run.client() as new:
        assert new.is_ready()
    assert wait_for(lambda: "reloaded: serving digits" in run.said())


def test_files_that_do_not_hold_are_refused_and_the_old_certificate_goes_on(run):
    before, good = run.serial(), run.key.read_bytes()
    run.key.write_bytes(b"-----BEGIN PRIVATE KEY-----\nnonsense\n-----END PRIVATE KEY-----\n")
    try:
        run.hang_up()
        assert wait_for(lambda: "not reloaded, the configuration of before goes on" in run.said())
        assert run.serial() == before
    finally:
        run.key.write_bytes(good)
    with run.client() as client:
        assert client.is_ready()


# The files and the configuration


def test_files_are_judged_when_they_are_read(tmp_path):
    certificate, key = write_certificate(tmp_path)
    other, other_key = write_certificate(tmp_path, "other")
    (tmp_path / "empty").write_bytes(b"")
    _, locked = write_certificate(tmp_path, "locked", password=b"secret")
    for pair, words in (
        ((certificate, other_key), "no certificate and its key"),
        ((tmp_path / "empty", key), "no certificate and its key"),
        ((key, certificate), "no certificate and its key"),
        ((certificate, locked), "no certificate and its key"),
        ((tmp_path / "gone", key), "gone cannot be read: No such file"),
        ((certificate, tmp_path), "cannot be read: Is a directory"),
    ):
        with pytest.raises(ConfigError, match=words):
            Tls(*pair, "edgekit.toml")
    tls = Tls(certificate, key, "edgekit.toml")
    assert tls.context.minimum_version == ssl.TLSVersion.TLSv1_2
    key.write_bytes(other_key.read_bytes())
    with pytest.raises(ConfigError):
        tls.renew()
    certificate.write_bytes(other.read_bytes())
    tls.renew()


def test_without_files_there_is_none():
    assert read_tls(HttpConfig(), "edgekit.toml") is None


@pytest.mark.parametrize(
    ("http", "key", "words"),
    [
        ('certificate_file = "a"', "http.key_file", "go together"),
        ('key_file = "a"', "http.key_file", "go together"),
        ('certificate_file = "a"\nkey_file = "b"\nunix_socket = "/x"', "http.certificate_file", "never leaves"),
    ],
)
def test_a_configuration_says_both_or_none(tmp_path, http, key, words):
    path = tmp_path / "edgekit.toml"
    path.write_text(f'[http]\n{http}\n[[model]]\nname = "digits"\n')
    with pytest.raises(ConfigError, match=words) as caught:
        load_daemon_config(path)
    assert key in str(caught.value)


def test_a_client_wants_an_address_it_can_speak_to():
    for url in ("ftp://host", "https://", "127.0.0.1:8080"):
        with pytest.raises(UsageError):
            Client(url)
