"""A server process from its start to its end.

Owns: the process: its loop, its signals, its data directory, its ready file. What it serves is made by `single`; where
several processes serve, by `workers`. Of these two it brings only the one it needs: so it starts sooner.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from typing import TYPE_CHECKING, Final

import uvloop

from twinbus import version_and_build
from twinbus.server import logs, process
from twinbus.server.data_directory import DataDirectory
from twinbus.server.settings import Stopped

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from twinbus.server.ready_file import ReadyFile
    from twinbus.server.settings import ServeSettings

    Start = Callable[[DataDirectory, contextlib.AsyncExitStack, asyncio.Event], Awaitable[ReadyFile]]
    """Starts what serves, and the stack stops it. The event is set if it is to stop before that."""

log: Final = logging.getLogger(__name__)


def run(settings: ServeSettings, announce: Callable[[ReadyFile], None] | None = None) -> int:
    """Serve until a signal says stop; the exit code. `announce` is told once it serves."""
    logs.configure(settings.log_level, settings.log_format)
    log.info("twinbus %s", version_and_build())
    process.tune()
    start = _alone(settings) if settings.workers == 1 else _supervising(settings)
    with DataDirectory(settings.data) as data, contextlib.suppress(Stopped):
        uvloop.run(_serve(settings, data, start, announce))
    return 0


def _alone(settings: ServeSettings) -> Start:
    from twinbus.server.single import Server  # noqa: PLC0415  # with all that serves clients

    return lambda data, stack, _stop: Server(settings, data).start(stack)


def _supervising(settings: ServeSettings) -> Start:
    from twinbus.server.workers.supervisor import Supervisor  # noqa: PLC0415  # with nothing that serves clients

    return lambda data, stack, stop: Supervisor(settings, data).start(stack, stop)


async def _serve(
    settings: ServeSettings, data: DataDirectory, start: Start, announce: Callable[[ReadyFile], None] | None
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        ready = await start(data, stack, stop)
        if settings.ready_file is not None:
            ready.write(settings.ready_file)
            stack.callback(ready.remove, settings.ready_file)
        process.set_apart()
        log.info("serving", extra=_where(ready))
        if announce is not None:
            announce(ready)
        await stop.wait()
        log.info("stopping")
    log.info("stopped")


def _where(ready: ReadyFile) -> dict[str, object]:
    ports = {name: getattr(ready, f"{name}_port") for name in ("amqp", "amqps", "http", "https")}
    return {"namespace": ready.namespace, **ports}
