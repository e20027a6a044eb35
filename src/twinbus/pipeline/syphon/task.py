"""A task of the syphon, on its executor.

Owns the execution of an assignment, including the result rows. A task stops when the driver says so, when the driver is
gone, or when its executor stops: the Python worker then receives SIGHUP and has time to settle messages in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

import uvloop

from twinbus.client.pairing.backlog.rewriting import DEFAULT_LOCK_MS
from twinbus.client.pairing.observe.event_publisher import PairEventPublisher
from twinbus.client.pairing.observe.events import ALL_KINDS, EventKind
from twinbus.client.pairing.syphon.destination import PrimarySenders
from twinbus.client.pairing.syphon.pump import Pump, PumpSettings
from twinbus.client.pairing.syphon.wakeups import Wakeups
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.syphon.driver_connection import TaskId, connect_to_driver
from twinbus.pipeline.syphon.progress import COUNTED_EVENTS, MovedCount, TaskProgress

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from twinbus.client import MessagingFactory
    from twinbus.client.clock import Clock
    from twinbus.client.events import Kind
    from twinbus.client.pairing.syphon.parked_message import ParkedMessage
    from twinbus.pipeline.syphon.assignment import Assignment
    from twinbus.pipeline.syphon.driver_connection import DriverConnection

STOP_SIGNALS: Final = (signal.SIGHUP, signal.SIGTERM)


class TaskResult(NamedTuple):
    """Result row: counts of messages that one task attempt moved from a backlog queue to a destination.

    Each backlog queue has at least one row.
    """

    task_id: TaskId
    moved: MovedCount


def drain(assignments: Iterable[Assignment]) -> Iterator[TaskResult]:
    """Run the assignments in a partition."""
    from pyspark import TaskContext  # noqa: PLC0415  # tasks have PySpark

    context = TaskContext.get()
    attempt = context.attemptNumber() if context is not None else 0
    for assignment in assignments:
        yield from uvloop.run(run_task(assignment, attempt))


async def run_task(assignment: Assignment, attempt: int) -> list[TaskResult]:
    """Run the pumps for an assignment until the task has to stop."""
    task_id, progress = TaskId(assignment.round, assignment.group, attempt), TaskProgress(assignment.backlog_queues)
    async with connect_to_driver(assignment.driver_address, task_id) as connection:
        if connection.end_reason.done():
            return []
        reporting = asyncio.ensure_future(connection.send_reports(progress))
        try:
            with _end_on_signals(connection):
                async with running_pumps(
                    *assignment.pair.factories(), assignment, assignment.epoch(attempt), progress
                ) as pumps:
                    await _wait_for_end(connection, pumps)
        finally:
            reporting.cancel()
    return [TaskResult(task_id, row) for row in progress.rows()]


async def _wait_for_end(connection: DriverConnection, pumps: list[Pump]) -> None:
    """Wait until the task has to stop. If a pump stops by itself, raise PipelineError, so that Spark retries."""
    failing = asyncio.ensure_future(wait_for_ended_pump(pumps))
    try:
        await asyncio.wait([connection.end_reason, failing], return_when=asyncio.FIRST_COMPLETED)
        if not connection.end_reason.done():
            raise PipelineError(f"the pump of '{failing.result()}' has ended")
    finally:
        failing.cancel()


@contextlib.contextmanager
def _end_on_signals(connection: DriverConnection) -> Iterator[None]:
    """Stop the task on SIGHUP or SIGTERM, which Spark's Python daemon sends when the executor stops."""
    loop, signals = (
        asyncio.get_running_loop(),
        STOP_SIGNALS if threading.current_thread() is threading.main_thread() else (),
    )
    for number in signals:
        loop.add_signal_handler(number, connection.end, f"the executor ended its tasks ({number.name})")
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


# --- pumps ------------------------------------------------------------------------------------------------------------

PUMP_POLL_INTERVAL_S: Final = 5.0


@contextlib.asynccontextmanager
async def running_pumps(
    primary: MessagingFactory, secondary: MessagingFactory, assignment: Assignment, epoch: int, progress: TaskProgress
) -> AsyncIterator[list[Pump]]:
    """Run pumps within the block. On exit, wait briefly for messages in flight; all other messages stay parked."""
    clock = primary.settings.clock
    events = _CountingEvents(clock, progress, primary.address, secondary.address)
    events.listen(progress.on_event, COUNTED_EVENTS)
    settings = PumpSettings(
        secondary=secondary,
        sender_to=PrimarySenders(primary).sender_to,
        wakeups=Wakeups(),
        epoch=epoch,
        poll_s=assignment.poll_s,
        send_timeout_s=primary.settings.operation_timeout_s,
        deduct_parked_time=assignment.deduct,
        not_found_grace_s=assignment.not_found_grace_s,
        clock=clock,
        events=events,
    )
    async with primary, secondary, _attached_journal(assignment.journal_dir, primary, secondary, events):
        pumps = [
            Pump(path, settings, assignment.lock_durations_ms.get(path, DEFAULT_LOCK_MS))
            for path in assignment.backlog_queues
        ]
        for pump in pumps:
            pump.start()
        try:
            yield pumps
        finally:
            await asyncio.gather(*[pump.close() for pump in pumps])


@contextlib.asynccontextmanager
async def _attached_journal(
    folder: str | None, primary: MessagingFactory, secondary: MessagingFactory, events: PairEventPublisher
) -> AsyncIterator[None]:
    """Write message outcomes to a journal on this machine, as a pair with `journal_dir` does."""
    if folder is None:
        yield
        return
    from twinbus.client.journal import Journal  # noqa: PLC0415  # pyarrow is optional

    journal = Journal(folder, clock=primary.settings.clock)
    events.listen(journal.attach(primary).on_event, ALL_KINDS)
    journal.attach(secondary)
    try:
        yield
    finally:
        await asyncio.shield(journal.close())


class _CountingEvents(PairEventPublisher):
    """Publisher that counts moved messages, and creates events only for listeners, because events are slow."""

    def __init__(self, clock: Clock, progress: TaskProgress, primary: str, secondary: str) -> None:
        super().__init__(clock, primary, secondary)
        self._wall_ms = clock.wall_ms
        self._progress = progress

    def is_wanted(self, kind: Kind) -> bool:
        return kind is EventKind.MOVED or super().is_wanted(kind)

    def emit_message(
        self, kind: EventKind, message: ParkedMessage, backlog_queue: str, reason: str | None = None
    ) -> None:
        if kind is EventKind.MOVED:
            self._progress.count_moved(backlog_queue, message.restored.path, self._wall_ms())
            if not super().is_wanted(kind):
                return
        super().emit_message(kind, message, backlog_queue, reason)


async def wait_for_ended_pump(pumps: list[Pump]) -> str:
    """Wait until a pump has stopped by itself, and return the path of its backlog queue."""
    while True:
        await asyncio.sleep(PUMP_POLL_INTERVAL_S)
        for pump in pumps:
            if pump.has_ended:
                return pump.path
