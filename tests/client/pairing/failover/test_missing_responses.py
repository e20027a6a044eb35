"""Q03, Q04 and Q19: operations without a response may have happened, keep to their timeout and keep their order."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.paired_application import in_memory_pair_application, paired_application
from twinbus.client import BrokeredMessage
from twinbus.client.errors import ConnectionFailed, ConnectionLost
from twinbus.client.pairing import EventKind
from twinbus.client.sender import MessageSender
from twinbus.testing import InMemoryPair, in_virtual_time

DUPLICATE_MARK = "x-ms-possible-duplicate"


@in_virtual_time
async def test_q04_a_send_without_a_response_that_is_then_refused_is_a_possible_duplicate() -> None:
    async with in_memory_pair_application(failover_interval=0, operation_timeout=20) as app:
        queue = app.queue_client()
        await queue.send(BrokeredMessage("apples"))
        app.namespaces.primary.outage.hang()
        sending = asyncio.ensure_future(queue.send(BrokeredMessage("pears")))
        await asyncio.sleep(1)
        app.namespaces.primary.outage.stop()
        await sending
        await queue.send(BrokeredMessage("plums"))
        assert {message.text: DUPLICATE_MARK in message.properties for message in await app.parked_messages()} == {
            "pears": True,
            "plums": False,
        }


@in_virtual_time
async def test_q04_duplicate_detection_on_the_primary_removes_the_copy() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders", requires_duplicate_detection=True)
        async with paired_application(namespaces, failover_interval=0, enable_syphon=True) as app:
            namespaces.primary.outage.hang_store()  # the store gets the message, and does not respond
            await app.queue_client().send(BrokeredMessage("apples", message_id="1"))
            (parked,) = await app.parked_messages()
            assert (parked.message_id, parked.properties[DUPLICATE_MARK]) == ("1", True)
            namespaces.primary.outage.restore()
            await asyncio.sleep(120)
            assert len(app.events_of(EventKind.MOVED)) == 1
            assert await app.arrived_bodies() == ["apples"]


@in_virtual_time
async def test_an_unpaired_sender_distinguishes_lost_responses_from_failed_connections() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders")
        primary, _ = namespaces.factories(operation_timeout=20)
        sender = MessageSender(primary, "orders")
        await sender.send(BrokeredMessage("apples"))
        namespaces.primary.outage.hang()
        sending = asyncio.ensure_future(sender.send(BrokeredMessage("pears")))
        await asyncio.sleep(1)
        namespaces.primary.outage.stop()
        with pytest.raises(ConnectionLost, match="no response arrived, it may have been stored; then "):
            await sending
        with pytest.raises(ConnectionFailed):
            await sender.send(BrokeredMessage("plums"))
        await primary.close()


@in_virtual_time
async def test_q03_a_connection_closed_by_another_sender_does_not_prolong_a_send() -> None:
    async with in_memory_pair_application(("orders", "invoices"), failover_interval=0, operation_timeout=20) as app:
        orders, invoices = app.queue_client("orders"), app.queue_client("invoices")
        for queue in (orders, invoices):
            await queue.send(BrokeredMessage("before"))
        app.namespaces.primary.outage.hang()
        first = asyncio.ensure_future(orders.send(BrokeredMessage("apples")))
        await asyncio.sleep(1)
        loop = asyncio.get_running_loop()
        before_s = loop.time()
        await invoices.send(BrokeredMessage("a bill"))
        assert loop.time() - before_s < 10.5
        await first
        assert len(await app.parked_messages()) == 2


@in_virtual_time
async def test_q04_a_message_that_may_be_in_one_backlog_queue_is_marked_in_the_next() -> None:
    async with in_memory_pair_application(failover_interval=0, operation_timeout=20, backlog_queue_count=2) as app:
        queue = app.queue_client()
        app.namespaces.primary.outage.stop()
        await queue.send(BrokeredMessage("before"))
        app.namespaces.secondary.outage.hang()
        sending = asyncio.ensure_future(queue.send(BrokeredMessage("apples")))
        await asyncio.sleep(8)
        app.namespaces.secondary.outage.restore()
        await sending
        first, second = (event.backlog_queue for event in app.events_of(EventKind.PARKED))
        assert first != second
        marks = [
            message.properties.get(DUPLICATE_MARK)
            for message in await app.parked_messages()
            if message.text == "apples"
        ]
        assert True in marks


@in_virtual_time
async def test_q19_the_syphon_waits_for_a_deferred_message_that_another_receiver_has_locked(
    cannot_withhold: None,  # noqa: ARG001
) -> None:
    """A killed pump holds the message until its lock expires: the next pump neither skips nor overtakes it."""
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("baskets", requires_session=True)
        options = {"failover_interval": 0, "backlog_queue_count": 1, "enable_syphon": True}
        async with paired_application(namespaces, **options) as app:
            namespaces.primary.outage.stop()
            client = app.queue_client("baskets")
            for number in range(20):
                await client.send(BrokeredMessage(str(number), session_id="7"))
            namespaces.primary.outage.restore()
            namespaces.primary.outage.busy("baskets")
            await asyncio.sleep(30)
            parked = await app.parked_messages()
            assert {message.state for message in parked} == {"deferred"}
            backlog = app.backlog_path(0)
        _, secondary = namespaces.factories()
        killed_pump = secondary.create_message_receiver(backlog)
        await killed_pump.receive_deferred(parked[3].sequence_number)
        namespaces.primary.outage.restore()
        async with paired_application(namespaces, **options) as app:
            await asyncio.sleep(40)
            assert await app.arrived_bodies("baskets") == ["0", "1", "2"]
            await asyncio.sleep(120)
            assert await app.arrived_bodies("baskets") == [str(number) for number in range(20)]
        await secondary.close()


@in_virtual_time
async def test_q19_deferred_messages_are_released_if_the_primary_is_lost_while_they_are_moved() -> None:
    async with in_memory_pair_application(failover_interval=0, backlog_queue_count=1, enable_syphon=True) as app:
        outage = app.namespaces.primary.outage
        outage.stop()
        await app.queue_client().send(BrokeredMessage("apples"))
        outage.restore()
        outage.busy("orders")
        await asyncio.sleep(5)
        assert app.events_of(EventKind.DEFERRED)
        outage.stop()
        await asyncio.sleep(5)
        outage.restore()
        await asyncio.sleep(40)
        assert await app.arrived_bodies() == ["apples"], "before its lock expires"
