"""docs/cli-messages.md: its commands run as printed, and print what the page shows; its table lists all commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.server_process import QUEUE_ENTRY
from twinbus.cli.message.app import app
from twinbus.cli.message.message_json import _FIELDS

if TYPE_CHECKING:
    from tests.cli.message.conftest import MessageCommands
    from tests.support.server_process import ServerProcess

PAGE = (Path(__file__).parents[3] / "docs" / "cli-messages.md").read_text()
CONSOLES = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")


@pytest.mark.usefixtures("server")
def test_the_commands_print_what_the_page_shows(run: MessageCommands, server: ServerProcess) -> None:
    for name in ("orders", "archive"):
        server.request("PUT", name, QUEUE_ENTRY.format(""), expected=201)
    for console in CONSOLES:
        for block in re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]:
            command, _, shown = block.partition("\n")
            arguments = shlex.split(command)
            file = None
            if ">" in arguments:
                arguments, file = arguments[:-2], arguments[-1]
            assert arguments[:2] == ["twinbus", "message"]
            output = run(*arguments[2:])
            if file is not None:
                Path(file).write_text(output)
                output = ""
            assert TIME.sub("TIME", output) == TIME.sub("TIME", shown), command
    for name in ("orders", "archive"):
        server.delete_queue(name)


def test_the_tables_list_all_commands_and_fields() -> None:
    documented = set(re.findall(r"^\| `([a-z-]+) ENTITY", PAGE, re.MULTILINE))
    assert documented == {
        command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands
    }
    (fields,) = re.findall(r"^\| field \|.*?\n\n|^\| field \|.*", PAGE, re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"`([a-z_0-9]+)`", fields))
    broker_fields = {"enqueued_sequence_number", "expires_at", "size", "locked_until"}
    assert _FIELDS - named <= broker_fields | {"dead_letter_description", "dead_letter_source"}
