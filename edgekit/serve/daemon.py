"""The process on the device: it listens at once, loads and warms its models, answers, reports, and leaves in order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgekit.catalog import board_tables
from edgekit.config import DaemonConfig, Home, Supervisor
from edgekit.device.probe import probe
from edgekit.errors import EdgekitError, RuntimeUnavailable
from edgekit.serve.birth import Ready, describe, device_name
from edgekit.serve.engine import Engine
from edgekit.serve.failures import Ledger, boot_id
from edgekit.serve.http import HttpServer
from edgekit.serve.listen import listen, new_loop, read_token, url_of
from edgekit.serve.loader import Loader
from edgekit.serve.notify import Notifier
from edgekit.serve.routes import Routes
from edgekit.serve.shared import SharedMemory
from edgekit.serve.tls import read_tls
from edgekit.serve.upkeep import Upkeep
from edgekit.serve.voice import Voice
from edgekit.telemetry.messages import Command, Reply

logger = logging.getLogger(__name__)

DRAIN_S = 10.0
"""Requests under way get this long after a stop signal; systemd's default patience is 90 s."""
CLOSE_S = 3.0
LOADING_NOTE_S = 10.0
EXTEND_S = 30.0
FORCED = 130


class Daemon:
    """One run. `source` names where the configuration came from, for its errors; `announce` is called when ready."""

    def __init__(
        self,
        config: DaemonConfig,
        *,
        source: str,
        home: Home,
        supervisor: Supervisor,
        reread: Callable[[], DaemonConfig] | None = None,
        announce: Callable[[Ready], None],
    ) -> None:
        self._config, self._source, self._home, self._supervisor = config, source, home, supervisor
        self._announce, self._reread = announce, reread
        self._started_s = time.monotonic()
        self._notifier = Notifier(supervisor.notify_socket)
        self._engine = Engine()
        self._voice = Voice()
        self._status, self._reason = "starting", ""
        self._failure: EdgekitError | None = None
        self._is_stuck = False

    def run(self) -> int:
        """Serve until a signal; 0 after an orderly end.

        Raises ConfigError, and what choosing, fetching, verifying or opening a model raises; the end is orderly then
        too. A second signal ends the process at once with 130, and the broker publishes its death.
        """
        self._facts = probe(profiles=board_tables())
        self._token = read_token(self._config.http, self._source)
        self._tls = read_tls(self._config.http, self._source)
        self._device = device_name(self._config, self._facts, self._source)
        logger.info("%s", describe(self._facts))
        listener = listen(self._config.http, self._source)
        loop = new_loop()
        try:
            loop.run_until_complete(self._serve(listener))
        finally:
            loop.close()
            if self._config.http.unix_socket:
                Path(self._config.http.unix_socket).unlink(missing_ok=True)
            if self._is_stuck:  # a thread deep in a runtime would keep the interpreter, or crash its end
                if self._failure is not None:
                    logger.error("%s", self._failure)
                _exit_now(0 if self._failure is None else 5)
        if self._failure is not None:
            raise self._failure
        return 0

    async def _serve(self, listener: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._watch_signals()
        http = self._config.http
        routes = Routes(self._engine, SharedMemory() if http.shared_memory else None)
        server = routes.server = HttpServer(
            routes, token=self._token, max_request_bytes=http.max_request_bytes, max_connections=http.max_connections
        )
        self._voice.start(self._config, self._facts, self._device, self._home, on_command=self._on_command)
        self._upkeep = routes.upkeep = self._new_upkeep()
        await server.start(listener, self._tls.context if self._tls is not None else None)
        loading = self._upkeep.load()
        signs = [asyncio.ensure_future(self._note_loading(loading)), asyncio.ensure_future(self._feed_watchdog())]
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            first: set[asyncio.Future[Any]] = {loading, stopping}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if loading.done():
                loading.result()
                self._become_ready(url_of(listener, is_tls=self._tls is not None))
                signs += [asyncio.ensure_future(self._voice.tell_ready()), self._upkeep.start()]
                await stopping
        except EdgekitError as error:
            self._failure = error
        finally:
            await self._leave(server)
            self._is_stuck = not self._upkeep.close() or self._is_stuck
            for task in (*signs, stopping):
                task.cancel()

    def _new_upkeep(self) -> Upkeep:
        health = self._config.health
        ledger = Ledger(
            self._home.daemon(self._device), limit=health.failures, minutes=health.minutes, boot_id=boot_id()
        )
        for failure in ledger.blamed:
            logger.warning("the daemon before ended in the middle of an inference (%s)", failure.key[:8])
        loader = Loader(
            engine=self._engine,
            home=self._home,
            facts=self._facts,
            recorder=self._voice.recorder,
            tell=self._voice.remember,
            on_progress=self._note_progress,
            on_death=self._die_on_the_loop,
            on_failure=self._note_failure,
            ledger=ledger,
        )
        return Upkeep(
            loader, self._config, self._source, reread=self._reread, tell=self._voice.event, end=self._end_stuck
        )

    def _note_failure(self, model: str, how: str, is_given_up: bool) -> None:
        """On the thread that answers, after the failure was counted on disk."""
        self._voice.event("runtime-failed", f"{model}: {how}", given_up=is_given_up)
        if is_given_up:
            asyncio.run_coroutine_threadsafe(self._upkeep.apply_again(), self._loop)

    def _end_stuck(self, why: str) -> None:
        """A runtime that hangs in our own process: say so, and leave the rest to the supervisor."""
        logger.error("%s; ending, so that another daemon can start", why)
        try:
            self._voice.event("stuck", why)
            self._notifier.stopping(why)
            self._voice.stop("stuck", in_haste=True)
        finally:
            _exit_now(5)

    async def _reload(self) -> str:
        """Raises as `Upkeep.reload`; told either way."""
        self._notifier.reloading()
        try:
            if self._tls is not None:
                self._tls.renew()
            said = await self._upkeep.reload()
        except EdgekitError as error:
            logger.error("not reloaded, the configuration of before goes on: %s", error)
            self._voice.event("reload-refused", str(error))
            raise
        finally:
            self._notifier.ready(self._status)
        logger.info("reloaded: %s", said)
        self._voice.event("reloaded", said)
        self._voice.rebirth()
        return said

    async def _on_hangup(self) -> None:
        """A terminal that goes away says the same as an operator who wants a file read again."""
        if self._reread is None:
            self._on_signal("SIGHUP")
            return
        with contextlib.suppress(EdgekitError):  # said already
            await self._reload()

    def _on_command(self, command: Command) -> Reply:
        """On the reporter's thread; only what `mqtt.allowed_commands` lists comes here."""
        if command.verb != "reload":
            return Reply(id=command.id, ok=False, text=f"this device does not know '{command.verb}'")
        said = asyncio.run_coroutine_threadsafe(self._reload(), self._loop).result()
        return Reply(id=command.id, ok=True, text=said)

    def _note_progress(self, text: str) -> None:
        self._status = text

    def _become_ready(self, url: str) -> None:
        gc.collect()
        gc.freeze()  # what is loaded stays: a walk over it would be a pause of some 20 ms in the midst of answering
        took_s = time.monotonic() - self._started_s
        self._status = f"serving {', '.join(self._voice.models)} on {url}"
        self._notifier.ready(self._status)
        self._voice.event("started", f"ready in {took_s:.1f} s")
        self._announce(
            Ready(
                url=url,
                site=self._config.site,
                device=self._device,
                models=tuple(self._voice.models.values()),
                ready_s=round(took_s, 3),
            )
        )

    async def _leave(self, server: HttpServer) -> None:
        """Refuse new work, finish the old, free the models, publish the death: in this order."""
        reason = self._reason or ("failed" if self._failure else "stopped")
        self._notifier.stopping(f"draining: {reason}")
        self._voice.event("stopping", str(self._failure or reason))
        cut_off = await server.drain(DRAIN_S)
        if self._reason:
            logger.info("%s: drained%s", reason, f", {cut_off} requests cut off" if cut_off else "")
        self._is_stuck = not self._engine.close(CLOSE_S)
        self._voice.stop(reason)

    def _watch_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C arrives as KeyboardInterrupt instead
                self._loop.add_signal_handler(number, self._on_signal, signal.Signals(number).name)

        if hasattr(signal, "SIGHUP"):
            self._loop.add_signal_handler(signal.SIGHUP, lambda: asyncio.ensure_future(self._on_hangup()))

    def _on_signal(self, name: str) -> None:
        if self._stop.is_set():
            logger.warning("%s again: ending at once", name)
            _exit_now(FORCED)
        self._reason = name
        self._stop.set()

    def _die_on_the_loop(self) -> None:
        """Called on the thread that answered when it has met a fault."""
        self._loop.call_soon_threadsafe(self._end_by_fault)

    def _end_by_fault(self) -> None:
        self._failure = RuntimeUnavailable("inference", "a model's thread ended by a fault, its trace is above")
        self._stop.set()

    async def _note_loading(self, loading: asyncio.Future[None]) -> None:
        """Building an engine may take minutes; systemd must not take that for a hang."""
        while not loading.done():
            self._notifier.loading(self._status, EXTEND_S)
            await asyncio.wait({loading}, timeout=LOADING_NOTE_S)

    async def _feed_watchdog(self) -> None:
        """At half the period, from this loop: a loop that hangs is a daemon that hangs."""
        while self._supervisor.watchdog_s is not None:
            if self._upkeep.is_live:
                self._notifier.alive()
            await asyncio.sleep(self._supervisor.watchdog_s / 2)


def _exit_now(code: int) -> None:
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)
