"""Helpers that run `twinbus key` in this process and read the keys of a data directory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from typer.testing import CliRunner

from twinbus.cli.main import app

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result


def run_key_command(data: Path, *arguments: str) -> Result:
    """Run a command, and return its result whether it succeeds or not."""
    return CliRunner().invoke(app, ["key", *arguments, "--data", str(data)])


def run_key_command_ok(data: Path, *arguments: str) -> str:
    """Run a command that must succeed, and return its output."""
    result = run_key_command(data, *arguments)
    assert result.exit_code == 0, result.output
    return str(result.stdout)


def run_key_command_refused(data: Path, *arguments: str) -> str:
    """Run a command that must fail, and return its one-line error message."""
    result = run_key_command(data, *arguments)
    assert (result.exit_code, result.stdout) == (1, ""), result.output
    (line,) = result.stderr.splitlines()
    return str(line)


def list_keys(data: Path, *arguments: str) -> dict[str, dict[str, Any]]:
    """Return the keys by name."""
    return {key["name"]: key for key in json.loads(run_key_command_ok(data, "list", "--json", *arguments))}


def secret(data: Path, name: str, which: str = "primary") -> str:
    return str(list_keys(data, "--show")[name][which])
