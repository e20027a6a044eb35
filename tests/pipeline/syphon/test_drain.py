"""The syphon on Spark between two servers: parked messages return to the primary, also if the primary is killed."""

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
    """A running syphon, and its latest progress report."""

    def __init__(self, spark: SparkSession, wanted: Wanted) -> None:
        self.latest: Progress | None = None
        self._reported = asyncio.Event()
        self.syphon = SparkSyphon(spark, wanted, self._on_progress)
        self.task = asyncio.ensure_future(self.syphon.run())

    def _on_progress(self, progress: Progress) -> None:
        self.latest = progress
        self._reported.set()

    async def until(self, condition: Callable[[Progress], object]) -> None:
        while self.latest is None or not condition(self.latest):
            assert not self.task.done(), self.task
            self._reported.clear()
            await self._reported.wait()

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


async def test_parked_messages_return_in_order_and_undeliverable_ones_are_dead_lettered(
    tmp_path: Path, spark: SparkSession
) -> None:
    async with run_parked_pair(tmp_path) as pair:
        texts = [f"order {number}" for number in range(300)]
        await pair.park([parked_payload(text) for text in texts])
        for number in range(60):  # a sender parks all messages of a session in one backlog queue
            session = f"session {number % 3}"
            await pair.park([parked_payload(f"{number}", SESSIONS, session)], [pair.backlog_queues[number % 3]])
        no_path = BrokeredMessage("lost its way").encode(0)
        no_queue = parked_payload("nobody has it", "no-such-queue")
        await pair.park([no_path, no_queue], [pair.backlog_queues[0]])
        report_folder = str(tmp_path / "report")
        wanted = Wanted(pair=pair.pair, available_now=True, report_place=report_folder, not_found_grace_s=0)
        report = await SparkSyphon(spark, wanted).run()
        assert report.is_finished
        assert (report.moved, report.dead_lettered, report.left) == (360, 2, 0)
        assert (pair.parked_count(), pair.dead_letter_count()) == (0, 2)
        assert sorted(await pair.arrived(300)) == sorted(texts)
        for number in range(3):
            arrived = await pair.arrived_in_session(f"session {number}", 20)
            assert arrived == [f"{index}" for index in range(number, 60, 3)]
        report_rows = spark.read.parquet(report_folder).collect()
        assert sum(row.moved for row in report_rows) == 360
        assert {row.destination for row in report_rows} == {ORDERS, SESSIONS, "no-such-queue", None}
        assert {(row.ended, row.left, row.attempts, row.exact) for row in report_rows} == {("empty", 0, 1, True)}
        assert all(row.firstMoved <= row.lastMoved for row in report_rows)


async def test_a_primary_that_is_killed_gets_the_remaining_messages_after_its_restart(
    tmp_path: Path, spark: SparkSession
) -> None:
    async with run_parked_pair(tmp_path) as pair:
        texts = [f"order {number}" for number in range(9_000)]
        await pair.park(
            [parked_payload(text, ORDERS if number % 2 else DEDUPLICATED) for number, text in enumerate(texts)]
        )
        late = [f"late order {number}" for number in range(100)]
        async with running(spark, Wanted(pair=pair.pair, round_s=1.0)) as run:
            await run.until(lambda progress: progress.moved)
            pair.primary.kill()
            await pair.park(
                [parked_payload(text, DEDUPLICATED) for text in late]
            )  # by then all other messages may have been moved
            await run.until(lambda progress: progress.problem)
            await asyncio.to_thread(pair.primary.start)
            while pair.parked_count():  # noqa: ASYNC110  # there is no event to wait for
                await asyncio.sleep(0.1)
            await run.stop()
        assert set(await pair.arrived(4_500)) == set(texts[1::2]), "at least once (Q04)"
        once = Counter(await pair.arrived(4_600, DEDUPLICATED))
        assert once == Counter([*texts[::2], *late]), "once, where duplicates are detected"


async def test_undeliverable_messages_stay_parked_and_the_report_has_the_reason(
    tmp_path: Path, spark: SparkSession
) -> None:
    async with run_parked_pair(tmp_path) as pair:
        await pair.park([parked_payload(f"order {number}") for number in range(30)])
        pair.primary.kill()
        report = await SparkSyphon(spark, Wanted(pair=pair.pair, available_now=True, wait_s=2)).run()
        assert not report.is_finished
        assert (report.moved, report.left) == (0, 30)
        assert report.reason == "nothing has moved for 2 s"
        assert {row.end_reason.split(":")[0] for row in report.rows} == {"the primary does not answer"}
        assert pair.parked_count() == 30, "all messages were given back"


async def test_a_continuous_syphon_finds_new_backlog_queues_until_it_is_stopped(
    tmp_path: Path, spark: SparkSession
) -> None:
    async with run_parked_pair(tmp_path) as pair:
        await pair.park([parked_payload("early")])
        async with running(spark, Wanted(pair=pair.pair, round_s=1.0)) as run:
            await run.until(lambda progress: progress.moved == 1)
            pair.secondary.create_entity("contoso/x-servicebus-transfer/17", "QueueDescription")
            await pair.park([parked_payload("late")], ["contoso/x-servicebus-transfer/17"])
            await run.until(lambda progress: progress.moved == 2)
            report = await run.stop()
        assert (report.moved, report.left, report.reason) == (2, 0, "stopped")
        assert all(row.attempts > 1 for row in report.rows if row.backlog_queue in pair.backlog_queues)
        assert sorted(await pair.arrived(2)) == ["early", "late"]
