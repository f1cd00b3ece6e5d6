"""One whole local update in one process, for a tracer to kill anywhere: stage, switch, be judged, commit, tidy.

usage: update_once.py ROOT LIBRARY RELEASE. Exit code 0: RELEASE is committed and active.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from edgekit.provision import guard, slots, stage
from edgekit.provision.release import Library


def main(root: Path, library: Library, name: str) -> int:
    stored = library.load(name)
    if not any(s.digest == stored.digest and s.state == "pending" for s in slots.status(root).slots):
        stage.install(root, stored, stage.from_folder(library.blob))
    stops: list[int] = []
    threading.Thread(target=stop_when_judged, args=(root, stops), daemon=True).start()
    guard.guard(root, {}, stops)
    slots.tidy(root)
    return 0 if stage.is_committed(root, stored) else 1


def stop_when_judged(root: Path, stops: list[int]) -> None:
    """Lets the guard end as a shutdown would, once nothing is pending any more."""
    while any(s.state == "pending" for s in slots.status(root).slots):
        time.sleep(0.02)
    stops.append(15)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Library(Path(sys.argv[2])), sys.argv[3]))
