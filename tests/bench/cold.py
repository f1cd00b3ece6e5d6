"""One artifact in a fresh process: `cold.py PATH SETTINGS-JSON FEED.npz`.

Prints the Unix time of its first result, and its peak memory.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))


def main() -> None:
    from sides import opened  # after the clock of the parent has started

    path, settings, feed = sys.argv[1:]
    with np.load(feed, allow_pickle=False) as arrays:
        inputs = {name: arrays[name] for name in arrays.files}
    run = opened(Path(path), settings)
    run(inputs)
    done = time.time()
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    peak_kib = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
    print(json.dumps({"done_s": done, "peak_bytes": peak_kib * 1024}))


if __name__ == "__main__":
    main()
