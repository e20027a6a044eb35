"""Removes every message of the fixtures' namespace with the official SDK, according to its state.

    removed = await remove_all_messages(server, expected["messages"])
    assert removed["orders"] == [...]

Active messages are received and completed, deferred ones by their sequence numbers; scheduled ones are cancelled.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from tests.compatibility.contents import connect_client, message_fields, receiver_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from azure.servicebus.aio import ServiceBusClient

    from tests.support.server_process import ServerProcess

TIMEOUT_S: Final = 20
Messages = list[dict[str, Any]]


async def remove_all_messages(server: ServerProcess, expected: Mapping[str, Messages]) -> dict[str, list[str]]:
    """Remove all messages; return the ids of the received ones, by address, in order."""
    async with connect_client(server) as client:
        received_ids = await asyncio.gather(
            *[_remove_messages(client, address, messages) for address, messages in expected.items()]
        )
    return dict(zip(expected, received_ids, strict=True))


async def _remove_messages(client: ServiceBusClient, address: str, messages: Messages) -> list[str]:
    active = sum(message["state"] == "ACTIVE" for message in messages)
    received: Messages = []
    if not messages:
        return []
    async with receiver_of(client, address) as receiver:
        while len(received) < active:
            batch = await receiver.receive_messages(active - len(received), max_wait_time=TIMEOUT_S)
            assert batch, f"{address} has {len(received)} messages to receive, not {active}"
            for message in batch:
                await receiver.complete_message(message)
                received.append(message_fields(message))
        if deferred := _numbers(messages, "DEFERRED"):
            for message in await receiver.receive_deferred_messages(deferred):
                await receiver.complete_message(message)
                received.append(message_fields(message))
    if scheduled := _numbers(messages, "SCHEDULED"):
        async with client.get_queue_sender(address) as sender:
            await sender.cancel_scheduled_messages(scheduled)
    return [message["message_id"] for message in received]


def _numbers(messages: Messages, state: str) -> list[int]:
    return [message["sequence_number"] for message in messages if message["state"] == state]
