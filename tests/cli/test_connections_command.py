"""`twinbus connections` lists clients with the locks that they hold, and closes one."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.cli import invoke
from twinbus.cli.output import EXIT_FAILED, EXIT_MISUSE
from twinbus.client import BrokeredMessage, MessagingFactory

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess


async def connections(server: ServerProcess, *arguments: str) -> str:
    result = await asyncio.to_thread(invoke, "connections", *arguments, "--ready-file", str(server.ready_file))
    assert result.exit_code == 0, result.output
    return str(result.output)


async def connections_json(server: ServerProcess, *arguments: str) -> Any:  # noqa: ANN401  # any JSON
    return json.loads(await connections(server, *arguments, "--json"))


async def test_a_connection_is_shown_with_its_locks_and_closed(server: ServerProcess, queue: str) -> None:
    async with MessagingFactory.from_connection_string(server.connection_string) as factory:
        sender = factory.create_message_sender(queue)
        await sender.send(BrokeredMessage(b"one"))
        receiver = factory.create_message_receiver(queue)
        message = await receiver.receive()
        assert message is not None

        listed = await connections_json(server, "list")
        details = [await connections_json(server, "show", one["id"]) for one in listed]
        mine = next(one for one in details if any(lock["entity"] == queue for lock in one["locks"]))
        assert mine["connection"]["lock_count"] == 1
        assert mine["locks"][0]["lock"]["sequence_number"] == message.sequence_number
        number = mine["connection"]["id"]

        table = await connections(server, "list")
        assert all(len(line) <= 80 for line in table.splitlines())
        assert table.splitlines()[0].split() == ["ID", "CLIENT", "CONTAINER", "KEY", "LINKS", "LOCKS", "SESSIONS"]
        assert any(line.split()[0] == number for line in table.splitlines())
        shown = await connections(server, "show", number)
        assert all(len(line) <= 80 for line in shown.splitlines())
        assert f"Connection {number}\n" in shown
        assert any(line.split()[:1] == [str(message.sequence_number)] for line in shown.splitlines())

        refused = await asyncio.to_thread(
            invoke, "connections", "close", number, "--ready-file", str(server.ready_file)
        )
        assert refused.exit_code == EXIT_MISUSE
        assert "with 1 lock and 0 sessions? There is no terminal to ask: confirm with --yes" in refused.output
        closed = await connections(server, "close", number, "--yes")
        assert closed.startswith("Closed the connection of ")
        assert number not in [one["id"] for one in await connections_json(server, "list")]


@pytest.mark.parametrize("command", ["show", "close"])
def test_a_connection_that_does_not_exist_is_reported(command: str, server: ServerProcess) -> None:
    result = invoke("connections", command, "0-999999", "--ready-file", str(server.ready_file))
    assert (result.exit_code, result.output.count("\n")) == (EXIT_FAILED, 1)
    assert "0-999999" in result.output
