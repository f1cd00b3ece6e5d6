"""Settings, resolved once: flag > environment > file > default. No other module reads the environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from edgekit.errors import ConfigError
from edgekit.strict import read_toml

NAME_PATTERN = r"^[a-z0-9_-]{1,63}\Z"
_EVERYONE = "_all"
"""In place of a name in a topic it means every device."""


@dataclass(frozen=True, slots=True)
class Home:
    """Where edgekit keeps what must survive: `$EDGEKIT_HOME`, else the platform's folder for user data."""

    root: Path

    @property
    def cache(self) -> Path:
        """Downloads, by sha256; safe to delete."""
        return self.root / "cache"

    def artifacts(self, model: str) -> Path:
        return self.root / "artifacts" / model

    def measurements(self, model: str) -> Path:
        return self.root / "measurements" / model

    def selection(self, model: str) -> Path:
        return self.root / "selections" / f"{model}.json"

    def daemon(self, device: str) -> Path:
        """State of one daemon: epoch, event log."""
        return self.root / "daemon" / device


def home(environ: Mapping[str, str] = os.environ) -> Home:
    """The state folder of this user."""
    if chosen := environ.get("EDGEKIT_HOME"):
        return Home(Path(chosen))
    if sys.platform == "win32":
        base = Path(environ.get("LOCALAPPDATA", Path.home() / "AppData/Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library/Application Support"
    else:
        base = Path(environ.get("XDG_DATA_HOME") or Path.home() / ".local/share")
    return Home(base / "edgekit")


def convert_environment(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the tools that convert to LiteRT live: $EDGEKIT_CONVERT, else beside the environment edgekit runs in."""
    return Path(environ.get("EDGEKIT_CONVERT") or Path(sys.prefix).parent / ".venv-convert")


@dataclass(frozen=True, slots=True)
class Supervisor:
    """What systemd expects of a daemon. None: it is not asked."""

    notify_socket: str | None = None
    'A path, or "@name" for an abstract socket.'
    watchdog_s: float | None = None
    "It wants a sign of life at least this often."


def supervisor(environ: Mapping[str, str] = os.environ) -> Supervisor:
    """From NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID. Source: sd_notify(3), sd_watchdog_enabled(3)."""
    period = environ.get("WATCHDOG_USEC", "")
    is_ours = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    watchdog_s = int(period) / 1e6 if period.isdecimal() and int(period) > 0 and is_ours else None
    return Supervisor(notify_socket=environ.get("NOTIFY_SOCKET") or None, watchdog_s=watchdog_s)


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class HttpConfig(_Section, frozen=True, kw_only=True):
    """`[http]`: where the daemon listens."""

    host: str = "127.0.0.1"
    port: int = 8080
    "0: any free port; the chosen one is printed."
    unix_socket: str | None = None
    token_file: str | None = None
    "Bearer token; required when `host` is not loopback."
    certificate_file: str | None = None
    key_file: str | None = None
    "PEM, both or none: then it speaks TLS. Read again on SIGHUP."
    max_request_bytes: int = 64 * 1024 * 1024
    max_connections: int = 64
    shared_memory: bool = False
    "Clients on this machine may name tensors in shared memory objects of their own user."


class MqttConfig(_Section, frozen=True, kw_only=True):
    """`[mqtt]`: where telemetry goes. Secrets come by path."""

    host: str | None = None
    "None: no telemetry."
    port: int = 1883
    username: str | None = None
    password_file: str | None = None
    tls: bool = False
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    keepalive_s: int = 15
    window_s: float = 10.0
    allowed_commands: tuple[str, ...] = ("ping", "rebirth")
    outbox_bytes: int = 64 * 1024 * 1024
    "Disk for what could not be delivered; the oldest goes first, and is counted."
    commit_s: float = 10.0
    "How much a power cut may cost: what waits longer is on the disk."
    history_per_s: float = 5.0
    "After an outage: stored windows sent a second, beside the live ones."
    collector: bool | None = None
    "Whether windows are kept until `edgekit collect` has them; None: from its first acknowledgement on."
    home_assistant: bool = False
    "Describe this device to Home Assistant (below `homeassistant/`) and send it plain numbers with every window."


class TolerantConfig(_Section, frozen=True, kw_only=True):
    """`[model.tolerant]`: a second lane, for requests that can wait; it runs at the lowest priority."""

    artifact: str | None = None
    "Pin one artifact instead of selecting."
    objective: str = "throughput"
    threads: int = 1


class BatchConfig(_Section, frozen=True, kw_only=True):
    """`[model.batch]`: answer several requests in one inference, where the artifact allows it."""

    max: int | None = None
    "At most; less where the memory does not hold it. None: as many as were selected, else 8."
    preferred: int | None = None
    "As many are not kept waiting for more. None: as many as were selected, else half of `max`."
    window_ms: float = 2.0
    "At most this long for others to come; nobody waits when there are none."


class ModelConfig(_Section, frozen=True, kw_only=True):
    """`[[model]]`: a model to serve and what is required of it."""

    name: str
    "A catalog name or the path of a .onnx or .tflite file."
    artifact: str | None = None
    "Pin one artifact instead of selecting."
    objective: str = "latency"
    latency_ms: float | None = None
    memory_mb: float | None = None
    accuracy_floor: float = 0.99
    threads: int | None = None
    axes: Mapping[str, int] = {}
    tolerant: TolerantConfig | None = None
    batch: BatchConfig | None = None
    policy: Literal["priority", "cascade"] = "priority"
    "cascade: a compressed artifact answers first, the standard what that is not sure of."
    agreement: float = 0.99
    "Of a cascade with the standard, kept on inputs that are like the evaluation data."
    shadow: float | None = None
    "Share of requests that run on the standard artifact too; None: 0.001 where a lane has it anyway, else none."
    isolation: Literal["auto", "thread", "process"] = "auto"
    "Where the runtime lives; auto: in a process of its own where it uses an accelerator or a delegate."
    cache: bool = True
    "False: its answers are not kept, whatever `[cache]` says."


class CacheConfig(_Section, frozen=True, kw_only=True):
    """`[cache]`: answers kept for inputs that come again byte for byte, over all models."""

    mb: float = 0.0
    "0: none."
    ttl_s: float = 300.0


class MemoryConfig(_Section, frozen=True, kw_only=True):
    """`[memory]`: when the daemon gives something up."""

    limit_mb: float | None = None
    "Of the daemon's own size; None: only what the device has left counts."
    low: tuple[float, float, float] = (0.12, 0.08, 0.04)
    "Shares of the memory still available at which caches and tolerant lanes go, artifacts shrink, work is refused."
    pressure_percent: float = 25.0
    "Of the time waiting for memory, at which caches and tolerant lanes go too."


class HealthConfig(_Section, frozen=True, kw_only=True):
    """`[health]`: when a lane counts as stuck, and when an artifact is given up."""

    stuck_s: float = 10.0
    "An inference that takes longer is stuck, unless its kind is slow."
    probe_s: float = 30.0
    "A lane that has not answered for this long is asked by the daemon itself."
    failures: int = 3
    "Of an artifact's runtime within `minutes`: then the next candidate is served instead."
    minutes: float = 10.0
    strain_s: float = 60.0
    "Throttled, or p99 beyond `latency_ms`, for so long: the fastest measured candidate is served. 0: never."
    keep_warm: bool = True
    "Ask a lane before a pause gets so long that the next request would be slow, where that was seen."


class DaemonConfig(_Section, frozen=True, kw_only=True):
    """`edgekit.toml`."""

    site: str = "default"
    device: str | None = None
    "None: from the hardware's serial number."
    http: HttpConfig = HttpConfig()
    mqtt: MqttConfig = MqttConfig()
    cache: CacheConfig = CacheConfig()
    memory: MemoryConfig = MemoryConfig()
    health: HealthConfig = HealthConfig()
    model: tuple[ModelConfig, ...] = ()


def load_daemon_config(path: Path) -> DaemonConfig:
    """The daemon's settings. Raises ConfigError naming file, key and the nearest known key."""
    return check_daemon_config(read_toml(path, DaemonConfig), path)


def check_daemon_config(config: DaemonConfig, path: Path | str) -> DaemonConfig:
    """What the types cannot say: names, a token where the network can reach us, at least one model."""
    import re

    for key, name in (("site", config.site), ("device", config.device)):
        if name is not None and (name == _EVERYONE or not re.fullmatch(NAME_PATTERN, name)):
            raise ConfigError(path, key, f"{name!r} must be 1 to 63 of a-z, 0-9, '_' and '-', and not '{_EVERYONE}'")
    loopback = config.http.host in ("127.0.0.1", "::1", "localhost")
    if not loopback and config.http.unix_socket is None and config.http.token_file is None:
        raise ConfigError(path, "http.token_file", f"required when http.host is '{config.http.host}', not loopback")
    http = config.http
    if (http.certificate_file is None) != (http.key_file is None):
        raise ConfigError(path, "http.key_file", "certificate_file and key_file go together")
    if http.certificate_file is not None and http.unix_socket is not None:
        raise ConfigError(path, "http.certificate_file", "TLS is for a port; a Unix socket never leaves the machine")
    if not config.model:
        raise ConfigError(path, "model", "at least one [[model]] is required")
    _check_numbers(config, path)
    return config


def _check_numbers(config: DaemonConfig, path: Path | str) -> None:
    endless = float("inf")
    bounds: list[tuple[str, float | None, float, float]] = [
        ("cache.mb", config.cache.mb, 0, endless),
        ("cache.ttl_s", config.cache.ttl_s, 0, endless),
        ("memory.limit_mb", config.memory.limit_mb, 1, endless),
        ("memory.pressure_percent", config.memory.pressure_percent, 0, 100),
        ("health.stuck_s", config.health.stuck_s, 0.1, endless),
        ("health.probe_s", config.health.probe_s, 1, endless),
        ("health.failures", config.health.failures, 1, endless),
        ("health.minutes", config.health.minutes, 0, endless),
        ("health.strain_s", config.health.strain_s, 0, endless),
        *(("memory.low", share, 0, 1) for share in config.memory.low),
        ("http.max_request_bytes", config.http.max_request_bytes, 1, endless),
        ("http.max_connections", config.http.max_connections, 1, endless),
    ]
    for model in config.model:
        bounds += [
            ("model.latency_ms", model.latency_ms, 0.001, endless),
            ("model.memory_mb", model.memory_mb, 1, endless),
            ("model.shadow", model.shadow, 0, 1),
            ("model.agreement", model.agreement, 0, 0.9999),
            ("model.accuracy_floor", model.accuracy_floor, 0, 1),
            ("model.threads", model.threads, 1, endless),
            *((f"model.axes.{name}", size, 1, endless) for name, size in model.axes.items()),
        ]
        if model.batch is not None:
            bounds += [("model.batch.max", model.batch.max, 1, endless)]
            bounds += [("model.batch.window_ms", model.batch.window_ms, 0, endless)]
            bounds += [("model.batch.preferred", model.batch.preferred, 1, endless)]
        if model.tolerant is not None:
            bounds += [("model.tolerant.threads", model.tolerant.threads, 1, endless)]
    if list(config.memory.low) != sorted(config.memory.low, reverse=True):
        raise ConfigError(path, "memory.low", "each share must be at most the one before")
    for key, value, low, high in bounds:
        if value is not None and not (low <= value <= high and value < endless):
            most = f"from {low:g} to {high:g}" if high < endless else f"a number of at least {low:g}"
            raise ConfigError(path, key, f"{value:g} must be {most}")
