"""What a daemon tells of itself: its name, one line for the log, and the birth certificate for the fleet."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable
from dataclasses import dataclass

from edgekit import __version__
from edgekit.config import DaemonConfig
from edgekit.device.probe import Facts, as_json
from edgekit.errors import ConfigError
from edgekit.telemetry.messages import Birth, ModelState

_MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Ready:
    """What the daemon says when every model is warm."""

    url: str
    site: str
    device: str
    models: tuple[ModelState, ...]
    ready_s: float
    "From the start of the process's work until now."


def device_name(config: DaemonConfig, facts: Facts, source: str) -> str:
    """The configured name, else the hardware's. Raises ConfigError when telemetry needs one and there is none."""
    if name := config.device or facts.device_id:
        return name
    if config.mqtt.host is not None:
        raise ConfigError(source, "device", "nothing unique can be read from this hardware; give the device a name")
    return "unnamed"


def describe(facts: Facts) -> str:
    """The machine in one line."""
    cores = facts.cpu.cores_usable
    memory = facts.memory.available_bytes
    return ", ".join(
        (
            facts.board.name or facts.cpu.model or "unknown board",
            f"{cores} usable core{'s' * (cores != 1)}" if cores else "cores unknown",
            f"{memory // _MIB} MiB free" if memory else "free memory unknown",
            ", ".join(accelerator.kind for accelerator in facts.accelerators) or "no accelerator",
        )
    )


def birth(epoch: int, config: DaemonConfig, facts: Facts, models: Iterable[ModelState]) -> Birth:
    """The certificate as it stands now: models that are loading say so."""
    installed = {runtime.name: runtime.version for runtime in facts.runtimes}
    return Birth(
        epoch=epoch,
        t_unix_ms=int(time.time() * 1000),
        board=facts.board.name or facts.cpu.model or "unknown board",
        board_id=facts.board.profile or facts.board.id or "",
        facts=as_json(facts),
        models=tuple(models),
        versions=installed | {"edgekit": __version__, "python": platform.python_version()},
        window_ms=int(config.mqtt.window_s * 1000),
        allowed_commands=config.mqtt.allowed_commands,
    )
