"""Which board this is: device tree, DMI and CPU text, matched against the declared profiles."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from edgekit.device.devicetree import DeviceTree, soc_name
from edgekit.device.tree import Tree, to_int

Profile = Mapping[str, Any]
"""A board profile as its file holds it; `edgekit.board.Board` says what may be in it."""

_DMI = "sys/class/dmi/id"
_TEGRA_CHIPS = {33: "tegra210", 24: "tegra186", 25: "tegra194", 35: "tegra234", 38: "tegra264"}
"Fuse values of NVIDIA's chips; TX1 and Nano share 33."
_EMPTY_TEXTS = re.compile(
    r"<bad index>|to be filled.*|default string|system (product name|manufacturer|serial number|version)|none|n/?a|"
    r"not (specified|applicable|available)|unknown|o\.?e\.?m\.?|undefined|x+|[0.\-\s]+|(?:0?123456789.*)",
    re.IGNORECASE,
)
"What firmware vendors leave in fields that they should have filled."
_DECLARED_PI_BYTES = {code: (256 << 20) << code for code in range(8)}
"Raspberry Pi revision code, bits 20 to 22: 0 is 256 MB, each step doubles."
_PI_CHIPS = {0: "bcm2835", 1: "bcm2836", 2: "bcm2837", 3: "bcm2711", 4: "bcm2712"}


@dataclass(frozen=True)
class BoardFacts:
    """The board; None: cannot tell."""

    id: Optional[str]
    'The hardware\'s own name for itself: its first compatible string, or "maker product" of DMI.'
    name: Optional[str]
    soc: Optional[str]
    profile: Optional[str]
    support: Optional[str]
    "How far edgekit goes here by the profile: daemon, container or probe-only."
    support_reason: Optional[str]
    model_text: Optional[str]
    "The firmware's marketing text, word for word; not used to identify."
    compatible: Tuple[str, ...]
    virtual: Optional[str]
    'The hypervisor or guest system when one shows: "wsl", "kvm", "vmware", …'
    matched_by: Optional[str]
    "The rule of the profile that matched, and what it matched."
    notes: Tuple[str, ...] = ()


class Identity(NamedTuple):
    """What profiles are matched against."""

    compatible: Tuple[str, ...]
    model: str
    dmi_vendor: str
    dmi_product: str
    cpu_model: str
    machine: str
    pci: Tuple[str, ...]
    usb: Tuple[str, ...]


class _Hit(NamedTuple):
    position: int
    letters: int
    why: str


class Match(NamedTuple):
    """How well a profile fits; a lower `rank` is a better fit."""

    rank: Tuple[int, int, int, int]
    "Rule, position of the matched text, letters of the pattern (more is better, so negated), misfit of the memory."
    profile: Profile
    why: str


_RULES = ("compatible", "model", "dmi_product", "soc_compatible", "cpu_model", "pci", "usb", "machine")
"""Rules of a profile's [match], the most telling first. Each is a list of patterns with "*", any of which may match."""
_BOARD_RULES = 3
"The first rules name a board; the others a family of boards."


def identify(
    tree: Tree, dt: DeviceTree, *, cpu_model: Optional[str], machine: Optional[str], ids: Tuple[Tuple[str, ...], ...]
) -> Identity:
    """The texts that name this board; `ids` is (PCI ids, USB ids), each "vvvv:dddd"."""
    return Identity(
        compatible=dt.compatible,
        model=dt.model or _model_elsewhere(tree) or "",
        dmi_vendor=dmi(tree, "sys_vendor") or dmi(tree, "board_vendor") or "",
        dmi_product=dmi(tree, "product_name") or dmi(tree, "board_name") or "",
        cpu_model=cpu_model or "",
        machine=machine or "",
        pci=ids[0],
        usb=ids[1],
    )


