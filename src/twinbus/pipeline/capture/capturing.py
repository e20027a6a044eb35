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
from twinbus.pipeline.capture.task import capture_window, failed
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.spark import first_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from twinbus.pipeline.capture.manifest import Manifest
    from twinbus.pipeline.capture.settings import CaptureSettings
    from twinbus.pipeline.capture.task import Order, Report

log: Final = logging.getLogger(__name__)

LOOK_S: Final = 1.0
PAUSE_S: Final = 5.0
"""After a failure that may pass."""


class Told(Protocol):
    """Who is told how it goes on."""

    def captured(self, manifest: Manifest) -> None:
        """There is one more file."""

    def waits(self, entity: str, reason: str) -> None:
        """An entity cannot be captured now; it is tried again."""


class Capture:
    """Of some entities of one namespace, to one place."""

    def __init__(self, spark: SparkSession, settings: CaptureSettings, told: Told) -> None:
        """`run` does it."""
        self._spark = spark
        self._settings = settings
        self._told = told
        self._folder = Folder(settings.to)
        self._entities: dict[str, CapturedEntity] = {}
        self._not_before_s: dict[str, float] = {}
        """When an entity that failed is looked at again."""

    async def run(self, stop: asyncio.Event) -> None:
        """Capture until stopped, or what is available now. What is under way when it is stopped is finished.

        What is in windows that are still open is left for the next time.
        """
        async with contextlib.AsyncExitStack() as stack:
            for path in self._settings.entities:
                entity = CapturedEntity(self._folder, self._settings, path)
                stack.push_async_callback(entity.close)
                stack.enter_context(self._folder.alone(entity.place))
                await entity.open()
                await entity.complete_captured()
                self._entities[entity.path] = entity
            if self._settings.available_now:
                await self._capture_available()
            else:
                await self._go_on(stop)

    async def _capture_available(self) -> None:
        """All windows at once, and those again that fail for a reason that may pass."""
        orders = [order for entity in self._entities.values() for order in await entity.look(0.0, at_once=True)]
        for last_try in (False, False, True):
            again = {(one.entity, one.fragment): one.failure for one in await self._run(orders)} if orders else {}
            if again and last_try:
                (path, fragment), reason = next(iter(again.items()))
                raise PipelineError(f"fragment {fragment} of '{path}' was not captured: {reason}")
            orders = [order for order in orders if (order.entity, order.closing.fragment) in again]
        for entity in self._entities.values():
            await entity.complete_captured()

    async def _go_on(self, stop: asyncio.Event) -> None:
        jobs: set[asyncio.Task[list[Report]]] = set()
        stopped = asyncio.ensure_future(stop.wait())
        try:
            while not stop.is_set():
                looking = asyncio.ensure_future(self._look())
                await asyncio.wait((looking, stopped), return_when=asyncio.FIRST_COMPLETED)
                if not looking.done():  # a namespace that does not answer is not waited for
                    looking.cancel()
                    break
                if orders := looking.result():
                    jobs.add(asyncio.ensure_future(self._run(orders)))
                for job in [job for job in jobs if job.done()]:
                    jobs.discard(job)
                    job.result()  # raises what will not pass
                await asyncio.wait((stopped,), timeout=LOOK_S)
        finally:
            stopped.cancel()
            results = await asyncio.gather(*jobs, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _look(self) -> list[Order]:
        """The windows of all entities that are to be written now."""
        now_s, orders = asyncio.get_running_loop().time(), []
        for entity in self._entities.values():
            if self._not_before_s.get(entity.path, now_s) > now_s:
                continue
            try:
                orders += await entity.look(now_s, at_once=False)
            except CallerError:
                raise  # it was deleted, or nobody may read it: that will not pass
            except ServiceBusError as error:
                self._wait(entity.path, str(error))
        return orders

    def _wait(self, path: str, reason: str) -> None:
        self._not_before_s[path] = asyncio.get_running_loop().time() + PAUSE_S
        self._told.waits(path, reason)

    async def _run(self, orders: Sequence[Order]) -> list[Report]:
        """Have windows written, a task for each, and make their files count; what has failed and may pass."""
        try:
            reports = await asyncio.to_thread(self._write, orders)
        except Exception as error:  # noqa: BLE001  # whatever Spark says: the next job may succeed
            reports = [failed(order, f"Spark's job failed: {first_line(error)}") for order in orders]
        again = []
        for report in reports:
            entity = self._entities[report.entity]
            if report.failure is None:
                for manifest in await entity.commit(report):
                    self._told.captured(manifest)
                await self._complete(entity)
                continue
            if report.is_lasting:
                with contextlib.suppress(ServiceBusError):  # then the failure itself is what is said
                    await entity.look_for_losses()
            if not entity.give_up(report):
                continue  # what it was to write is gone, and that may be
            if report.is_lasting:
                raise PipelineError(report.failure)
            self._wait(report.entity, report.failure)
            again.append(report)
        return again

    async def _complete(self, entity: CapturedEntity) -> None:
        """What fails for a reason that may pass is done with the next window."""
        try:
            await entity.complete_captured()
        except CallerError:
            raise
        except ServiceBusError as error:
            self._wait(entity.path, f"what was captured is not completed yet: {error}")

    def _write(self, orders: Sequence[Order]) -> list[Report]:
        reports: list[Report] = self._spark.sparkContext.parallelize(orders, len(orders)).map(capture_window).collect()
        return reports
