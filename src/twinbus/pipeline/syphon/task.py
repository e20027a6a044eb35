"""What a task of the syphon does on its executor.

Owns: its way from the assignment to the rows it yields. A task ends when the driver says so, when the driver is gone,
or when its executor is: then its Python worker hears SIGHUP, and there is time to finish what is on its way.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

import uvloop

from twinbus.client.pairing.destination import Senders
from twinbus.client.pairing.events import EVERY_KIND, EventKind
from twinbus.client.pairing.pair_events import PairEvents
from twinbus.client.pairing.pump import Pump, PumpSettings
from twinbus.client.pairing.rewriting import LOCK_MS
from twinbus.client.pairing.wakeups import Wakeups
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.syphon.line import Caller, calling
from twinbus.pipeline.syphon.tally import KINDS, Moved, Tally

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from twinbus.client import MessagingFactory
    from twinbus.client.clock import Clock
    from twinbus.client.events import Kind
    from twinbus.client.pairing.parcel import Parcel
    from twinbus.pipeline.syphon.assignment import Assignment
    from twinbus.pipeline.syphon.line import Call

SIGNALS: Final = (signal.SIGHUP, signal.SIGTERM)


class Yielded(NamedTuple):
    """A row: what one attempt of a task has moved between a backlog queue and a destination; at least one a queue."""

    caller: Caller
    moved: Moved


def drain(assignments: Iterable[Assignment]) -> Iterator[Yielded]:
    """All that a partition asks for."""
    from pyspark import TaskContext  # noqa: PLC0415  # a task has it

    context = TaskContext.get()
    attempt = context.attemptNumber() if context is not None else 0
    for assignment in assignments:
        yield from uvloop.run(work(assignment, attempt))


async def work(assignment: Assignment, attempt: int) -> list[Yielded]:
    """Pump until it is time to end."""
    caller, tally = Caller(assignment.round, assignment.group, attempt), Tally(assignment.queues)
    async with calling(assignment.driver, caller) as call:
        if call.ended.done():
            return []
        telling = asyncio.ensure_future(call.tell(tally))
        try:
            with _ended_by_signals(call):
                async with pumping(*assignment.pair.factories(), assignment, assignment.epoch(attempt), tally) as pumps:
                    await _until_ended(call, pumps)
        finally:
            telling.cancel()
    return [Yielded(caller, row) for row in tally.rows()]


async def _until_ended(call: Call, pumps: list[Pump]) -> None:
    """PipelineError where a pump has ended without being told: Spark starts the task again."""
    failing = asyncio.ensure_future(ended(pumps))
    try:
        await asyncio.wait([call.ended, failing], return_when=asyncio.FIRST_COMPLETED)
        if not call.ended.done():
            raise PipelineError(f"the pump of '{failing.result()}' has ended")
    finally:
        failing.cancel()


@contextlib.contextmanager
def _ended_by_signals(call: Call) -> Iterator[None]:
    """Spark's Python daemon tells its workers so that the executor is gone."""
    loop, heard = asyncio.get_running_loop(), SIGNALS if threading.current_thread() is threading.main_thread() else ()
    for number in heard:
        loop.add_signal_handler(number, call.end, f"the executor ended its tasks ({number.name})")
    try:
        yield
    finally:
        for number in heard:
            loop.remove_signal_handler(number)


# --- pumps ------------------------------------------------------------------------------------------------------------

LOOK_S: Final = 5.0


@contextlib.asynccontextmanager
async def pumping(
    primary: MessagingFactory, secondary: MessagingFactory, assignment: Assignment, epoch: int, tally: Tally
) -> AsyncIterator[list[Pump]]:
    """Drain within the block. At its end what is on its way is waited for, for a moment; the rest stays parked."""
    clock = primary.settings.clock
    events = _Counting(clock, tally, primary.address, secondary.address)
    events.listen(tally.hear, KINDS)
    settings = PumpSettings(
        secondary=secondary,
        sender_to=Senders(primary).to,
        wakeups=Wakeups(),
        epoch=epoch,
        poll_s=assignment.poll_s,
        send_timeout_s=primary.settings.operation_timeout_s,
        deduct=assignment.deduct,
        not_found_grace_s=assignment.not_found_grace_s,
        clock=clock,
        events=events,
    )
    async with primary, secondary, _journal(assignment.journal_dir, primary, secondary, events):
        pumps = [Pump(path, settings, assignment.locks_ms.get(path, LOCK_MS)) for path in assignment.queues]
        for pump in pumps:
            pump.start()
        try:
            yield pumps
        finally:
            await asyncio.gather(*[pump.close() for pump in pumps])


@contextlib.asynccontextmanager
async def _journal(
    folder: str | None, primary: MessagingFactory, secondary: MessagingFactory, events: PairEvents
) -> AsyncIterator[None]:
    """What becomes of each message is written down on this machine, as a pair does with `journal_dir`."""
    if folder is None:
        yield
        return
    from twinbus.client.journal import Journal  # noqa: PLC0415  # pyarrow is optional

    journal = Journal(folder, clock=primary.settings.clock)
    events.listen(journal.attach(primary).hear, EVERY_KIND)
    journal.attach(secondary)
    try:
        yield
    finally:
        await asyncio.shield(journal.close())


class _Counting(PairEvents):
    """Counts each message that is moved, and makes an event of it only where somebody wants one: it costs more."""

    def __init__(self, clock: Clock, tally: Tally, primary: str, secondary: str) -> None:
        super().__init__(clock, primary, secondary)
        self._wall_ms = clock.wall_ms
        self._tally = tally

    def wants(self, kind: Kind) -> bool:
        return kind is EventKind.MOVED or super().wants(kind)

    def emit_parcel(self, kind: EventKind, parcel: Parcel, backlog_queue: str, reason: str | None = None) -> None:
        if kind is EventKind.MOVED:
            self._tally.moved(backlog_queue, parcel.restored.path, self._wall_ms())
            if not super().wants(kind):
                return
        super().emit_parcel(kind, parcel, backlog_queue, reason)


async def ended(pumps: list[Pump]) -> str:
    """Wait until one of them has ended by itself, which it should not: its backlog queue."""
    while True:
        await asyncio.sleep(LOOK_S)
        for pump in pumps:
            if pump.has_ended:
                return pump.path
