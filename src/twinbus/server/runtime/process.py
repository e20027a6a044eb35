"""A server process, from startup to exit.

Owns: the event loop, the signals, the data directory and the ready file of the process. SIGTERM and SIGINT stop the
process; SIGHUP reloads settings (`reloader`). A `SingleProcessServer` or, with several workers, a `Supervisor` serves
the namespace; only the needed class is imported, so that the process starts sooner.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from typing import TYPE_CHECKING, Final, Protocol

import uvloop

from twinbus import version_and_build
from twinbus.server.auth.key_socket import serve_commands
from twinbus.server.config.settings import StoppedBeforeReady
from twinbus.server.runtime import interpreter, logs
from twinbus.server.runtime.data_directory import DataDirectory
from twinbus.server.runtime.reloader import ReloadableServer, Reloader

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.server.config.settings import ServeSettings
    from twinbus.server.runtime.ready_file import ReadyFile

log: Final = logging.getLogger(__name__)


class StartableServer(ReloadableServer, Protocol):
    """A server that can be started."""

    async def start(self, stack: contextlib.AsyncExitStack, stop: asyncio.Event, /) -> ReadyFile:
        """Start the server and return its ready file. `stack` stops the server; setting `stop` cancels the startup."""


def run(
    settings: ServeSettings,
    on_ready: Callable[[ReadyFile], None] | None = None,
    reread_settings: Callable[[], ServeSettings] | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit code. `on_ready` is called when clients are accepted.

    `reread_settings` is called on SIGHUP, and returns the current settings or raises StartError.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # SIGHUP would kill the process until the loop has a handler for it
    logs.configure(settings.log_level, settings.log_format)
    log.info("twinbus %s", version_and_build())
    interpreter.tune_interpreter()
    with DataDirectory(settings.data) as data, contextlib.suppress(StoppedBeforeReady):
        server = _make_server(settings, data)
        uvloop.run(_serve(settings, data, server, on_ready, reread_settings or (lambda: settings)))
    return 0


def _make_server(settings: ServeSettings, data_directory: DataDirectory) -> StartableServer:
    if settings.workers == 1:
        from twinbus.server.runtime.single_process import SingleProcessServer  # noqa: PLC0415  # imports the gateways

        return SingleProcessServer(settings, data_directory)
    from twinbus.server.cluster.supervisor import Supervisor  # noqa: PLC0415  # imports no gateway

    return Supervisor(settings, data_directory)


async def _serve(
    settings: ServeSettings,
    data_directory: DataDirectory,
    server: StartableServer,
    on_ready: Callable[[ReadyFile], None] | None,
    reread_settings: Callable[[], ServeSettings],
) -> None:
    stop, reload = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, reload.set)  # a SIGHUP during the start takes effect after it
    async with contextlib.AsyncExitStack() as stack:
        ready = await server.start(stack, stop)
        if settings.ready_file is not None:
            ready.write(settings.ready_file)
            stack.callback(ready.remove, settings.ready_file)
        reloader = Reloader(settings, data_directory, server, ready, reread_settings)
        await stack.enter_async_context(serve_commands(data_directory.key_socket_file, reloader.handle_command))
        reloading = loop.create_task(_reload_on_signal(reload, reloader))
        stack.callback(reloading.cancel)
        interpreter.freeze_objects()
        log.info("serving", extra=_log_fields(ready))
        if on_ready is not None:
            on_ready(ready)
        await stop.wait()
        log.info("stopping")
    log.info("stopped")


async def _reload_on_signal(signalled: asyncio.Event, reloader: Reloader) -> None:
    """Reload on every signal; several signals during a reload cause one more reload."""
    while True:
        await signalled.wait()
        signalled.clear()
        await reloader.reload()


def _log_fields(ready: ReadyFile) -> dict[str, object]:
    ports = {name: getattr(ready, f"{name}_port") for name in ("amqp", "amqps", "http", "https")}
    return {"namespace": ready.namespace, **ports}
