"""A server process from its start to its end.

Owns: the process: its loop, its signals, its data directory, its ready file. SIGTERM and SIGINT stop it, SIGHUP reloads
what can be changed (`reload`). What it serves is made by `single`; where several processes serve, by `workers`. It
imports only the one that it needs: so it starts sooner.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from typing import TYPE_CHECKING, Final, Protocol

import uvloop

from twinbus import version_and_build
from twinbus.server import logs, process
from twinbus.server.data_directory import DataDirectory
from twinbus.server.key_socket import listening
from twinbus.server.reload import Reloader, Serving
from twinbus.server.settings import Stopped

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.server.ready_file import ReadyFile
    from twinbus.server.settings import ServeSettings

log: Final = logging.getLogger(__name__)


class Startable(Serving, Protocol):
    """Serves clients once it is started."""

    async def start(self, stack: contextlib.AsyncExitStack, stop: asyncio.Event, /) -> ReadyFile:
        """Start everything; `stack` stops it. `stop` is set if that has to happen before it serves."""


def run(
    settings: ServeSettings,
    announce: Callable[[ReadyFile], None] | None = None,
    reread: Callable[[], ServeSettings] | None = None,
) -> int:
    """Serve until a signal says stop; the exit code. `announce` is called once it serves.

    `reread` is called by SIGHUP: it returns the settings as they are said now, or raises StartError.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # it would end the process before the loop has a handler for it
    logs.configure(settings.log_level, settings.log_format)
    log.info("twinbus %s", version_and_build())
    process.tune()
    with DataDirectory(settings.data) as data, contextlib.suppress(Stopped):
        server = _make(settings, data)
        uvloop.run(_serve(settings, data, server, announce, reread or (lambda: settings)))
    return 0


def _make(settings: ServeSettings, data: DataDirectory) -> Startable:
    if settings.workers == 1:
        from twinbus.server.single import Server  # noqa: PLC0415  # with all that serves clients

        return Server(settings, data)
    from twinbus.server.workers.supervisor import Supervisor  # noqa: PLC0415  # with nothing that serves clients

    return Supervisor(settings, data)


async def _serve(
    settings: ServeSettings,
    data: DataDirectory,
    server: Startable,
    announce: Callable[[ReadyFile], None] | None,
    reread: Callable[[], ServeSettings],
) -> None:
    stop, reload = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, reload.set)  # one that comes during the start takes effect after it
    async with contextlib.AsyncExitStack() as stack:
        ready = await server.start(stack, stop)
        if settings.ready_file is not None:
            ready.write(settings.ready_file)
            stack.callback(ready.remove, settings.ready_file)
        reloader = Reloader(settings, data, server, ready, reread)
        await stack.enter_async_context(listening(data.key_socket, reloader.handle))
        reloading = loop.create_task(_reload_when(reload, reloader))
        stack.callback(reloading.cancel)
        process.set_apart()
        log.info("serving", extra=_where(ready))
        if announce is not None:
            announce(ready)
        await stop.wait()
        log.info("stopping")
    log.info("stopped")


async def _reload_when(wanted: asyncio.Event, reloader: Reloader) -> None:
    """Reload for every signal; several that come during a reload are answered by one more."""
    while True:
        await wanted.wait()
        wanted.clear()
        await reloader.reload()


def _where(ready: ReadyFile) -> dict[str, object]:
    ports = {name: getattr(ready, f"{name}_port") for name in ("amqp", "amqps", "http", "https")}
    return {"namespace": ready.namespace, **ports}
