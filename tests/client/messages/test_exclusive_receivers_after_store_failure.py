"""An exclusive receiver that is lost after its store failed and was opened again keeps no message from the next one."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from twinbus.client import NO_RETRY, BrokeredMessage
from twinbus.model.errors import ServiceBusError
from twinbus.testing import InMemoryNamespace, in_virtual_time


@in_virtual_time
async def test_locks_given_after_a_store_was_opened_again_are_free_for_the_next_claim() -> None:
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
        await asyncio.sleep(0.1)  # the first receiver has it under a lock
        namespace.outage.cut()
        await asyncio.sleep(0.1)
        second = namespace.factory().create_message_receiver("backlog", epoch=1)
        received = [message.text for message in await second.receive_batch(10, timeout=5)]
        assert "apples" in received
