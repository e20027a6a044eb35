"""The pumps of a task wait for a destination that refuses messages, and the report has the reason."""

from __future__ import annotations

import asyncio

from tests.pipeline.syphon.parked_pair import parked_payload
from twinbus.pipeline.syphon import Pair
from twinbus.pipeline.syphon.assignment import Assignment, DriverAddress
from twinbus.pipeline.syphon.progress import MovedCount, TaskProgress
from twinbus.pipeline.syphon.task import running_pumps
from twinbus.testing import InMemoryPair, in_virtual_time

BACKLOG = "contoso/x-servicebus-transfer/0"


@in_virtual_time
async def test_q19_messages_wait_for_a_destination_that_does_not_exist_and_the_report_says_why() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.secondary.create_queue(BACKLOG, max_delivery_count=2_147_483_647)
        primary, secondary = namespaces.factories()
        await secondary.create_message_sender(BACKLOG).deliver(parked_payload("order", "orders"))
        progress = TaskProgress([BACKLOG])
        assignment = Assignment(
            pair=Pair(
                primary_connection_string="",
                secondary_connection_string="",
                admin_connection_string="",
                primary_name="contoso",
            ),
            backlog_queues=(BACKLOG,),
            driver_address=DriverAddress(host="", port=0, token=""),
            round=1,
            group=0,
            driver_started_ms=1,
            poll_s=900,
            deduct=False,
            journal_dir=None,
        )
        async with running_pumps(primary, secondary, assignment, 1, progress):
            await asyncio.sleep(1800)
            assert progress.rows() == [MovedCount(BACKLOG, None, 0, 0, None, None)]
            assert progress.problems == {BACKLOG: "'orders': The messaging entity 'orders' could not be found."}
            await namespaces.primary.create_queue("orders")
            await asyncio.sleep(120)
            assert [(row.destination, row.moved, row.dead_lettered) for row in progress.rows()] == [("orders", 1, 0)]
            assert progress.problems == {BACKLOG: ""}
        assert [message.text for message in await namespaces.primary.messages("orders")] == ["order"]
