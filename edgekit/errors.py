"""What can go wrong, as typed facts. Imports nothing; exit codes live in `edgekit.cli.main`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class EdgekitError(Exception):
    """Base of every error that reaches a user; its text is one line that says what, where and what to do."""


class UsageError(EdgekitError):
    """The command line asks for something that does not go together."""


class ConfigError(EdgekitError):
    """Settings that do not hold: `path` names the file, `key` the key (or None for the whole file)."""

    def __init__(self, path: Path | str, key: str | None, problem: str) -> None:
        self.path, self.key, self.problem = path, key, problem
        super().__init__(f"{path}: {key}: {problem}" if key else f"{path}: {problem}")


class CatalogError(ConfigError):
    """A board profile or model manifest that does not hold."""


class ProbeError(EdgekitError):
    """A file that must exist on the device does not parse."""

    def __init__(self, path: Path | str, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(f"{path}: {problem}")


class NoUsableArtifact(EdgekitError):
    """Every candidate was rejected; `rejections` holds (candidate, reason) pairs."""

    def __init__(self, model: str, rejections: Sequence[tuple[str, str]]) -> None:
        self.model, self.rejections = model, tuple(rejections)
        reasons = "; ".join(f"{name}: {why}" for name, why in self.rejections) or "there are no candidates"
        super().__init__(f"{model}: nothing fits: {reasons}")


class ArtifactError(EdgekitError):
    """A model file that is missing, damaged, or not what its record says."""

    def __init__(self, path: Path | str, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(f"{path}: {problem}")


class InputError(EdgekitError):
    """A tensor or file handed to a model that is not what it takes; `name` is the input's."""

    def __init__(self, name: str, problem: str) -> None:
        self.name, self.problem = name, problem
        super().__init__(f"input {name}: {problem}")


class RequestError(EdgekitError):
    """An HTTP request that cannot be served; `status` is the answer's."""

    def __init__(self, status: int, problem: str) -> None:
        self.status, self.problem = status, problem
        super().__init__(problem)


class FetchError(EdgekitError):
    """A source that could not be downloaded or does not hold what the manifest promises."""

    def __init__(self, source: str, problem: str) -> None:
        self.source, self.problem = source, problem
        super().__init__(f"{source}: {problem}")


class RuntimeUnavailable(EdgekitError):
    """A runtime, execution provider or delegate that is missing or not really used; `mend` is the command to type."""

    def __init__(self, runtime: str, detail: str, mend: str | None = None) -> None:
        self.runtime, self.detail, self.mend = runtime, detail, mend
        super().__init__(f"{runtime}: {detail}" + (f"; to mend it: {mend}" if mend else ""))


class BrokerError(EdgekitError):
    """The MQTT broker cannot be reached or refuses us."""

    def __init__(self, endpoint: str, detail: str) -> None:
        self.endpoint, self.detail = endpoint, detail
        super().__init__(f"broker {endpoint}: {detail}")


class UnreachableError(EdgekitError):
    """A host (ssh, HTTP daemon) that does not answer."""

    def __init__(self, host: str, detail: str) -> None:
        self.host, self.detail = host, detail
        super().__init__(f"{host}: {detail}")


class ReleaseError(EdgekitError):
    """A release, or the repository it comes from, that does not hold or must not be trusted; `release` names it."""

    def __init__(self, release: str, problem: str) -> None:
        self.release, self.problem = release, problem
        super().__init__(f"release {release}: {problem}")


class Cancelled(EdgekitError):
    """The operator or the application wants it no longer; what was done so far stays and is taken up again later."""


class SlotError(EdgekitError):
    """A slot that cannot be written, switched or trusted."""

    def __init__(self, slot: str, detail: str, *, rolled_back: bool) -> None:
        self.slot, self.detail, self.rolled_back = slot, detail, rolled_back
        super().__init__(f"slot {slot}: {detail}" + (" (rolled back)" if rolled_back else ""))
