"""`twinbus top` shows the figures of a namespace in 80x24, survives its restart, and ends on q."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from typing import TYPE_CHECKING

from tests.support.cli import invoke
from tests.support.http_client import HttpClient
from tests.support.server_process import run_server, wait_until
from twinbus.cli.output import EXIT_FAILED

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server_process import ServerProcess

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A command on a terminal of 80 columns and 24 lines."""

    def __init__(self, *arguments: str) -> None:
        self._main, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        command = [sys.executable, "-m", "twinbus", *arguments]
        self.process = subprocess.Popen(command, stdin=side, stdout=side, stderr=side, env=environment)
        os.close(side)
        self.output = b""
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def screen(self) -> str:
        """The last complete screen."""
        screens = self.output.decode(errors="replace").split("\x1b[H")
        return _ESCAPES.sub("", screens[-2] if len(screens) > 2 else screens[-1])

    def press(self, key: str) -> None:
        os.write(self._main, key.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._main)

    def _read(self) -> None:
        while True:
            try:
                read = os.read(self._main, 65_536)
            except OSError:  # the command has ended
                return
            if not read:
                return
            self.output += read


def test_once_prints_the_figures_within_80_columns(server: ServerProcess, queue: str) -> None:
    assert HttpClient(server).request("POST", f"/{queue}/messages", "one").status == 201
    result = invoke("top", "--once", "--prefix", queue, "--ready-file", str(server.ready_file))
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[0].startswith("contoso  twinbus ")
    row = next(line for line in lines if line.startswith(queue[:20]))
    assert row.split()[1:4] == ["1", "0", "0"]


def test_json_has_the_overview_the_entities_and_the_pairs(server: ServerProcess, queue: str) -> None:
    arguments = ("top", "--once", "--json", "--prefix", queue, "--ready-file", str(server.ready_file))
    content = json.loads(invoke(*arguments).output)
    assert content["overview"]["namespace"] == "contoso"
    assert [entity["path"] for entity in content["entities"]] == [queue]
    assert content["pairings"] == []


def test_the_screen_keeps_the_last_figures_while_the_namespace_is_down(tmp_path: Path) -> None:
    with run_server(tmp_path) as server:
        queue = server.create_queue()
        terminal = Terminal("top", "--interval", "0.2", "--ready-file", str(server.ready_file))
        try:
            wait_until(lambda: queue[:20] in terminal.screen and "q: quit" in terminal.screen)
            server.stop()
            wait_until(lambda: "NOT REACHABLE, retrying: " in terminal.screen)
            assert queue[:20] in terminal.screen
            assert all(len(line.rstrip()) <= 80 for line in terminal.screen.splitlines())
            assert len(terminal.screen.splitlines()) <= 24
            server.start()
            wait_until(lambda: "contoso  twinbus" in terminal.screen and "NOT REACHABLE" not in terminal.screen)
            terminal.press("q")
            assert terminal.process.wait(20) == 0
            assert b"\x1b[?1049l" in terminal.output
            assert b"Traceback" not in terminal.output
        finally:
            terminal.close()


def test_a_namespace_that_is_down_is_an_error_of_once() -> None:
    nowhere = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=c2VjcmV0;UseDevelopmentEmulator=true"
    result = invoke("top", "--once", "--connection-string", "-", stdin=nowhere)
    assert (result.exit_code, result.output.count("\n")) == (EXIT_FAILED, 1)
    assert result.output.startswith("twinbus top: ")
