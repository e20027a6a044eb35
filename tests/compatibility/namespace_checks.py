"""What must hold of a server that is started on the data directory of the fixtures, in however many processes."""

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
    """Everything is there as the version that wrote it showed it."""
    wanted = [place for place, messages in expected["messages"].items() if messages or "#" in place]
    found = await read_contents(server, [*wanted, DUE])
    for path, elements in expected["descriptions"].items():
        assert found["descriptions"][path] == elements, path
    assert found["counts"] == expected["counts"] | {DUE: {"MessageCount": 3, "ActiveMessageCount": 3}}
    for place in wanted:
        messages = expected["messages"][place]
        if place == EXCLUSIVE:  # one was out when the server was killed, and all are in its block of numbers
            messages = [message | {"delivery_count": 1} for message in messages]
        assert found["messages"][place] == messages, place
    assert found["session_states"] == expected["session_states"]
    assert (found["authority"], found["key"]) == (expected["authority"], expected["key"])
    server.request("GET", DELETED, expected=404)
    due = found["messages"][DUE]
    assert [(one["message_id"], one["state"]) for one in due] == [(f"order-{number}", "ACTIVE") for number in range(3)]


async def check_removal(server: ServerProcess, expected: Mapping[str, Any]) -> None:
    """Everything can be received and settled in its order, and is gone then, also after the next start."""
    due = [{"message_id": f"order-{number}", "state": "ACTIVE"} for number in range(3)]
    messages = expected["messages"] | {DUE: due}
    for place, ids in (await remove_all_messages(server, messages)).items():
        here = messages[place]
        wanted = [one["message_id"] for state in ("ACTIVE", "DEFERRED") for one in here if one["state"] == state]
        if "partitioned" in place and "#" not in place:  # fragments have no order among them
            assert sorted(ids) == sorted(wanted), place
        else:
            assert ids == wanted, place
    assert not any(read_counts(server).values())
    await asyncio.to_thread(server.stop)
    await asyncio.to_thread(server.start)
    assert not any(read_counts(server).values())


async def check_new_messages(server: ServerProcess, expected: Mapping[str, Any]) -> None:
    """Numbers go on behind those that were given, and a queue that detects duplicates goes on to do so."""
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
    assert new[0]["sequence_number"] > max(one["sequence_number"] for one in old), path
