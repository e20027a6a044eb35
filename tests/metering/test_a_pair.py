"""C07, C08: what the two servers of a pair count, beside what is predicted from how its clients ask."""

from __future__ import annotations

import asyncio

from tests.metering.parking import drain, park, predict, receive_all, restored
from tests.metering.used import counted, message_of, used
from tests.pairing.application import application, paired
from twinbus.model.usage import document_operations, operations
from twinbus.pipeline.costs.charges import idle_syphon
from twinbus.testing import InMemoryPair, in_virtual_time

CALLS_TO_PREDICT = 10
"""How full each queue is was asked for."""


@in_virtual_time
async def test_c07_a_thousand_parked_drained_and_received_messages_are_exactly_as_many_operations_as_predicted() -> (
    None
):
    async with paired(failover_interval=0, backlog_queue_count=10) as app:
        app.namespaces.primary.outage.stop()
        await park(app.primary, clients=50, each=20)
        prediction = await predict(app.pairing, app.manager, 1_000)
        app.namespaces.primary.outage.restore()
        await restored(app.pairing)
        await drain(*app.namespaces.factories(), app.manager, app.pairing, 1_000)
        assert await receive_all(app.namespaces.primary.factory()) == 1_000
        primary, secondary = used(app.namespaces.primary), used(app.namespaces.secondary)
        moved = dict.fromkeys(("sends", "send_units", "receives", "receive_units", "settlements"), 1_000)
        assert counted(primary) == moved | {"pings": 1, "empty_receives": 1}
        told = {"empty_receives": prediction.empty_queues, "peeks": 10, "management": 11 + CALLS_TO_PREDICT}
        assert counted(secondary) == moved | {name: count for name, count in told.items() if count}
        assert document_operations(primary) + document_operations(secondary) == prediction.document
        assert operations(primary) + operations(secondary) == prediction.operations + CALLS_TO_PREDICT
        assert prediction.document == 4_002 + prediction.empty_queues
        assert prediction.operations == 6_023 + prediction.empty_queues


@in_virtual_time
async def test_c07_a_message_that_is_parked_may_be_charged_for_one_more_unit_than_it_was() -> None:
    async with paired(failover_interval=0, backlog_queue_count=1) as app:
        sizes = []
        for size in (65_536, 60_000):
            before = used(app.namespaces.secondary).send_units
            app.namespaces.primary.outage.stop()
            await app.queue().send(message_of(size))
            app.namespaces.primary.outage.restore()
            sizes.append(used(app.namespaces.secondary).send_units - before)
        assert sizes == [2, 1]


@in_virtual_time
async def test_c08_to_pair_is_a_list_and_a_call_for_each_queue_that_is_missing() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders")
        async with application(namespaces, backlog_queue_count=3):
            row = used(namespaces.secondary)
            assert counted(row) == {"management": 4}
            assert operations(row) == 4
        async with application(namespaces, backlog_queue_count=5):
            assert used(namespaces.secondary).management == 4 + 1 + 2
        assert used(namespaces.primary).management == 0


@in_virtual_time
async def test_c05_a_day_of_an_idle_syphon_is_as_many_receives_as_predicted() -> None:
    async with paired(backlog_queue_count=2, enable_syphon=True) as app:
        await asyncio.sleep(24 * 3_600 + 30)
        row = used(app.namespaces.secondary)
        assert (row.receives, row.empty_receives) == (0, idle_syphon(2, 1, 15, days=1).document)
        assert row.empty_receives == 2 * 4 * 24
