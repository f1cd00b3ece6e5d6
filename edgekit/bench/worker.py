"""One candidate in a process of its own: `python -m edgekit.bench.worker` obeys requests on stdin.

Imports nothing heavy before it is told to, so that the time of importing the runtime can be measured.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from edgekit.bench import protocol as say
from edgekit.errors import EdgekitError
from edgekit.lifeline import die_with_parent

if TYPE_CHECKING:
    from edgekit.runtimes.session import Session

_WORTH_ASKING_MS = 0.5


class Worker:
    """State between requests: the session and its inputs."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._inputs: dict[str, Any] = {}
        self._batch = 1
        self._earlier_peak: int | None = None

    def answer(self, request: say.Request) -> say.Reply:
        """Do what is asked. Raises EdgekitError."""
        if isinstance(request, say.Open):
            return self._open(request)
        if isinstance(request, say.First):
            return self._first(request)
        if isinstance(request, say.WarmUp):
            return self._warm_up(request)
        if isinstance(request, say.Measure):
            return self._measure(request)
        if isinstance(request, say.Load):
            return self._load(request)
        if isinstance(request, say.Explain):
            return self._explain(request)
        return self._place()

    def _open(self, request: say.Open) -> say.Opened:
        start = time.perf_counter()
        from edgekit.runtimes.session import import_runtime, open_session

        import_runtime(request.settings.runtime)
        imported = time.perf_counter()
        before = self._forget_peak()
        began = time.perf_counter()
        session = open_session(Path(request.path), request.settings)
        loaded = time.perf_counter()
        self._session, self._batch = session, request.settings.batch
        after, peak = resident_bytes(), peak_memory_bytes()
        return say.Opened(
            import_ms=(imported - start) * 1000,
            load_ms=(loaded - began) * 1000,
            runtime_version=session.runtime_version,
            inputs=session.inputs,
            scales={name: (q.scale, q.zero_point) for name, q in session.quantization.items()},
            loaded_bytes=None if before is None or after is None else max(0, after - before),
            temporary_bytes=None if before is None or after is None or peak is None else max(0, peak - after),
        )

    def _forget_peak(self) -> int | None:
        """Let the kernel count the peak of memory anew, and return what is held now; None where it cannot.

        Source: proc(5), writing 5 to clear_refs.
        """
        self._earlier_peak = peak_memory_bytes()
        try:
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        except OSError:
            return None
        return resident_bytes()

    def _first(self, request: say.First) -> say.Reply:
        import numpy as np

        with np.load(request.inputs, allow_pickle=False) as arrays:
            self._inputs = {name: arrays[name] for name in arrays.files}
        session = self._opened()
        start = time.perf_counter()
        outputs = session.run(self._inputs)
        first_ms = (time.perf_counter() - start) * 1000
        for name, value in outputs.items():
            if value.dtype.kind == "f" and np.isnan(value).any():
                share = float(np.isnan(value).mean())
                return say.Failed(reason=f"output '{name}' is NaN ({share:.0%} of its values)")
        if self._batch > 1:
            from edgekit.runtimes.batches import why_mixed

            if why := why_mixed(session, self._inputs, outputs, self._batch):
                return say.Failed(reason=f"not for batches: {why}")
        return say.Times(times_ms=(first_ms,))

    def _warm_up(self, request: say.WarmUp) -> say.Times:
        from edgekit.runtimes.warmup import warm_up

        (result,) = warm_up(self._opened(), [self._inputs], max_s=request.max_s)
        return say.Times(times_ms=result.times_ms)

    def _measure(self, request: say.Measure) -> say.Times:
        from edgekit.bench.waits import Span, Waits, shared_waits_ms

        run, inputs, clock = self._opened().run, self._inputs, time.perf_counter
        times: list[float] = []
        spans: dict[int, Span] = {}
        end = clock() + request.seconds
        spent = usage()
        with Waits() as line:
            asked, asked_at = line.read(), clock()
            while len(times) < request.max_samples:
                start = clock()
                run(inputs)
                stop = clock()
                times.append((stop - start) * 1000)
                if times[-1] > _WORTH_ASKING_MS:  # a short query waited for nobody, and asking would disturb the next
                    (before, asked), since, asked_at = (asked, line.read()), asked_at, clock()
                    spans[len(times) - 1] = Span(before, asked, (asked_at - since) * 1000)
                if stop >= end and len(times) > 1:  # the first is the one after idle, so one more
                    break
        after = usage()
        used = (after[0] - spent[0], after[1] - spent[1], after[2] - spent[2]) if spent and after else None
        waits = dict(zip(spans, shared_waits_ms(list(spans.values())), strict=True))
        for i in waits:
            if i and i - 1 not in waits:  # those before may have waited a part of it, and none of them took longer
                waits[i] = min(waits[i], times[i] - _WORTH_ASKING_MS)
        return say.Times(
            times_ms=tuple(times), waits_ms=tuple(waits.get(i, 0.0) for i in range(len(times))), usage=used
        )

    def _load(self, request: say.Load) -> say.Loaded:
        from edgekit.bench import load

        session, inputs = self._opened(), self._inputs

        def run() -> None:
            session.run(inputs)

        began = time.perf_counter()
        if request.scenario == "server":
            times = load.server(run, request.seconds, request.min_queries, request.qps or 1.0, request.seed)
        elif request.scenario == "multi-stream":
            times = load.multi_stream(run, request.seconds, request.min_queries, request.streams)
        elif request.scenario == "offline":
            times = load.offline(run, request.seconds, request.min_queries)
        else:
            times = load.single_stream(run, request.seconds, request.min_queries)
        return say.Loaded(times_ms=tuple(times), span_s=time.perf_counter() - began)

    def _explain(self, request: say.Explain) -> say.Explained:
        from edgekit.bench.counters import Counters, between
        from edgekit.runtimes.profile import profile
        from edgekit.runtimes.session import open_session

        with Counters() as counters:  # before the session, whose threads inherit them
            session = open_session(Path(request.path), request.settings) if counters.granted else self._opened()
            session.run(self._inputs)
            self._session, before, spent = session, counters.read(), usage()
            times = self._measure(say.Measure(seconds=0.0, max_samples=request.runs)).times_ms
            times += self._measure(say.Measure(seconds=0.3, max_samples=50 * request.runs)).times_ms
            after, used = counters.read(), usage()
            counts = between(before, after) if counters.granted else None
        return say.Explained(
            profile=profile(Path(request.path), request.settings, self._inputs, request.runs),
            times_ms=times,
            usage=(used[0] - spent[0], used[1] - spent[1], used[2] - spent[2]) if spent and used else None,
            counts=counts,
        )

    def _place(self) -> say.Placed:
        # before the profiled second session takes its own share
        peak = max((p for p in (peak_memory_bytes(), self._earlier_peak) if p is not None), default=None)
        try:
            placement = self._opened().placement(self._inputs)
        except EdgekitError:  # the runtime does not tell
            return say.Placed(peak_memory_bytes=peak, ops_by_provider={}, partitions=None)
        return say.Placed(
            peak_memory_bytes=peak,
            ops_by_provider=placement.ops_by_provider,
            partitions=placement.partitions,
            unused=placement.unused,
        )

    def _opened(self) -> Session:
        assert self._session is not None, "the parent opens before it asks for more"
        return self._session


