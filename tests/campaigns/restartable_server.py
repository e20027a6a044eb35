"""Server that is killed and restarted on the same data directory, for clients on the event loop of the test.

Owns: the endpoint of the current process, a `ServerProcess` of `tests.support.server_process`. The process is killed
when the `async with` ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.support.server_process import STOP_TIMEOUT_S, ServerProcess, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.support.fault_injection.shim import DiskShim


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Ports and key of a running server."""

    amqp_port: int
    http_port: int
    key_name: str
    key: str


class CampaignServerProcess(ServerProcess):
    """Server process with the default log level: a debug log would fill the disk."""

    log_options = ()

    def kill(self) -> None:
        """Kill the server with the program that converts usage journals, which has its own session.

        A power cut ends both. If the program continued, it would write to a data directory that is being restored.
        """
        super().kill()
        wait_until(lambda: not kill_all(roll_up_pids(self._data)))


def kill_all(pids: set[int]) -> set[int]:
    """Kill processes, and return them."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return pids


def roll_up_pids(data: Path) -> set[int]:
    """Return the processes that convert usage journals of a data directory."""
    pids = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_bytes()
            if b"twinbus.server.usage.rollup" in command and os.fsencode(data) in command:
                pids.add(int(process.name))
    return pids


class RestartableServer:
    """One namespace, served by one process after the other."""

    def __init__(self, folder: Path, *, shim: DiskShim | None = None, options: Sequence[str] = ()) -> None:
        """`folder` is for the data directory and the log only."""
        self.data = folder / "data"
        self.data.mkdir(exist_ok=True)
        self.start_durations_s: list[float] = []
        """Duration of each start."""
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
        assert self._endpoint is not None, "the server is not running"
        return self._endpoint

    async def wait_until_serving(self) -> Endpoint:
        """Wait until the server is serving, and return its endpoint."""
        await self._is_serving.wait()
        return self.endpoint

    async def start(self) -> None:
        """Start the server, and wait until it is serving."""
        self.process.environment = self._shim.environment() if self._shim is not None else None
        started_s = time.monotonic()
        await asyncio.to_thread(self.process.start)
        self.start_durations_s.append(time.monotonic() - started_s)
        process = self.process
        self._endpoint = Endpoint(process.amqp_port, process.http_port, process.key_name, process.key)
        self._is_serving.set()

    async def kill(self) -> None:
        """Kill the server with SIGKILL."""
        if self.process.is_running:
            self.kill_count += 1
            await self._stop_process(self.process.kill)

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stop the server with SIGTERM."""
        await self._stop_process(lambda: self.process.stop(timeout_s))

    async def _stop_process(self, stop: Callable[[], None]) -> None:
        await asyncio.to_thread(stop)
        self._endpoint = None
        self._is_serving.clear()
