"""The driver of a capture: finds due windows, runs the tasks that write windows to files, and commits the files.

    with session("twinbus capture") as spark:
        asyncio.run(Capture(spark, settings, observer).run(stop))

Owns the polling loop, the Spark jobs, and the handling of failures: if a namespace is down, the driver retries, unless
the run is limited to the available messages. `entity` handles one entity, `task` runs in executors.
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
"""Delay after a temporary failure."""


class CaptureObserver(Protocol):
    """Observer of the progress of a capture."""

    def on_captured(self, manifest: Manifest) -> None:
        """Handle a new captured file."""

    def on_retry(self, entity: str, reason: str) -> None:
        """Handle a temporary failure at an entity. The driver will retry."""


class Capture:
    """Capture of some entities in one namespace to one folder."""

    def __init__(self, spark: SparkSession, settings: CaptureSettings, observer: CaptureObserver) -> None:
        """Create a capture. `run` starts it."""
        self._spark = spark
        self._settings = settings
        self._observer = observer
        self._folder = Folder(settings.target_uri)
        self._entities: dict[str, CapturedEntity] = {}
        self._retry_at_s: dict[str, float] = {}
        """Time of the next attempt for each entity that failed."""

    async def run(self, stop: asyncio.Event) -> None:
        """Capture messages until stopped, or only the messages available now.

        When the capture is stopped, it finishes running jobs. Messages in open windows are left for the next run.
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
        """Write all windows at once, and retry windows that fail temporarily."""
        tasks = [task for entity in self._entities.values() for task in await entity.find_due_windows(0.0, force=True)]
        for last_try in (False, False, True):
            failed = (
                {(report.entity, report.fragment): report.failure for report in await self._run_tasks(tasks)}
                if tasks
                else {}
            )
            if failed and last_try:
                (path, fragment), reason = next(iter(failed.items()))
                raise PipelineError(f"fragment {fragment} of '{path}' was not captured: {reason}")
            tasks = [task for task in tasks if (task.entity, task.window.fragment) in failed]
        for entity in self._entities.values():
            await entity.complete_captured()

    async def _run_until_stopped(self, stop: asyncio.Event) -> None:
        jobs: set[asyncio.Task[list[TaskReport]]] = set()
        stopped = asyncio.ensure_future(stop.wait())
        try:
            while not stop.is_set():
                search = asyncio.ensure_future(self._find_due_windows())
                await asyncio.wait((search, stopped), return_when=asyncio.FIRST_COMPLETED)
                if not search.done():  # do not wait for a namespace that does not respond
                    search.cancel()
                    break
                if tasks := search.result():
                    jobs.add(asyncio.ensure_future(self._run_tasks(tasks)))
                for job in [job for job in jobs if job.done()]:
                    jobs.discard(job)
                    job.result()  # raises permanent errors
                await asyncio.wait((stopped,), timeout=POLL_INTERVAL_S)
        finally:
            stopped.cancel()
            results = await asyncio.gather(*jobs, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _find_due_windows(self) -> list[CaptureTask]:
        """Return tasks for the due windows of all entities."""
        now_s, tasks = asyncio.get_running_loop().time(), []
        for entity in self._entities.values():
            if self._retry_at_s.get(entity.path, now_s) > now_s:
                continue
            try:
                tasks += await entity.find_due_windows(now_s, force=False)
            except CallerError:
                raise  # permanent: the entity was deleted, or access is denied
            except ServiceBusError as error:
                self._retry_later(entity.path, str(error))
        return tasks

    def _retry_later(self, path: str, reason: str) -> None:
        self._retry_at_s[path] = asyncio.get_running_loop().time() + RETRY_DELAY_S
        self._observer.on_retry(path, reason)

    async def _run_tasks(self, tasks: Sequence[CaptureTask]) -> list[TaskReport]:
        """Write each window in its own task, and commit the files. Return the reports of temporary failures."""
        try:
            reports = await asyncio.to_thread(self._write_windows, tasks)
        except Exception as error:  # noqa: BLE001  # any error of Spark: the next job may succeed
            reports = [failure_report(task, f"Spark's job failed: {first_line(error)}") for task in tasks]
        temporary_failures = []
        for report in reports:
            entity = self._entities[report.entity]
            if report.failure is None:
                for manifest in await entity.commit(report):
                    self._observer.on_captured(manifest)
                await self._complete(entity)
                continue
            if report.is_permanent:
                with contextlib.suppress(ServiceBusError):  # the task's failure is reported instead
                    await entity.check_for_losses()
            if not entity.reopen_window(report):
                continue  # the window's messages are gone, and data loss is allowed
            if report.is_permanent:
                raise PipelineError(report.failure)
            self._retry_later(report.entity, report.failure)
            temporary_failures.append(report)
        return temporary_failures

    async def _complete(self, entity: CapturedEntity) -> None:
        """Complete captured messages. A temporary failure is retried with the next window."""
        try:
            await entity.complete_captured()
        except CallerError:
            raise
        except ServiceBusError as error:
            self._retry_later(entity.path, f"captured messages are not completed yet: {error}")

    def _write_windows(self, tasks: Sequence[CaptureTask]) -> list[TaskReport]:
        reports: list[TaskReport] = (
            self._spark.sparkContext.parallelize(tasks, len(tasks)).map(capture_window).collect()
        )
        return reports
