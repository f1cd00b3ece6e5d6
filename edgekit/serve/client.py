"""A small client of the daemon: binary tensors over one keep-alive connection, standard library and numpy only.

Enough for `infer --url`, the demo's load and the benchmarks; anything more is what tritonclient is for.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec
import numpy as np

from edgekit.errors import RequestError, UnreachableError, UsageError
from edgekit.serve.layout import DATATYPES, DTYPES


class Client:
    """One connection to one daemon. Not thread-safe: give each thread its own."""

    def __init__(
        self, url: str, *, token: str | None = None, timeout_s: float = 30.0, ca_file: str | None = None
    ) -> None:
        """`url` such as http://127.0.0.1:8080, or https://…, whose certificate must be one of the system's authorities
        or of `ca_file`. Raises UsageError when it is not one.
        """
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
            if host is not None and "[" in parts.netloc:
                ipaddress.IPv6Address(host.partition("%")[0])  # urlsplit of Python 3.10 takes anything there
        except ValueError:  # a port or an IPv6 address that is none
            host = port = None
        if host is None or parts.scheme not in ("http", "https") or not host.isprintable() or " " in host:
            raise UsageError(f"'{url}' is not the address of a daemon; expected http://HOST:PORT")
        self.url = url
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._connection = http.client.HTTPConnection(host, port or 80, timeout=timeout_s)
        if parts.scheme == "https":
            trusted = ssl.create_default_context(cafile=ca_file)
            self._connection = http.client.HTTPSConnection(host, port or 443, timeout=timeout_s, context=trusted)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; a later call opens a new one."""
        self._connection.close()

    def is_ready(self) -> bool:
        """True when the daemon answers and every model is warmed up. An absent daemon is False."""
        try:
            return self._ask("GET", "/v2/health/ready")[0] == 200
        except UnreachableError:
            return False

    def wait_until_ready(self, timeout_s: float) -> None:
        """Raises UnreachableError when the daemon is not ready in time."""
        until_s = time.monotonic() + timeout_s
        while not self.is_ready():
            if time.monotonic() > until_s:
                raise UnreachableError(self.url, f"not ready within {timeout_s:.0f} s")
            time.sleep(0.05)

    def infer(
        self, model: str, inputs: Mapping[str, np.ndarray], **parameters: Any
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Outputs by name, and the response's parameters (artifact, lane, queue_ms, infer_ms, cached).

        Raises RequestError (the daemon's own words) and UnreachableError.
        """
        body, json_bytes = encode_infer(inputs, parameters)
        headers = {"Inference-Header-Content-Length": str(json_bytes), "Content-Type": "application/octet-stream"}
        status, answer, answer_headers = self._ask("POST", f"/v2/models/{model}/infer", body, headers)
        if status != 200:
            raise RequestError(status, _error_text(answer))
        split = int(answer_headers.get("inference-header-content-length", len(answer)))
        return _decode_infer(memoryview(answer), split)

    def _ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes, http.client.HTTPMessage]:
        # A daemon may close an idle connection just as we write: one retry on a fresh one, never on a fresh failure.
        for attempt in (1, 2):
            reused = self._connection.sock is not None
            try:
                self._connection.request(method, path, body, {**self._headers, **(headers or {})})
                if self._connection.sock is not None:
                    self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                answer = self._connection.getresponse()
                return answer.status, answer.read(), answer.headers
            except (OSError, http.client.HTTPException) as e:
                self._connection.close()
                if attempt == 2 or not reused:
                    raise UnreachableError(self.url, f"{e or type(e).__name__}") from e
        raise AssertionError("unreachable")


def encode_infer(inputs: Mapping[str, np.ndarray], parameters: Mapping[str, Any]) -> tuple[bytes, int]:
    """(body, length of its JSON part) of a request with every tensor in binary, in both directions."""
    arrays = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
    head = msgspec.json.encode(
        {
            "parameters": {**parameters, "binary_data_output": True},
            "inputs": [
                {
                    "name": name,
                    "shape": inputs[name].shape,  # a contiguous copy of a scalar has one axis
                    "datatype": DATATYPES[array.dtype.name],
                    "parameters": {"binary_data_size": array.nbytes},
                }
                for name, array in arrays.items()
            ],
        }
    )
    return b"".join([head, *(array.data.cast("B") for array in arrays.values())]), len(head)


def _decode_infer(answer: memoryview, split: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    head = msgspec.json.decode(answer[:split])
    outputs: dict[str, np.ndarray] = {}
    for tensor in head["outputs"]:
        dtype = np.dtype(DTYPES[tensor["datatype"]])
        size = tensor.get("parameters", {}).get("binary_data_size")
        if size is None:
            flat = np.array(tensor["data"], dtype)
        else:
            flat = np.frombuffer(answer[split : split + size], dtype)
            split += size
        outputs[tensor["name"]] = flat.reshape(tensor["shape"])
    return outputs, head.get("parameters", {})


def _error_text(answer: bytes) -> str:
    try:
        return str(msgspec.json.decode(answer)["error"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return answer[:200].decode(errors="replace")
