"""The probe as one file for a bare board: this package's own sources and the profiles, in a script for Python 3.8."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Iterable

from edgekit.device.identity import Profile

_NOT_NEEDED = ("script.py", "sensors.py")
_HEAD = '''\
"""edgekit's device probe in one file, standard library only, for Python 3.8 or newer.

Made by `edgekit probe --print-script`. Use: edgekit probe --print-script | ssh HOST python3 - [--root DIR]
Prints the facts of this machine as JSON and changes nothing.
"""

import argparse
import importlib.abc
import importlib.util
import json
import sys

if sys.version_info < (3, 8):
    sys.exit("the probe needs Python 3.8 or newer, this is %d.%d" % sys.version_info[:2])

'''
_TAIL = '''

class _Embedded(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of SOURCES, so that they import one another as they do when installed."""

    def find_spec(self, name, path=None, target=None):
        if name not in SOURCES:
            return None
        return importlib.util.spec_from_loader(name, self, is_package=SOURCES[name] is None)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        source = SOURCES[module.__name__]
        if source is not None:
            exec(compile(source, "<edgekit " + module.__name__ + ">", "exec"), module.__dict__)


def main():
    parser = argparse.ArgumentParser(description="Print the facts of this machine as JSON.")
    parser.add_argument("--root", default="/", help="probe a captured file tree instead")
    args = parser.parse_args()
    sys.meta_path.insert(0, _Embedded())
    from edgekit.device.probe import as_json, probe

    print(json.dumps(as_json(probe(args.root, json.loads(PROFILES))), indent=2))


main()
'''


def as_script(profiles: Iterable[Profile]) -> str:
    """The text of the script; `profiles` are embedded as JSON."""
    lines = [_HEAD, "PROFILES = ", _literal(json.dumps(list(profiles), ensure_ascii=True)), "\n\nSOURCES = {\n"]
    lines.append('    "edgekit": None,\n    "edgekit.device": None,\n')
    for path in sorted(Path(__file__).resolve().parent.glob("*.py")):
        if path.name not in (*_NOT_NEEDED, "__init__.py"):
            lines.append(f'    "edgekit.device.{path.stem}": {_literal(path.read_text(encoding="utf-8"))},\n')
    return "".join([*lines, "}\n", _TAIL])


def _literal(text: str) -> str:
    """`text` as a Python literal of ASCII characters only: the far end may read its input in any locale."""
    return ascii(text)