def peak_memory_bytes(status: Path = Path("/proc/self/status")) -> int | None:
    """The most resident memory so far. None where the system does not tell. Check by hand: grep VmHWM."""
    if sys.platform == "darwin":
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS, unlike elsewhere
    try:
        lines = status.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(found[0]) * 1024 if found else None


def usage() -> tuple[float, int, int] | None:
    """CPU seconds, page faults and context switches of this process so far. None on Windows."""
    if sys.platform == "win32":
        return None
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime, used.ru_minflt + used.ru_majflt, used.ru_nvcsw + used.ru_nivcsw


def resident_bytes() -> int | None:
    """The memory that this process holds now. None where the system does not tell. Check by hand: grep VmRSS."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def serve(requests: IO[bytes], replies: IO[bytes]) -> None:
    """Answer every line until the parent closes the pipe."""
    worker, decoder = Worker(), msgspec.json.Decoder(say.Request)
    for line in requests:
        try:
            reply: say.Reply = worker.answer(decoder.decode(line))
        except EdgekitError as error:
            reply = say.Failed(reason=str(getattr(error, "problem", None) or error))
        replies.write(msgspec.json.encode(reply) + b"\n")
        replies.flush()


def main() -> None:
    die_with_parent(int(sys.argv[1]), signal.SIGKILL)  # in the middle of a query, too
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not end up among the replies
    serve(sys.stdin.buffer, replies)


if __name__ == "__main__":
    main()
