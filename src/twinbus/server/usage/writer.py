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
"""Journals of one run; more are left by servers that were killed that often, and wait an hour."""
ROLLUP_TIMEOUT_S: Final = 1_800.0


class RollupProcess:
    """Of one clerk."""

    def __init__(
        self, folder: Path, retention_days: int, run_rollup: Callable[[list[str]], object] | None = None
    ) -> None:
        """`run` is what is done in place of the program."""
        self._folder = folder
        self._retention_days = retention_days
        self._run_rollup = run_rollup or self._run_program
        self._has_pyarrow = True
        """... as far as is known: pyarrow is there."""
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._is_stopped = False

    def roll_up(self, is_finished: Callable[[Path], bool]) -> None:
        """Make Parquet files of all journals that are finished. Takes as long as that does."""
        found = sorted(filter(is_finished, self._folder.glob(f"*{JOURNAL_SUFFIX}")))[:MAX_JOURNALS_PER_ROLLUP]
        if found and self._has_pyarrow:
            self._run_rollup([str(self._folder), str(self._retention_days), *map(str, found)])

    def stop(self) -> None:
        """Do not wait for it any more: what it has not done is done at the next start."""
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
                    start_new_session=True,  # who presses Ctrl-C means the server
                )
            except OSError as error:
                log.warning("journals of usage stay: the program that makes Parquet files cannot run: %s", error)
                return
        try:
            _, said = process.communicate(timeout=ROLLUP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            _, said = process.communicate()
        self._process = None
        if not self._is_stopped:
            self._on_exit(process.returncode, said.decode("utf-8", "replace").strip())

    def _on_exit(self, exit_code: int, output: str) -> None:
        if exit_code == EXIT_NO_PYARROW:
            self._has_pyarrow = False
            log.info("journals of usage stay as they are, without pyarrow: pip install twinbus[metering]")
        elif exit_code or output:
            log.warning("journals of usage: %s", output.splitlines()[-1] if output else f"exit code {exit_code}")


MAX_WRITE_INTERVAL_S: Final = 90.0
"""What was counted is written after so long, whatever the wall clock says."""
PARTIAL_INTERVAL_S: Final = 0.75
"""How often changes within a minute are written: with the write itself, a kill loses less than a second."""
PARTIAL_CPU_SHARE: Final = 0.01
"""How much of a processor that may take. With thousands of busy counters, changes are written less often."""
STOP_TIMEOUT_S: Final = 3.0
"""How long the last minute may take to be written."""
_LIFE_BYTES: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageWriterConfig:
    """Where a clerk works."""

    folder: Path
    """`usage`, in the data directory."""
    namespace: str
    process_number: int = 0
    """Its number."""
    process_count: int = 1
    """How many there are: journals of those that are no more are for the first one."""
    retention_days: int = 0
    """How long Parquet files are kept; 0 is for ever."""


class UsageWriter:
    """Of one process."""

    def __init__(
        self,
        meter: UsageMeter,
        clock: Clock,
        timers: Timers,
        config: UsageWriterConfig,
        run_rollup: Callable[[list[str]], object] | None = None,
    ) -> None:
        """Nothing is written yet. `run` is for tests: what is done in place of the program that rolls."""
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
        """To be written with the next rows; of the thread that writes."""
        self._is_failing = False
        self._current_minute = 0
        self._last_write_s = 0.0
        self._next_partial_s = 0.0
        """No partial rows are written before: the last ones took long."""
        self._partial_duration_s = 0.0
        self._partial_peak_connections = -1
        """The most connections, as the partial minute has them; of the thread that writes."""
        self._last_rollup_hour = -1
        self._timer: Timer | None = None
        # One for each: what is written on a disk that is slow is followed by the next, never overtaken.
        self._write_executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metering")
        self._rollup_executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rolling")
        self._write_future: asyncio.Future[list[UsageCounter]] | None = None
        self._rollup_future: asyncio.Future[None] | None = None

    # --- on the loop --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Say that a life begins, and write down each minute from now on."""
        self._current_minute = self._minute_now()
        self._start_write(self._current_minute, [], BEGIN)
        self._schedule_tick()

    async def close(self) -> None:
        """Write the last minute, and that it is the last."""
        if self._timer is not None:
            self._timer.cancel()
        self._rollup.stop()
        await self._wait_for(self._write_future)
        self._start_write(self._current_minute, self._meter.counters(), END)
        await self._wait_for(self._write_future)
        await self._wait_for(self._rollup_future)
        for threads in (self._write_executor, self._rollup_executor):
            threads.shutdown(wait=False)

    def _schedule_tick(self) -> None:
        wall_s = self._clock.wall_ms() / 1000
        wait_s = min(PARTIAL_INTERVAL_S, MINUTE_S - wall_s % MINUTE_S)
        self._timer = self._timers.call_at(self._clock.monotonic_s() + wait_s, self._tick)

    def _tick(self) -> None:
        now, since_s = self._minute_now(), self._clock.monotonic_s() - self._last_write_s
        is_over = now > self._current_minute or since_s > MAX_WRITE_INTERVAL_S
        if self._write_future is None or self._write_future.done():
            if is_over:
                over, self._current_minute = self._current_minute, max(now, self._current_minute)
                self._start_write(over, self._meter.counters())
                self._start_rollup(over)
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
        """What is of another hour becomes Parquet files: in the first minute of each, and what was left, in any."""
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

    # --- on a thread --------------------------------------------------------------------------------------------------

    def _write_minute(
        self, minute: int, counters: list[UsageCounter], peak_connections: int, mark: str | None
    ) -> list[UsageCounter]:
        """Write what was counted; those counters in which nothing was."""
        rows, quiet = take_rows(counters, minute)
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
                log.info("usage is written again")
        return quiet

    def _write_partial_minute(
        self, minute: int, counters: list[UsageCounter], peak_connections: int
    ) -> list[UsageCounter]:
        """Write the changes since the last call; changes that cannot be written are tried again with the next ones."""
        began_s = time.thread_time()
        rows = take_partial_rows(counters, minute)
        if peak_connections > self._partial_peak_connections:
            rows.append(UsageRow(minute=minute, connections=peak_connections))
        if rows:
            try:
                self._journal.append_partial(rows, minute)
                self._partial_peak_connections = max(peak_connections, self._partial_peak_connections)
            except OSError:  # it is said when the minute cannot be written, either
                self._partial_peak_connections = -1
                for one in counters:
                    one.reset_partial()
        self._partial_duration_s = time.thread_time() - began_s
        return []

    def _on_write_failed(self, error: OSError) -> None:
        if LOST not in self._pending_marks:
            self._pending_marks.append(LOST)
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
            now = JournalHead(
                namespace=self._config.namespace, process=self._config.process_number, life=self.life, hour=hour
            )
            return path.name < now.journal_name
        return int(number) == self._config.process_number or (
            not self._config.process_number and int(number) >= self._config.process_count
        )
