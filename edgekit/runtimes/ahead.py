"""Models that a runtime has optimised and saved: what such a file is bound to, and whether that is what is here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from edgekit.device.cpu import read_cpu
from edgekit.device.tree import Tree
from edgekit.runtimes.available import installed_version

AS_SAVED: Mapping[str, str] = {"graph_optimization_level": "ORT_DISABLE_ALL"}
"""Session options under which onnxruntime takes a saved graph as it is: optimising it again costs most of its load."""
SPARSE_PROVIDER = "TensorrtExecutionProvider"
"""The provider whose kernels skip 2:4 zeros, on Ampere GPUs and newer."""
SPARSE_OPTIONS: Mapping[str, str] = {"trt_int8_enable": "1", "trt_sparsity_enable": "1"}


@cache
def isa_here() -> str:
    """Architecture and every feature that decides which kernels a runtime picks and how it lays out weights."""
    cpu = read_cpu(Tree("/"))
    return " ".join([cpu.architecture or "unknown", *sorted(cpu.features or ())])


def binding_here(runtime: str) -> dict[str, str]:
    """What a file that `runtime` optimised and saved on this machine is bound to."""
    return {"runtime": runtime, "version": installed_version(runtime) or "", "isa": isa_here()}


def why_not_here(bound_to: Mapping[str, str]) -> str | None:
    """Why a file bound to `bound_to` must not be opened here, or None if it may be (or is bound to nothing)."""
    if not bound_to:
        return None
    here = binding_here(bound_to["runtime"])
    if not here["version"]:
        return f"is for {bound_to['runtime']}, which is not installed"
    provider = bound_to.get("provider")
    if provider and provider not in _providers_here():
        return f"is for {provider}, which the onnxruntime here does not have"
    made_by = bound_to.get("version", here["version"])
    if made_by != here["version"]:
        return f"was saved by {bound_to['runtime']} {made_by}, {here['version']} is installed; build it again"
    if bound_to.get("isa", here["isa"]) != here["isa"]:
        return "was saved on another kind of CPU; build it again here"
    return None


def _providers_here() -> tuple[str, ...]:
    from edgekit.runtimes.onnx import built_in_providers  # deferred: 100 ms, and few files are bound to a provider

    return built_in_providers()
