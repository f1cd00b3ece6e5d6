"""Discrete NVIDIA GPUs by NVML, which alone knows their memory. Asked when its library is there, never required."""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional

_MOST_GPUS = 16


class Gpu(NamedTuple):
    """One GPU; None: NVML does not say."""

    name: str
    memory_bytes: Optional[int]
    compute_capability: Optional[str]


def read_gpus() -> Dict[str, Gpu]:
    """GPUs by PCI address as sysfs writes it ("0000:01:00.0"), empty without the library or a driver.

    Source: NVML API reference, nvmlDeviceGetPciInfo_v3 and its structures. Check by hand: nvidia-smi -q
    """
    import ctypes  # only on a machine that shows an NVIDIA GPU

    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return {}
    try:
        if nvml.nvmlInit_v2() != 0:
            return {}
        return _all(ctypes, nvml)
    except AttributeError:  # a library too old to have one of the functions
        return {}


def _all(ctypes: Any, nvml: Any) -> Dict[str, Gpu]:
    count = ctypes.c_uint(0)
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    found: Dict[str, Gpu] = {}
    for index in range(min(count.value, _MOST_GPUS)):
        handle = ctypes.c_void_p()
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != 0:
            continue
        pci = ctypes.create_string_buffer(256)  # nvmlPciInfo_t: busIdLegacy[16], five 32-bit numbers, busId[32]
        if nvml.nvmlDeviceGetPciInfo_v3(handle, pci) != 0:
            continue
        name = ctypes.create_string_buffer(96)
        nvml.nvmlDeviceGetName(handle, name, len(name))
        address = pci.raw[:16].split(b"\0")[0].decode("ascii", "replace").lower()
        memory = (ctypes.c_ulonglong * 3)()
        told = nvml.nvmlDeviceGetMemoryInfo(handle, memory) == 0
        major, minor = ctypes.c_int(0), ctypes.c_int(0)
        capable = nvml.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor)) == 0
        found[address] = Gpu(
            name=name.value.decode("utf-8", "replace"),
            memory_bytes=int(memory[0]) if told and memory[0] else None,
            compute_capability=f"{major.value}.{minor.value}" if capable else None,
        )
    nvml.nvmlShutdown()
    return found
