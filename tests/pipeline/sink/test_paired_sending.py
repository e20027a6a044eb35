"""A paired task whose primary fails: every row is in the primary, in a backlog queue, or in the local spool."""

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


def options(primary: ServerProcess, secondary: ServerProcess, **overrides: str) -> SinkOptions:
    all_options = {
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
    return read_options(all_options | overrides)


def rows(*between: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    """Yield batches of rows, and call one of `between` after each batch but the last."""
    for number in range(len(between) + 1):
        ids = [str(row) for row in range(number * PART, (number + 1) * PART)]
        yield pa.record_batch({"messageId": ids, "body": ["x"] * PART})
        for action in between[number : number + 1]:
            action()


def all_ids(parts: int) -> set[str]:
    return {str(row) for row in range(parts * PART)}


async def backlog_ids(secondary: ServerProcess) -> list[str]:
    paths = [backlog_queue_path("contoso", index) for index in range(BACKLOG_QUEUES)]
    batches = [await receive_all(secondary, 0, path) for path in paths]
    return [str(message.message_id) for messages in batches for message in messages]


async def primary_ids(primary: ServerProcess) -> list[str]:
    return [str(message.message_id) for message in await receive_all(primary, 0)]


async def test_a_task_parks_rows_if_its_primary_is_killed(tmp_path: Path) -> None:
    async with run_server_pair(tmp_path) as (primary, secondary):
        counts = await asyncio.to_thread(send_all, options(primary, secondary), rows(primary.kill), None)
        assert (counts.sent + counts.parked, counts.spooled) == (2 * PART, 0)
        assert counts.parked >= PART / 2
        parked = await backlog_ids(secondary)
        assert len(parked) == counts.parked
        primary.start()
        arrived = await primary_ids(primary)
        assert {*parked, *arrived} == all_ids(2)
        assert len(arrived) == len(set(arrived))


async def test_a_task_that_starts_while_its_primary_is_down_parks_all_rows(tmp_path: Path) -> None:
    async with run_server_pair(tmp_path) as (primary, secondary):
        primary.kill()
        counts = await asyncio.to_thread(send_all, options(primary, secondary), rows(), None)
        assert (counts.sent, counts.parked, counts.spooled) == (0, PART, 0)
        assert sorted(await backlog_ids(secondary)) == sorted(all_ids(1))


async def test_tasks_of_one_machine_share_a_spool_while_both_namespaces_are_down(tmp_path: Path) -> None:
    async with run_server_pair(tmp_path) as (primary, secondary):

        def kill_both() -> None:
            primary.kill()
            secondary.kill()

        sink_options = options(primary, secondary, spoolDir=str(tmp_path / "spool"))
        first = asyncio.create_task(asyncio.to_thread(send_all, sink_options, rows(lambda: None), None))
        second = asyncio.create_task(asyncio.to_thread(send_all, sink_options, rows(kill_both), None))
        counts = await asyncio.gather(first, second)
        assert [count.sent + count.parked + count.spooled for count in counts] == [2 * PART, 2 * PART]
        assert counts[1].spooled > 0
        primary.start()
        secondary.start()
        # The next tasks send the messages of the spool before they end.
        later = await asyncio.gather(*[asyncio.to_thread(send_all, sink_options, rows(), None) for _ in counts])
        assert [count.spooled for count in later] == [0, 0]
        assert {*await primary_ids(primary), *await backlog_ids(secondary)} == all_ids(2)