def rank(identity: Identity, profiles: Iterable[Profile], memory_total_bytes: Optional[int]) -> List[Match]:
    """Every profile that fits, best first.

    Profiles that differ only in memory (a compatible string often does not say it) are told apart by the measured
    total: the smallest declared size that holds it wins, and without a total one that declares no size.
    """
    found = []
    for profile in profiles:
        for number, rule in enumerate(_RULES):
            hit = _hit(rule, profile.get("match", {}).get(rule, ()), identity)
            if hit:
                misfit = _size_misfit(profile.get("memory_bytes"), memory_total_bytes)
                found.append(Match((number, hit.position, -hit.letters, misfit), profile, hit.why))
                break
    return sorted(found, key=lambda match: (match.rank, str(match.profile.get("id", ""))))


def board_facts(tree: Tree, identity: Identity, matches: List[Match], soc: Optional[str]) -> BoardFacts:
    """The board from what it says of itself and the best match."""
    best = matches[0] if matches else None
    is_board = best is not None and best.rank[0] < _BOARD_RULES
    named = str(best.profile.get("name", "")) if best is not None and is_board else ""
    if best is not None and best.profile.get("trust_model_text", True):
        named = identity.model or named
    dmi_name = " ".join(part for part in (identity.dmi_vendor, identity.dmi_product) if part)
    notes = []
    if best is not None and is_board:
        equal = [match for match in matches[1:] if match.rank == best.rank]
        names = ", ".join(str(match.profile.get("name")) for match in equal)
        notes += [f"these profiles fit equally well, the first is taken: also {names}"] if equal else []
    return BoardFacts(
        id=(identity.compatible[0][:120] if identity.compatible else None) or dmi_name or None,
        name=named or identity.model or dmi_name or None,
        soc=soc,
        profile=str(best.profile.get("id")) if best is not None else None,
        support=best.profile.get("support") if best is not None else None,
        support_reason=best.profile.get("support_reason") if best is not None else None,
        model_text=identity.model or None,
        compatible=identity.compatible,
        virtual=_virtual(tree, identity),
        matched_by=best.why if best is not None else None,
        notes=tuple(notes),
    )


def soc(tree: Tree, dt: DeviceTree, cpu_model: Optional[str]) -> Optional[str]:
    """The system on chip: by device tree, else by its fuses or driver; on a PC, the CPU's own name."""
    named = soc_name(dt.compatible)
    if named and named != "dummy-virt":
        return named
    chip = tree.integer("sys/module/tegra_fuse/parameters/tegra_chip_id")
    if chip is None and tree.line("sys/devices/soc0/family") == "Tegra":
        chip = tree.integer("sys/devices/soc0/soc_id")
    if chip is not None:
        return _TEGRA_CHIPS.get(chip)
    return _pi_chip(tree) or _soc_driver_name(tree) or cpu_model


def _soc_driver_name(tree: Tree) -> Optional[str]:
    """By the kernel's SoC driver, which a container sees even where the device tree is hidden."""
    number, machine = tree.line("sys/devices/soc0/soc_id") or "", tree.line("sys/devices/soc0/machine") or ""
    if re.fullmatch(r"i\.MX\w{1,12}", number):
        return number.lower().replace(".", "")
    if tree.line("sys/devices/soc0/family") == "Snapdragon" and re.fullmatch(r"\w{1,20}", machine):
        return machine.lower()
    return None


def _model_elsewhere(tree: Tree) -> Optional[str]:
    """The model text that a Raspberry Pi's kernel repeats in cpuinfo, and others in the SoC driver."""
    match = re.search(r"^Model\t*: (Raspberry Pi [ -~]{1,60})$", tree.text("proc/cpuinfo") or "", re.MULTILINE)
    return match.group(1) if match else None


def dmi(tree: Tree, name: str) -> Optional[str]:
    """A DMI field, or None where the maker left filler text in it."""
    text = tree.line(f"{_DMI}/{name}")
    text = "".join(character for character in text or "" if character.isprintable()).strip()[:120]
    return None if not text or is_filler(text) else text


