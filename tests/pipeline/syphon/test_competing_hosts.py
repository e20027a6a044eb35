"""Q17: what a task pumps beside other hosts of the syphon, and what an idle one costs, in namespaces in memory."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.pipeline.syphon.test_assignment import assignment
from tests.support.paired_application import in_memory_pair_application, paired_application
from twinbus.client import BrokeredMessage
from twinbus.client.journal_file import read
from twinbus.client.pairing import EventKind
from twinbus.client.pairing.backlog.rewriting import park
from twinbus.pipeline.syphon.driver import MAX_ROUND_S
from twinbus.pipeline.syphon.progress import TaskProgress
from twinbus.pipeline.syphon.task import running_pumps, wait_for_ended_pump
from twinbus.testing import InMemoryPair, in_virtual_time, run

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.paired_application import Application
    from twinbus.pipeline.syphon.assignment import Assignment


async def put(app: Application, text: str, index: int = 0) -> None:
    """Into a backlog queue."""
    parked = park(BrokeredMessage(text).encode(0), 0, "orders", is_possible_duplicate=False)
    await app.pairing.secondary.create_message_sender(app.backlog_path(index)).deliver(parked)


def of_all(app: Application, started_ms: int, number: int = 1) -> Assignment:
    queues = tuple(queue.path for queue in app.pairing.rotation.queues)
    return replace(assignment(started_ms=started_ms, number=number), backlog_queues=queues)


@in_virtual_time
async def test_c05_rounds_of_an_hour_make_forty_receives_an_hour_of_ten_idle_queues() -> None:
    async with in_memory_pair_application(backlog_queue_count=10) as app:
        for number in range(1, 25):
            one = of_all(app, 0, number)
            async with running_pumps(*app.namespaces.factories(), one, one.epoch(0), TaskProgress(one.backlog_queues)):
                await asyncio.sleep(MAX_ROUND_S - 1)
            await asyncio.sleep(1)
        counted = app.namespaces.secondary.usage()
        assert sum(row.receives + row.empty_receives for row in counted) == 24 * 40


@in_virtual_time
async def test_a_spark_syphon_that_is_older_stands_by_and_goes_on_when_the_other_is_gone() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders")
        async with paired_application(namespaces) as app:
            one = of_all(app, namespaces.clock.wall_ms())
            tally = TaskProgress(one.backlog_queues)
            async with running_pumps(*namespaces.factories(), one, one.epoch(0), tally):
                await asyncio.sleep(10)
                async with paired_application(namespaces, enable_syphon=True) as other:
                    await asyncio.sleep(10)
                    assert all(tally.problems.values()), "another host has its queues"
                    await put(app, "apples")
                    await asyncio.sleep(10)
                    assert len(other.events_of(EventKind.MOVED)) == 1
                await asyncio.sleep(10)
                await put(app, "pears")
                await asyncio.sleep(10)
                assert not any(tally.problems.values())
                assert [row.moved for row in tally.rows() if row.moved] == [1]
            assert sorted(await app.arrived_bodies()) == ["apples", "pears"]


@in_virtual_time
async def test_a_task_started_again_takes_the_queues_from_one_that_is_not_known_to_be_lost() -> None:
    async with in_memory_pair_application(backlog_queue_count=1) as app:
        one = of_all(app, 1_000)
        lost, again = TaskProgress(one.backlog_queues), TaskProgress(one.backlog_queues)
        async with running_pumps(*app.namespaces.factories(), one, one.epoch(0), lost):
            await asyncio.sleep(1)
            async with running_pumps(*app.namespaces.factories(), one, one.epoch(1), again):
                await asyncio.sleep(1)
                await put(app, "apples")
                await asyncio.sleep(30)
                assert [row.moved for row in again.rows()] == [1]
                assert [row.moved for row in lost.rows()] == [0]


def test_what_is_moved_is_in_the_journal(tmp_path: Path) -> None:
    """Written on a thread, which virtual time does not wait for: so it is looked at when all is closed."""

    async def move() -> None:
        async with in_memory_pair_application(backlog_queue_count=1) as app:
            one = replace(of_all(app, 1_000), journal_dir=str(tmp_path))
            await put(app, "apples")
            async with running_pumps(*app.namespaces.factories(), one, one.epoch(0), TaskProgress(one.backlog_queues)):
                await asyncio.sleep(10)

    run(move())
    rows = [row for file in tmp_path.iterdir() for row in read(file).to_pylist()]
    assert [(row["outcome"], row["entity"]) for row in rows if row["outcome"] == "moved back"] == [
        ("moved back", "orders")
    ]


@in_virtual_time
async def test_a_pump_that_has_ended_by_itself_is_noticed() -> None:
    async with in_memory_pair_application(backlog_queue_count=1) as app:
        one = of_all(app, 1_000)
        primary, secondary = app.namespaces.factories()
        async with running_pumps(primary, secondary, one, one.epoch(0), TaskProgress(one.backlog_queues)) as pumps:
            await asyncio.sleep(10)
            assert not any(pump.has_ended for pump in pumps)
            await secondary.close()
            assert await wait_for_ended_pump(pumps) == app.backlog_path(0)
