"""The syphon on Spark, between two servers: what is parked comes back, whatever happens to the primary."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import TYPE_CHECKING

from tests.pipeline.syphon.parked_pair import DEDUPLICATED, ORDERS, SESSIONS, parked_payload, run_parked_pair
from twinbus.client import BrokeredMessage
from twinbus.pipeline.syphon import Progress, Report, SparkSyphon, Wanted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from pyspark.sql import SparkSession


class Running:
    """A run, and what it tells."""

    def __init__(self, spark: SparkSession, wanted: Wanted) -> None:
        self.seen: Progress | None = None
        self._news = asyncio.Event()
        self.syphon = SparkSyphon(spark, wanted, self._told)
        self.task = asyncio.ensure_future(self.syphon.run())

    def _told(self, progress: Progress) -> None:
        self.seen = progress
        self._news.set()

    async def until(self, condition: Callable[[Progress], object]) -> None:
        while self.seen is None or not condition(self.seen):
            assert not self.task.done(), self.task
            self._news.clear()
            await self._news.wait()

    async def stop(self) -> Report:
        self.syphon.stop()
        return await self.task


@contextlib.asynccontextmanager
async def running(spark: SparkSession, wanted: Wanted) -> AsyncIterator[Running]:
    run = Running(spark, wanted)
    try:
        yield run
    finally:
        if not run.task.done():
            await run.stop()


async def test_all_that_is_parked_comes_back_in_order_and_the_rest_is_dead_lettered(
    tmp_path: Path, spark: SparkSession
) -> None:
    async with run_parked_pair(tmp_path) as here:
        plain = [f"order {number}" for number in range(300)]
        await here.park([parked_payload(text) for text in plain])
        for number in range(60):  # each session is in one backlog queue, as one sender leaves it
            session = f"session {number % 3}"
            await here.park([parked_payload(f"{number}", SESSIONS, session)], [here.backlog_queues[number % 3]])
        no_path = BrokeredMessage("lost its way").encode(0)
        no_queue = parked_payload("nobody has it", "no-such-queue")
        await here.park([no_path, no_queue], [here.backlog_queues[0]])
        report_place = str(tmp_path / "report")
        wanted = Wanted(pair=here.pair, available_now=True, report_place=report_place, not_found_grace_s=0)
        report = await SparkSyphon(spark, wanted).run()
        assert report.is_finished
        assert (report.moved, report.dead_lettered, report.left) == (360, 2, 0)
        assert (here.parked_count(), here.dead_letter_count()) == (0, 2)
        assert sorted(await here.arrived(300)) == sorted(plain)
        for number in range(3):
            arrived = await here.arrived_in_session(f"session {number}", 20)
            assert arrived == [f"{place}" for place in range(number, 60, 3)]
        kept = spark.read.parquet(report_place).collect()
        assert sum(row.moved for row in kept) == 360
        assert {row.destination for row in kept} == {ORDERS, SESSIONS, "no-such-queue", None}
        assert {(row.ended, row.left, row.attempts, row.exact) for row in kept} == {("empty", 0, 1, True)}
        assert all(row.firstMoved <= row.lastMoved for row in kept)


async def test_a_primary_that_is_killed_in_the_middle_gets_the_rest_when_it_is_back(
    tmp_path: Path, spark: SparkSession
) -> None:
    async with run_parked_pair(tmp_path) as here:
        texts = [f"order {number}" for number in range(9_000)]
        await here.park(
            [parked_payload(text, ORDERS if number % 2 else DEDUPLICATED) for number, text in enumerate(texts)]
        )
        late = [f"late order {number}" for number in range(100)]
        async with running(spark, Wanted(pair=here.pair, round_s=1.0)) as run:
            await run.until(lambda progress: progress.moved)
            here.primary.kill()
            await here.park(
                [parked_payload(text, DEDUPLICATED) for text in late]
            )  # by then all of the others may be back
            await run.until(lambda progress: progress.problem)
            await asyncio.to_thread(here.primary.start)
            while here.parked_count():  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.1)
            await run.stop()
        assert set(await here.arrived(4_500)) == set(texts[1::2]), "at least once (Q04)"
        once = Counter(await here.arrived(4_600, DEDUPLICATED))
        assert once == Counter([*texts[::2], *late]), "once, where duplicates are detected"


async def test_what_cannot_be_delivered_now_is_left_and_the_report_says_why(
    tmp_path: Path, spark: SparkSession
) -> None:
    async with run_parked_pair(tmp_path) as here:
        await here.park([parked_payload(f"order {number}") for number in range(30)])
        here.primary.kill()
        report = await SparkSyphon(spark, Wanted(pair=here.pair, available_now=True, wait_s=2)).run()
        assert not report.is_finished
        assert (report.moved, report.left) == (0, 30)
        assert report.reason == "nothing has moved for 2 s"
        assert {row.end_reason.split(":")[0] for row in report.rows} == {"the primary does not answer"}
        assert here.parked_count() == 30, "all of it was given back"


async def test_until_it_is_stopped_it_goes_on_round_after_round_with_backlog_queues_that_are_new(
    tmp_path: Path, spark: SparkSession
) -> None:
    async with run_parked_pair(tmp_path) as here:
        await here.park([parked_payload("early")])
        async with running(spark, Wanted(pair=here.pair, round_s=1.0)) as run:
            await run.until(lambda progress: progress.moved == 1)
            here.secondary.create_entity("contoso/x-servicebus-transfer/17", "QueueDescription")
            await here.park([parked_payload("late")], ["contoso/x-servicebus-transfer/17"])
            await run.until(lambda progress: progress.moved == 2)
            report = await run.stop()
        assert (report.moved, report.left, report.reason) == (2, 0, "stopped")
        assert all(row.attempts > 1 for row in report.rows if row.backlog_queue in here.backlog_queues)
        assert sorted(await here.arrived(2)) == ["early", "late"]
