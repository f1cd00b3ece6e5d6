"""Progress on stderr for what may take over a second; silent when stderr is not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bytes_bar(what: str) -> Iterator[Callable[[int, int | None], None]]:
    """A bar that appears with the first call of (bytes done, bytes in all or None)."""
    if not sys.stderr.isatty():
        yield lambda done, total: None  # noqa: ARG005 - the shape of fetch.Progress
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def share_bar() -> Iterator[Callable[[str, float], None]]:
    """A bar for work whose share is known: called with (what is going on, done from 0 to 1)."""
    if not sys.stderr.isatty():
        yield lambda text, share: None  # noqa: ARG005 - the shape of bench.run.Progress
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(bar_width=24), TextColumn("{task.percentage:>3.0f} %"), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda text, share: bar.update(task, description=text, completed=share)
