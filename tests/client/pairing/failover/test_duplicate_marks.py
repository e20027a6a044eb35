"""Q04: every copy of a message but its first carries `x-ms-possible-duplicate`, whichever way it is sent again."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from typing import TYPE_CHECKING

import pytest

from tests.support.paired_application import Application, in_memory_pair_application, paired_application
from twinbus.client import BrokeredMessage
from twinbus.client.pairing import EventKind
from twinbus.client.sender import MessageSender
from twinbus.model.errors import MessageTooLarge
from twinbus.model.message import encode_batch
from twinbus.testing import InMemoryPair, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from twinbus.testing.namespace import InMemoryNamespace

DUPLICATE_MARK = "x-ms-possible-duplicate"
LARGEST = 262_144
LATENCY_S = 2.0


@contextlib.asynccontextmanager
async def losing_responses(namespace: InMemoryNamespace) -> AsyncIterator[None]:
    """Deliver what is sent inside the block, then cut the connection, so that the responses are lost."""
    namespace.outage.slow(LATENCY_S)
    loop = asyncio.get_running_loop()
    before_s = loop.time()
    yield
    await asyncio.sleep(before_s + 1.5 * LATENCY_S - loop.time())
    namespace.outage.slow(0)
    namespace.outage.cut()


def marks(messages: Sequence[BrokeredMessage], text: str = "apples") -> list[object]:
    """The marks of all copies of a message, in the order of their arrival."""
    return [message.properties.get(DUPLICATE_MARK) for message in messages if message.text == text]


async def in_primary(app: Application) -> list[BrokeredMessage]:
    return await app.namespaces.primary.messages("orders")


@in_virtual_time
async def test_q04_the_immediate_retry_after_a_lost_response_is_marked() -> None:
    async with in_memory_pair_application() as app:
        queue = app.queue_client()
        await queue.send(BrokeredMessage("before"))
        async with losing_responses(app.namespaces.primary):
            sending = asyncio.ensure_future(queue.send(BrokeredMessage("apples", properties={"price": 3})))
        await sending
        copies = await in_primary(app)
        assert marks(copies) == [None, True]
        assert [copy.properties["price"] for copy in copies[1:]] == [3, 3]
        await queue.send(BrokeredMessage("after"))
        assert marks(await in_primary(app), "before") + marks(await in_primary(app), "after") == [None, None]


@in_virtual_time
async def test_q04_every_message_of_a_batch_that_is_sent_again_is_marked() -> None:
    async with in_memory_pair_application() as app:
        queue = app.queue_client()
        await queue.send(BrokeredMessage("before"))
        async with losing_responses(app.namespaces.primary):
            sending = asyncio.ensure_future(queue.send_batch([BrokeredMessage("apples"), BrokeredMessage("pears")]))
        await sending
        stored = await in_primary(app)
        assert (marks(stored, "apples"), marks(stored, "pears")) == ([None, True], [None, True])


@in_virtual_time
async def test_q04_a_batch_that_its_marks_make_too_large_is_sent_again_in_parts_in_order() -> None:
    count = 100
    empty = [BrokeredMessage(b"", message_id=f"{number:03}", session_id="7") for number in range(count)]
    spare = LARGEST - len(encode_batch([message.encode(0) for message in empty], empty[0])) - 20 * count
    batch = [
        BrokeredMessage(b"x" * (spare // count), message_id=f"{number:03}", session_id="7") for number in range(count)
    ]
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders", requires_session=True)
        async with paired_application(namespaces) as app:
            queue = app.queue_client()
            await queue.send(BrokeredMessage("before", session_id="7"))
            async with losing_responses(namespaces.primary):
                sending = asyncio.ensure_future(queue.send_batch(batch))
            await sending
            _, *stored = await in_primary(app)
            ids = [message.message_id for message in batch]
            assert [message.message_id for message in stored] == ids + ids
            assert [message.properties.get(DUPLICATE_MARK) for message in stored] == [None] * count + [True] * count


@in_virtual_time
async def test_q04_a_message_that_its_mark_makes_too_large_is_not_sent_again_and_the_error_says_so() -> None:
    """A second copy without the mark would be a duplicate that receivers cannot recognise."""
    size = LARGEST - len(BrokeredMessage(b"", message_id="1").encode(0)) - 16
    async with in_memory_pair_application() as app:
        queue = app.queue_client()
        await queue.send(BrokeredMessage("before"))
        async with losing_responses(app.namespaces.primary):
            sending = asyncio.ensure_future(queue.send(BrokeredMessage(b"x" * size, message_id="1")))
        with pytest.raises(MessageTooLarge, match=r"may have been stored\. It is not sent again") as raised:
            await sending
        assert raised.value.may_have_happened
        assert [message.message_id for message in await in_primary(app)][1:] == ["1"]


@in_virtual_time
async def test_q02_q04_a_held_send_is_marked_when_it_is_sent_again() -> None:
    async with in_memory_pair_application(failover_interval=60, hold_during_failover_interval=True) as app:
        queue = app.queue_client()
        await queue.send(BrokeredMessage("before"))
        async with losing_responses(app.namespaces.primary):
            sending = asyncio.ensure_future(queue.send(BrokeredMessage("apples")))
            unsent = asyncio.ensure_future(app.queue_client().send(BrokeredMessage("pears")))  # it has no link yet
        app.namespaces.primary.outage.stop()
        await asyncio.sleep(5)
        app.namespaces.primary.outage.restore()
        await asyncio.gather(sending, unsent)
        assert marks(await in_primary(app)) == [None, True]
        assert marks(await in_primary(app), "pears") == [None], "it was never transmitted, so there is one copy of it"


@in_virtual_time
async def test_q04_a_send_that_waited_for_a_busy_server_after_a_lost_response_is_marked() -> None:
    async with in_memory_pair_application() as app:
        queue = app.queue_client()
        await queue.send(BrokeredMessage("before"))
        async with losing_responses(app.namespaces.primary):
            sending = asyncio.ensure_future(queue.send(BrokeredMessage("apples")))
            await asyncio.sleep(1.1 * LATENCY_S)
            app.namespaces.primary.outage.busy("orders")
        await asyncio.sleep(5)
        app.namespaces.primary.outage.restore()
        await sending
        assert marks(await in_primary(app)) == [None, True]


@in_virtual_time
async def test_q04_q22_a_schedule_request_that_is_sent_again_is_marked() -> None:
    async with in_memory_pair_application() as app:
        queue = app.queue_client()
        when = dt.datetime.fromtimestamp(app.namespaces.clock.wall_ms() / 1000 + 7200, dt.UTC)
        await queue.schedule(BrokeredMessage("before"), when)
        async with losing_responses(app.namespaces.primary):
            scheduling = asyncio.ensure_future(queue.schedule(BrokeredMessage("apples"), when))
        assert await scheduling > 0
        assert marks(await in_primary(app)) == [None, True]
        assert marks(await in_primary(app), "before") == [None]


@in_virtual_time
async def test_q04_a_message_parked_again_after_a_lost_response_is_marked() -> None:
    async with in_memory_pair_application(failover_interval=0, backlog_queue_count=1) as app:
        queue = app.queue_client()
        app.namespaces.primary.outage.stop()
        await queue.send(BrokeredMessage("before"))
        async with losing_responses(app.namespaces.secondary):
            sending = asyncio.ensure_future(queue.send(BrokeredMessage("apples")))
        await sending
        assert marks(await app.parked_messages()) == [None, True]


@in_virtual_time
async def test_q04_x08_a_message_parked_without_a_response_and_spooled_is_marked_in_the_primary(tmp_path: Path) -> None:
    async with in_memory_pair_application(failover_interval=0, backlog_queue_count=1, spool_dir=tmp_path) as app:
        queue = app.queue_client()
        app.namespaces.primary.outage.stop()
        await queue.send(BrokeredMessage("before"))
        async with losing_responses(app.namespaces.secondary):
            sending = asyncio.ensure_future(queue.send(BrokeredMessage("apples")))
        app.namespaces.secondary.outage.stop()
        await sending
        assert len(app.events_of(EventKind.SPOOLED)) == 1
        app.namespaces.primary.outage.restore()
        app.pairing.mark_path_healthy("orders")
        await asyncio.sleep(60)
        assert marks(await in_primary(app)) == [True]
        assert marks(await app.parked_messages()) == [None], "the copy that was sent first"


@in_virtual_time
async def test_q04_x08_messages_that_an_earlier_process_left_in_the_spool_are_marked(tmp_path: Path) -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders")
        async with paired_application(namespaces, failover_interval=0, spool_dir=tmp_path) as app:
            for namespace in (namespaces.primary, namespaces.secondary):
                namespace.outage.stop()
            await app.queue_client().send(BrokeredMessage("apples"))
            assert app.events_of(EventKind.SPOOLED)
        namespaces.primary.outage.restore()
        namespaces.secondary.outage.restore()
        async with paired_application(namespaces, failover_interval=0, spool_dir=tmp_path) as app:
            await asyncio.sleep(60)
            assert marks(await in_primary(app)) == [True], "that process may have sent it before it ended"


@in_virtual_time
async def test_q04_x08_a_spooled_message_is_marked_when_it_is_tried_again_after_a_lost_response(tmp_path: Path) -> None:
    async with in_memory_pair_application(failover_interval=0, operation_timeout=20, spool_dir=tmp_path) as app:
        for namespace in (app.namespaces.primary, app.namespaces.secondary):
            namespace.outage.stop()
        await app.queue_client().send(BrokeredMessage("apples"))
        app.namespaces.primary.outage.restore()
        app.namespaces.primary.outage.slow(LATENCY_S)
        app.pairing.mark_path_healthy("orders")
        while not marks(await in_primary(app)):  # noqa: ASYNC110  # attaching takes several round trips, too
            await asyncio.sleep(0.1)
        app.namespaces.primary.outage.stop()
        await asyncio.sleep(5)
        app.namespaces.primary.outage.restore()
        app.pairing.mark_path_healthy("orders")
        await asyncio.sleep(120)
        assert marks(await in_primary(app)) == [None, True]
        assert app.pairing.spool_status is not None
        assert app.pairing.spool_status.count == 0


@in_virtual_time
async def test_q04_an_unpaired_sender_marks_no_message() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders")
        primary, _ = namespaces.factories()
        sender = MessageSender(primary, "orders")
        await sender.send(BrokeredMessage("before"))
        async with losing_responses(namespaces.primary):
            sending = asyncio.ensure_future(sender.send(BrokeredMessage("apples")))
        await sending
        assert marks(await namespaces.primary.messages("orders")) == [None, None]
        await primary.close()
