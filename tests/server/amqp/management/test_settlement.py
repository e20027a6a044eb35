"""`com.microsoft:update-disposition` settles a locked message in each of its four ways."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from tests.support.entity_operations import (
    annotation_of,
    lock_token_of,
    message_ids,
    order_ids,
    peek,
    request_management,
    send_orders,
)
from tests.support.raw_client import connect_raw
from twinbus.amqp.types import Array

if TYPE_CHECKING:
    from tests.support.raw_client import RawClient
    from tests.support.server_process import ServerProcess

UPDATE = "com.microsoft:update-disposition"
DEFERRED = 1


async def settle(client: RawClient, queue: str, status: str, **more: object) -> None:
    """Receive a message, detach, and settle the message by its lock token, which is all that the client still has."""
    await send_orders(client, queue, [1])
    receiver = await client.attach_receiver(queue)
    [delivery] = await client.receive(receiver)
    await client.detach(receiver)
    tokens = Array(uuid.UUID, [lock_token_of(delivery)])
    answer = await request_management(
        client, queue, UPDATE, {"disposition-status": status, "lock-tokens": tokens, **more}
    )
    assert answer.status == 200, answer.text


async def test_a_completed_message_is_gone(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await settle(client, queue, "completed")
        assert await peek(client, queue) == []
    assert server.message_counts(queue) == (0, 0)


async def test_an_abandoned_message_is_available_again_with_a_raised_delivery_count(
    server: ServerProcess, queue: str
) -> None:
    async with connect_raw(server) as client:
        await settle(client, queue, "abandoned", **{"properties-to-modify": {"why": "later"}})
        [message] = await peek(client, queue)
        assert message.header is not None
        assert (message.header.delivery_count, message.application_properties) == (1, {"why": "later"})
        assert message_ids(await client.receive(await client.attach_receiver(queue))) == order_ids(1)


async def test_a_deferred_message_is_peeked_but_not_received(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await settle(client, queue, "defered")
        [message] = await peek(client, queue)
        assert annotation_of(message, "x-opt-message-state") == DEFERRED
        assert await client.drain(await client.attach_receiver(queue)) == []


@pytest.mark.parametrize("reason", ["broken", ""])
async def test_a_suspended_message_is_dead_lettered_with_its_reason(
    server: ServerProcess, queue: str, reason: str
) -> None:
    async with connect_raw(server) as client:
        more = {"deadletter-reason": reason, "deadletter-description": "in two"}
        await settle(client, queue, "suspended", **more)
        [message] = await peek(client, f"{queue}/$DeadLetterQueue")
        properties = message.application_properties
        assert isinstance(properties, dict)
        assert (properties.get("DeadLetterReason") or "", properties["DeadLetterErrorDescription"]) == (
            reason,
            "in two",
        )
    assert server.message_counts(queue) == (0, 1)
