"""Process of a program of a campaign: started, stopped, paused or killed.

Owns: the process, its log and its clock.
"""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from tests.support.fault_injection.clock import MovableClock

ROOT: Final = Path(__file__).parents[3]
STOP_TIMEOUT_S: Final = 90.0
POLL_INTERVAL_S: Final = 0.02
LOG_LINES: Final = 12


class ProgramFailed(Exception):
    """A program exited unexpectedly, or did not stop; the message contains the end of its log."""


class ProgramProcess:
    """Program that can be restarted."""

    def __init__(self, name: str, folder: Path, module: str, *arguments: str) -> None:
        """`folder` has its log, and the file that controls its clock."""
        self.name = name
        self.log = folder / f"{name.replace(' ', '-')}.log"
        self.clock = MovableClock(self.log.with_suffix(".clock"))
        self.lock = asyncio.Lock()
        """Held while the process is changed."""
        self._command = ("-m", module, *arguments)
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def start(self) -> None:
        assert self._process is None, "it runs already"
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=self.clock.environment(),
            )

    def check_running(self) -> None:
        """Raise ProgramFailed if the process has exited."""
        if self._process is not None and self._process.returncode is not None:
            raise ProgramFailed(f"{self._command[1]} ended with {self._process.returncode}\n{self.log_tail()}")

    async def kill(self) -> None:
        """Kill the process with SIGKILL."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def pause(self) -> None:
        """Pause the process with SIGSTOP; its connections stay open."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume the process with SIGCONT."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def stop(self) -> None:
        """Stop the process with SIGTERM, after it has installed its handler."""
        assert self._process is not None, "it does not run"
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                while not _handles_sigterm(self._process.pid):
                    self.check_running()
                    await asyncio.sleep(POLL_INTERVAL_S)
                self._process.terminate()
                status = await self._process.wait()
        except TimeoutError:
            raise ProgramFailed(
                f"{self._command[1]} goes on {STOP_TIMEOUT_S:.0f} s after SIGTERM\n{self.log_tail()}"
            ) from None
        self._process = None
        if status != 0:
            raise ProgramFailed(f"{self._command[1]} ended with {status}\n{self.log_tail()}")

    def log_tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_LINES:])


def _handles_sigterm(pid: int) -> bool:
    """Return whether the process has a handler for SIGTERM; before that, SIGTERM would kill it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # it has ended
        return False
    handled = re.search(r"^SigCgt:\s*(\w+)$", status, re.MULTILINE)
    return handled is not None and bool(int(handled[1], 16) >> (signal.SIGTERM - 1) & 1)
