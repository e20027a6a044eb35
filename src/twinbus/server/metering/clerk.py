"""The clerk: writes what the meter of a process counted, and has each hour made a Parquet file.

    clerk = Clerk(meter, clock, timers, Desk(folder=folder, namespace="contoso"))
    clerk.start()
    ...
    await clerk.close()

Owns: when what is written, on threads of its own: the loop only makes a list of the counters. Each minute is written to
the journal and synced; within the minute, changes are appended to the partial minute about once a second, so that a
kill loses a second at most (`journal`). A disk that is full, or does not answer, costs rows and nothing else; it is
said once, and marked where they are missing. A minute is what was counted since the last one was written: if the clock
is set back, it is the same minute until that has caught up.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twinbus.model.usage import BEGIN, END, HOUR_S, LOST, MINUTE_S, Head, UsageRow
from twinbus.server.metering.journal import Journal
from twinbus.server.metering.meter import take_partial_rows, take_rows
from twinbus.server.metering.roller import Roller

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from twinbus.broker.clock import Clock, Timer, Timers
    from twinbus.server.metering.counter import Counter
    from twinbus.server.metering.meter import Meter

log: Final = logging.getLogger(__name__)

LONGEST_S: Final = 90.0
"""What was counted is written after so long, whatever the wall clock says."""
PARTIAL_S: Final = 0.75
"""How often changes within a minute are written: with the write itself, a kill loses less than a second."""
PARTIAL_SHARE: Final = 0.01
"""How much of a processor that may take. With thousands of busy counters, changes are written less often."""
STOP_S: Final = 3.0
"""How long the last minute may take to be written."""
_LIFE_BYTES: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """Where a clerk works."""

    folder: Path
    """`usage`, in the data directory."""
    namespace: str
    process: int = 0
    """Its number."""
    processes: int = 1
    """How many there are: journals of those that are no more are for the first one."""
    days: int = 0
    """How long Parquet files are kept; 0 is for ever."""


class Clerk:
    """Of one process."""

    def __init__(
        self, meter: Meter, clock: Clock, timers: Timers, desk: Desk, run: Callable[[list[str]], object] | None = None
    ) -> None:
        """Nothing is written yet. `run` is for tests: what is done in place of the program that rolls."""
        self.life = secrets.token_hex(_LIFE_BYTES)
        self._meter = meter
        self._clock = clock
        self._timers = timers
        self._desk = desk
        self._journal = Journal(desk.folder, namespace=desk.namespace, process=desk.process, life=self.life)
        self._roller = Roller(desk.folder, desk.days, run)
        self._marks: list[str] = []
        """To be written with the next rows; of the thread that writes."""
        self._is_failing = False
        self._minute = 0
        self._written_s = 0.0
        self._partial_from_s = 0.0
        """No partial rows are written before: the last ones took long."""
        self._partial_took_s = 0.0
        self._partial_peak = -1
        """The most connections, as the partial minute has them; of the thread that writes."""
        self._rolled_hour = -1
        self._timer: Timer | None = None
        # One for each: what is written on a disk that is slow is followed by the next, never overtaken.
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metering")
        self._rolls = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rolling")
        self._writing: asyncio.Future[list[Counter]] | None = None
        self._rolling: asyncio.Future[None] | None = None

    # --- on the loop --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Say that a life begins, and write down each minute from now on."""
        self._minute = self._this_minute()
        self._write(self._minute, [], BEGIN)
        self._look_soon()

    async def close(self) -> None:
        """Write the last minute, and that it is the last."""
        if self._timer is not None:
            self._timer.cancel()
        self._roller.stop()
        await self._done(self._writing)
        self._write(self._minute, self._meter.counters(), END)
        await self._done(self._writing)
        await self._done(self._rolling)
        for threads in (self._writer, self._rolls):
            threads.shutdown(wait=False)

    def _look_soon(self) -> None:
        wall_s = self._clock.wall_ms() / 1000
        wait_s = min(PARTIAL_S, MINUTE_S - wall_s % MINUTE_S)
        self._timer = self._timers.call_at(self._clock.monotonic_s() + wait_s, self._look)

    def _look(self) -> None:
        now, since_s = self._this_minute(), self._clock.monotonic_s() - self._written_s
        is_over = now > self._minute or since_s > LONGEST_S
        if self._writing is None or self._writing.done():
            if is_over:
                over, self._minute = self._minute, max(now, self._minute)
                self._write(over, self._meter.counters())
                self._roll(over)
            elif self._clock.monotonic_s() >= self._partial_from_s:
                self._write_partial()
        self._look_soon()

    def _this_minute(self) -> int:
        return self._clock.wall_ms() // 1000 // MINUTE_S * MINUTE_S

    def _write(self, minute: int, counters: list[Counter], mark: str | None = None) -> None:
        loop, connections = asyncio.get_running_loop(), self._meter.take_connections()
        self._written_s = self._clock.monotonic_s()
        self._writing = loop.run_in_executor(self._writer, self._put, minute, counters, connections, mark)
        self._writing.add_done_callback(self._written)

    def _write_partial(self) -> None:
        loop, counters, peak = asyncio.get_running_loop(), self._meter.counters(), self._meter.most_connections
        self._writing = loop.run_in_executor(self._writer, self._put_partial, self._minute, counters, peak)
        self._writing.add_done_callback(self._written_partial)

    def _written_partial(self, _writing: asyncio.Future[list[Counter]]) -> None:
        pause_s = self._partial_took_s / PARTIAL_SHARE
        self._partial_from_s = self._clock.monotonic_s() + pause_s if pause_s > PARTIAL_S else 0.0

    def _written(self, writing: asyncio.Future[list[Counter]]) -> None:
        if not writing.cancelled():
            self._meter.forget(writing.result())

    def _roll(self, minute: int) -> None:
        """What is of another hour becomes Parquet files: in the first minute of each, and what was left, in any."""
        hour = minute // HOUR_S * HOUR_S
        if hour != self._rolled_hour and (self._rolling is None or self._rolling.done()):
            self._rolled_hour = hour
            loop = asyncio.get_running_loop()
            self._rolling = loop.run_in_executor(
                self._rolls, self._roller.roll, functools.partial(self._is_finished, hour=hour)
            )

    async def _done(self, work: asyncio.Future[list[Counter]] | asyncio.Future[None] | None) -> None:
        if work is not None and not work.done():
            await asyncio.wait([work], timeout=STOP_S)

    # --- on a thread --------------------------------------------------------------------------------------------------

    def _put(self, minute: int, counters: list[Counter], connections: int, mark: str | None) -> list[Counter]:
        """Write what was counted; those counters in which nothing was."""
        rows, quiet = take_rows(counters, minute)
        self._partial_peak = -1
        if mark is not None:
            self._marks.append(mark)
        marks = [UsageRow(minute=minute, mark=mark) for mark in self._marks]
        try:
            self._journal.append([*marks, UsageRow(minute=minute, connections=connections), *rows], minute)
        except OSError as error:
            self._note_failure(error)
        else:
            self._marks.clear()
            if mark == END:
                self._journal.remove_partial()
            if self._is_failing:
                self._is_failing = False
                log.info("usage is written again")
        return quiet

    def _put_partial(self, minute: int, counters: list[Counter], peak: int) -> list[Counter]:
        """Write the changes since the last call; changes that cannot be written are tried again with the next ones."""
        began_s = time.thread_time()
        rows = take_partial_rows(counters, minute)
        if peak > self._partial_peak:
            rows.append(UsageRow(minute=minute, connections=peak))
        if rows:
            try:
                self._journal.append_partial(rows, minute)
                self._partial_peak = max(peak, self._partial_peak)
            except OSError:  # it is said when the minute cannot be written, either
                self._partial_peak = -1
                for one in counters:
                    one.forget_partial()
        self._partial_took_s = time.thread_time() - began_s
        return []

    def _note_failure(self, error: OSError) -> None:
        if LOST not in self._marks:
            self._marks.append(LOST)
        if not self._is_failing:
            self._is_failing = True
            log.warning("what clients use is not written down, and lost: %s", error)

    def _is_finished(self, path: Path, hour: int) -> bool:
        """It is a journal of this process, or of nobody, to which nothing is written from that hour on.

        Its name says so: of our own, the thread that writes may be about to open the next one.
        """
        number, _, rest = path.name.partition("-")
        if not number.isdigit():
            return False
        if rest.startswith(f"{self.life}-"):
            now = Head(namespace=self._desk.namespace, process=self._desk.process, life=self.life, hour=hour)
            return path.name < now.journal_name
        return int(number) == self._desk.process or (not self._desk.process and int(number) >= self._desk.processes)
