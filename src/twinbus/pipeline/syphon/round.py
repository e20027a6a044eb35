"""A round of the syphon: one job of Spark, whose tasks have all backlog queues between them.

Owns: the job from its start to its end. When it is to end is decided by `watch`; what comes next is the driver's.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, Final

from twinbus.pipeline.syphon.report import RoundCounts
from twinbus.pipeline.syphon.task import drain

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from pyspark.sql import SparkSession

    from twinbus.pipeline.syphon.assignment import Assignment
    from twinbus.pipeline.syphon.line import TaskServer
    from twinbus.pipeline.syphon.task import TaskResult
    from twinbus.pipeline.syphon.watch import RoundEnd

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
