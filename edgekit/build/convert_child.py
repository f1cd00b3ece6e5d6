"""The part of a conversion that runs in the environment `.venv-convert`: ONNX to LiteRT, and full INT8 if asked for.

Started by `edgekit.build.convert` as a file, with a job as JSON; imports nothing of edgekit's, whose pins differ.
"""

from __future__ import annotations

import json
import resource
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any


def main(job_path: str) -> int:
    """Do the job; what went wrong is the last line of stderr."""
    job: dict[str, Any] = json.loads(Path(job_path).read_text(encoding="utf-8"))
    runpy.run_path(job["lifeline"])["die_with_parent"](int(job["parent"]))
    resource.setrlimit(resource.RLIMIT_DATA, (int(job["memory_bytes"]),) * 2)
    folder = Path(job["folder"])
    floats = to_litert(Path(job["source"]), folder, job["inputs"])
    tell(floats)
    if job["samples"]:
        to_int8(floats, Path(job["samples"]), folder / "int8.tflite")
        tell(folder / "int8.tflite")
    return 0


def tell(path: Path) -> None:
    """Beside a file, as JSON, what it holds: bytes of int8 and float32 constants, operators that compute in float."""
    import numpy as np
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    model = Interpreter(str(path), experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES)
    tensors = {tensor["index"]: tensor for tensor in model.get_tensor_details()}
    operators = model._get_ops_details()
    made = {int(index) for operator in operators for index in operator["outputs"]}
    sizes, floats = {"int8": 0, "float32": 0}, dict[str, int]()
    for index, tensor in tensors.items():
        kind = np.dtype(tensor["dtype"]).name
        if index not in made and kind in sizes:
            sizes[kind] += int(np.prod(tensor["shape"])) * np.dtype(tensor["dtype"]).itemsize
    for operator in operators:
        kinds = {np.dtype(tensors[int(i)]["dtype"]).name for i in operator["outputs"] if int(i) in tensors}
        if "float32" in kinds and operator["op_name"] != "DEQUANTIZE":
            floats[operator["op_name"]] = floats.get(operator["op_name"], 0) + 1
    told = {"int8_bytes": sizes["int8"], "float_bytes": sizes["float32"], "float_operators": floats}
    path.with_suffix(".json").write_text(json.dumps(told), encoding="utf-8")
    print(path.name, path.stat().st_size, "bytes", json.dumps(told), flush=True)


def to_litert(source: Path, folder: Path, inputs: list[str]) -> Path:
    """`float.tflite` in `folder`: inputs keep their names, shapes and order of axes, so that the same data fits."""
    import onnx2tf

    made = folder / "onnx2tf"
    onnx2tf.convert(
        input_onnx_file_path=str(source),
        output_folder_path=str(made),
        keep_shape_absolutely_input_names=inputs,
        copy_onnx_input_output_names_to_tflite=True,
        output_signaturedefs=True,
        non_verbose=True,
    )
    (found,) = made.glob("*_float32.tflite")
    shutil.move(str(found), folder / "float.tflite")
    shutil.rmtree(made)
    return folder / "float.tflite"


def to_int8(source: Path, samples: Path, result: Path) -> None:
    """Every operator on integers, calibrated with `samples`; inputs and outputs stay float32, so it is a drop-in."""
    import numpy as np
    from ai_edge_litert.interpreter import Interpreter
    from ai_edge_quantizer import qtyping, quantizer, recipe
    from ai_edge_quantizer.algorithm_manager import AlgorithmName

    with np.load(samples) as arrays:
        names = list(arrays.files)
        data = [dict(zip(names, rows, strict=True)) for rows in zip(*(arrays[n] for n in names), strict=True)]
    ((key, _),) = Interpreter(str(source)).get_signature_list().items()
    made = quantizer.Quantizer(str(source), recipe.static_wi8_ai8())
    for end in (qtyping.TFLOperationName.INPUT, qtyping.TFLOperationName.OUTPUT):
        made.update_quantization_recipe(regex=".*", operation_name=end, algorithm_key=AlgorithmName.NO_QUANTIZE)
    made.quantize(made.calibrate({key: data})).export_model(str(result), overwrite=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
