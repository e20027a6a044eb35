"""A server that is killed, and started again on what it left behind, for clients on the loop of the test.

Owns: which of its lives clients can reach. The process itself is a `ServerProcess` of
`tests.support.server_process`. Nothing of it is left when
the `async with` ends.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from tests.support.server_process import STOP_TIMEOUT_S, ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.support.fault_injection.shim import DiskShim


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How to reach a server that serves."""

    amqp_port: int
    http_port: int
    key_name: str
    key: str


class CampaignServerProcess(ServerProcess):
    """With the usual log: at the level of debug a campaign would fill the disk."""

    log_options = ()


class RestartableServer:
    """One namespace, in life after life."""

    def __init__(self, folder: Path, *, shim: DiskShim | None = None, options: Sequence[str] = ()) -> None:
        """`folder` has the data directory and the log in it, and nothing else of anybody's."""
        self.data = folder / "data"
        self.data.mkdir(exist_ok=True)
        self.start_durations_s: list[float] = []
        """How long each start took."""
        self.kill_count = 0
        self.process = CampaignServerProcess(folder, options=options, name="faults", host="127.0.0.1")
        self._shim = shim
        self._endpoint: Endpoint | None = None
        self._is_serving = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    @property
    def endpoint(self) -> Endpoint:
        assert self._endpoint is not None, "the server does not run"
        return self._endpoint

    async def wait_until_serving(self) -> Endpoint:
        """Wait until it serves: at once, or after the next start."""
        await self._is_serving.wait()
        return self.endpoint

    async def start(self) -> None:
        """Start it, and wait until it serves."""
        self.process.environment = self._shim.environment() if self._shim is not None else None
        started = time.monotonic()
        await asyncio.to_thread(self.process.start)
        self.start_durations_s.append(time.monotonic() - started)
        served = self.process
        self._endpoint = Endpoint(served.amqp_port, served.http_port, served.key_name, served.key)
        self._is_serving.set()

    async def kill(self) -> None:
        """SIGKILL: it has no time for anything."""
        if self.process.is_running:
            self.kill_count += 1
            await self._stop_process(self.process.kill)

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """SIGTERM: a clean stop."""
        await self._stop_process(lambda: self.process.stop(timeout_s))

    async def _stop_process(self, stop: Callable[[], None]) -> None:
        await asyncio.to_thread(stop)
        self._endpoint = None
        self._is_serving.clear()
