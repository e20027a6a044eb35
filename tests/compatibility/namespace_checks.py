"""Checks of a server that is started on the data directory of the fixtures, with one or several processes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from azure.servicebus import ServiceBusMessage

from tests.compatibility.contents import DELETED, connect_client, peek_messages, read_contents, read_counts
from tests.compatibility.message_removal import remove_all_messages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from azure.servicebus.aio import ServiceBusClient

    from tests.support.server_process import ServerProcess

EXCLUSIVE = "exclusive"
DUE = "due"
CONTINUED_QUEUES = ("orders", "unique", "recreated", "purged")


async def check_contents(server: ServerProcess, expected: Mapping[str, Any]) -> None:
    """Check that all contents are as the earlier version showed them."""
    addresses = [address for address, messages in expected["messages"].items() if messages or "#" in address]
    contents = await read_contents(server, [*addresses, DUE])
    for path, elements in expected["descriptions"].items():
        assert contents["descriptions"][path] == elements, path
    assert contents["counts"] == expected["counts"] | {DUE: {"MessageCount": 3, "ActiveMessageCount": 3}}
    for address in addresses:
        messages = expected["messages"][address]
        if address == EXCLUSIVE:  # one was delivered when the server was killed, and all are in its block of numbers
            messages = [message | {"delivery_count": 1} for message in messages]
        assert contents["messages"][address] == messages, address
    assert contents["session_states"] == expected["session_states"]
    assert (contents["authority"], contents["key"]) == (expected["authority"], expected["key"])
    server.request("GET", DELETED, expected=404)
    due = contents["messages"][DUE]
    assert [(due_message["message_id"], due_message["state"]) for due_message in due] == [
        (f"order-{number}", "ACTIVE") for number in range(3)
    ]


async def check_removal(server: ServerProcess, expected: Mapping[str, Any]) -> None:
    """Check that all messages can be received in order and settled, and are gone after a restart."""
    due = [{"message_id": f"order-{number}", "state": "ACTIVE"} for number in range(3)]
    messages = expected["messages"] | {DUE: due}
    for address, ids in (await remove_all_messages(server, messages)).items():
        stored = messages[address]
        expected_ids = [
            message["message_id"] for state in ("ACTIVE", "DEFERRED") for message in stored if message["state"] == state
        ]
        if "partitioned" in address and "#" not in address:  # there is no order between fragments
            assert sorted(ids) == sorted(expected_ids), address
        else:
            assert ids == expected_ids, address
    assert not any(read_counts(server).values())
    await asyncio.to_thread(server.stop)
    await asyncio.to_thread(server.start)
    assert not any(read_counts(server).values())


async def check_new_messages(server: ServerProcess, expected: Mapping[str, Any]) -> None:
    """Check that sequence numbers continue after the existing ones, and that duplicates are still detected."""
    async with connect_client(server) as client:
        await asyncio.gather(
            *[_send_and_receive(client, path, expected["messages"][path]) for path in CONTINUED_QUEUES]
        )


async def _send_and_receive(client: ServiceBusClient, path: str, old: list[dict[str, Any]]) -> None:
    async with client.get_queue_sender(path) as sender:
        for _ in range(2):
            await sender.send_messages(ServiceBusMessage("new", message_id="new"))
    new, _ = await peek_messages(client, path)
    assert len(new) == (1 if path == "unique" else 2), path
    assert new[0]["sequence_number"] > max(message["sequence_number"] for message in old), path
