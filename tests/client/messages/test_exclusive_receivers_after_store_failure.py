"""After a store is reopened, a lost exclusive receiver keeps no message from the next one."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from twinbus.client import NO_RETRY, BrokeredMessage
from twinbus.model.errors import ServiceBusError
from twinbus.testing import InMemoryNamespace, in_virtual_time


@in_virtual_time
async def test_locks_granted_after_a_store_was_reopened_are_released_for_the_next_receiver() -> None:
    async with InMemoryNamespace() as namespace:
        await namespace.create_queue("backlog")
        first = namespace.factory().create_message_receiver("backlog", epoch=2, prefetch=10)
        await first.receive(timeout=0.1)
        sender = namespace.factory(retry_policy=NO_RETRY).create_queue_client("backlog")
        namespace.outage.fail_store()
        with suppress(ServiceBusError):
            await sender.send(BrokeredMessage("lost, or not"))
        namespace.outage.restore_disks()
        await asyncio.sleep(31)
        await sender.send(BrokeredMessage("apples"))
        await asyncio.sleep(0.1)  # the first receiver locks it
        namespace.outage.cut()
        await asyncio.sleep(0.1)
        second = namespace.factory().create_message_receiver("backlog", epoch=1)
        received = [message.text for message in await second.receive_batch(10, timeout=5)]
        assert "apples" in received
