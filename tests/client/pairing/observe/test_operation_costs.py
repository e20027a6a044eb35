"""R080 to R082, C06, C07: the charges of parked messages and pings, as metered by the two namespaces of a pair."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.server.usage.usage_totals import message_of_size, nonzero_counts, total_usage
from tests.support.paired_application import in_memory_pair_application, paired_application
from twinbus.client import BrokeredMessage
from twinbus.client.pairing import EventKind
from twinbus.model.usage import add_rows, document_operations, operations
from twinbus.pipeline.costs.charges import RETURNED_BYTES, Charges, parked_message_charges, ping_charges, sum_charges
from twinbus.testing import InMemoryPair, in_virtual_time

if TYPE_CHECKING:
    from tests.support.paired_application import Application

PARKED = 20


async def receive(app: Application, count: int) -> None:
    receiver = app.namespaces.primary.factory().create_message_receiver("orders", prefetch=0)
    for _ in range(count):
        message = await receiver.receive(5)
        assert message is not None
        await receiver.complete(message)
    await receiver.close()


@in_virtual_time
async def test_r080_each_of_the_four_stages_of_a_parked_message_is_charged_exactly_once() -> None:
    """The syphon runs all the time, and receives nothing from the backlog before the primary is available again."""
    async with in_memory_pair_application(failover_interval=0, backlog_queue_count=1, enable_syphon=True) as app:
        await asyncio.sleep(1)
        primary, secondary, backlog = app.namespaces.primary, app.namespaces.secondary, app.backlog_path(0)
        primary.outage.stop()
        for number in range(PARKED):
            await app.queue_client().send(BrokeredMessage(f"order {number}"))
        await asyncio.sleep(30)
        assert total_usage(secondary, backlog).receives == 0
        primary.outage.restore()
        await asyncio.sleep(31)
        assert len(app.events_of(EventKind.MOVED)) == PARKED
        await receive(app, PARKED)
        once_per_message = dict.fromkeys(("sends", "send_units", "receives", "receive_units", "settlements"), PARKED)
        backlog_usage, orders_usage = total_usage(secondary, backlog), total_usage(primary, "orders")
        # The outage ended the pending poll. The pump peeked for deferred messages at its start and at its restart.
        # One management call created the queue, and one ping was answered.
        assert nonzero_counts(backlog_usage) == once_per_message | {"empty_receives": 1, "peeks": 2, "management": 1}
        assert nonzero_counts(orders_usage) == once_per_message | {"pings": 1}
        assert document_operations(backlog_usage) + document_operations(orders_usage) == 4 * PARKED + 2
        assert operations(backlog_usage) + operations(orders_usage) == 6 * PARKED + 2 + 3


@in_virtual_time
async def test_r080_a_pump_that_starts_as_the_primary_is_lost_receives_nothing_either() -> None:
    async with in_memory_pair_application(
        failover_interval=0, backlog_queue_count=1, enable_syphon=True, operation_timeout=600
    ) as app:
        await asyncio.sleep(1)
        primary, secondary = app.namespaces.primary, app.namespaces.secondary
        has_started = asyncio.Event()
        app.pairing.on_event(lambda _event: has_started.set(), {EventKind.PUMP_STARTED})
        secondary.outage.cut()
        await asyncio.sleep(0.01)
        secondary.outage.slow(2)
        await has_started.wait()  # the pump peeks for deferred messages now, before it receives
        primary.outage.stop()
        await app.queue_client().send_batch([BrokeredMessage(f"order {number}") for number in range(PARKED)])
        await asyncio.sleep(30)
        assert total_usage(secondary, app.backlog_path(0)).receives == 0


@pytest.mark.parametrize(
    ("size", "units"),
    [
        (60_000, (1, 1, 1, 1)),
        (65_480, (1, 1, 2, 2)),  # 37 bytes more in the backlog, and 94 bytes more for the parked time when it is back
        (65_500, (2, 2, 2, 2)),
        (200_000, (4, 4, 4, 4)),
    ],
)
def test_r081_size_and_bandwidth_are_charged_at_each_of_the_four_stages(
    size: int, units: tuple[int, int, int, int]
) -> None:
    stages = park_one(size)
    predicted = parked_message_charges(size, parking_bytes=37, returned_bytes=RETURNED_BYTES)
    assert tuple(charges.document for charges in predicted.values()) == units
    assert tuple(charged for charged, _ in stages) == units
    assert all(size < sent < size + 2_048 for _, sent in stages), "each stage carries the whole message"


@in_virtual_time
async def park_one(size: int) -> list[tuple[int, int]]:
    """Park a message whose properties and body have `size` bytes; return the units and bytes of its four stages."""
    async with in_memory_pair_application(failover_interval=0, backlog_queue_count=1, enable_syphon=True) as app:
        await asyncio.sleep(1)
        app.namespaces.primary.outage.stop()
        await app.queue_client().send(message_of_size(size))
        app.namespaces.primary.outage.restore()
        await asyncio.sleep(61)
        await receive(app, 1)
        backlog, orders = (
            total_usage(app.namespaces.secondary, app.backlog_path(0)),
            total_usage(app.namespaces.primary, "orders"),
        )
        (ping,) = app.events_of(EventKind.PINGED)
        assert (ping.reason, orders.pings) == (None, 1)
        return [
            stage
            for row in (backlog, orders)
            for stage in ((row.send_units, row.send_bytes), (row.receive_units, row.receive_bytes))
        ]


@in_virtual_time
async def test_r082_each_ping_is_charged_like_a_message_whether_it_is_accepted_or_refused() -> None:
    async with in_memory_pair_application(failover_interval=0) as app:
        primary = app.namespaces.primary
        primary.outage.fail_store()
        await app.queue_client().send(BrokeredMessage("apples"))
        usage_before = total_usage(primary, "orders")
        await asyncio.sleep(10 * 60 + 1)
        refused = total_usage(primary, "orders")
        primary.outage.restore()
        await asyncio.sleep(60)
        pinged = total_usage(primary, "orders")
        assert len(app.events_of(EventKind.PINGED)) == 11
        assert (refused.failed_pings, pinged.failed_pings, pinged.pings) == (10, 10, 1)
        assert (pinged.sends, pinged.receives) == (0, 0), "no receiver gets a ping"
        assert pinged.send_bytes > refused.send_bytes == usage_before.send_bytes, (
            "an accepted ping is charged for its bytes, too"
        )
        for charged in (operations, document_operations):
            assert charged(pinged) - charged(usage_before) == 11
            assert charged(pinged, bills_failed=False) == 1


@in_virtual_time
async def test_c06_an_outage_costs_one_ping_per_client_entity_and_whole_interval() -> None:
    entities = ("orders", "invoices", "returns")
    async with InMemoryPair() as namespaces:
        for path in entities:
            await namespaces.primary.create_queue(path)
        async with (
            paired_application(namespaces, failover_interval=0) as first,
            paired_application(namespaces, failover_interval=0) as second,
        ):
            namespaces.primary.outage.fail_store()
            for app in (first, second):
                for path in entities:
                    await app.queue_client(path).send(BrokeredMessage("apples"))
            await asyncio.sleep(5 * 60 + 30)
            row = total_usage(namespaces.primary)
            assert row.failed_pings == ping_charges(5 * 60 + 30, 60, entities=3, clients=2, factories=1).document == 30


@in_virtual_time
async def test_c07_a_message_parked_for_a_topic_is_charged_three_times_and_once_per_subscription() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_topic("news")
        for name in ("one", "other"):
            await namespaces.primary.create_subscription("news", name)
        async with paired_application(
            namespaces, failover_interval=0, backlog_queue_count=1, enable_syphon=True
        ) as app:
            await asyncio.sleep(1)
            namespaces.primary.outage.stop()
            await app.primary.create_topic_client("news").send(BrokeredMessage("rain"))
            namespaces.primary.outage.restore()
            await asyncio.sleep(61)
            factory = namespaces.primary.factory()
            for name in ("one", "other"):
                subscription = factory.create_subscription_client("news", name)
                message = await subscription.receive(5)
                assert message is not None
                await subscription.complete(message)
            row = add_rows([total_usage(namespaces.primary), total_usage(namespaces.secondary, app.backlog_path(0))])
            messages = (row.send_units + row.receive_units, row.send_units + row.receive_units + row.settlements)
            assert (
                Charges(*messages)
                == sum_charges(parked_message_charges(1_000, subscriptions=2))
                == Charges(3 + 2, 4 + 2 * 2)
            )
