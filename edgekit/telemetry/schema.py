"""The payloads as JSON Schema, for those who read or write them without edgekit. Generated from the types.

`python -m edgekit.telemetry.schema` prints what `docs/payloads.schema.json` holds.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec

from edgekit.telemetry.messages import KINDS, ROOT, SCHEMA


def payload_schemas() -> dict[str, Any]:
    """One JSON Schema document (draft 2020-12): each topic's last word names a property with its payload's schema."""
    schemas, components = msgspec.json.schema_components(KINDS.values(), ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Payloads below {ROOT}/SITE/DEVICE/, schema {SCHEMA}",
        "description": "Readers ignore keys that they do not know.",
        "type": "object",
        "properties": dict(zip(KINDS, schemas, strict=True)),
        "$defs": components,
    }


def as_text() -> str:
    """The document as it stands in the file."""
    return json.dumps(payload_schemas(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(as_text())
