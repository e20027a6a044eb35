"""The driver: round after round, until it is stopped or nothing is parked any more.

A round lasts an hour at most, then backlog queues are looked for anew and spread over the places there are. Ending a
round costs an idle backlog queue no receive more: four polls of 15 minutes are an hour. Owns: what follows a round, and
the report. When a round is over is decided by `watch`.
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
"""How long tasks may take to finish; the pumps themselves take a few seconds at most."""
_PYTHON_ERROR_LINE: Final = re.compile(r"^(?:[\w.]+\.)?([A-Z]\w+(?:Error|Exception|Interrupt)?: .+)$", re.MULTILINE)


class RoundFailed(Exception):
    """Spark gave it up. The text says why, without the stack."""


class Round:
    """One of them."""

    def __init__(
        self, spark: SparkSession, task_server: TaskServer, number: int, assignments: Sequence[Assignment]
    ) -> None:
        """`run` begins."""
        self.number = number
        self.assignments = assignments
        self.counts = RoundCounts([assignment.backlog_queues for assignment in assignments])
        self._spark_context = spark.sparkContext
        self._task_server = task_server

    @property
    def running_tasks(self) -> int:
        """Tasks that run now."""
        return len({caller.group for caller in self._task_server.connected_tasks(self.number)})

    async def run(self, wait_for_end: Callable[[Round], Awaitable[RoundEnd]]) -> RoundEnd | None:
        """Have it run until `watch` says that it is over; None if it ended by itself. RoundFailed."""
        job = asyncio.ensure_future(asyncio.to_thread(self._run_job))
        watching = asyncio.ensure_future(wait_for_end(self))
        try:
            await asyncio.wait([job, watching], return_when=asyncio.FIRST_COMPLETED)
            over = watching.result() if watching.done() else None
        finally:
            watching.cancel()
            await self._finish(job)
        if not job.cancelled() and (error := job.exception()) is not None and over is None:
            raise RoundFailed(error_summary(error)) from error
        return over

    async def _finish(self, job: asyncio.Future[None]) -> None:
        """Let the tasks finish what is on its way."""
        self._task_server.end_round(self.number, "the round is over")
        with contextlib.suppress(Exception):
            await asyncio.wait([job], timeout=TASK_GRACE_S)
        if not job.done():
            self._spark_context.cancelJobGroup(self._job_group)
            await asyncio.wait([job])

    def cancel(self) -> None:
        """End it at once: what is on its way is found in its backlog queue again."""
        self._spark_context.cancelJobGroup(self._job_group)

    @property
    def _job_group(self) -> str:
        return f"twinbus-syphon-{self.number}"

    def _run_job(self) -> None:
        """On a thread of its own: it takes as long as the round."""
        context, count = self._spark_context, len(self.assignments)
        context.setJobGroup(self._job_group, f"syphon, round {self.number}", interruptOnCancel=True)
        yielded: list[TaskResult] = context.parallelize(self.assignments, count).mapPartitions(drain).collect()
        self.counts.finish(yielded)


def error_summary(error: BaseException) -> str:
    """What a failed job says: the last line of the Python stack in it, if there is one."""
    text = str(getattr(error, "java_exception", None) or error)
    found = _PYTHON_ERROR_LINE.findall(text)
    return found[-1] if found else text.strip().split("\n", 1)[0]


log: Final = logging.getLogger(__name__)

MASTER: Final = "local[*,4]"
"""This machine; a task that fails is started again, as on a cluster."""
SETTINGS: Final = {
    "spark.speculation": "false",  # a second attempt beside the first would take its queues from it
    "spark.task.maxFailures": "8",
}
POLL_S: Final = 900.0
MAX_ROUND_S: Final = 3600.0
NO_QUEUES_POLL_INTERVAL_S: Final = 60.0
"""How often backlog queues are looked for where there is none yet."""
UNREACHABLE_POLL_INTERVAL_S: Final = 5.0
"""How often the secondary is asked if it does not answer."""
RETRY_DELAY_S: Final = 5.0
MAX_FAILED_ROUNDS: Final = 3
"""Rounds in a row that failed without moving anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the user asks for."""

    pair: Pair
    available_now: bool = False
    """End when nothing is parked any more, or nothing moves."""
    wait_s: float = 60.0
    """How long nothing may move then."""
    deduct: bool = False
    """Take the parked time off the time to live."""
    not_found_grace_s: float = NOT_FOUND_GRACE_S
    """How long messages for a destination that does not exist stay parked before they are dead-lettered."""
    journal_dir: str | None = None
    """Where each task writes down what became of each message, on its machine."""
    report_place: str | None = None
    """Where the report is added as Parquet."""
    poll_s: float = POLL_S
    round_s: float = MAX_ROUND_S


class SparkSyphon:
    """One run of it."""

    def __init__(self, spark: SparkSession, settings: Wanted, on_progress: Callable[[Progress], None] = ignore) -> None:
        """`run` begins; `told` hears how far it is, several times a second."""
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
        """End soon, and well; asked again, at once."""
        if self._stopped.is_set() and self._round is not None:
            self._round.cancel()
        self._stopped.set()

    async def run(self) -> Report:
        """Drain. PipelineError, or ServiceBusError if the secondary does not even answer once."""
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
        """Round after round."""
        name, wanted = self._settings.pair.primary_name, self._settings
        watch = RoundMonitor(
            stopped=self._stopped,
            count_slots=lambda: self._spark.sparkContext.defaultParallelism,
            count_parked=lambda: count_parked(manager, name),
            on_progress=self._publish_progress,
            max_round_s=wanted.round_s,
            idle_timeout_s=wanted.wait_s if wanted.available_now else None,
        )
        parked: Mapping[str, int] | None = await count_parked(manager, name)
        self._lock_durations_ms = await lock_durations(manager, name) if parked else {}
        most: int | None = None
        while not self._stopped.is_set():
            if parked:
                over = await self._run_round(
                    watch, self._plan_assignments(parked, driver_address, most), sum(parked.values())
                )
                most = over.max_tasks
                parked = await self._count_parked(manager)
                await self._add_round_to_report(parked, over)
                if over.kind is RoundEndKind.STOPPED or (
                    wanted.available_now and over.kind in (RoundEndKind.EMPTY, RoundEndKind.STUCK)
                ):
                    return
            elif parked is not None and wanted.available_now:
                self.report.is_finished, self.report.reason = True, "there is no backlog queue"
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
        """One round. PipelineError where Spark cannot run it at all."""
        one = self._round = Round(self._spark, self._task_server, self._round_number, assignments)
        try:
            over = await one.run(lambda this: monitor.wait_for_end(this, parked))
        except RoundFailed as error:
            self._failed_rounds = 0 if one.counts.moved else self._failed_rounds + 1
            if not list(one.counts.tasks) or self._failed_rounds >= MAX_FAILED_ROUNDS:
                raise PipelineError(f"Spark gave up: {error}") from error
            log.warning("a round failed, and is begun anew: %s", error)
            await self._sleep_unless_stopped(RETRY_DELAY_S)
            return RoundEnd(RoundEndKind.ROUTINE, f"a task was given up: {error}")
        else:
            return over or RoundEnd(RoundEndKind.ROUTINE, "its tasks have ended")

    async def _add_round_to_report(self, parked: Mapping[str, int] | None, round_end: RoundEnd) -> None:
        """Add a round to the report."""
        assert self._round is not None
        rows = self._round.counts.rows(parked, round_end.reason)
        self._round = None
        self.report.add_round(rows)
        self.report.is_finished = round_end.kind is RoundEndKind.EMPTY or self.report.left == 0
        self.report.reason = round_end.reason
        if self._settings.report_place is not None:
            try:
                await asyncio.to_thread(report.write_report, self._spark, rows, self._settings.report_place)
            except Exception as error:  # noqa: BLE001  # whatever Spark has: the messages are moved all the same
                self.report.write_error = f"{self._settings.report_place}: {str(error).strip().splitlines()[0]}"
                log.error("the report was not written: %s", self.report.write_error)  # noqa: TRY400  # Spark's stack says no more

    async def _count_parked(self, manager: NamespaceManager) -> Mapping[str, int] | None:
        try:
            return await count_parked(manager, self._settings.pair.primary_name)
        except ServiceBusError as error:
            log.warning("the backlog queues were not counted: %s", error)
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
        """With what earlier rounds have moved."""
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
