"""What other quantisers make of a model, with their defaults. Most run in `.venv-peers`: their pins collide with ours.

    make_peers.py ort-static MODEL.onnx FEEDS OUT.onnx   onnxruntime's quantize_static, Q/DQ
    make_peers.py ort-dynamic MODEL.onnx FEEDS OUT.onnx  onnxruntime's quantize_dynamic
    make_peers.py nncf MODEL.onnx FEEDS OUT.xml          NNCF, post-training, for OpenVINO
    make_peers.py aeq  MODEL.tflite FEEDS OUT.tflite     ai-edge-quantizer, static INT8

FEEDS is a folder of one .npz a sample.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np


def feeds(folder: Path) -> list[dict[str, np.ndarray]]:
    found = []
    for path in sorted(folder.glob("*.npz")):
        with np.load(path, allow_pickle=False) as arrays:
            found.append({name: arrays[name] for name in arrays.files})
    return found


def ort_static(source: str, samples: list[dict[str, np.ndarray]], result: str) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._feeds = iter(samples)

        def get_next(self):
            return next(self._feeds, None)

    quantize_static(source, result, Reader(), quant_format=QuantFormat.QDQ)


def ort_dynamic(source: str, _samples: list[dict[str, np.ndarray]], result: str) -> None:
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(source, result)


def nncf_openvino(source: str, samples: list[dict[str, np.ndarray]], result: str) -> None:
    import nncf
    import openvino

    model = openvino.Core().read_model(source)
    names = {name: port.any_name for port in model.inputs for name in port.names}
    model.reshape({names[name]: list(value.shape) for name, value in samples[0].items()})
    # its documentation asks for this where attention is; nothing else is set
    kind = nncf.ModelType.TRANSFORMER if any(op.get_type_name() == "Softmax" for op in model.get_ops()) else None
    data = nncf.Dataset(samples, lambda sample: {names[name]: value for name, value in sample.items()})
    openvino.save_model(nncf.quantize(model, data, subset_size=len(samples), model_type=kind), result)


def ai_edge_quantizer(source: str, samples: list[dict[str, np.ndarray]], result: str) -> None:
    from ai_edge_litert.interpreter import Interpreter
    from ai_edge_quantizer import quantizer, recipe

    signed = Path(result).with_suffix(".signed.tflite")
    signed.write_bytes(with_signature(Path(source).read_bytes()))
    ((key, ends),) = Interpreter(str(signed)).get_signature_list().items()
    data = [dict(zip(ends["inputs"], sample.values(), strict=True)) for sample in samples]
    made = quantizer.Quantizer(str(signed), recipe.static_wi8_ai8())
    made.quantize(made.calibrate({key: data})).export_model(result, overwrite=True)


def with_signature(content: bytes) -> bytes:
    """The same model; where it has no signature, which ai-edge-quantizer needs to calibrate, with one."""
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0))
    if model.signatureDefs:
        return content
    graph, signature = model.subgraphs[0], schema.SignatureDefT()
    signature.signatureKey, signature.subgraphIndex = b"serving_default", 0
    signature.inputs = [_named(schema, f"in{i}", tensor) for i, tensor in enumerate(graph.inputs)]
    signature.outputs = [_named(schema, f"out{i}", tensor) for i, tensor in enumerate(graph.outputs)]
    model.signatureDefs = [signature]
    builder = flatbuffers.Builder(len(content))
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def _named(schema, name, tensor):
    entry = schema.TensorMapT()
    entry.name, entry.tensorIndex = name.encode(), int(tensor)
    return entry


if __name__ == "__main__":
    kind, model_path, folder, out = sys.argv[1:]
    makers = {"ort-static": ort_static, "ort-dynamic": ort_dynamic, "nncf": nncf_openvino, "aeq": ai_edge_quantizer}
    make = makers[kind]
    make(model_path, feeds(Path(folder)), out)
