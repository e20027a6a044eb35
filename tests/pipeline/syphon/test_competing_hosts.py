"""Q17: which host of the syphon moves messages if several run, and the cost of an idle one, in in-memory namespaces."""

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


async def park_message(app: Application, text: str, index: int = 0) -> None:
    """Park a message in a backlog queue."""
    parked = park(BrokeredMessage(text).encode(0), 0, "orders", is_possible_duplicate=False)
    await app.pairing.secondary.create_message_sender(app.backlog_path(index)).deliver(parked)


def assign_all_queues(app: Application, started_ms: int, number: int = 1) -> Assignment:
    queues = tuple(queue.path for queue in app.pairing.rotation.queues)
    return replace(assignment(started_ms=started_ms, number=number), backlog_queues=queues)


@in_virtual_time
async def test_c05_ten_idle_queues_cost_forty_receives_an_hour() -> None:
    async with in_memory_pair_application(backlog_queue_count=10) as app:
        for number in range(1, 25):
            work = assign_all_queues(app, 0, number)
            async with running_pumps(
                *app.namespaces.factories(), work, work.epoch(0), TaskProgress(work.backlog_queues)
            ):
                await asyncio.sleep(MAX_ROUND_S - 1)
            await asyncio.sleep(1)
        usage = app.namespaces.secondary.usage()
        assert sum(row.receives + row.empty_receives for row in usage) == 24 * 40


@in_virtual_time
async def test_an_older_spark_syphon_stands_by_and_resumes_when_the_newer_one_ends() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders")
        async with paired_application(namespaces) as app:
            work = assign_all_queues(app, namespaces.clock.wall_ms())
            progress = TaskProgress(work.backlog_queues)
            async with running_pumps(*namespaces.factories(), work, work.epoch(0), progress):
                await asyncio.sleep(10)
                async with paired_application(namespaces, enable_syphon=True) as other:
                    await asyncio.sleep(10)
                    assert all(progress.problems.values()), "another host has its queues"
                    await park_message(app, "apples")
                    await asyncio.sleep(10)
                    assert len(other.events_of(EventKind.MOVED)) == 1
                await asyncio.sleep(10)
                await park_message(app, "pears")
                await asyncio.sleep(10)
                assert not any(progress.problems.values())
                assert [row.moved for row in progress.rows() if row.moved] == [1]
            assert sorted(await app.arrived_bodies()) == ["apples", "pears"]


@in_virtual_time
async def test_a_restarted_task_takes_the_queues_from_its_predecessor() -> None:
    async with in_memory_pair_application(backlog_queue_count=1) as app:
        work = assign_all_queues(app, 1_000)
        old_progress, new_progress = TaskProgress(work.backlog_queues), TaskProgress(work.backlog_queues)
        async with running_pumps(*app.namespaces.factories(), work, work.epoch(0), old_progress):
            await asyncio.sleep(1)
            async with running_pumps(*app.namespaces.factories(), work, work.epoch(1), new_progress):
                await asyncio.sleep(1)
                await park_message(app, "apples")
                await asyncio.sleep(30)
                assert [row.moved for row in new_progress.rows()] == [1]
                assert [row.moved for row in old_progress.rows()] == [0]


def test_moved_messages_are_in_the_journal(tmp_path: Path) -> None:
    """A thread writes the journal, and virtual time does not wait for threads: read it after everything is closed."""

    async def move() -> None:
        async with in_memory_pair_application(backlog_queue_count=1) as app:
            work = replace(assign_all_queues(app, 1_000), journal_dir=str(tmp_path))
            await park_message(app, "apples")
            async with running_pumps(
                *app.namespaces.factories(), work, work.epoch(0), TaskProgress(work.backlog_queues)
            ):
                await asyncio.sleep(10)

    run(move())
    rows = [row for file in tmp_path.iterdir() for row in read(file).to_pylist()]
    assert [(row["outcome"], row["entity"]) for row in rows if row["outcome"] == "moved back"] == [
        ("moved back", "orders")
    ]


@in_virtual_time
async def test_a_pump_that_ends_unexpectedly_is_detected() -> None:
    async with in_memory_pair_application(backlog_queue_count=1) as app:
        work = assign_all_queues(app, 1_000)
        primary, secondary = app.namespaces.factories()
        async with running_pumps(primary, secondary, work, work.epoch(0), TaskProgress(work.backlog_queues)) as pumps:
            await asyncio.sleep(10)
            assert not any(pump.has_ended for pump in pumps)
            await secondary.close()
            assert await wait_for_ended_pump(pumps) == app.backlog_path(0)
