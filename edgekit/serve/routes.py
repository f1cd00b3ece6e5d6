"""The Open Inference Protocol's paths, answered from an engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from threading import get_ident
from time import monotonic
from typing import Any

import msgspec

from edgekit import __version__
from edgekit.errors import EdgekitError, InputError, RequestError
from edgekit.manifest import TensorSpec
from edgekit.serve import metrics
from edgekit.serve.engine import Engine, ServedModel
from edgekit.serve.exchange import Reply, Request, Response, error_response
from edgekit.serve.http import HttpServer
from edgekit.serve.job import Answer, Job, Outcome
from edgekit.serve.lane import TOLERANT, Lane
from edgekit.serve.layout import DATATYPES
from edgekit.serve.pace import Refused
from edgekit.serve.parameters import Place
from edgekit.serve.protocol import InferenceRequest, Shared, decode_request, encode_response
from edgekit.serve.shared import SharedMemory
from edgekit.serve.upkeep import Upkeep

logger = logging.getLogger(__name__)

_PLATFORMS = {"onnxruntime": "onnxruntime_onnx", "litert": "tensorflow_lite", "tflite": "tensorflow_lite"}


ALONE_S = 0.1
"""For as long as this no other client must have asked before inferences run on the thread that looks after all."""
Write = Callable[[Place, memoryview], None]


class Routes:
    """The `App` of a daemon: everything but inference is answered at once."""

    def __init__(self, engine: Engine, shared: SharedMemory | None = None) -> None:
        self._engine, self._shared = engine, shared
        self._loop, self._thread = asyncio.get_running_loop(), get_ident()
        self._asking, self._changed_s = 0, 0.0
        "The connection that asked last, and when another one did."
        self.server: HttpServer | None = None
        self.upkeep: Upkeep | None = None

    def __call__(self, request: Request, reply: Reply) -> Callable[[], None] | None:
        try:
            if request.method == "POST" and not request.path.startswith("/v2/systemsharedmemory"):
                return self._infer(request, reply)
            if request.path.startswith("/v2/systemsharedmemory"):
                reply(self._regions(request))
                return None
            if request.method not in ("GET", "HEAD"):
                raise RequestError(405, f"{request.method} is not understood here; use GET, or POST to infer")
            reply(self._get(request))
        except (RequestError, InputError) as error:
            reply(_refusal(error))
        return None

    def _get(self, request: Request) -> Response:
        match request.parts:
            case ["metrics"]:
                return self._metrics()
            case ["v2"]:
                extensions = ["binary_tensor_data", "model_configuration", "sequence", "parameters"]
                extensions += ["system_shared_memory"] if self._shared is not None else []
                return _json({"name": "edgekit", "version": __version__, "extensions": extensions})
            case ["v2", "health", "live"]:
                is_live = self.upkeep is None or self.upkeep.is_live
                return _json({"live": is_live}, 200 if is_live else 503)
            case ["v2", "health", "ready"]:
                return _json({"ready": self._engine.is_ready}, 200 if self._engine.is_ready else 400)
            case ["v2", "models", name, *rest]:
                version, rest = (rest[1], rest[2:]) if rest[:1] == ["versions"] and len(rest) > 1 else (None, rest)
                model = self._engine.find(name, version)
                match rest:
                    case []:
                        return _json(_metadata(model))
                    case ["ready"]:
                        is_ready = model.lane is not None
                        return _json({"name": name, "ready": is_ready}, 200 if is_ready else 400)
                    case ["config"]:
                        return _json(_config(model))
                    case ["infer"]:
                        raise RequestError(405, "infer wants POST")
        raise RequestError(404, f"no such path: {request.path}")

    def _regions(self, request: Request) -> Response:
        """Source: Triton "Shared-Memory Extension", HTTP."""
        if self._shared is None:
            raise RequestError(404, "shared memory is off; http.shared_memory = true turns it on")
        user = request.user()
        match request.method, request.parts[2:]:
            case "GET", ["status"]:
                return Response(parts=[msgspec.json.encode(self._shared.status(None, user))])
            case "GET", ["region", name, "status"]:
                return Response(parts=[msgspec.json.encode(self._shared.status(name, user))])
            case "POST", ["region", name, "register"]:
                self._shared.register(name, request.body, user)
            case "POST", ["region", name, "unregister"]:
                self._shared.unregister(name, user)
            case "POST", ["unregister"]:
                self._shared.unregister(None, user)
            case _:
                raise RequestError(404, f"no such path: {request.path}")
        return _json({})

    def _metrics(self) -> Response:
        lanes = [lane for model in self._engine.models.values() for lane in model.lanes]
        text = metrics.exposition(
            [(lane.model, lane.name, lane.artifact, lane.counts) for lane in lanes],
            gauges=self._gauges(),
            http_errors=self.server.errors if self.server else {},
        )
        return Response(content_type=metrics.CONTENT_TYPE, parts=[text.encode()])

    def _gauges(self) -> dict[str, float]:
        gauges: dict[str, float] = {
            "edgekit_ready": int(self._engine.is_ready),
            "edgekit_connections": len(self.server.connections) if self.server else 0,
        }
        if self.upkeep is not None:
            gauges |= self.upkeep.gauges()
        if (cache := self._engine.cache) is not None:
            gauges |= {"edgekit_cache_bytes": cache.size_bytes, "edgekit_cache_entries": len(cache)}
        return gauges

    def _infer(self, request: Request, reply: Reply) -> Callable[[], None]:
        parts = request.parts
        if parts[:2] != ["v2", "models"] or parts[-1] != "infer" or len(parts) not in (4, 6):
            raise RequestError(404, f"no such path for POST: {request.path}")
        if len(parts) == 6 and parts[3] != "versions":
            raise RequestError(404, f"no such path for POST: {request.path}")
        model = self._engine.find(parts[2], parts[4] if len(parts) == 6 else None)
        lane = model.ready_lane()
        try:
            self._engine.check_open()
        except RequestError:
            lane.refuse(rejected=1)
            raise
        try:
            query = decode_request(request.body, request.json_bytes, lane.layouts, self._reader(request))
        except (RequestError, InputError):
            lane.refuse(errors=1)
            raise
        finish = partial(self._finish, model, query, reply, self._writer(request) if query.places else None)

        def done(outcome: Outcome) -> None:
            if get_ident() == self._thread:
                finish(outcome)
            else:
                self._loop.call_soon_threadsafe(finish, outcome)

        job = Job(inputs=query.inputs, done=done, deadline_ms=query.deadline_ms, step=query.step)
        is_for_others = query.priority == TOLERANT and model.tolerant is not None  # who have a process of their own
        job.later = self._loop.call_soon if not is_for_others and self._is_alone(request) else None
        model.submit(job, query.priority, no_cache=query.no_cache)
        return job.cancel

    def _is_alone(self, request: Request) -> bool:
        """Whether no other client has asked of late: only then may an inference run on this thread."""
        now_s = monotonic()
        if request.connection != self._asking:
            self._asking, self._changed_s = request.connection, now_s
        return now_s - self._changed_s > ALONE_S

    def _reader(self, request: Request) -> Shared | None:
        shared = self._shared
        return None if shared is None else lambda place: shared.read(place, request.user())

    def _writer(self, request: Request) -> Write:
        shared, user = self._shared, request.user()
        assert shared is not None, "an output with a place was taken"
        return lambda place, data: shared.write(place, data, user)

    def _finish(
        self, model: ServedModel, query: InferenceRequest, reply: Reply, write: Write | None, outcome: Outcome
    ) -> None:
        try:
            reply(_refusal(outcome) if isinstance(outcome, EdgekitError) else _answer(model, query, outcome, write))
        except RequestError as error:
            reply(_refusal(error))
        except Exception:  # ours: the client hears of it and the model is not blamed
            logger.exception("%s: an answer could not be sent", model.name)
            reply(_refusal(RequestError(500, f"{model.name}: its answer could not be sent; see the daemon's log")))


def _answer(model: ServedModel, query: InferenceRequest, answer: Answer, write: Write | None) -> Response:
    head, tensors = encode_response(
        query,
        answer.outputs,
        model=model.name,
        version=model.version,
        parameters={
            "artifact": answer.artifact,
            "lane": answer.lane,
            "queue_ms": round(answer.queue_ms, 4),
            "infer_ms": round(answer.infer_ms, 4),
            "cached": answer.cached,
            "batch": answer.batch,
        },
        write=write,
    )
    if not tensors:
        return Response(parts=[head])
    length = f"Inference-Header-Content-Length: {len(head)}\r\n"
    return Response(content_type="application/octet-stream", headers=length, parts=[head, *tensors])


def _refusal(error: EdgekitError) -> Response:
    status = error.status if isinstance(error, RequestError) else 400 if isinstance(error, InputError) else 500
    again_s = error.retry_after_s if isinstance(error, Refused) else 1
    return error_response(status, str(error), f"Retry-After: {again_s}\r\n" if status == 503 else "")


def _json(value: dict[str, Any], status: int = 200) -> Response:
    return Response(status=status, parts=[msgspec.json.encode(value)])


def _metadata(model: ServedModel) -> dict[str, Any]:
    """Source: KServe "Model Metadata"; a dynamic axis is -1."""
    lane = model.ready_lane()
    return {
        "name": model.name,
        "versions": [model.version],
        "platform": _PLATFORMS.get(lane.session.runtime, lane.session.runtime),
        "inputs": [_tensor(spec) for spec in lane.signature.inputs],
        "outputs": [_tensor(spec) for spec in lane.signature.outputs],
    }


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    shape = [size if isinstance(size, int) else -1 for size in spec.shape]
    return {"name": spec.name, "datatype": DATATYPES.get(spec.dtype, spec.dtype), "shape": shape}


def _config(model: ServedModel) -> dict[str, Any]:
    """The part of Triton's model configuration that its clients and load generators read."""
    lane: Lane = model.ready_lane()
    return {
        "name": model.name,
        "platform": _PLATFORMS.get(lane.session.runtime, lane.session.runtime),
        "max_batch_size": lane.batching.max if lane.batching is not None else 0,
        "input": [_config_tensor(spec, lane) for spec in lane.signature.inputs],
        "output": [_config_tensor(spec, lane) for spec in lane.signature.outputs],
    }


def _config_tensor(spec: TensorSpec, lane: Lane) -> dict[str, Any]:
    """Where Triton batches, the axis of the batch is not part of `dims`."""
    tensor = _tensor(spec)
    dims = tensor["shape"][1:] if lane.batching is not None else tensor["shape"]
    return {"name": spec.name, "data_type": f"TYPE_{tensor['datatype']}", "dims": dims}
