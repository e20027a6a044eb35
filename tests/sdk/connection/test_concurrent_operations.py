"""All operations concurrently on one sender and receiver; `tests.campaigns.sdk_concurrency` repeats them for longer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tests.campaigns.sdk_concurrency.operations import run_aio, run_sync

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess


def test_concurrent_calls_from_threads_and_tasks_all_succeed(server: ServerProcess) -> None:
    with ThreadPoolExecutor(2) as pool:
        for run in [pool.submit(run_sync, server), pool.submit(run_aio, server)]:
            run.result()
    server.check_log()
