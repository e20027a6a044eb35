"""`twinbus serve` as a user starts it in a folder: with its output, its ready files, and its process.

    with run_serve(folder, "--pair") as command:
        command.wait_for("Ctrl-C stops both servers.")

Owns: the process, a loopback address of its own for the default ports, and the output, which may go to a terminal.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from tests.support.server_process import STOP_TIMEOUT_S, ServerProcess, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

START_TIMEOUT_S = 40.0


class ServeCommand:
    """A running `twinbus serve`."""

    def __init__(self, folder: Path, *options: str, on_terminal: bool = False) -> None:
        self.folder = folder
        self.host = ServerProcess(folder).host  # an address that no other test uses
        self._output = folder / "output"
        self._terminal, far_end = pty.openpty() if on_terminal else (-1, -1)
        with self._output.open("wb") as output, (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "twinbus", "serve", f"--host={self.host}", "--min-free=0", *options],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=far_end if on_terminal else output,
                stderr=log,
            )
        if on_terminal:
            os.close(far_end)

    @property
    def output(self) -> str:
        if self._terminal >= 0:
            with contextlib.suppress(OSError):  # EIO: the process has closed the terminal
                os.set_blocking(self._terminal, False)
                while data := os.read(self._terminal, 65_536):
                    with self._output.open("ab") as file:
                        file.write(data.replace(b"\r\n", b"\n"))
        return self._output.read_text()

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def wait_for(self, text: str) -> str:
        """Wait until the output contains a text, and return the output."""
        wait_until(lambda: text in self.output or self.process.poll() is not None, timeout_s=START_TIMEOUT_S)
        assert text in self.output, self.output + self.log
        return self.output

    def ready_file(self, name: str) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.folder / "twinbus-data" / f"{name}.json").read_text())
        return content

    def interrupt(self) -> int:
        """Send SIGINT, as Ctrl-C does, and return the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(STOP_TIMEOUT_S)


@contextlib.contextmanager
def run_serve(folder: Path, *options: str, on_terminal: bool = False) -> Iterator[ServeCommand]:
    """Start `twinbus serve` in a folder, and stop it at the end."""
    command = ServeCommand(folder, *options, on_terminal=on_terminal)
    try:
        yield command
    finally:
        if command.process.poll() is None:
            command.process.send_signal(signal.SIGTERM)
            command.process.wait(STOP_TIMEOUT_S)
        if on_terminal:
            os.close(command._terminal)  # noqa: SLF001  # its own
