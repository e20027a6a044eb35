"""A revoked key that is valid again works at once, on the existing connection."""

from __future__ import annotations

import asyncio

import pytest

from twinbus.client import BrokeredMessage
from twinbus.model.errors import Unauthorized
from twinbus.testing import InMemoryNamespace, in_virtual_time


@in_virtual_time
async def test_sends_and_receives_succeed_when_the_key_is_valid_again() -> None:
    async with InMemoryNamespace() as namespace:
        await namespace.create_queue("orders")
        orders = namespace.factory().create_queue_client("orders")
        await orders.send(BrokeredMessage("apples"))
        namespace.outage.revoke_key()
        await asyncio.sleep(1)
        with pytest.raises(Unauthorized):
            await orders.send(BrokeredMessage("pears"))
        with pytest.raises(Unauthorized):
            await orders.receive(timeout=1)
        namespace.outage.give_key_back()
        await orders.send(BrokeredMessage("plums"))
        received = [await orders.receive(timeout=1) for _ in range(2)]
        assert [message.text for message in received if message is not None] == ["apples", "plums"]
