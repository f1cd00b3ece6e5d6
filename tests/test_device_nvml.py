"""NVML: read where its library is there, passed over where it is not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgekit.device.nvml import read_gpus

LIBRARY = r"""
#include <stdio.h>
#include <string.h>
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char full[32]; } pci_t;
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { *h = (void *)(long)(i + 1); return 0; }
int nvmlDeviceGetPciInfo_v3(void *h, pci_t *p) { snprintf(p->legacy, 16, "0000:%02lX:00.0", (long)h + 9); return 0; }
int nvmlDeviceGetName(void *h, char *name, unsigned n) { snprintf(name, n, "NVIDIA Card %ld", (long)h); return 0; }
int nvmlDeviceGetMemoryInfo(void *h, unsigned long long *m) {
  if ((long)h == 2) return 3; /* NOT_SUPPORTED, as integrated GPUs say */
  m[0] = 12884901888ULL; return 0;
}
int nvmlDeviceGetCudaComputeCapability(void *h, int *major, int *minor) { *major = 8; *minor = 6; return 0; }
"""
READ = "import json; from edgekit.device.nvml import read_gpus; print(json.dumps(read_gpus()))"


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A library with NVML's name, functions and structures, for two cards."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build a stand-in for NVIDIA's library")
    (tmp_path / "nvml.c").write_text(LIBRARY)
    target = tmp_path / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(target), str(tmp_path / "nvml.c")], check=True)
    return tmp_path


def read_with(folder: Path) -> dict[str, list[object]]:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    run = subprocess.run([sys.executable, "-c", READ], env=environment, capture_output=True, text=True, check=True)
    found: dict[str, list[object]] = json.loads(run.stdout)
    return found


def test_cards_are_read_by_their_pci_address(library: Path) -> None:
    assert read_with(library) == {
        "0000:0a:00.0": ["NVIDIA Card 1", 12884901888, "8.6"],
        "0000:0b:00.0": ["NVIDIA Card 2", None, "8.6"],
    }


def test_a_library_that_lacks_a_function_is_passed_over(library: Path) -> None:
    (library / "old.c").write_text("int nvmlInit_v2(void) { return 0; }")
    command = ["cc", "-shared", "-fPIC", "-o", str(library / "libnvidia-ml.so.1"), str(library / "old.c")]
    subprocess.run(command, check=True)
    assert read_with(library) == {}


def test_a_driver_that_does_not_start_is_passed_over(library: Path) -> None:
    (library / "off.c").write_text("int nvmlInit_v2(void) { return 9; }")
    command = ["cc", "-shared", "-fPIC", "-o", str(library / "libnvidia-ml.so.1"), str(library / "off.c")]
    subprocess.run(command, check=True)
    assert read_with(library) == {}


def test_without_the_library_there_are_no_cards() -> None:
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("elsewhere: this machine has NVIDIA's driver")
    assert read_gpus() == {}
