"""A task whose primary goes down in the middle: every row is in the primary, in the backlog, or on this disk."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pyarrow as pa

from tests.support.server_pair import BACKLOG_QUEUES, QUEUE, connection_string, receive_all, run_server_pair
from twinbus.client.pairing.backlog.rotation import backlog_queue_path
from twinbus.pipeline.sink.batch_sender import send_all
from twinbus.pipeline.sink.options import SinkOptions, read_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.server_process import ServerProcess

PART = 600


def options(primary: ServerProcess, secondary: ServerProcess, **more: str) -> SinkOptions:
    told = {
        "connectionString": connection_string(primary),
        "entity": QUEUE,
        "operationTimeout": "4",
        "secondaryConnectionString": connection_string(secondary),
        "secondaryAdminConnectionString": connection_string(secondary, port=secondary.http_port),
        "backlogQueueCount": str(BACKLOG_QUEUES),
        "failoverInterval": "0",
        "pingInterval": "1",
        "primaryName": "contoso",
    }
    return read_options(told | more)


def rows(*between: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    """Parts of rows; between them something happens."""
    for number in range(len(between) + 1):
        ids = [str(row) for row in range(number * PART, (number + 1) * PART)]
        yield pa.record_batch({"messageId": ids, "body": ["x"] * PART})
        for happen in between[number : number + 1]:
            happen()


def whole(parts: int) -> set[str]:
    return {str(row) for row in range(parts * PART)}


async def in_backlog(secondary: ServerProcess) -> list[str]:
    paths = [backlog_queue_path("contoso", index) for index in range(BACKLOG_QUEUES)]
    found = [await receive_all(secondary, 0, path) for path in paths]
    return [str(message.message_id) for messages in found for message in messages]


async def in_primary(primary: ServerProcess) -> list[str]:
    return [str(message.message_id) for message in await receive_all(primary, 0)]


async def test_a_task_parks_what_its_primary_does_not_take(tmp_path: Path) -> None:
    async with run_server_pair(tmp_path) as (primary, secondary):
        counts = await asyncio.to_thread(send_all, options(primary, secondary), rows(primary.kill), None)
        assert (counts.sent + counts.parked, counts.spooled) == (2 * PART, 0)
        assert counts.parked >= PART / 2
        parked = await in_backlog(secondary)
        assert len(parked) == counts.parked
        primary.start()
        arrived = await in_primary(primary)
        assert {*parked, *arrived} == whole(2)
        assert len(arrived) == len(set(arrived))


async def test_a_task_that_begins_while_its_primary_is_down_parks_all(tmp_path: Path) -> None:
    async with run_server_pair(tmp_path) as (primary, secondary):
        primary.kill()
        counts = await asyncio.to_thread(send_all, options(primary, secondary), rows(), None)
        assert (counts.sent, counts.parked, counts.spooled) == (0, PART, 0)
        assert sorted(await in_backlog(secondary)) == sorted(whole(1))


async def test_tasks_of_one_machine_spool_side_by_side_while_both_are_down(tmp_path: Path) -> None:
    async with run_server_pair(tmp_path) as (primary, secondary):

        def end_both() -> None:
            primary.kill()
            secondary.kill()

        told = options(primary, secondary, spoolDir=str(tmp_path / "spool"))
        first = asyncio.create_task(asyncio.to_thread(send_all, told, rows(lambda: None), None))
        second = asyncio.create_task(asyncio.to_thread(send_all, told, rows(end_both), None))
        counts = await asyncio.gather(first, second)
        assert [one.sent + one.parked + one.spooled for one in counts] == [2 * PART, 2 * PART]
        assert counts[1].spooled > 0
        primary.start()
        secondary.start()
        # What the next tasks find in the spool they send, before they end.
        later = await asyncio.gather(*[asyncio.to_thread(send_all, told, rows(), None) for _ in counts])
        assert [one.spooled for one in later] == [0, 0]
        assert {*await in_primary(primary), *await in_backlog(secondary)} == whole(2)
