"""The usage writer: writes a process's counters to the journal, and has finished hours converted to Parquet files.

    writer = UsageWriter(meter, clock, timers, UsageWriterConfig(folder=folder, namespace="contoso"))
    writer.start()
    ...
    await writer.close()

Owns: the schedule of writes, which run on separate threads. The event loop only lists the counters. Each minute is
written to the journal and synced; within the minute, changes are appended to the partial minute about once a second, so
that a killed process loses at most a second (`usage_journal`). If a disk is full or does not respond, rows are lost but
the server continues; the writer logs the loss once, and marks it in the journal. A minute covers everything counted
since the last write: if the clock is set back, the minute continues until the clock has caught up.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twinbus.model.usage import BEGIN, END, HOUR_S, JOURNAL_SUFFIX, LOST, MINUTE_S, JournalHead, UsageRow
from twinbus.server.runtime.interpreter import python_command
from twinbus.server.usage.meter import take_partial_rows, take_rows
from twinbus.server.usage.rollup import EXIT_NO_PYARROW
from twinbus.server.usage.usage_journal import UsageJournal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from twinbus.broker.clock import Clock, Timer, Timers
    from twinbus.server.usage.counter import UsageCounter
    from twinbus.server.usage.meter import UsageMeter

log: Final = logging.getLogger(__name__)

MAX_JOURNALS_PER_ROLLUP: Final = 500
"""How many journals one run converts. Only repeatedly killed servers leave more, which wait for the next hour."""
ROLLUP_TIMEOUT_S: Final = 1_800.0


class RollupProcess:
    """The process that converts journals to Parquet files."""

    def __init__(
        self, folder: Path, retention_days: int, run_rollup: Callable[[list[str]], object] | None = None
    ) -> None:
        """Create a runner without starting a process. Tests pass `run_rollup` to replace the rollup program."""
        self._folder = folder
        self._retention_days = retention_days
        self._run_rollup = run_rollup or self._run_program
        self._has_pyarrow = True
        """Whether pyarrow is installed, as far as is known: False after the program has reported pyarrow as missing."""
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._is_stopped = False

    def roll_up(self, is_finished: Callable[[Path], bool]) -> None:
        """Convert all finished journals to Parquet files, and wait until the program has exited."""
        journals = sorted(filter(is_finished, self._folder.glob(f"*{JOURNAL_SUFFIX}")))[:MAX_JOURNALS_PER_ROLLUP]
        if journals and self._has_pyarrow:
            self._run_rollup([str(self._folder), str(self._retention_days), *map(str, journals)])

    def stop(self) -> None:
        """Kill the program; the next server startup converts the remaining journals."""
        with self._lock:
            self._is_stopped = True
            if self._process is not None:
                self._process.kill()

    def _run_program(self, arguments: list[str]) -> None:
        with self._lock:
            if self._is_stopped:
                return
            try:
                process = self._process = subprocess.Popen(  # noqa: S603  # the program is ours
                    [*python_command(), "-m", "twinbus.server.usage.rollup", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    start_new_session=True,  # Ctrl-C must not reach the program
                )
            except OSError as error:
                log.warning("usage journals are kept: cannot run the program that creates Parquet files: %s", error)
                return
        try:
            _, output = process.communicate(timeout=ROLLUP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            _, output = process.communicate()
        self._process = None
        if not self._is_stopped:
            self._on_exit(process.returncode, output.decode("utf-8", "replace").strip())

    def _on_exit(self, exit_code: int, output: str) -> None:
        if exit_code == EXIT_NO_PYARROW:
            self._has_pyarrow = False
            log.info("usage journals are not converted to Parquet without pyarrow: pip install twinbus[metering]")
        elif exit_code or output:
            log.warning("usage journals: %s", output.splitlines()[-1] if output else f"exit code {exit_code}")


MAX_WRITE_INTERVAL_S: Final = 90.0
"""The longest time between two writes of whole minutes, whatever the wall clock says."""
PARTIAL_INTERVAL_S: Final = 0.75
"""How often changes within a minute are written. Including the write itself, a killed process loses less than a
second."""
PARTIAL_CPU_SHARE: Final = 0.01
"""The CPU share of partial writes. With thousands of busy counters, changes are written less often."""
STOP_TIMEOUT_S: Final = 3.0
"""How long writing the last minute may take."""
_LIFE_BYTES: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageWriterConfig:
    """The configuration of a usage writer."""

    folder: Path
    """The folder `usage` in the data directory."""
    namespace: str
    process_number: int = 0
    """The number of this process."""
    process_count: int = 1
    """The number of processes. The first process converts the journals of processes that no longer exist."""
    retention_days: int = 0
    """How many days Parquet files are kept; 0 means forever."""


class UsageWriter:
    """The usage writer of one process."""

    def __init__(
        self,
        meter: UsageMeter,
        clock: Clock,
        timers: Timers,
        config: UsageWriterConfig,
        run_rollup: Callable[[list[str]], object] | None = None,
    ) -> None:
        """Create a writer that writes nothing before `start`. `run_rollup` replaces the rollup program in tests."""
        self.life = secrets.token_hex(_LIFE_BYTES)
        self._meter = meter
        self._clock = clock
        self._timers = timers
        self._config = config
        self._journal = UsageJournal(
            config.folder, namespace=config.namespace, process=config.process_number, life=self.life
        )
        self._rollup = RollupProcess(config.folder, config.retention_days, run_rollup)
        self._pending_marks: list[str] = []
        """Marks to write with the next rows; used only by the write thread."""
        self._is_failing = False
        self._current_minute = 0
        self._last_write_s = 0.0
        self._next_partial_s = 0.0
        """The earliest time of the next partial write, which is delayed if the last partial write took long."""
        self._partial_duration_s = 0.0
        self._partial_peak_connections = -1
        """The peak number of connections in the partial minute; used only by the write thread."""
        self._last_rollup_hour = -1
        self._timer: Timer | None = None
        # One thread per executor, so that writes to a slow disk stay in order.
        self._write_executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metering")
        self._rollup_executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rolling")
        self._write_future: asyncio.Future[list[UsageCounter]] | None = None
        self._rollup_future: asyncio.Future[None] | None = None

    # --- on the event loop --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Write the begin mark, and write every minute from now on."""
        self._current_minute = self._minute_now()
        self._start_write(self._current_minute, [], BEGIN)
        self._schedule_tick()

    async def close(self) -> None:
        """Write the last minute with the end mark, and stop."""
        if self._timer is not None:
            self._timer.cancel()
        self._rollup.stop()
        await self._wait_for(self._write_future)
        self._start_write(self._current_minute, self._meter.counters(), END)
        await self._wait_for(self._write_future)
        await self._wait_for(self._rollup_future)
        for executor in (self._write_executor, self._rollup_executor):
            executor.shutdown(wait=False)

    def _schedule_tick(self) -> None:
        wall_s = self._clock.wall_ms() / 1000
        wait_s = min(PARTIAL_INTERVAL_S, MINUTE_S - wall_s % MINUTE_S)
        self._timer = self._timers.call_at(self._clock.monotonic_s() + wait_s, self._tick)

    def _tick(self) -> None:
        now, since_s = self._minute_now(), self._clock.monotonic_s() - self._last_write_s
        is_over = now > self._current_minute or since_s > MAX_WRITE_INTERVAL_S
        if self._write_future is None or self._write_future.done():
            if is_over:
                ended_minute, self._current_minute = self._current_minute, max(now, self._current_minute)
                self._start_write(ended_minute, self._meter.counters())
                self._start_rollup(ended_minute)
            elif self._clock.monotonic_s() >= self._next_partial_s:
                self._start_partial_write()
        self._schedule_tick()

    def _minute_now(self) -> int:
        return self._clock.wall_ms() // 1000 // MINUTE_S * MINUTE_S

    def _start_write(self, minute: int, counters: list[UsageCounter], mark: str | None = None) -> None:
        loop, connections = asyncio.get_running_loop(), self._meter.take_peak_connections()
        self._last_write_s = self._clock.monotonic_s()
        self._write_future = loop.run_in_executor(
            self._write_executor, self._write_minute, minute, counters, connections, mark
        )
        self._write_future.add_done_callback(self._on_written)

    def _start_partial_write(self) -> None:
        loop, counters, peak = asyncio.get_running_loop(), self._meter.counters(), self._meter.peak_connections
        self._write_future = loop.run_in_executor(
            self._write_executor, self._write_partial_minute, self._current_minute, counters, peak
        )
        self._write_future.add_done_callback(self._on_partial_written)

    def _on_partial_written(self, _future: asyncio.Future[list[UsageCounter]]) -> None:
        pause_s = self._partial_duration_s / PARTIAL_CPU_SHARE
        self._next_partial_s = self._clock.monotonic_s() + pause_s if pause_s > PARTIAL_INTERVAL_S else 0.0

    def _on_written(self, future: asyncio.Future[list[UsageCounter]]) -> None:
        if not future.cancelled():
            self._meter.remove_unused(future.result())

    def _start_rollup(self, minute: int) -> None:
        """Convert the journals of earlier hours, once an hour and at the first minute after startup."""
        hour = minute // HOUR_S * HOUR_S
        if hour != self._last_rollup_hour and (self._rollup_future is None or self._rollup_future.done()):
            self._last_rollup_hour = hour
            loop = asyncio.get_running_loop()
            self._rollup_future = loop.run_in_executor(
                self._rollup_executor, self._rollup.roll_up, functools.partial(self._is_finished, hour=hour)
            )

    async def _wait_for(self, future: asyncio.Future[list[UsageCounter]] | asyncio.Future[None] | None) -> None:
        if future is not None and not future.done():
            await asyncio.wait([future], timeout=STOP_TIMEOUT_S)

    # --- on the write thread ------------------------------------------------------------------------------------------

    def _write_minute(
        self, minute: int, counters: list[UsageCounter], peak_connections: int, mark: str | None
    ) -> list[UsageCounter]:
        """Write the rows for a minute; return the counters without changes."""
        rows, unchanged = take_rows(counters, minute)
        self._partial_peak_connections = -1
        if mark is not None:
            self._pending_marks.append(mark)
        marks = [UsageRow(minute=minute, mark=mark) for mark in self._pending_marks]
        try:
            self._journal.append([*marks, UsageRow(minute=minute, connections=peak_connections), *rows], minute)
        except OSError as error:
            self._on_write_failed(error)
        else:
            self._pending_marks.clear()
            if mark == END:
                self._journal.remove_partial()
            if self._is_failing:
                self._is_failing = False
                log.info("usage rows are written again")
        return unchanged

    def _write_partial_minute(
        self, minute: int, counters: list[UsageCounter], peak_connections: int
    ) -> list[UsageCounter]:
        """Write the changes since the last call. If the write fails, the next call writes these changes again."""
        began_s = time.thread_time()
        rows = take_partial_rows(counters, minute)
        if peak_connections > self._partial_peak_connections:
            rows.append(UsageRow(minute=minute, connections=peak_connections))
        if rows:
            try:
                self._journal.append_partial(rows, minute)
                self._partial_peak_connections = max(peak_connections, self._partial_peak_connections)
            except OSError:  # logged when writing the whole minute fails as well
                self._partial_peak_connections = -1
                for counter in counters:
                    counter.reset_partial()
        self._partial_duration_s = time.thread_time() - began_s
        return []

    def _on_write_failed(self, error: OSError) -> None:
        if LOST not in self._pending_marks:
            self._pending_marks.append(LOST)
        if not self._is_failing:
            self._is_failing = True
            log.warning("usage rows cannot be written and are lost: %s", error)

    def _is_finished(self, path: Path, hour: int) -> bool:
        """Return whether a journal gets no more writes from `hour` on, and this process has to convert it.

        Only the file's name is used, because the write thread may be about to open the next journal of this process.
        """
        process, _, life_and_hour = path.name.partition("-")
        if not process.isdigit():
            return False
        if life_and_hour.startswith(f"{self.life}-"):
            current_head = JournalHead(
                namespace=self._config.namespace, process=self._config.process_number, life=self.life, hour=hour
            )
            return path.name < current_head.journal_name
        return int(process) == self._config.process_number or (
            not self._config.process_number and int(process) >= self._config.process_count
        )
