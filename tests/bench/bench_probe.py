"""`edgekit probe` and `--help` beside an empty Python, in turns: what the verbs cost, and the interpreter apart.

Exit 1 when the best of a verb's runs is over 0.15 s: the best, since other programs only ever add to it.
Ends with one line of JSON: medians and bests in seconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from statistics import median

BOUND_S = 0.15
ROUNDS = 15
EDGEKIT = [sys.executable, "-m", "edgekit.cli.main"]
SIDES = {
    "python": [sys.executable, "-c", "pass"],
    "help": [*EDGEKIT, "--help"],
    "probe": [*EDGEKIT, "probe"],
    "probe_json": [*EDGEKIT, "probe", "--json"],
}


def main() -> int:
    """Run all sides in turns and print the table."""
    taken_s: dict[str, list[float]] = {name: [] for name in SIDES}
    for _ in range(ROUNDS):
        for name, argv in SIDES.items():
            began_s = time.perf_counter()
            subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
            taken_s[name].append(time.perf_counter() - began_s)
    bare_s = median(taken_s["python"])
    for name, samples in taken_s.items():
        print(f"{name:12} median {median(samples):.3f} s   best {min(samples):.3f} s   {median(samples) / bare_s:.1f}x")
    verbs = [name for name in SIDES if name != "python"]
    figures = {f"{name}_s": round(median(taken_s[name]), 4) for name in SIDES}
    print(json.dumps(figures | {f"{name}_best_s": round(min(taken_s[name]), 4) for name in verbs}))
    return int(any(min(taken_s[name]) > BOUND_S for name in verbs))


if __name__ == "__main__":
    sys.exit(main())
