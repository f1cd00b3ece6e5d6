"""Small files of many kinds, made from a seed: what a file-type model is calibrated and judged on."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import random
import struct
import tarfile
import wave
import zipfile
import zlib
from collections.abc import Callable

Make = Callable[[random.Random], bytes]

_IDENTIFIERS = "count total index value user order price status reading device result buffer request limit offset name"
_SENTENCES = (
    "the pump stopped at noon and the level fell slowly while nobody watched the gauge near the door "
    "we opened the valve again after lunch and wrote the time into the book as usual before the night shift came"
)
_NAMES = _IDENTIFIERS.split()
_PROSE = _SENTENCES.split()


def made_file(i: int, rng: random.Random) -> tuple[bytes, str]:
    """(the bytes of a file of the i-th kind, its kind); kinds come in turn."""
    kind = tuple(_MAKERS)[i % len(_MAKERS)]
    return _MAKERS[kind](rng), kind


def _name(rng: random.Random) -> str:
    return rng.choice(_NAMES) + rng.choice(("", "_id", "_ms", "_list", "2"))


def _prose(rng: random.Random, sentences: int) -> str:
    made = (" ".join(rng.choices(_PROSE, k=rng.randint(6, 16))).capitalize() + "." for _ in range(sentences))
    return " ".join(made)


def _text(rng: random.Random) -> bytes:
    return "\n\n".join(_prose(rng, rng.randint(2, 5)) for _ in range(3)).encode()


def _python(rng: random.Random) -> bytes:
    body = "".join(
        f"\n\ndef {_name(rng)}_{i}({a}: int, {b}: str = 'x') -> dict[str, int]:\n"
        f'    """{_prose(rng, 1)}"""\n    if {a} > {rng.randint(1, 99)}:\n        raise ValueError(f"bad {{{a}}}")\n'
        f"    return {{{b}: {a} for {a} in range({rng.randint(2, 50)})}}\n"
        for i in range(3)
        for a, b in [rng.sample(_NAMES, 2)]
    )
    head = "import os\nimport sys\nfrom pathlib import Path\n"
    return f"{head}{body}\n\nif __name__ == '__main__':\n    sys.exit(main())\n".encode()


def _c(rng: random.Random) -> bytes:
    body = "".join(
        f"\nstatic int {_name(rng)}_{i}(const char *{a}, size_t {b})\n{{\n    for (size_t i = 0; i < {b}; i++) {{\n"
        f"        if ({a}[i] == '\\0')\n            return -{rng.randint(1, 30)};\n"
        f'        printf("%c %zu\\n", {a}[i], {b});\n    }}\n    return 0;\n}}\n'
        for i in range(3)
        for a, b in [rng.sample(_NAMES, 2)]
    )
    head = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n"
    return f"{head}\n#define LIMIT {rng.randint(2, 999)}\n{body}".encode()


def _java(rng: random.Random) -> bytes:
    fields = "".join(f"    private final int {name} = {rng.randint(0, 99)};\n" for name in rng.sample(_NAMES, 4))
    return (
        f"package org.example.{rng.choice(_NAMES)};\n\nimport java.util.List;\nimport java.util.ArrayList;\n\n"
        f"public class {rng.choice(_NAMES).capitalize()}Service {{\n{fields}\n    public List<String> all(int max) {{\n"
        f"        List<String> found = new ArrayList<>();\n        for (int i = 0; i < max; i++) {{\n"
        f'            found.add("{_prose(rng, 1)}" + i);\n        }}\n        return found;\n    }}\n}}\n'
    ).encode()


def _javascript(rng: random.Random) -> bytes:
    a, b = rng.sample(_NAMES, 2)
    return (
        f"'use strict';\nconst fs = require('fs');\n\nconst {a} = async ({b}) => {{\n"
        f"  const data = await fetch(`/api/${{{b}}}`);\n"
        f"  if (data === undefined) {{\n    console.log('{_prose(rng, 1)}');\n    return null;\n  }}\n"
        f"  return data.items.map((x) => x.{b}).filter(Boolean);\n}};\n\nmodule.exports = {{ {a} }};\n"
    ).encode()


def _shell(rng: random.Random) -> bytes:
    a = rng.choice(_NAMES)
    return (
        f'#!/bin/bash\nset -euo pipefail\n\n{a.upper()}="${{1:-{rng.randint(1, 99)}}}"\nfor f in /var/log/*.{a}; do\n'
        f'  if [ -f "$f" ]; then\n    echo "{_prose(rng, 1)} $f"\n    grep -c error "$f" || true\n  fi\ndone\nexit 0\n'
    ).encode()


def _html(rng: random.Random) -> bytes:
    rows = "".join(f"<li><a href='/{_name(rng)}'>{_prose(rng, 1)}</a></li>\n" for _ in range(4))
    return (
        f"<!DOCTYPE html>\n<html lang='en'>\n<head><meta charset='utf-8'>\n<title>{_prose(rng, 1)}</title></head>\n"
        f"<body>\n<h1>{_prose(rng, 1)}</h1>\n<ul>\n{rows}</ul>\n<p>{_prose(rng, 3)}</p>\n</body>\n</html>\n"
    ).encode()


def _css(rng: random.Random) -> bytes:
    rule = ".{} > a:hover {{\n  color: #{:06x};\n  margin: 0 {}px;\n  display: flex;\n}}\n"
    return "".join(rule.format(_name(rng), rng.randrange(1 << 24), rng.randint(1, 40)) for _ in range(6)).encode()


def _json(rng: random.Random) -> bytes:
    rows = [
        {name: rng.choice((rng.random(), _prose(rng, 1), None)) for name in rng.sample(_NAMES, 5)} for _ in range(5)
    ]
    return json.dumps({"version": rng.randint(1, 9), "items": rows}, indent=2).encode()


def _yaml(rng: random.Random) -> bytes:
    jobs = "".join(
        f"  {_name(rng)}:\n    image: registry/{rng.choice(_NAMES)}:{rng.randint(1, 9)}\n"
        f"    replicas: {rng.randint(1, 9)}\n    ports:\n      - {rng.randint(80, 9999)}\n"
        for _ in range(4)
    )
    return f"---\nversion: '3'\nservices:\n{jobs}".encode()


def _xml(rng: random.Random) -> bytes:
    rows = "".join(f'  <entry id="{rng.randint(1, 999)}"><name>{_prose(rng, 1)}</name></entry>\n' for _ in range(6))
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<{rng.choice(_NAMES)}s>\n{rows}</{rng.choice(_NAMES)}s>\n'.encode()


def _ini(rng: random.Random) -> bytes:
    sections = (
        f"[{_name(rng)}]\n" + "".join(f"{n} = {rng.randint(0, 999)}\n" for n in rng.sample(_NAMES, 4)) for _ in "abc"
    )
    return "\n".join(sections).encode()


def _csv(rng: random.Random) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(rng.sample(_NAMES, 5))
    writer.writerows(
        [rng.randint(1, 999), rng.choice(_PROSE), round(rng.random(), 3), rng.choice(_PROSE), i] for i in range(30)
    )
    return out.getvalue().encode()


def _sql(rng: random.Random) -> bytes:
    a, b, table = rng.sample(_NAMES, 3)
    rows = "".join(f"INSERT INTO {table}s ({a}, {b}) VALUES ({i}, '{_prose(rng, 1)}');\n" for i in range(5))
    columns = f"  {a} INTEGER PRIMARY KEY,\n  {b} VARCHAR(255) NOT NULL\n"
    return f"CREATE TABLE {table}s (\n{columns});\n{rows}SELECT * FROM {table}s;\n".encode()


def _image(kind: str) -> Make:
    def make(rng: random.Random) -> bytes:
        import numpy as np
        from PIL import Image

        noise = np.random.default_rng(rng.randrange(2**32))
        small = Image.fromarray(noise.integers(0, 256, (6, 6, 3), dtype=np.uint8))
        out = io.BytesIO()
        small.resize((rng.randint(30, 90), rng.randint(30, 90))).save(out, kind)
        return out.getvalue()

    return make


def _wav(rng: random.Random) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rng.choice((8000, 16000, 44100)))
        file.writeframes(struct.pack("<2000h", *(int(rng.gauss(0, 3000)) % 20000 - 10000 for _ in range(2000))))
    return out.getvalue()


def _zip(rng: random.Random) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in rng.sample(_NAMES, 3):
            archive.writestr(zipfile.ZipInfo(f"{name}.txt"), _text(rng))
    return out.getvalue()


def _tar(rng: random.Random) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in rng.sample(_NAMES, 3):
            entry, data = tarfile.TarInfo(f"{name}/{name}.txt"), _text(rng)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def _pdf(rng: random.Random) -> bytes:
    words = zlib.compress(f"BT /F1 12 Tf 72 720 Td ({_prose(rng, 4)}) Tj ET".encode())
    parts = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R >>",
        b"<< /Length %d /Filter /FlateDecode >>\nstream\n%s\nendstream" % (len(words), words),
    ]
    body, places = b"%PDF-1.5\n%\xe2\xe3\xcf\xd3\n", []
    for i, part in enumerate(parts, 1):
        places.append(len(body))
        body += b"%d 0 obj\n%s\nendobj\n" % (i, part)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    return body + (
        b"xref\n0 5\n0000000000 65535 f \n%strailer\n<< /Size 5 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n"
        % (table, len(body))
    )


_MAKERS: dict[str, Make] = {
    "txt": _text,
    "python": _python,
    "c": _c,
    "java": _java,
    "javascript": _javascript,
    "shell": _shell,
    "html": _html,
    "css": _css,
    "json": _json,
    "yaml": _yaml,
    "xml": _xml,
    "ini": _ini,
    "csv": _csv,
    "sql": _sql,
    "png": _image("PNG"),
    "jpeg": _image("JPEG"),
    "gif": _image("GIF"),
    "bmp": _image("BMP"),
    "tiff": _image("TIFF"),
    "webp": _image("WEBP"),
    "wav": _wav,
    "gzip": lambda rng: gzip.compress(_text(rng), mtime=0),
    "bzip": lambda rng: bz2.compress(_text(rng)),
    "xz": lambda rng: lzma.compress(_text(rng)),
    "zip": _zip,
    "tar": _tar,
    "pdf": _pdf,
}