def is_filler(text: str) -> bool:
    """Whether a maker left the field unfilled: "To be filled by O.E.M.", zeros, dashes."""
    return bool(_EMPTY_TEXTS.fullmatch(text))


def pi_revision_bytes(tree: Tree) -> Optional[int]:
    """Memory by a Raspberry Pi's revision code: what was declared at the factory, wrong once a chip was swapped."""
    code = _pi_revision(tree)
    return None if code is None else _DECLARED_PI_BYTES.get(code >> 20 & 7)


def _pi_chip(tree: Tree) -> Optional[str]:
    """Bits 12 to 15. The Hardware line of cpuinfo says BCM2835 on every model."""
    if _model_elsewhere(tree) is None:
        return None
    code = _pi_revision(tree)
    return None if code is None else _PI_CHIPS.get(code >> 12 & 15)


def _pi_revision(tree: Tree) -> Optional[int]:
    """The new-style revision code (bit 23 marks it); older codes are a table of their own."""
    data = tree.data("proc/device-tree/system/linux,revision", 4)
    code = int.from_bytes(data, "big") if data and len(data) == 4 else None
    if code is None:
        line = next(
            (line for line in (tree.text("proc/cpuinfo") or "").splitlines() if line.startswith("Revision")), ""
        )
        code = to_int(line.partition(":")[2].strip(), 16)
    return code if code is not None and code >> 23 & 1 else None


def _hit(rule: str, patterns: Any, identity: Identity) -> Optional[_Hit]:
    """The best match of one rule. Earlier compatible strings are more specific, and so are longer patterns."""
    source = "compatible" if rule == "soc_compatible" else rule
    value = getattr(identity, source)
    texts = value if isinstance(value, tuple) else (value,)
    for position, text in enumerate(texts):
        matching = [pattern for pattern in patterns if text and _matches(text.lower(), pattern.lower())]
        if matching:
            pattern = max(matching, key=len)
            why = f"{rule} {pattern!r} matches {text[:120]!r}"
            return _Hit(position if rule == "compatible" else 0, len(pattern.replace("*", "")), why)
    return None


def _matches(text: str, pattern: str) -> bool:
    """Whether `text` is `pattern`, in which "*" stands for anything; fnmatch would compile hundreds of patterns."""
    first, *rest = pattern.split("*")
    if not rest:
        return text == first
    if not text.startswith(first) or len(text) < len(first) + len(rest[-1]) or not text.endswith(rest[-1]):
        return False
    at, end = len(first), len(text) - len(rest[-1])
    for piece in rest[:-1]:
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True


def _size_misfit(declared: Any, total: Optional[int]) -> int:
    """0 is best: bytes by which a declared size exceeds the measured one; too small a size is the worst."""
    if not isinstance(declared, int):
        return 1 if total is None else 1 << 60
    if total is None:
        return 2
    return declared - total if declared >= total else 1 << 61


def _virtual(tree: Tree, identity: Identity) -> Optional[str]:
    if "microsoft" in (tree.line("proc/version") or "").lower() or tree.exists("dev/dxg"):
        return "wsl"
    if "linux,dummy-virt" in identity.compatible:
        return "qemu"
    text = f"{identity.dmi_vendor} {identity.dmi_product} {identity.cpu_model}".lower()
    table: Dict[str, str] = {
        "virtualbox": "virtualbox", "vmware": "vmware", "qemu": "kvm", "kvm": "kvm", "amazon ec2": "kvm",
        "google compute": "kvm", "microsoft corporation virtual": "hyperv", "parallels": "parallels", "xen": "xen",
    }  # fmt: skip
    known = next((name for word, name in table.items() if word in text), None)
    if known:
        return known
    flags = re.search(r"^flags\s*:.*\bhypervisor\b", tree.text("proc/cpuinfo", 16384) or "", re.MULTILINE)
    return "unknown hypervisor" if flags else None
