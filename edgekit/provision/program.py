"""The guard as one file beside the slots: made from its modules, tried before it replaces an older one."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

from edgekit.errors import SlotError
from edgekit.files import sync_folder, write_atomic
from edgekit.provision import guard, launch, relay, state

GUARD = "guard.pyz"
_MODULES = (guard, launch, relay, state)


def guard_program() -> bytes:
    """The guard as one file that Python runs: its modules under their own names, the same bytes every time."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        sources = {"edgekit/__init__.py": "", "edgekit/provision/__init__.py": ""}
        for module in _MODULES:
            sources[module.__name__.replace(".", "/") + ".py"] = Path(str(module.__file__)).read_text(encoding="utf-8")
        sources["__main__.py"] = "import sys\nfrom edgekit.provision.guard import main\nsys.exit(main(sys.argv[1:]))\n"
        sources["version.json"] = json.dumps({"version": guard.VERSION})
        for name, text in sources.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    return made.getvalue()


def guard_version(root: Path) -> int | None:
    """Of the guard that lies in `root`; None when there is none that can be read."""
    try:
        with zipfile.ZipFile(root / GUARD) as archive:
            return int(json.loads(archive.read("version.json"))["version"])
    except (OSError, zipfile.BadZipFile, KeyError, ValueError):
        return None


def install_guard(root: Path) -> None:
    """Put our guard there unless one of this version or a newer one is; it takes effect when the service restarts.

    Raises SlotError, and the old one stays, when the new one does not even start with this Python.
    """
    present = guard_version(root)
    if present is not None and present >= guard.VERSION:
        return
    new = root / f".new-{GUARD}"
    write_atomic(new, guard_program())
    tried = subprocess.run([sys.executable, "-I", str(new), "--version"], capture_output=True, text=True, check=False)
    if tried.stdout.strip() != str(guard.VERSION):
        said = tried.stderr.strip().splitlines()
        problem = f"the guard does not start here: {said[-1] if said else 'it said nothing'}"
        raise SlotError("a and b", problem, rolled_back=False)
    os.replace(new, root / GUARD)
    sync_folder(root)
