"""R080 to R083: what a parked message is charged for, as the two servers see it."""

from __future__ import annotations

import asyncio

from tests.pairing.application import paired
from twinbus.broker.queue import Queue
from twinbus.client import BrokeredMessage
from twinbus.client.pairing import EventKind
from twinbus.testing import InMemoryNamespace, in_virtual_time


def sends(namespace: InMemoryNamespace, path: str) -> int:
    """Messages that a queue was ever sent: their numbers are consecutive."""
    queue = namespace.broker.find_sendable(path)
    assert isinstance(queue, Queue)
    return queue.main.holdings.shown.next - 1


def receives(namespace: InMemoryNamespace, path: str) -> int:
    return sum(row.receives + row.empty_receives for row in namespace.usage() if row.entity == path)


@in_virtual_time
async def test_r080_r081_a_parked_message_is_sent_twice_and_received_twice() -> None:
    async with paired(failover_interval=0, backlog_queue_count=1, enable_syphon=True) as app:
        primary, secondary, backlog = app.namespaces.primary, app.namespaces.secondary, app.backlog_path(0)
        await asyncio.sleep(1)
        primary.outage.stop()
        before = receives(secondary, backlog)
        await app.queue().send(BrokeredMessage(b"x" * 100_000))
        primary.outage.restore()
        await asyncio.sleep(61)
        message = await app.queue().receive(5)
        assert message is not None
        assert sends(secondary, backlog) == 1
        # Each time it was handed out, also before the primary was back, is a receive.
        assert receives(secondary, backlog) - before >= 1
        assert sends(primary, "orders") == 1
        assert receives(primary, "orders") == 1
        assert message.size > 100_000


@in_virtual_time
async def test_r082_a_ping_is_a_message_to_whoever_pays_and_to_nobody_else() -> None:
    async with paired(failover_interval=0) as app:
        app.namespaces.primary.outage.stop()
        await app.queue().send(BrokeredMessage("apples"))
        await asyncio.sleep(10 * 60 + 1)
        app.namespaces.primary.outage.restore()
        await asyncio.sleep(60)
        assert len(app.told(EventKind.PINGED)) == 11
        assert sends(app.namespaces.primary, "orders") == 0
