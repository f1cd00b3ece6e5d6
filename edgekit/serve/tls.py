"""TLS for the daemon's HTTP: a certificate and its key from files, taken anew without a restart."""

from __future__ import annotations

import ssl
from pathlib import Path

from edgekit.config import HttpConfig
from edgekit.errors import ConfigError


class Tls:
    """`context` stays the same: connections that come after a `renew` see the new certificate, those there are live on.

    TLS 1.2 and above, with the ciphers that Python's ssl module takes for servers.
    """

    def __init__(self, certificate: Path, key: Path, source: str) -> None:
        """`source` names the configuration. Raises ConfigError for files that do not hold a certificate and its key."""
        self._certificate, self._key, self._source = certificate, key, source
        self.context = self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))

    def renew(self) -> None:
        """Read the files again. Raises ConfigError, and then goes on with what it had."""
        self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))  # tried elsewhere first: a context cannot be half loaded
        self._load(self.context)

    def _load(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        for name, path in (("certificate_file", self._certificate), ("key_file", self._key)):
            try:
                path.read_bytes()
            except OSError as e:
                raise ConfigError(self._source, f"http.{name}", f"{path} cannot be read: {e.strerror}") from e
        try:
            # An encrypted key would ask for its password on the terminal, where nobody sits.
            context.load_cert_chain(self._certificate, self._key, password=lambda: "")
        except ssl.SSLError as e:
            problem = f"{self._certificate} and {self._key} are no certificate and its key: {e.reason or e}"
            raise ConfigError(self._source, "http.certificate_file", problem) from e
        return context


def read_tls(http: HttpConfig, source: str) -> Tls | None:
    """None where the configuration asks for none. Raises ConfigError."""
    if http.certificate_file is None or http.key_file is None:
        return None
    return Tls(Path(http.certificate_file), Path(http.key_file), source)
