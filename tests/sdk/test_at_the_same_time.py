"""Every operation, many at the same time on one sender and receiver; `python -m tests.concurrency` does it often."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tests.concurrency.operations import run_aio, run_sync

if TYPE_CHECKING:
    from tests.served import ServerProcess


def test_each_call_of_threads_and_of_tasks_succeeds(server: ServerProcess) -> None:
    with ThreadPoolExecutor(2) as pool:
        for run in [pool.submit(run_sync, server), pool.submit(run_aio, server)]:
            run.result()
    server.check_log()
