"""Fixture `run`: `twinbus message` commands against the shared server, in a folder of their own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import typer.main
from click.testing import CliRunner

from twinbus.cli.main import app

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server_process import ServerProcess

COLUMNS = 80
COMMAND: Any = typer.main.get_command(app)  # typer has its own copy of click
"""The command line, built once: building it takes longer than most commands."""


class MessageCommands:
    """Runs commands on a terminal of 80 columns, and checks their exit codes."""

    def __init__(self, connection_string: str) -> None:
        self._runner = CliRunner(
            env={"COLUMNS": str(COLUMNS), "TWINBUS_CONNECTION_STRING": connection_string, "TWINBUS_CA_FILE": None}
        )
        self.errors = ""
        """What the last command wrote to stderr."""

    def __call__(self, *arguments: str, stdin: str | bytes | None = None, exit_code: int = 0) -> str:
        """Run `twinbus message` with these arguments, and return what it wrote to stdout."""
        result = self._runner.invoke(COMMAND, ["message", *arguments], input=stdin, prog_name="twinbus")
        assert result.exit_code == exit_code, f"{result.output}{result.exception!r}"
        self.errors = result.stderr
        for line in (*result.stdout.splitlines(), *result.stderr.splitlines()):
            assert line.isprintable(), f"{line!r} has control characters"
        return result.stdout

    def json(self, *arguments: str) -> Any:  # noqa: ANN401  # any JSON value
        """Run a command with --json, and return its JSON value."""
        return json.loads(self(*arguments, "--json"))

    def json_lines(self, *arguments: str) -> list[dict[str, Any]]:
        """Run a command with --json that prints a line per message."""
        return [json.loads(line) for line in self(*arguments, "--json").splitlines()]


@pytest.fixture
def run(server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MessageCommands:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return MessageCommands(server.connection_string)
