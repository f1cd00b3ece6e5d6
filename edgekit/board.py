"""One board as its profile in `devices/` declares it. Frozen values, no I/O; never the answer to "what is here"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

Support = Literal["daemon", "container", "probe-only"]
"""How far edgekit goes on a board: the daemon runs natively, only in a container, or only the probe does."""


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class BoardMatch(_Table, frozen=True, kw_only=True):
    """`[match]`: patterns in which "*" stands for anything; any may match. The first rules tell more than the last."""

    compatible: tuple[str, ...] = ()
    "Device-tree strings of this very board."
    model: tuple[str, ...] = ()
    "The device tree's model text, for images whose compatible strings do not name the board."
    dmi_product: tuple[str, ...] = ()
    soc_compatible: tuple[str, ...] = ()
    "Device-tree strings of the chip: any board with it."
    cpu_model: tuple[str, ...] = ()
    pci: tuple[str, ...] = ()
    '"vvvv:dddd"'
    usb: tuple[str, ...] = ()
    machine: tuple[str, ...] = ()
    "As `uname -m` says: the last resort."


class DeclaredAccelerator(_Table, frozen=True, kw_only=True):
    """`[[accelerator]]`: what the board is sold with."""

    kind: str
    name: str = ""
    precisions: tuple[str, ...] = ()
    sparsity_2_4: bool = False
    dla_cores: int = 0
    peak_int8_tops: float | None = None
    "The maker's figure, not a measurement."
    max_hz: int | None = None
    "Top clock, where a lower one tells that the board is not set up as its name says."
    optional: bool = False
    "An extra (a hat, a card, a bigger variant): its absence is no mismatch."


class RuntimePreference(_Table, frozen=True, kw_only=True):
    """`[[runtime]]`: one way to run models here, best first, in the library's own words."""

    runtime: str
    "onnxruntime, litert, tflite, openvino, or the maker's own"
    provider: str | None = None
    "onnxruntime's execution provider."
    delegate: str | None = None
    "LiteRT's delegate library, by file name."
    device: str | None = None
    "OpenVINO's device."
    options: Mapping[str, str] = {}
    needs: str | None = None
    "Kind of the accelerator it runs on; None: the CPU."
    note: str = ""


class Power(_Table, frozen=True, kw_only=True):
    """`[power]`: the modes of the board's own tool, as declared."""

    tool: str = ""
    modes: tuple[str, ...] = ()
    recommended: str | None = None


class Sensors(_Table, frozen=True, kw_only=True):
    """`[sensors]`: where this board's readings lie, for checking by hand."""

    temperature: str | None = None
    power: str | None = None
    gpu_load: str | None = None
    throttled: str | None = None


class Board(_Table, frozen=True, kw_only=True):
    """A board profile."""

    id: str
    name: str
    maker: str
    soc: str = ""
    support: Support
    support_reason: str
    "Why this level, in a sentence that a refusal can print."
    python: str | None = None
    "Python of the maker's current image."
    memory_bytes: int | None = None
    "Nominal size, when the board has one only. Never a measurement."
    memory_reserve_bytes: int = 128 * 1024 * 1024
    "Left to the system when a model is chosen."
    trust_model_text: bool = True
    "False: the device tree's model text is marketing and `name` is shown in its place."
    match: BoardMatch
    accelerator: tuple[DeclaredAccelerator, ...] = ()
    runtime: tuple[RuntimePreference, ...] = ()
    power: Power = Power()
    sensors: Sensors = Sensors()
    notes: tuple[str, ...] = ()
