"""Takes every message of the fixtures' namespace out of it, with the official SDK, in the way that its state asks for.

    taken = await emptied(server, found["messages"])
    assert taken["orders"] == [...]

Active messages are received and completed, deferred ones by their numbers; scheduled ones are cancelled.
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
    """Return the ids of the messages that were received, by place, in order."""
    async with connect_client(server) as client:
        found = await asyncio.gather(
            *[_remove_messages(client, place, messages) for place, messages in expected.items()]
        )
    return dict(zip(expected, found, strict=True))


async def _remove_messages(client: ServiceBusClient, address: str, messages: Messages) -> list[str]:
    active = sum(message["state"] == "ACTIVE" for message in messages)
    taken: Messages = []
    if not messages:
        return []
    async with receiver_of(client, address) as receiver:
        while len(taken) < active:
            some = await receiver.receive_messages(active - len(taken), max_wait_time=TIMEOUT_S)
            assert some, f"{address} has {len(taken)} messages to receive, not {active}"
            for message in some:
                await receiver.complete_message(message)
                taken.append(message_fields(message))
        if deferred := _numbers(messages, "DEFERRED"):
            for message in await receiver.receive_deferred_messages(deferred):
                await receiver.complete_message(message)
                taken.append(message_fields(message))
    if scheduled := _numbers(messages, "SCHEDULED"):
        async with client.get_queue_sender(address) as sender:
            await sender.cancel_scheduled_messages(scheduled)
    return [message["message_id"] for message in taken]


def _numbers(messages: Messages, state: str) -> list[int]:
    return [message["sequence_number"] for message in messages if message["state"] == state]
