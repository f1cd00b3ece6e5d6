"""One timed sample of the board's sensors, each optional; what makes no sense is None with a reason, never 0."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional, Tuple, Union

from edgekit.device.memory import available_bytes
from edgekit.device.tree import Tree, to_int

_TEMPERATURES_C = (-40.0, 150.0)
_POWER_MW = (1.0, 2_000_000.0)
_CHIP_ZONES = re.compile(r"cpu|gpu|soc|core|pkg|x86|center|cluster|package|tj|npu|ddr|cv\d|bcm2835", re.IGNORECASE)
_NOT_CHIP_ZONES = re.compile(r"pmic|fan|batt|charger|ambient|skin|wifi|iwl", re.IGNORECASE)
"A Jetson's PMIC zone reads a constant 100 °C."
_CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "soc_thermal")
_GPU_LOADS = (
    "sys/devices/gpu.0/load",
    "sys/devices/platform/gpu.0/load",
    "sys/devices/platform/17000000.gpu/load",
    "sys/devices/platform/bus@0/17000000.gpu/load",
    "sys/devices/platform/17000000.ga10b/load",
)
_GPU_CLOCKS = re.compile(r"gpu|ga10b|gv11b|gp10b|gm20b|mali", re.IGNORECASE)
_PI_THROTTLED = tuple(
    f"sys/devices/platform/{folder}/{name}:firmware/get_throttled"
    for folder, name in (("soc", "soc"), ("soc@107c000000", "soc@107c000000"))
)
_MAX_ENTRIES = 128


@dataclass(frozen=True)
class Reading:
    """One sample. None: this board has no such sensor, or `problems` says why it cannot be believed."""

    taken_at_s: float
    "Unix time."
    temperature_c: Optional[float]
    "The hottest zone of the chip."
    power_mw: Optional[float]
    "Of the whole module or board, where a sensor measures it."
    package_energy_uj: Optional[int]
    "Running energy counter of an x86 package (RAPL); two readings make a power, see `power_between`."
    memory_available_bytes: Optional[int]
    load_1m: Optional[float]
    cpu_hz: Optional[int]
    "The fastest core's clock now."
    gpu_load_ratio: Optional[float]
    gpu_hz: Optional[int]
    throttled: Optional[bool]
    "The system holds the clocks down now, for heat or for power."
    throttle_events_count: Optional[int]
    "Since boot, where hardware counts them: two readings tell whether it happened between."
    under_voltage: Optional[bool]
    problems: Tuple[str, ...] = ()


def read(root: Union[str, Path] = "/") -> Reading:
    """A sample of the sensors below `root`; never raises."""
    tree = Tree(root)
    problems: List[str] = []
    bits = next((value for value in (tree.integer(name, 16) for name in _PI_THROTTLED) if value is not None), None)
    return Reading(
        taken_at_s=time.time(),
        temperature_c=_temperature(tree, problems),
        power_mw=_power(tree, problems),
        package_energy_uj=_energy(tree, problems),
        memory_available_bytes=available_bytes(tree),
        load_1m=_load(tree),
        cpu_hz=_cpu_clock(tree),
        gpu_load_ratio=_gpu_load(tree, problems),
        gpu_hz=_gpu_clock(tree),
        throttled=_throttled(tree, bits),
        throttle_events_count=_throttle_events(tree),
        under_voltage=_under_voltage(tree, bits),
        problems=tuple(problems),
    )


def power_between(before: Reading, after: Reading) -> Optional[float]:
    """Mean power in mW between two readings: by the energy counter where there is one, else the mean of the two."""
    if before.package_energy_uj is not None and after.package_energy_uj is not None:
        elapsed_s = after.taken_at_s - before.taken_at_s
        used_uj = after.package_energy_uj - before.package_energy_uj
        return used_uj / elapsed_s / 1000 if elapsed_s > 0 and used_uj >= 0 else None  # the counter wraps
    if before.power_mw is None or after.power_mw is None:
        return None
    return (before.power_mw + after.power_mw) / 2


def _temperature(tree: Tree, problems: List[str]) -> Optional[float]:
    """Source: kernel thermal sysfs ABI, millidegrees. Check by hand: cat /sys/class/thermal/thermal_zone*/temp"""
    chip: List[float] = []
    others: List[float] = []
    for zone in _entries(tree, "sys/class/thermal", "thermal_zone"):
        kind = tree.line(zone + "/type") or ""
        value = _checked(tree.integer(zone + "/temp"), f"{zone} ({kind})", problems)
        if value is None or _NOT_CHIP_ZONES.search(kind):
            continue
        (chip if _CHIP_ZONES.search(kind) else others).append(value)
    if not chip:
        for sensor in _entries(tree, "sys/class/hwmon", "hwmon"):
            if tree.line(sensor + "/name") in _CPU_SENSORS:
                value = _checked(tree.integer(sensor + "/temp1_input"), sensor, problems)
                chip += [] if value is None else [value]
    return max(chip or others, default=None)


def _checked(millidegrees: Optional[int], where: str, problems: List[str]) -> Optional[float]:
    if millidegrees is None:
        return None
    value = millidegrees / 1000
    if not _TEMPERATURES_C[0] < value < _TEMPERATURES_C[1]:
        problems.append(f"temperature of /{where} is out of range: {millidegrees} m°C"[:200])
        return None
    return value


def _power(tree: Tree, problems: List[str]) -> Optional[float]:
    """INA3221 of a Jetson (the rail of the whole module), else a board-level hwmon sensor.

    Source: kernel hwmon sysfs ABI: mV, mA, µW. Check by hand: sensors
    """
    for sensor in _entries(tree, "sys/class/hwmon", "hwmon"):
        name = tree.line(sensor + "/name") or ""
        if name == "ina3221":
            value = _ina3221(tree, sensor)
        elif name.startswith(("ina2", "rpi_power", "pmbus")):
            microwatts = tree.integer(sensor + "/power1_input")
            value = None if microwatts is None else microwatts / 1000
        else:
            continue
        if value is not None and _POWER_MW[0] <= value <= _POWER_MW[1]:
            return value
        if value is not None:
            problems.append(f"power of /{sensor} is out of range: {value} mW"[:200])
    for device in _entries(tree, "sys/bus/iio/devices", "iio:device"):  # JetPack 4's driver for the same chip
        if (tree.line(device + "/rail_name_0") or "").upper() in ("VDD_IN", "POM_5V_IN", "VDD_SYS_IN", "SYS_VDD_IN"):
            value = tree.integer(device + "/in_power0_input")
            if value is not None and _POWER_MW[0] <= value <= _POWER_MW[1]:
                return float(value)
    return None


def _energy(tree: Tree, problems: List[str]) -> Optional[int]:
    """The counter of package 0. Kernels since 5.10 let only root read it. Source: Documentation/power/powercap."""
    name = "sys/class/powercap/intel-rapl:0/energy_uj"
    value = tree.integer(name)
    if value is None and tree.exists(name):
        problems.append(f"/{name} cannot be read: it is for root alone")
    return value


def _ina3221(tree: Tree, sensor: str) -> Optional[float]:
    """The input rail if one is labelled so, else the sum of the rails (AGX boards have no common one)."""
    rails = []
    for number in (1, 2, 3):
        label = (tree.line(f"{sensor}/in{number}_label") or "").upper()
        millivolts, milliamps = tree.integer(f"{sensor}/in{number}_input"), tree.integer(f"{sensor}/curr{number}_input")
        if not label or label == "NC" or millivolts is None or milliamps is None:
            continue
        if label in ("VDD_IN", "VIN"):
            return millivolts * milliamps / 1000
        rails.append(millivolts * milliamps / 1000)
    return sum(rails) if rails else None


def _load(tree: Tree) -> Optional[float]:
    match = re.match(r"(\d{1,6}\.\d{1,4}) ", tree.line("proc/loadavg") or "")
    return float(match.group(1)) if match else None


def _cpu_clock(tree: Tree) -> Optional[int]:
    clocks = [
        tree.integer(f"{core}/cpufreq/scaling_cur_freq")
        for core in _entries(tree, "sys/devices/system/cpu", "cpu")
        if core.rpartition("cpu")[2].isdigit()
    ]
    known = [khz for khz in clocks if khz is not None and 0 < khz < 100_000_000]
    return max(known) * 1000 if known else None


def _gpu_load(tree: Tree, problems: List[str]) -> Optional[float]:
    """Tegra counts in tenths of a percent. Check by hand: cat /sys/devices/gpu.0/load"""
    for name in _GPU_LOADS:
        value = tree.integer(name)
        if value is None:
            continue
        if 0 <= value <= 1000:
            return value / 1000
        problems.append(f"GPU load of /{name} is out of range: {value}")
    return None


def _gpu_clock(tree: Tree) -> Optional[int]:
    for device in _entries(tree, "sys/class/devfreq", ""):
        if _GPU_CLOCKS.search(device.rpartition("/")[2]):
            value = tree.integer(device + "/cur_freq")
            if value is not None and 0 < value < 100_000_000_000:
                return value
    return None


def _throttled(tree: Tree, pi_bits: Optional[int]) -> Optional[bool]:
    """True while something holds the clocks down.

    The Pi's firmware says so itself (bit 1: frequency capped, bit 2: throttled, bit 3: soft limit; the same word as
    `vcgencmd get_throttled`); elsewhere a CPU cooling device above state 0 does.
    """
    if pi_bits is not None:
        return bool(pi_bits & 0b1110)
    states = [
        tree.integer(device + "/cur_state")
        for device in _entries(tree, "sys/class/thermal", "cooling_device")
        if re.search(r"cpufreq|processor|cpu|gpu|devfreq", tree.line(device + "/type") or "", re.IGNORECASE)
    ]
    known = [state for state in states if state is not None and state >= 0]
    return any(state > 0 for state in known) if known else None


def _throttle_events(tree: Tree) -> Optional[int]:
    """A Jetson's over-current events, an x86 core's thermal ones.

    Check by hand: grep . /sys/class/hwmon/hwmon*/oc*_event_cnt; grep . /sys/devices/system/cpu/cpu0/thermal_throttle/*
    """
    names = [
        f"{sensor}/{name}"
        for sensor in _entries(tree, "sys/class/hwmon", "hwmon")
        if tree.line(sensor + "/name") == "soctherm_oc"
        for name in tree.names(sensor)
        if name.startswith("oc") and name.endswith("_event_cnt")
    ]
    names += [
        f"{core}/thermal_throttle/core_throttle_count" for core in _entries(tree, "sys/devices/system/cpu", "cpu")
    ]
    counts = [count for count in map(tree.integer, names) if count is not None and count >= 0]
    return sum(counts) if counts else None


def _under_voltage(tree: Tree, pi_bits: Optional[int]) -> Optional[bool]:
    if pi_bits is not None:
        return bool(pi_bits & 1)
    for sensor in _entries(tree, "sys/class/hwmon", "hwmon"):
        if tree.line(sensor + "/name") == "rpi_volt":
            alarm = tree.integer(sensor + "/in0_lcrit_alarm")
            return None if alarm is None else alarm == 1
    return None


def _entries(tree: Tree, folder: str, prefix: str) -> List[str]:
    found = [name for name in tree.names(folder) if name.startswith(prefix)][:_MAX_ENTRIES]
    return [f"{folder}/{name}" for name in sorted(found, key=lambda name: (to_int(name[len(prefix) :]) or 0, name))]
