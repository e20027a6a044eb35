"""Every command reports a namespace that is down, refuses the key or lacks the entity in one line."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING

import pytest

from tests.cli.message.conftest import MessageCommands

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server_process import ServerProcess

COMMANDS = [
    ["send", "orders", "x"],
    ["receive", "orders"],
    ["peek", "orders"],
    ["peek", "orders", "--filter", "a = 1"],
    ["watch", "orders"],
    ["dead-letters", "orders"],
    ["resubmit", "orders", "--all"],
    ["move", "orders", "other", "--all"],
    ["delete", "orders", "1"],
    ["purge", "orders", "--yes"],
    ["cancel", "orders", "1"],
    ["reschedule", "orders", "1", "--in", "5m"],
]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up after the first attempt: these commands would try again for 30 seconds."""
    monkeypatch.setattr("twinbus.cli.message.entity.OPERATION_TIMEOUT_S", 0.2)


def check_error(run: MessageCommands, command: list[str], pattern: str) -> None:
    run(*command, exit_code=1)
    [line] = [line for line in run.errors.splitlines() if not line.startswith("Watching")]
    assert line.startswith(f"twinbus message {command[0]}: ")
    assert re.search(pattern, line), line


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_namespace_that_is_down_is_named(command: list[str]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        key = "c2VjcmV0LXNlY3JldC1zZWNyZXQ="
        run = MessageCommands(
            f"Endpoint=sb://{address};SharedAccessKeyName=root;SharedAccessKey={key};UseDevelopmentEmulator=true"
        )
        check_error(run, command, re.escape(address))
        assert key not in run.errors


@pytest.mark.parametrize("command", COMMANDS[:6], ids=" ".join)
def test_a_refused_key_is_reported_without_the_key(server: ServerProcess, command: list[str]) -> None:
    run = MessageCommands(server.connection_string.replace(server.key, "d3Jvbmcgd3Jvbmcgd3Jvbmcgd3Jvbmc="))
    check_error(run, command, r"(?i)unauthorized|signature|refused|401")
    assert "d3Jvbmcg" not in run.errors


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_missing_entity_is_named(run: MessageCommands, command: list[str]) -> None:
    check_error(run, [part.replace("orders", "no-such-queue") for part in command], "'no-such-queue")


def test_without_a_namespace_a_command_says_how_to_name_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    run = MessageCommands("")
    run("peek", "orders", exit_code=2)
    assert "no namespace is given: use --ready-file FILE" in run.errors
