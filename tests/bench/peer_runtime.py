"""An onnxruntime model for MLServer, the peer of `bench_serve.py`. Runs in `.venv-peers`, never with edgekit."""

from __future__ import annotations

import onnxruntime as ort
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class OnnxModel(MLModel):
    """The same file with the same options as the daemon opens it with."""

    async def load(self) -> bool:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        path = self.settings.parameters.uri
        self._session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        x = NumpyCodec.decode_input(payload.inputs[0])
        (y,) = self._session.run(None, {"x": x})
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("y", y)])
