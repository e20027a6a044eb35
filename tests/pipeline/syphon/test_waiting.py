"""The pumps of a task wait for a destination that refuses its messages, and the report says why."""

from __future__ import annotations

import asyncio

from tests.pipeline.syphon.scene import parked
from twinbus.pipeline.syphon import Pair
from twinbus.pipeline.syphon.assignment import Address, Assignment
from twinbus.pipeline.syphon.tally import Moved, Tally
from twinbus.pipeline.syphon.task import pumping
from twinbus.testing import InMemoryPair, in_virtual_time

BACKLOG = "contoso/x-servicebus-transfer/0"


@in_virtual_time
async def test_q19_messages_wait_for_a_destination_that_does_not_exist_and_the_report_says_why() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.secondary.create_queue(BACKLOG, max_delivery_count=2_147_483_647)
        primary, secondary = namespaces.factories()
        await secondary.create_message_sender(BACKLOG).deliver(parked("order", "orders"))
        tally = Tally([BACKLOG])
        assignment = Assignment(
            pair=Pair(primary="", secondary="", admin="", primary_name="contoso"),
            queues=(BACKLOG,),
            driver=Address(host="", port=0, token=""),
            round=1,
            group=0,
            started_ms=1,
            poll_s=900,
            deduct=False,
            journal_dir=None,
        )
        async with pumping(primary, secondary, assignment, 1, tally):
            await asyncio.sleep(1800)
            assert tally.rows() == [Moved(BACKLOG, None, 0, 0, None, None)]
            assert tally.troubles == {BACKLOG: "'orders': The messaging entity 'orders' could not be found."}
            await namespaces.primary.create_queue("orders")
            await asyncio.sleep(120)
            assert [(row.destination, row.moved, row.dead_lettered) for row in tally.rows()] == [("orders", 1, 0)]
            assert tally.troubles == {BACKLOG: ""}
        assert [message.text for message in await namespaces.primary.messages("orders")] == ["order"]
