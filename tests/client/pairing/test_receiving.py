"""R128: pairing protects sends only: messages are received from the primary, and session state is stored there."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.paired_application import in_memory_pair_application, paired_application
from twinbus.client import BrokeredMessage
from twinbus.client.errors import ConnectionFailed, ConnectionLost
from twinbus.testing import InMemoryPair, in_virtual_time


@in_virtual_time
async def test_r128_messages_are_received_from_the_primary_only() -> None:
    async with in_memory_pair_application(failover_interval=0, operation_timeout=20) as app:
        queue = app.queue_client()
        await queue.send(BrokeredMessage("in the primary"))
        app.namespaces.primary.outage.stop()
        await queue.send(BrokeredMessage("parked"))
        with pytest.raises((ConnectionFailed, ConnectionLost)):
            await app.queue_client().receive(5)
        app.namespaces.primary.outage.restore()
        await asyncio.sleep(120)
        message = await queue.receive(5)
        assert message is not None
        assert message.text == "in the primary"
        assert await queue.receive(5) is None
        assert [parked.text for parked in await app.parked_messages()] == ["parked"]
        assert sum(row.receives + row.empty_receives for row in app.namespaces.secondary.usage()) == 0


@in_virtual_time
async def test_r128_session_state_is_stored_in_the_primary_only() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("baskets", requires_session=True)
        async with paired_application(namespaces, failover_interval=0, operation_timeout=20) as app:
            queue = app.queue_client("baskets")
            await queue.send(BrokeredMessage("apples", session_id="7"))
            session = await queue.accept_session("7")
            usage_before = namespaces.secondary.usage()
            await session.set_state(b"two pounds")
            assert namespaces.secondary.usage() == usage_before
            namespaces.primary.outage.stop()
            with pytest.raises((ConnectionFailed, ConnectionLost)):
                await session.set_state(b"three pounds")
            await queue.send(BrokeredMessage("pears", session_id="7"))
            (parked,) = await app.parked_messages()
            assert parked.session_id is None, "the secondary has no sessions, so it stores no session state"
            namespaces.primary.outage.restore()
            await asyncio.sleep(300)  # the session lock expires
            assert await (await queue.accept_session("7")).get_state() == b"two pounds"
