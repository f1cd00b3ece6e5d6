"""The demo's small fleet: a broker, one daemon with what was selected, one with the standard, and a load on both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit.demo.children import Child
from edgekit.demo.load import Load
from edgekit.telemetry.broker import Broker, start_broker

if TYPE_CHECKING:
    import numpy as np

SITE = "demo"
SELECTED, STANDARD = "selected", "standard"
WINDOW_S = 2
START_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The running fleet."""

    broker: Broker
    daemons: tuple[Child, ...]
    loads: tuple[Load, ...]

    @property
    def failures(self) -> list[str]:
        """Every daemon that has ended, with its last words, and every kind of request that was not answered."""
        ended = [f"{daemon.name} ended: {daemon.last_words}" for daemon in self.daemons if not daemon.is_running]
        return ended + sorted({failure for load in self.loads for failure in load.failures})


@contextmanager
def stage(
    folder: Path,
    inputs: Mapping[str, Sequence[Mapping[str, np.ndarray]]],
    standard_name: str,
    *,
    rate_hz: float,
) -> Iterator[Stage]:
    """Start it all in `folder`; everything is stopped and gone when the block ends.

    Args:
        inputs: real inputs of each model to serve; its keys are the models.
        standard_name: the artifact that the second daemon is pinned to.
        rate_hz: requests a second to each model of each daemon.

    Raises EdgekitError with the last words of whatever did not start.
    """
    with ExitStack() as stack:
        broker = stack.enter_context(start_broker(folder / "broker"))
        daemons = [
            stack.enter_context(_daemon(folder, name, list(inputs), artifact, broker))
            for name, artifact in ((SELECTED, None), (STANDARD, standard_name))
        ]
        urls = [daemon.wait_for("listening on ", START_S).split("listening on ", 1)[1].split()[0] for daemon in daemons]
        loads = [stack.enter_context(Load(url, inputs, rate_hz=rate_hz)) for url in urls]
        yield Stage(broker=broker, daemons=tuple(daemons), loads=tuple(loads))


def _daemon(folder: Path, name: str, models: Sequence[str], artifact: str | None, broker: Broker) -> Child:
    lines = [
        f'site = "{SITE}"',
        f'device = "{name}"',
        "[http]\nport = 0",
        f'[mqtt]\nhost = "{broker.host}"\nport = {broker.port}\nwindow_s = {WINDOW_S}',
    ]
    for model in models:
        lines += ["[[model]]", f'name = "{model}"', *([f'artifact = "{artifact}"'] if artifact else [])]
    config = folder / f"{name}.toml"
    config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Child(f"the daemon '{name}'", "run", "--config", config)
