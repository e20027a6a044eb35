"""Q19: messages are withheld while their destination accepts none, and come back in order when it does."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import TYPE_CHECKING, Any, Final

from tests.support.paired_application import in_memory_pair_application, paired_application
from twinbus.client import BrokeredMessage
from twinbus.client.pairing import EventKind
from twinbus.client.pairing.backlog import rewriting
from twinbus.client.pairing.syphon.withheld_messages import MAX_PATHS
from twinbus.testing import InMemoryPair, in_virtual_time

if TYPE_CHECKING:
    from tests.support.paired_application import Application

SYPHON: Final[dict[str, Any]] = {"failover_interval": 0, "backlog_queue_count": 1, "enable_syphon": True}
DUPLICATE_MARK: Final = "x-ms-possible-duplicate"


async def park(app: Application, count: int, path: str = "orders", **message_options: Any) -> None:  # noqa: ANN401
    app.namespaces.primary.outage.stop()
    client = app.queue_client(path)
    for number in range(count):
        await client.send(BrokeredMessage(str(number), **message_options))


@in_virtual_time
async def test_q19_withheld_messages_are_received_and_charged_once_however_long_they_wait() -> None:
    """Only the oldest message is sent to the destination repeatedly."""
    async with in_memory_pair_application(**SYPHON) as app:
        await park(app, 600)
        app.namespaces.primary.outage.restore()
        app.namespaces.primary.outage.busy("orders")
        await asyncio.sleep(600)
        events = app.events_of(EventKind.DEFERRED)
        assert len({event.message_id for event in events}) <= 500, "the messages that the pump had received"
        assert len(events) <= 500 + 600 / 5 + 10, "besides these, one message is tried every five seconds"
        app.namespaces.primary.outage.restore()
        await asyncio.sleep(10)
        assert await app.arrived_bodies() == [str(number) for number in range(600)]
        assert await app.parked_messages() == []


@in_virtual_time
async def test_q19_two_spellings_of_one_path_are_withheld_and_come_back_in_order() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders", requires_session=True)
        async with paired_application(namespaces, **SYPHON) as app:
            namespaces.primary.outage.stop()
            for number in range(20):
                client = app.queue_client("orders" if number % 3 else "Orders")
                await client.send(BrokeredMessage(str(number), session_id="7"))
            namespaces.primary.outage.restore()
            namespaces.primary.outage.busy("orders")
            await asyncio.sleep(100)
            assert {message.state for message in await app.parked_messages()} == {"active"}
            namespaces.primary.outage.restore()
            await asyncio.sleep(10)
            assert await app.arrived_bodies() == [str(number) for number in range(20)]


@in_virtual_time
async def test_q19_messages_with_another_spelling_of_the_path_hold_up_no_other_destination() -> None:
    async with InMemoryPair() as namespaces:
        for path in ("orders", "invoices"):
            await namespaces.primary.create_queue(path)
        namespaces.primary.broker.find_sendable("orders").set_status("Disabled")
        async with paired_application(namespaces, **SYPHON) as app:
            await park(app, 1)
            namespaces.primary.outage.restore()
            await asyncio.sleep(20)
            _, secondary = namespaces.factories()
            sender = secondary.create_message_sender(app.backlog_path(0))
            for path in ["Orders"] * 600 + ["invoices"]:
                await sender.deliver(
                    rewriting.park(BrokeredMessage(path).encode(0), 0, path, is_possible_duplicate=False)
                )
            await asyncio.sleep(60)
            assert await app.arrived_bodies("invoices") == ["invoices"]
            await secondary.close()


@in_virtual_time
async def test_q19_more_destinations_than_can_be_withheld_are_deferred() -> None:
    count = MAX_PATHS + 5
    paths = [f"queue-{number}" for number in range(count)]
    async with InMemoryPair() as namespaces:
        for path in paths:
            await namespaces.primary.create_queue(path)
        async with paired_application(namespaces, **SYPHON) as app:
            for path in paths:
                await park(app, 2, path)
            for path in paths:
                namespaces.primary.broker.find_sendable(path).set_status("Disabled")
            namespaces.primary.outage.restore()
            await asyncio.sleep(30)
            states = [message.state for message in await app.parked_messages()]
            assert len(states) == 2 * count, (len(states), set(states))
            assert 0 < states.count("deferred") <= 2 * 5
            for path in paths:
                namespaces.primary.broker.find_sendable(path).set_status("Active")
            await asyncio.sleep(30)
            for path in paths:
                assert await app.arrived_bodies(path) == ["0", "1"]


@in_virtual_time
async def test_q04_q19_a_message_without_a_response_is_marked_after_it_was_withheld() -> None:
    """The host that brings the messages back knows only what the backlog queue stores."""
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders")
        async with paired_application(namespaces, operation_timeout=20, **SYPHON) as app:
            await park(app, 10)
            namespaces.primary.outage.restore()
            namespaces.primary.outage.hang_store()  # the store will write them, but does not respond
            await asyncio.sleep(60)
            assert {message.state for message in await app.parked_messages()} == {"active"}
        namespaces.primary.outage.restore()
        async with paired_application(namespaces, **SYPHON):
            await asyncio.sleep(120)
        stored = await namespaces.primary.messages("orders")
        texts = [message.text for message in stored]
        assert sorted(set(texts), key=int) == [str(number) for number in range(10)]
        unmarked = [message.text for message in stored if DUPLICATE_MARK not in message.properties]
        assert len(unmarked) == len(set(unmarked)), "at most one of two copies has no mark"


@in_virtual_time
async def test_q09_a_withheld_message_that_expires_is_dead_lettered_and_holds_up_no_other() -> None:
    async with in_memory_pair_application(**SYPHON, deduct_parked_time=True) as app:
        await park(app, 1, time_to_live=dt.timedelta(seconds=60))
        await park(app, 3)
        app.namespaces.primary.outage.restore()
        app.namespaces.primary.outage.busy("orders")
        await asyncio.sleep(200)
        app.namespaces.primary.outage.restore()
        await asyncio.sleep(30)
        assert await app.arrived_bodies() == ["0", "1", "2"]
        (event,) = app.events_of(EventKind.DEAD_LETTERED)
        assert "TTLExpired" in str(event.reason)


@in_virtual_time
async def test_q18_q19_a_host_that_takes_over_gets_withheld_messages_in_order() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("baskets", requires_session=True)
        async with paired_application(namespaces, **SYPHON) as app:
            await park(app, 50, "baskets", session_id="7")
            namespaces.primary.outage.restore()
            namespaces.primary.outage.busy("baskets")
            await asyncio.sleep(20)
        namespaces.primary.outage.restore()
        async with paired_application(namespaces, **SYPHON) as app:
            await asyncio.sleep(10)
            assert await app.arrived_bodies("baskets") == [str(number) for number in range(50)]
            stored = await namespaces.primary.messages("baskets")
            assert not [message.text for message in stored if DUPLICATE_MARK in message.properties], (
                "no message was sent before"
            )


@in_virtual_time
async def test_q17_q19_the_loss_of_one_lock_does_not_stop_the_renewal_of_others() -> None:
    """The pump keeps the lock of one message for each destination that accepts none."""
    async with InMemoryPair() as namespaces:
        for path in ("orders", "invoices"):
            await namespaces.primary.create_queue(path)
        async with paired_application(namespaces, **SYPHON) as app:
            await park(app, 3)
            await park(app, 3, "invoices")
            namespaces.primary.outage.restore()
            namespaces.primary.outage.busy("orders")
            await asyncio.sleep(10)
            namespaces.secondary.outage.fail_store()
            await asyncio.sleep(2)
            namespaces.secondary.outage.restore_disks()  # all locks are lost
            await asyncio.sleep(10)
            namespaces.primary.outage.busy("invoices")
            secondary = namespaces.factories()[1]
            sender = secondary.create_message_sender(app.backlog_path(0))
            message = BrokeredMessage("late").encode(0)
            await sender.deliver(rewriting.park(message, 0, "invoices", is_possible_duplicate=False))
            await asyncio.sleep(300)
            namespaces.primary.outage.restore()
            await asyncio.sleep(10)
            assert await app.arrived_bodies("invoices") == ["0", "1", "2", "late"]
            await secondary.close()
