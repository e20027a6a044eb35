"""The disk of a spool, in virtual time: work takes a while, and a power cut tears what was being written.

Real files are written, in a folder in memory where the system has one. A crash leaves what was written out, a random
part of what was being written, and a new folder for the next process: the old one is no longer anybody's.

Owns: the loop's executors, and the folders.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakSet

from twinbus.testing import FakeTimeLoop
from twinbus.testing.network import current_host

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

T = TypeVar("T")
LOOP_TURN_S: Final = 1e-7


@dataclass(slots=True)
class _ExecutorJob:
    """A call on a spool's thread."""

    host: str | None
    call: Callable[[], Any]
    answer: asyncio.Future[Any]
    is_done: bool = False


class SimulatedLoop(FakeTimeLoop):
    """Calls on a spool's thread take virtual time; all others are made at once."""

    def __init__(self) -> None:
        super().__init__()
        self.take_time(LOOP_TURN_S)
        self.random: Random | None = None
        self.disk_s = 0.0
        """How long a disk may take for one thing."""
        self._working: dict[object, deque[_ExecutorJob]] = {}
        self._tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self.set_task_factory(self._make_task)

    def _make_task(self, _loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:  # noqa: ANN401
        task = asyncio.Task(work, loop=self, **options)
        self._tasks.add(task)
        return task

    def failed_tasks(self) -> list[str]:
        """Tasks that have failed and that nobody has asked why. Cancelling them, as a close does, would hide it."""
        failed = [task for task in self._tasks if task.done() and not task.cancelled() and task._log_traceback]  # noqa: SLF001
        return sorted(f"{task.get_name()} {task.get_coro()}: {task.exception()!r}" for task in failed)

    def run_in_executor(self, executor: object, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]  # noqa: ANN401
        if self.random is None or not isinstance(executor, ThreadPoolExecutor):
            return super().run_in_executor(executor, func, *args)
        work = _ExecutorJob(current_host(), lambda: func(*args), self.create_future())
        line = self._working.setdefault(executor, deque())
        line.append(work)
        if len(line) == 1:
            self.call_later(self.random.uniform(0, self.disk_s), self._run_job, line)
        return work.answer

    def _run_job(self, job: deque[_ExecutorJob]) -> None:
        """Make a call; the answer takes a while, too: a crash may come between."""
        work = job[0]
        work.is_done = True
        result, error = _result_of(work.call)
        assert self.random is not None
        self.call_later(self.random.uniform(0, self.disk_s), self._finish_job, job, result, error)

    def _finish_job(self, job: deque[_ExecutorJob], result: object, error: Exception | None) -> None:
        work = job.popleft()
        if not work.answer.done():
            if error is None:
                work.answer.set_result(result)
            else:
                work.answer.set_exception(error)
        if job:
            assert self.random is not None
            self.call_later(self.random.uniform(0, self.disk_s), self._run_job, job)

    def interrupted_jobs(self, host: str) -> list[Callable[[], Any]]:
        """What a process that is no more was about to do on its disk; it is forgotten."""
        found = [
            line[0].call for line in self._working.values() if line and line[0].host == host and not line[0].is_done
        ]
        for line in self._working.values():
            if line and line[0].host == host:
                line.clear()
        return found


def _result_of(call: Callable[[], Any]) -> tuple[object, Exception | None]:
    try:
        return call(), None
    except Exception as error:  # noqa: BLE001  # whoever waits for the answer has it
        return None, error


class SpoolDisk:
    """The folders of one program's spool, one after the other."""

    def __init__(self, root: Path, random: Random) -> None:
        self._root = root
        self._random = random
        self._number = 0
        self.folder.mkdir()

    @property
    def folder(self) -> Path:
        """The one in use."""
        return self._root / str(self._number)

    def crash(self, loop: SimulatedLoop, host: str) -> None:
        """The process is gone, perhaps with the machine: what was being written is there in part, or not at all."""
        for call in loop.interrupted_jobs(host):
            if self._random.random() < 0.5:
                self._tear_write(call)
        before = self.folder
        self._number += 1
        shutil.copytree(before, self.folder, ignore=shutil.ignore_patterns("lock", ".*.new"))

    def _tear_write(self, call: Callable[[], Any]) -> None:
        before = self._sizes()
        _result_of(call)
        for file, size in self._sizes().items():
            start = before.get(file, 0)
            if size > start and file.suffix in (".spool", ".done"):
                os.truncate(file, self._random.randint(start, size))

    def _sizes(self) -> dict[Path, int]:
        files = sorted(self.folder.rglob("*"))
        return {file: file.stat().st_size for file in files if file.is_file() and file.name != "lock"}


def memory_folder() -> Path | None:
    """Where files are kept in memory; None: where temporary files are."""
    shared = Path("/dev/shm")  # noqa: S108  # a folder of its own is made in it
    return shared if os.access(shared, os.W_OK) else None
