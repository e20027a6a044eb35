"""A server on a thread of the test's process, for settings that the command line does not offer.

    with run_server_in_process(folder, keys=[Key("sender", "c2VjcmV0", rights=frozenset({Right.SEND}))]) as server: ...

The first key is the root key. Otherwise the server is the one that `twinbus serve` starts, on real sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any

import msgspec
import uvloop

from tests.support.server_process import ServerProcess
from twinbus.server.auth.keys import KeyRing
from twinbus.server.config.settings import ServeSettings
from twinbus.server.runtime.data_directory import DataDirectory
from twinbus.server.runtime.single_process import SingleProcessServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from twinbus.broker.namespace import Namespace
    from twinbus.server.auth.keys import Key

START_TIMEOUT_S = 40.0


class InProcessServer(ServerProcess):
    """A server with the same client interface as `ServerProcess`, in the test's process."""

    namespace: Namespace

    def serve(self, settings: ServeSettings, keys: Sequence[Key], started: threading.Event) -> None:
        """Run the server on the current thread until `stop_in_process` is called."""
        uvloop.run(self._serve(settings, keys, started))

    async def _serve(self, settings: ServeSettings, keys: Sequence[Key], started: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        with DataDirectory(settings.data) as data:
            async with contextlib.AsyncExitStack() as stack:
                server = SingleProcessServer(settings, data)
                if keys:
                    server._keys = KeyRing(keys)  # noqa: SLF001  # settings have the root key only
                ready = await server.start(stack)
                self.namespace = server.service.namespace
                self._ready = msgspec.to_builtins(ready)
                self._ports = {name: int(self._ready[f"{name}_port"]) for name in self._ports}
                started.set()
                await self._stopping.wait()

    def stop_in_process(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)


@contextlib.contextmanager
def run_server_in_process(folder: Path, *, keys: Sequence[Key] = (), **settings: Any) -> Iterator[InProcessServer]:  # noqa: ANN401
    """Start a server, and stop it at the end."""
    server, started = InProcessServer(folder), threading.Event()
    serve_settings = ServeSettings(
        name="contoso",
        data=folder / "data",
        host=server.host,
        min_free_bytes=0,
        **{f"{name}_port": 0 for name in ("amqp", "amqps", "http", "https")} | settings,
    )
    thread = threading.Thread(target=server.serve, args=(serve_settings, keys, started))
    thread.start()
    try:
        assert started.wait(START_TIMEOUT_S), "the server did not start in time"
        yield server
    finally:
        server.stop_in_process()
        thread.join(START_TIMEOUT_S)
