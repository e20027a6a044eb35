"""The disk of a spool in virtual time: operations take time, and a power cut tears the write in progress.

The spool writes real files, in a memory file system if there is one. A crash keeps completed writes and a random part
of the write in progress, and copies them to a new folder for the next process. The old folder is not used any more.

Owns: the executors of the loop, and the folders.
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
    """An event loop in which calls on a spool's thread take virtual time; other calls run at once."""

    def __init__(self) -> None:
        super().__init__()
        self.take_time(LOOP_TURN_S)
        self.random: Random | None = None
        self.disk_s = 0.0
        """Maximum duration of a disk operation."""
        self._jobs: dict[object, deque[_ExecutorJob]] = {}
        self._tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self.set_task_factory(self._make_task)

    def _make_task(self, _loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:  # noqa: ANN401
        task = asyncio.Task(coroutine, loop=self, **options)
        self._tasks.add(task)
        return task

    def failed_tasks(self) -> list[str]:
        """Return failed tasks with unretrieved exceptions. Cancelling them, as a close does, would hide these."""
        failed = [task for task in self._tasks if task.done() and not task.cancelled() and task._log_traceback]  # noqa: SLF001
        return sorted(f"{task.get_name()} {task.get_coro()}: {task.exception()!r}" for task in failed)

    def run_in_executor(self, executor: object, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]  # noqa: ANN401
        if self.random is None or not isinstance(executor, ThreadPoolExecutor):
            return super().run_in_executor(executor, func, *args)
        job = _ExecutorJob(current_host(), lambda: func(*args), self.create_future())
        jobs = self._jobs.setdefault(executor, deque())
        jobs.append(job)
        if len(jobs) == 1:
            self.call_later(self.random.uniform(0, self.disk_s), self._run_job, jobs)
        return job.answer

    def _run_job(self, jobs: deque[_ExecutorJob]) -> None:
        """Run the next job; its result is delivered later, so that a crash may come between."""
        job = jobs[0]
        job.is_done = True
        result, error = _result_of(job.call)
        assert self.random is not None
        self.call_later(self.random.uniform(0, self.disk_s), self._finish_job, jobs, result, error)

    def _finish_job(self, jobs: deque[_ExecutorJob], result: object, error: Exception | None) -> None:
        job = jobs.popleft()
        if not job.answer.done():
            if error is None:
                job.answer.set_result(result)
            else:
                job.answer.set_exception(error)
        if jobs:
            assert self.random is not None
            self.call_later(self.random.uniform(0, self.disk_s), self._run_job, jobs)

    def interrupted_jobs(self, host: str) -> list[Callable[[], Any]]:
        """Return the disk operations that a killed process had not begun, and remove all of its jobs."""
        calls = [jobs[0].call for jobs in self._jobs.values() if jobs and jobs[0].host == host and not jobs[0].is_done]
        for jobs in self._jobs.values():
            if jobs and jobs[0].host == host:
                jobs.clear()
        return calls


def _result_of(call: Callable[[], Any]) -> tuple[object, Exception | None]:
    try:
        return call(), None
    except Exception as error:  # noqa: BLE001  # the caller gets the exception
        return None, error


class SpoolDisk:
    """The folders of a program's spool: a new one after each crash."""

    def __init__(self, root: Path, random: Random) -> None:
        self._root = root
        self._random = random
        self._number = 0
        self.folder.mkdir()

    @property
    def folder(self) -> Path:
        """Current folder."""
        return self._root / str(self._number)

    def crash(self, loop: SimulatedLoop, host: str) -> None:
        """Crash the process or machine: the write in progress survives in part or not at all."""
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
    """Return a folder in memory, or None to use the default temporary folder."""
    shared = Path("/dev/shm")  # noqa: S108  # a private folder is created in it
    return shared if os.access(shared, os.W_OK) else None
