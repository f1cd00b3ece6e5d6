"""The published JSON Schema is that of the types, and says of real payloads what the decoder says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgekit.telemetry.messages import KINDS, Ack, Metrics, State, Status, decode, encode
from edgekit.telemetry.schema import as_text, payload_schemas

FILE = Path(__file__).resolve().parent.parent / "docs/payloads.schema.json"


def test_the_file_is_generated_from_the_types_that_are() -> None:
    mend = "python -m edgekit.telemetry.schema > docs/payloads.schema.json"
    assert FILE.read_text(encoding="utf-8") == as_text(), f"to mend it: {mend}"


def definition(leaf: str) -> dict[str, Any]:
    document = payload_schemas()
    found: dict[str, Any] = document["$defs"][document["properties"][leaf]["$ref"].rpartition("/")[2]]
    return found


def test_every_topic_has_one() -> None:
    assert payload_schemas()["properties"].keys() == KINDS.keys()


@pytest.mark.parametrize(
    ("leaf", "payload"),
    [
        ("metrics", Metrics(epoch=1, seq=0, t_unix_ms=0, t_mono_ms=0, window_ms=1)),
        ("ack", Ack(epoch=1, seq=0)),
        ("status", Status(state=State.ONLINE, epoch=1)),
    ],
)
def test_what_it_requires_is_what_the_decoder_requires(leaf: str, payload: Any) -> None:
    found = json.loads(encode(payload))
    for key in found:
        without = json.dumps({k: v for k, v in found.items() if k != key}).encode()
        if key in definition(leaf)["required"]:
            with pytest.raises(ValueError, match=key):
                decode(leaf, without)
        else:
            decode(leaf, without)
