"""The driver of the syphon: runs rounds until it is stopped or no messages are parked.

A round lasts an hour at most. After a round, the driver lists the backlog queues again and spreads the queues over the
available task slots. Ending a round does not add receive operations for an idle backlog queue: an hour is exactly four
polls of 15 minutes. Owns the sequence of rounds and the report. `round_monitor` decides when a round ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twinbus.client.clock import SystemClock
from twinbus.client.pairing.delivery_failure import NOT_FOUND_GRACE_S
from twinbus.model.callbacks import ignore
from twinbus.model.errors import ServiceBusError
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.syphon import report
from twinbus.pipeline.syphon.assignment import Assignment, count_parked, lock_durations, spread_queues
from twinbus.pipeline.syphon.driver_connection import TaskServer
from twinbus.pipeline.syphon.report import Report, RoundCounts
from twinbus.pipeline.syphon.round_monitor import Progress, RoundEnd, RoundEndKind, RoundMonitor
from twinbus.pipeline.syphon.task import drain

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from twinbus.client import NamespaceManager
    from twinbus.pipeline.syphon.assignment import DriverAddress, Pair
    from twinbus.pipeline.syphon.driver_connection import TaskId
    from twinbus.pipeline.syphon.progress import MovedCount
    from twinbus.pipeline.syphon.task import TaskResult

TASK_GRACE_S: Final = 30.0
"""Maximum time for tasks to finish; pumps need a few seconds at most."""
_PYTHON_ERROR_LINE: Final = re.compile(r"^(?:[\w.]+\.)?([A-Z]\w+(?:Error|Exception|Interrupt)?: .+)$", re.MULTILINE)


class RoundFailed(Exception):
    """The failure of a round whose job Spark gave up. The text is the reason without the stack trace."""


class Round:
    """One round: a Spark job that drains backlog queues."""

    def __init__(
        self, spark: SparkSession, task_server: TaskServer, number: int, assignments: Sequence[Assignment]
    ) -> None:
        """Create a round. `run` starts it."""
        self.number = number
        self.assignments = assignments
        self.counts = RoundCounts([assignment.backlog_queues for assignment in assignments])
        self._spark_context = spark.sparkContext
        self._task_server = task_server

    @property
    def running_tasks(self) -> int:
        """Number of tasks that are running."""
        return len({task_id.group for task_id in self._task_server.connected_tasks(self.number)})

    async def run(self, wait_for_end: Callable[[Round], Awaitable[RoundEnd]]) -> RoundEnd | None:
        """Run the job until `wait_for_end` returns.

        Return None if the job finishes first. Raise RoundFailed if the job fails.
        """
        job = asyncio.ensure_future(asyncio.to_thread(self._run_job))
        monitor = asyncio.ensure_future(wait_for_end(self))
        try:
            await asyncio.wait([job, monitor], return_when=asyncio.FIRST_COMPLETED)
            round_end = monitor.result() if monitor.done() else None
        finally:
            monitor.cancel()
            await self._finish(job)
        if not job.cancelled() and (error := job.exception()) is not None and round_end is None:
            raise RoundFailed(error_summary(error)) from error
        return round_end

    async def _finish(self, job: asyncio.Future[None]) -> None:
        """Tell tasks to stop, and wait while they settle messages in flight. Then cancel the job if necessary."""
        self._task_server.end_round(self.number, "the round is over")
        with contextlib.suppress(Exception):
            await asyncio.wait([job], timeout=TASK_GRACE_S)
        if not job.done():
            self._spark_context.cancelJobGroup(self._job_group)
            await asyncio.wait([job])

    def cancel(self) -> None:
        """Cancel the job at once. Messages in flight stay in their backlog queues."""
        self._spark_context.cancelJobGroup(self._job_group)

    @property
    def _job_group(self) -> str:
        return f"twinbus-syphon-{self.number}"

    def _run_job(self) -> None:
        """Run the job on its own thread, because the call blocks for the whole round."""
        context, count = self._spark_context, len(self.assignments)
        context.setJobGroup(self._job_group, f"syphon, round {self.number}", interruptOnCancel=True)
        results: list[TaskResult] = context.parallelize(self.assignments, count).mapPartitions(drain).collect()
        self.counts.finish(results)


def error_summary(error: BaseException) -> str:
    """Return the last Python error line in the text of a failed job, or else the first line of the text."""
    text = str(getattr(error, "java_exception", None) or error)
    error_lines = _PYTHON_ERROR_LINE.findall(text)
    return error_lines[-1] if error_lines else text.strip().split("\n", 1)[0]


log: Final = logging.getLogger(__name__)

MASTER: Final = "local[*,4]"
"""All cores on this machine. A failed task is started again, as on a cluster."""
SETTINGS: Final = {
    "spark.speculation": "false",  # a concurrent second attempt would take over the queues
    "spark.task.maxFailures": "8",
}
POLL_S: Final = 900.0
MAX_ROUND_S: Final = 3600.0
NO_QUEUES_POLL_INTERVAL_S: Final = 60.0
"""Interval between searches for backlog queues while none exist."""
UNREACHABLE_POLL_INTERVAL_S: Final = 5.0
"""Interval between requests to the secondary while it is unreachable."""
RETRY_DELAY_S: Final = 5.0
MAX_FAILED_ROUNDS: Final = 3
"""Maximum number of consecutive rounds that fail without moving a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The user's settings for a run."""

    pair: Pair
    available_now: bool = False
    """Whether to stop when no messages are parked, or no messages are moved for `wait_s`."""
    wait_s: float = 60.0
    """Idle time after which a run with `available_now` stops."""
    deduct: bool = False
    """Whether to subtract the parked time from the time to live."""
    not_found_grace_s: float = NOT_FOUND_GRACE_S
    """Time that messages for a missing destination stay parked before they are dead-lettered."""
    journal_dir: str | None = None
    """Folder on each task's machine for its journal of message outcomes."""
    report_place: str | None = None
    """Location to which the report is appended as Parquet."""
    poll_s: float = POLL_S
    round_s: float = MAX_ROUND_S


