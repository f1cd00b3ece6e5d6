"""A picture of a real HTML report for the README: measure here, open the page in Chromium, keep what is seen.

make picture        ocr-detector; docs/report.png
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from edgekit.cli.main import main as edgekit

ROOT = Path(__file__).resolve().parents[2]
WIDTH, HEIGHT = 1060, 1500
GREYS = 16
"""Enough for text and plots in black and white, and a fifth of the bytes."""


def screenshot(page: Path, target: Path, *, height: int) -> None:
    """The top of the page as a PNG of few greys. Raises SystemExit without Chromium."""
    browsers = ("chromium", "chromium-browser", "google-chrome")
    browser = next((found for name in browsers if (found := shutil.which(name))), None)
    if browser is None:
        raise SystemExit("picture: no Chromium on the PATH: apt-get install chromium")
    with tempfile.TemporaryDirectory(prefix="edgekit-picture-") as folder:
        raw = Path(folder) / "page.png"
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={folder}/profile",
        ]
        command = [browser, *flags, f"--window-size={WIDTH},{height}", f"--screenshot={raw}", page.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if not raw.exists():
            raise SystemExit(f"picture: {browser} drew nothing: {done.stderr.strip()[-300:]}")
        with Image.open(raw) as seen:
            seen.convert("L").quantize(GREYS).save(target, optimize=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="ocr-detector")
    parser.add_argument("--page", type=Path, help="a report that is there already; default: measure")
    parser.add_argument("--target", type=Path, default=ROOT / "docs/report.png")
    parser.add_argument("--height", type=int, default=HEIGHT)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="edgekit-report-") as folder:
        page = args.page or Path(folder) / "report.html"
        if args.page is None:
            for command in (["build", args.model], ["bench", args.model, "--threads", "1", "--html", str(page)]):
                if code := edgekit(command):
                    return code
        screenshot(page.resolve(), args.target, height=args.height)
    print(f"wrote {args.target}, {args.target.stat().st_size / 1024:.0f} KiB", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
