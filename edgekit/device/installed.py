"""Which inference runtimes are installed, read from their metadata: nothing is imported, so nothing can crash.

Whether one really loads is `edgekit doctor`'s question.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

_DISTRIBUTIONS: Dict[str, Tuple[str, str]] = {
    "onnxruntime": ("onnxruntime", "onnxruntime"),
    "onnxruntime-gpu": ("onnxruntime", "onnxruntime"),
    "onnxruntime-openvino": ("onnxruntime", "onnxruntime"),
    "onnxruntime-qnn": ("onnxruntime", "onnxruntime"),
    "onnxruntime-directml": ("onnxruntime", "onnxruntime"),
    "onnxruntime-rocm": ("onnxruntime", "onnxruntime"),
    "onnxruntime-vitisai": ("onnxruntime", "onnxruntime"),
    "ai-edge-litert": ("litert", "ai_edge_litert"),
    "tflite-runtime": ("tflite", "tflite_runtime"),
    "tflite-micro": ("tflite-micro", "tflite_micro"),
    "tensorflow": ("tensorflow", "tensorflow"),
    "openvino": ("openvino", "openvino"),
    "tensorrt": ("tensorrt", "tensorrt"),
    "pycoral": ("pycoral", "pycoral"),
    "rknn-toolkit-lite2": ("rknnlite", "rknnlite"),
    "hailort": ("hailort", "hailo_platform"),
    "memryx": ("memryx", "memryx"),
    "axelera-rt": ("axelera", "axelera"),
    "numpy": ("numpy", "numpy"),
}
"Distribution, as normalised by PEP 503: the runtime's name here, and the module that it installs."
_METADATA = re.compile(r"(?P<name>[A-Za-z0-9._]+?)-(?P<version>\d[^-]*)(?:-py[\d.]+)?(?:-[\w.]+)?\.(?:dist|egg)-info$")
_ENTRIES_LIMIT = 20000


@dataclass(frozen=True)
class InstalledRuntime:
    """One distribution that can run models, the Python that would run it, or numpy, which they stand on."""

    name: str
    version: str
    distribution: str
    module: str
    problems: Tuple[str, ...] = ()
    "What its metadata already shows to be wrong, with what to do."


def read_runtimes(search_path: Optional[Sequence[str]] = None) -> Tuple[InstalledRuntime, ...]:
    """The runtimes that this Python would import; the first of equal distributions on the path counts."""
    found: Dict[str, Tuple[str, str]] = {}
    for folder in sys.path if search_path is None else search_path:
        for name, version in _distributions(folder or "."):
            if name in _DISTRIBUTIONS and name not in found:
                found[name] = (version, folder)
    python = InstalledRuntime("python", platform.python_version(), platform.python_implementation(), "")
    runtimes = [
        InstalledRuntime(_DISTRIBUTIONS[name][0], version, name, _DISTRIBUTIONS[name][1], _problems(name, found))
        for name, (version, _) in sorted(found.items())
    ]
    return (python, *runtimes)


def _distributions(folder: str) -> List[Tuple[str, str]]:
    """(name, version) of what is installed in one folder, by the names of the metadata folders alone."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for count, entry in enumerate(entries):
                match = _METADATA.match(entry.name) if entry.name.endswith("-info") else None
                if match:
                    found.append((re.sub(r"[-_.]+", "-", match["name"]).lower(), match["version"]))
                if count > _ENTRIES_LIMIT:
                    break
    except (OSError, ValueError):
        return []
    return found


def _problems(name: str, found: Dict[str, Tuple[str, str]]) -> Tuple[str, ...]:
    problems = []
    module, folder = _DISTRIBUTIONS[name][1], found[name][1]
    if not _is_importable(folder, module):
        problems.append(f"its metadata is there, its module {module} is not: pip install --force-reinstall {name}")
    numpy = found.get("numpy", ("0", ""))[0]
    if name in ("tflite-runtime", "pycoral") and _major(numpy) >= 2:
        problems.append(
            f'built against numpy 1 and numpy {numpy} is installed: it dies on load. pip install "numpy<2", '
            "or use ai-edge-litert"
        )
    twins = sorted(other for other in found if other != name and _DISTRIBUTIONS[other][1] == module)
    if twins:
        problems.append(f"{' and '.join(twins)} installs the same module {module} over it: uninstall all but one")
    return tuple(problems)


def _is_importable(folder: str, module: str) -> bool:
    path = os.path.join(folder or ".", module)
    return os.path.isdir(path) or os.path.isfile(path + ".py")


def _major(version: str) -> int:
    digits = re.match(r"\d{1,6}", version)
    return int(digits.group()) if digits else 0