class SparkSyphon:
    """One run of the syphon."""

    def __init__(self, spark: SparkSession, settings: Wanted, on_progress: Callable[[Progress], None] = ignore) -> None:
        """Create a run. The method `run` starts the run, and calls `on_progress` several times a second."""
        self.report = Report()
        self._spark = spark
        self._settings = settings
        self._on_progress = on_progress
        self._started_ms = SystemClock().wall_ms()
        self._stopped = asyncio.Event()
        self._task_server = TaskServer(self._on_task_report)
        self._round: Round | None = None
        self._lock_durations_ms: Mapping[str, int] = {}
        self._round_number = 0
        self._failed_rounds = 0

    def stop(self) -> None:
        """Stop the run gracefully. A second call cancels the current round."""
        if self._stopped.is_set() and self._round is not None:
            self._round.cancel()
        self._stopped.set()

    async def run(self) -> Report:
        """Drain the backlog queues.

        Raise PipelineError, or ServiceBusError if the secondary is unreachable on startup.
        """
        conf = self._spark.sparkContext.getConf()
        host = conf.get("spark.driver.host") or "127.0.0.1"
        driver = await self._task_server.open(conf.get("spark.driver.bindAddress") or host, host)
        try:
            async with self._settings.pair.manager() as manager:
                await self._run_rounds(manager, driver)
        finally:
            await self._task_server.close()
        if self._stopped.is_set():
            self.report.reason = "stopped"
        return self.report

    async def _run_rounds(self, manager: NamespaceManager, driver_address: DriverAddress) -> None:
        """Run rounds until the run is complete or stopped."""
        name, settings = self._settings.pair.primary_name, self._settings
        monitor = RoundMonitor(
            stopped=self._stopped,
            count_slots=lambda: self._spark.sparkContext.defaultParallelism,
            count_parked=lambda: count_parked(manager, name),
            on_progress=self._publish_progress,
            max_round_s=settings.round_s,
            idle_timeout_s=settings.wait_s if settings.available_now else None,
        )
        parked: Mapping[str, int] | None = await count_parked(manager, name)
        self._lock_durations_ms = await lock_durations(manager, name) if parked else {}
        max_tasks: int | None = None
        while not self._stopped.is_set():
            if parked:
                round_end = await self._run_round(
                    monitor, self._plan_assignments(parked, driver_address, max_tasks), sum(parked.values())
                )
                max_tasks = round_end.max_tasks
                parked = await self._count_parked(manager)
                await self._add_round_to_report(parked, round_end)
                if round_end.kind is RoundEndKind.STOPPED or (
                    settings.available_now and round_end.kind in (RoundEndKind.EMPTY, RoundEndKind.STUCK)
                ):
                    return
            elif parked is not None and settings.available_now:
                self.report.is_finished, self.report.reason = True, "there are no backlog queues"
                return
            else:
                await self._sleep_unless_stopped(
                    NO_QUEUES_POLL_INTERVAL_S if parked is not None else UNREACHABLE_POLL_INTERVAL_S
                )
                parked = await self._count_parked(manager)

    def _plan_assignments(
        self, parked: Mapping[str, int], driver_address: DriverAddress, max_tasks: int | None
    ) -> list[Assignment]:
        slots = self._spark.sparkContext.defaultParallelism
        groups = spread_queues(parked, slots if max_tasks is None else min(max_tasks, slots))
        self._round_number += 1
        return [
            Assignment(
                pair=self._settings.pair,
                backlog_queues=queues,
                driver_address=driver_address,
                round=self._round_number,
                group=group,
                driver_started_ms=self._started_ms,
                poll_s=self._settings.poll_s,
                deduct=self._settings.deduct,
                not_found_grace_s=self._settings.not_found_grace_s,
                lock_durations_ms={
                    path: self._lock_durations_ms[path] for path in queues if path in self._lock_durations_ms
                },
                journal_dir=self._settings.journal_dir,
            )
            for group, queues in enumerate(groups)
        ]

    async def _run_round(self, monitor: RoundMonitor, assignments: list[Assignment], parked: int) -> RoundEnd:
        """Run one round. Raise PipelineError if Spark cannot run the round."""
        round_ = self._round = Round(self._spark, self._task_server, self._round_number, assignments)
        try:
            round_end = await round_.run(lambda running: monitor.wait_for_end(running, parked))
        except RoundFailed as error:
            self._failed_rounds = 0 if round_.counts.moved else self._failed_rounds + 1
            if not list(round_.counts.tasks) or self._failed_rounds >= MAX_FAILED_ROUNDS:
                raise PipelineError(f"Spark gave up: {error}") from error
            log.warning("a round failed and is started again: %s", error)
            await self._sleep_unless_stopped(RETRY_DELAY_S)
            return RoundEnd(RoundEndKind.ROUTINE, f"Spark gave up a task: {error}")
        else:
            return round_end or RoundEnd(RoundEndKind.ROUTINE, "all tasks have ended")

    async def _add_round_to_report(self, parked: Mapping[str, int] | None, round_end: RoundEnd) -> None:
        """Add a round to the report, and write the rows of this round if the user gave a location."""
        assert self._round is not None
        rows = self._round.counts.rows(parked, round_end.reason)
        self._round = None
        self.report.add_round(rows)
        self.report.is_finished = round_end.kind is RoundEndKind.EMPTY or self.report.left == 0
        self.report.reason = round_end.reason
        if self._settings.report_place is not None:
            try:
                await asyncio.to_thread(report.write_report, self._spark, rows, self._settings.report_place)
            except Exception as error:  # noqa: BLE001  # any error of Spark: the messages were moved anyway
                self.report.write_error = f"{self._settings.report_place}: {str(error).strip().splitlines()[0]}"
                log.error("the report could not be written: %s", self.report.write_error)  # noqa: TRY400  # Spark's stack trace adds nothing

    async def _count_parked(self, manager: NamespaceManager) -> Mapping[str, int] | None:
        try:
            return await count_parked(manager, self._settings.pair.primary_name)
        except ServiceBusError as error:
            log.warning("the backlog queues could not be counted: %s", error)
            return None

    async def _sleep_unless_stopped(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopped.wait()
        except TimeoutError:
            pass

    def _on_task_report(self, task_id: TaskId, rows: list[MovedCount], problems: dict[str, str]) -> None:
        if self._round is not None and task_id.round == self._round.number:
            self._round.counts.update(task_id, rows, problems)

    def _publish_progress(self, progress: Progress) -> None:
        """Report progress with the totals of earlier rounds added."""
        moved, dead_lettered = self.report.moved + progress.moved, self.report.dead_lettered + progress.dead_lettered
        self._on_progress(
            Progress(
                moved=moved,
                dead_lettered=dead_lettered,
                left=progress.left,
                tasks=progress.tasks,
                problem=progress.problem,
            )
        )
