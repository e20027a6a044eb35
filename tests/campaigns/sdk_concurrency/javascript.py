"""Concurrent operations of the SDK for JavaScript: runs a program of `tests/sdk_js`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess

PROGRAMS: Final = Path(__file__).parents[2] / "sdk_js"
TIMEOUT_S: Final = 90


class ProgramFailed(Exception):
    """The program failed; the message is its output."""


def run_javascript(server: ServerProcess) -> None:
    """Run the program once."""
    environment = {
        "TWINBUS_PLAIN": server.connection_string,
        "TWINBUS_TLS": server.tls_connection_string,
        "TWINBUS_ADMINISTRATION": server.admin_connection_string,
        "NODE_EXTRA_CA_CERTS": server.ca_file,
    }
    run = subprocess.run(
        ["node", "--test", "--test-reporter=spec", "at_the_same_time.test.js"],
        cwd=PROGRAMS,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=TIMEOUT_S,
        check=False,
    )
    if run.returncode != 0:
        raise ProgramFailed(run.stdout)
