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

from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.syphon.line import Caller, calling
from twinbus.pipeline.syphon.pumping import ended, pumping
from twinbus.pipeline.syphon.tally import Moved, Tally

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from twinbus.client.pairing.pump import Pump
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
