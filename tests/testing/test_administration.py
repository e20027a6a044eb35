"""Administrative changes to a namespace in memory: revoked keys, disabled queues, and full queues."""

from __future__ import annotations

import asyncio

import pytest

from twinbus.client import NO_RETRY, BrokeredMessage
from twinbus.model.errors import EntityDisabled, QuotaExceeded, Unauthorized
from twinbus.testing import InMemoryNamespace, in_virtual_time


@in_virtual_time
async def test_a_revoked_key_is_refused_until_it_is_restored() -> None:
    async with InMemoryNamespace() as namespace:
        await namespace.create_queue("orders")
        orders = namespace.factory(retry_policy=NO_RETRY).create_queue_client("orders")
        await orders.send(BrokeredMessage("first"))
        namespace.outage.revoke_key()
        await asyncio.sleep(1)
        with pytest.raises(Unauthorized):
            await orders.send(BrokeredMessage("second"))
        await namespace.stop()
        await namespace.start()
        with pytest.raises(Unauthorized):
            await namespace.factory(retry_policy=NO_RETRY).create_queue_client("orders").send(BrokeredMessage("third"))
        namespace.outage.give_key_back()
        await asyncio.sleep(1)
        await orders.send(BrokeredMessage("fourth"))
        assert [message.text for message in await namespace.messages("orders")] == ["first", "fourth"]


@in_virtual_time
async def test_a_full_queue_refuses_messages_until_it_has_space_even_after_a_restart() -> None:
    async with InMemoryNamespace() as namespace:
        await namespace.create_queue("orders")
        orders = namespace.factory(retry_policy=NO_RETRY).create_queue_client("orders")
        namespace.outage.full("orders")
        with pytest.raises(QuotaExceeded):
            await orders.send(BrokeredMessage("first"))
        namespace.kill()
        await namespace.start()
        with pytest.raises(QuotaExceeded):
            await namespace.factory(retry_policy=NO_RETRY).create_queue_client("orders").send(BrokeredMessage("second"))
        namespace.outage.no_longer("orders")
        await namespace.factory().create_queue_client("orders").send(BrokeredMessage("third"))
        assert [message.text for message in await namespace.messages("orders")] == ["third"]


@in_virtual_time
async def test_a_queue_can_be_disabled_and_enabled() -> None:
    async with InMemoryNamespace() as namespace:
        await namespace.create_queue("orders")
        orders = namespace.factory(retry_policy=NO_RETRY).create_queue_client("orders")
        await namespace.set_status("orders", "SendDisabled")
        with pytest.raises(EntityDisabled):
            await orders.send(BrokeredMessage("first"))
        await namespace.set_status("orders", "Active")
        await orders.send(BrokeredMessage("second"))
        assert [message.text for message in await namespace.messages("orders")] == ["second"]
