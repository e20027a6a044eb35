"""Run `twinbus` commands from a test: on a thread, so that the test's event loop keeps running."""

from __future__ import annotations

import asyncio
import os
import sys
from functools import cache
from typing import TYPE_CHECKING
from unittest import mock

from typer.main import get_command
from typer.testing import CliRunner

from twinbus.cli.main import app

if TYPE_CHECKING:
    from typer import Typer
    from typer.testing import Result

    from tests.support.server_process import ServerProcess


@cache
def _command(application: Typer) -> object:
    """Build the tree of commands once: that takes a tenth of a second."""
    return get_command(application)


def invoke(*arguments: str, stdin: str | None = None, columns: int = 80) -> Result:
    """Run a command in this process, on a terminal of `columns` characters, and return its result."""
    runner = CliRunner(env={"COLUMNS": str(columns)})
    with mock.patch("typer.testing._get_command", _command):
        return runner.invoke(app, arguments, prog_name="twinbus", input=stdin)


async def run_twinbus(*arguments: str, columns: int = 80) -> str:
    """Run a command on a terminal of `columns` characters, check that it succeeds, and return its output."""
    runner = CliRunner(env={"COLUMNS": str(columns)})
    result = await asyncio.to_thread(runner.invoke, app, arguments, prog_name="twinbus")
    assert result.exit_code == 0, result.output
    return str(result.output)


async def pair_status(secondary: ServerProcess, *options: str, columns: int = 80) -> str:
    """Return the output of `twinbus pair status`."""
    connection = ("--secondary-connection-string", secondary.admin_connection_string, "--ca-file", secondary.ca_file)
    return await run_twinbus("pair", "status", *connection, *options, columns=columns)


async def run_twinbus_process(*arguments: str, columns: int = 80) -> str:
    """Run a command like `run_twinbus`, but in its own process, for commands that handle signals."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "twinbus",
        *arguments,
        env={**os.environ, "COLUMNS": str(columns)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors
    return output.decode()
