"""The start-up log and `--version` say whether the hot files are compiled, as the memory map of the process shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.server_process import run_server
from twinbus import __version__


def test_the_server_and_the_command_say_whether_they_are_compiled(tmp_path: Path) -> None:
    version = subprocess.run([sys.executable, "-m", "twinbus", "--version"], capture_output=True, text=True, check=True)
    with run_server(tmp_path) as server:
        is_compiled = "__mypyc" in Path(f"/proc/{server.pid}/maps").read_text()
        first_line = server.log.splitlines()[0]
    expected = f"twinbus {__version__} ({'compiled' if is_compiled else 'pure Python'})"
    assert first_line.endswith(f" info twinbus.server.runtime.process {expected}")
    assert version.stdout == f"{expected}\n"
