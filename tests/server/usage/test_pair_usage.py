"""C07, C08: the usage of both namespaces of a pair equals the prediction."""

from __future__ import annotations

import asyncio

from tests.server.usage.parked_message_costs import (
    drain_with_pumps,
    park_messages,
    predict_operations,
    receive_all,
    wait_until_restored,
)
from tests.server.usage.usage_totals import message_of_size, nonzero_counts, total_usage
from tests.support.paired_application import in_memory_pair_application, paired_application
from twinbus.model.usage import document_operations, operations
from twinbus.pipeline.costs.charges import idle_syphon_charges
from twinbus.testing import InMemoryPair, in_virtual_time

CALLS_TO_PREDICT = 10
"""One call for each queue, to count its messages."""


@in_virtual_time
async def test_c07_a_thousand_parked_messages_take_the_predicted_operations() -> None:
    async with in_memory_pair_application(failover_interval=0, backlog_queue_count=10) as app:
        app.namespaces.primary.outage.stop()
        await park_messages(app.primary, clients=50, each=20)
        prediction = await predict_operations(app.pairing, app.manager, 1_000)
        app.namespaces.primary.outage.restore()
        await wait_until_restored(app.pairing)
        await drain_with_pumps(*app.namespaces.factories(), app.manager, app.pairing, 1_000)
        assert await receive_all(app.namespaces.primary.factory()) == 1_000
        primary, secondary = total_usage(app.namespaces.primary), total_usage(app.namespaces.secondary)
        moved = dict.fromkeys(("sends", "send_units", "receives", "receive_units", "settlements"), 1_000)
        assert nonzero_counts(primary) == moved | {"pings": 1, "empty_receives": 1}
        expected = {"empty_receives": prediction.empty_queues, "peeks": 10, "management": 11 + CALLS_TO_PREDICT}
        assert nonzero_counts(secondary) == moved | {name: count for name, count in expected.items() if count}
        assert document_operations(primary) + document_operations(secondary) == prediction.documented_operations
        assert operations(primary) + operations(secondary) == prediction.operations + CALLS_TO_PREDICT
        assert prediction.documented_operations == 4_002 + prediction.empty_queues
        assert prediction.operations == 6_023 + prediction.empty_queues


@in_virtual_time
async def test_c07_a_parked_message_may_be_charged_for_one_more_unit() -> None:
    async with in_memory_pair_application(failover_interval=0, backlog_queue_count=1) as app:
        sizes = []
        for size in (65_536, 60_000):
            before = total_usage(app.namespaces.secondary).send_units
            app.namespaces.primary.outage.stop()
            await app.queue_client().send(message_of_size(size))
            app.namespaces.primary.outage.restore()
            sizes.append(total_usage(app.namespaces.secondary).send_units - before)
        assert sizes == [2, 1]


@in_virtual_time
async def test_c08_pairing_takes_a_list_and_a_call_for_each_missing_queue() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders")
        async with paired_application(namespaces, backlog_queue_count=3):
            row = total_usage(namespaces.secondary)
            assert nonzero_counts(row) == {"management": 4}
            assert operations(row) == 4
        async with paired_application(namespaces, backlog_queue_count=5):
            assert total_usage(namespaces.secondary).management == 4 + 1 + 2
        assert total_usage(namespaces.primary).management == 0


@in_virtual_time
async def test_c05_a_day_of_an_idle_syphon_takes_the_predicted_receives() -> None:
    async with in_memory_pair_application(backlog_queue_count=2, enable_syphon=True) as app:
        await asyncio.sleep(24 * 3_600 + 30)
        row = total_usage(app.namespaces.secondary)
        assert (row.receives, row.empty_receives) == (0, idle_syphon_charges(2, 1, 15, days=1).document)
        assert row.empty_receives == 2 * 4 * 24
