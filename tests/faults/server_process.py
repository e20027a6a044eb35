"""A server in a process of its own: started, stopped, killed, and started again on what it left behind.

Owns: the process and its files. Nothing of it is left when the `async with` ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.faults.shim import Shim

START_S: Final = 40.0
"""A machine that is busy with other tests needs its time."""
STOP_S: Final = 30.0
LOOK_EVERY_S: Final = 0.01
LOG_LINES: Final = 30
"""As much of its log is shown where it does not start."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How to reach a server that serves."""

    amqp_port: int
    http_port: int
    key_name: str
    key: str

    @classmethod
    def read(cls, ready_file: Path) -> Endpoint:
        ready = json.loads(ready_file.read_text())
        pairs = dict(pair.split("=", 1) for pair in ready["connection_string"].split(";"))
        return cls(ready["amqp_port"], ready["http_port"], pairs["SharedAccessKeyName"], pairs["SharedAccessKey"])


class ServerFailed(Exception):
    """The server did not do what a server has to: start, or stop. The end of its log says more."""


class ServerProcess:
    """One namespace, in life after life."""

    def __init__(self, folder: Path, *, shim: Shim | None = None, options: Sequence[str] = ()) -> None:
        """`folder` has the data directory and the log in it, and nothing else of anybody's."""
        self.data = folder / "data"
        self.data.mkdir(exist_ok=True)
        self.starts_s: list[float] = []
        """How long each start took."""
        self.kills = 0
        self._ready_file = folder / "ready.json"
        self._log = folder / "server.log"
        self._shim = shim
        self._options = options
        self._process: asyncio.subprocess.Process | None = None
        self._endpoint: Endpoint | None = None
        self._serves = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    @property
    def endpoint(self) -> Endpoint:
        assert self._endpoint is not None, "the server does not run"
        return self._endpoint

    async def serving(self) -> Endpoint:
        """Wait until it serves: at once, or after the next start."""
        await self._serves.wait()
        return self.endpoint

    async def start(self) -> None:
        """Start it, and wait until it serves."""
        assert self._process is None, "it runs already"
        self._ready_file.unlink(missing_ok=True)
        ports = [f"--{name}-port=0" for name in ("amqp", "amqps", "http", "https")]
        command = ["-m", "twinbus", "serve", "faults", "--data", str(self.data), *ports, "--min-free=0"]
        environment = self._shim.environment() if self._shim is not None else None
        started = time.monotonic()
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *command,
                f"--ready-file={self._ready_file}",
                *self._options,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # its own group, so that processes of its own die with it
            )
        await self._wait_until_ready(self._process)
        self.starts_s.append(time.monotonic() - started)
        self._endpoint = Endpoint.read(self._ready_file)
        self._serves.set()

    async def _wait_until_ready(self, process: asyncio.subprocess.Process) -> None:
        deadline = time.monotonic() + START_S
        while not self._ready_file.exists():
            if process.returncode is not None:
                raise ServerFailed(f"it ended with {process.returncode} instead of serving\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise ServerFailed(f"it does not serve after {START_S:.0f} s\n{self.log_tail()}")
            await asyncio.sleep(LOOK_EVERY_S)

    async def kill(self) -> None:
        """SIGKILL: it has no time for anything."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self.kills += 1
        await self._is_gone()

    async def stop(self, patience_s: float = STOP_S) -> None:
        """SIGTERM: a clean stop."""
        assert self._process is not None, "it does not run"
        self._process.terminate()
        try:
            async with asyncio.timeout(patience_s):
                status = await self._process.wait()
        except TimeoutError:
            raise ServerFailed(f"it has not stopped {patience_s:.0f} s after SIGTERM\n{self.log_tail()}") from None
        await self._is_gone()
        if status != 0:
            raise ServerFailed(f"its clean stop ended with {status}\n{self.log_tail()}")

    async def _is_gone(self) -> None:
        assert self._process is not None
        await self._process.wait()
        self._process = self._endpoint = None
        self._serves.clear()

    def log_tail(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return "\n".join(lines[-LOG_LINES:])
