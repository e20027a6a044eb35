"""The driver of a capture: it looks, has windows written that are due, and makes their files count.

    with session("twinbus capture") as spark:
        asyncio.run(Capture(spark, settings, told).run(stop))

Owns: the turn of each second, the jobs, and what is done when one fails: a namespace that is down is waited for, unless
only what is available now was asked for. What is done to one entity is in `entity`, what a task does in `task`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final, Protocol

from twinbus.model.errors import CallerError, ServiceBusError
from twinbus.pipeline.capture.entity import CapturedEntity
from twinbus.pipeline.capture.folder import Folder
from twinbus.pipeline.capture.task import capture_window, failure_report
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.spark import first_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from twinbus.pipeline.capture.manifest import Manifest
    from twinbus.pipeline.capture.settings import CaptureSettings
    from twinbus.pipeline.capture.task import CaptureTask, TaskReport

log: Final = logging.getLogger(__name__)

POLL_INTERVAL_S: Final = 1.0
RETRY_DELAY_S: Final = 5.0
"""After a failure that may pass."""


class CaptureObserver(Protocol):
    """Who is told how it goes on."""

    def on_captured(self, manifest: Manifest) -> None:
        """There is one more file."""

    def on_retry(self, entity: str, reason: str) -> None:
        """An entity cannot be captured now; it is tried again."""


class Capture:
    """Of some entities of one namespace, to one place."""

    def __init__(self, spark: SparkSession, settings: CaptureSettings, observer: CaptureObserver) -> None:
        """`run` does it."""
        self._spark = spark
        self._settings = settings
        self._observer = observer
        self._folder = Folder(settings.target_uri)
        self._entities: dict[str, CapturedEntity] = {}
        self._retry_at_s: dict[str, float] = {}
        """When an entity that failed is looked at again."""

    async def run(self, stop: asyncio.Event) -> None:
        """Capture until stopped, or what is available now. What is under way when it is stopped is finished.

        What is in windows that are still open is left for the next time.
        """
        async with contextlib.AsyncExitStack() as stack:
            for path in self._settings.entities:
                entity = CapturedEntity(self._folder, self._settings, path)
                stack.push_async_callback(entity.close)
                stack.enter_context(self._folder.lock(entity.folder_path))
                await entity.open()
                await entity.complete_captured()
                self._entities[entity.path] = entity
            if self._settings.available_now:
                await self._capture_available()
            else:
                await self._run_until_stopped(stop)

    async def _capture_available(self) -> None:
        """All windows at once, and those again that fail for a reason that may pass."""
        orders = [
            order for entity in self._entities.values() for order in await entity.find_due_windows(0.0, force=True)
        ]
        for last_try in (False, False, True):
            again = {(one.entity, one.fragment): one.failure for one in await self._run_tasks(orders)} if orders else {}
            if again and last_try:
                (path, fragment), reason = next(iter(again.items()))
                raise PipelineError(f"fragment {fragment} of '{path}' was not captured: {reason}")
            orders = [order for order in orders if (order.entity, order.window.fragment) in again]
        for entity in self._entities.values():
            await entity.complete_captured()

    async def _run_until_stopped(self, stop: asyncio.Event) -> None:
        jobs: set[asyncio.Task[list[TaskReport]]] = set()
        stopped = asyncio.ensure_future(stop.wait())
        try:
            while not stop.is_set():
                looking = asyncio.ensure_future(self._find_due_windows())
                await asyncio.wait((looking, stopped), return_when=asyncio.FIRST_COMPLETED)
                if not looking.done():  # a namespace that does not answer is not waited for
                    looking.cancel()
                    break
                if orders := looking.result():
                    jobs.add(asyncio.ensure_future(self._run_tasks(orders)))
                for job in [job for job in jobs if job.done()]:
                    jobs.discard(job)
                    job.result()  # raises what will not pass
                await asyncio.wait((stopped,), timeout=POLL_INTERVAL_S)
        finally:
            stopped.cancel()
            results = await asyncio.gather(*jobs, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _find_due_windows(self) -> list[CaptureTask]:
        """The windows of all entities that are to be written now."""
        now_s, orders = asyncio.get_running_loop().time(), []
        for entity in self._entities.values():
            if self._retry_at_s.get(entity.path, now_s) > now_s:
                continue
            try:
                orders += await entity.find_due_windows(now_s, force=False)
            except CallerError:
                raise  # it was deleted, or nobody may read it: that will not pass
            except ServiceBusError as error:
                self._retry_later(entity.path, str(error))
        return orders

    def _retry_later(self, path: str, reason: str) -> None:
        self._retry_at_s[path] = asyncio.get_running_loop().time() + RETRY_DELAY_S
        self._observer.on_retry(path, reason)

    async def _run_tasks(self, tasks: Sequence[CaptureTask]) -> list[TaskReport]:
        """Have windows written, a task for each, and make their files count; what has failed and may pass."""
        try:
            reports = await asyncio.to_thread(self._write_windows, tasks)
        except Exception as error:  # noqa: BLE001  # whatever Spark says: the next job may succeed
            reports = [failure_report(order, f"Spark's job failed: {first_line(error)}") for order in tasks]
        again = []
        for report in reports:
            entity = self._entities[report.entity]
            if report.failure is None:
                for manifest in await entity.commit(report):
                    self._observer.on_captured(manifest)
                await self._complete(entity)
                continue
            if report.is_permanent:
                with contextlib.suppress(ServiceBusError):  # then the failure itself is what is said
                    await entity.check_for_losses()
            if not entity.reopen_window(report):
                continue  # what it was to write is gone, and that may be
            if report.is_permanent:
                raise PipelineError(report.failure)
            self._retry_later(report.entity, report.failure)
            again.append(report)
        return again

    async def _complete(self, entity: CapturedEntity) -> None:
        """What fails for a reason that may pass is done with the next window."""
        try:
            await entity.complete_captured()
        except CallerError:
            raise
        except ServiceBusError as error:
            self._retry_later(entity.path, f"what was captured is not completed yet: {error}")

    def _write_windows(self, tasks: Sequence[CaptureTask]) -> list[TaskReport]:
        reports: list[TaskReport] = (
            self._spark.sparkContext.parallelize(tasks, len(tasks)).map(capture_window).collect()
        )
        return reports
