"""A server of two processes, shared by tests that neither kill it nor change what other tests see."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.multi_process_server import run_multi_process_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.multi_process_server import MultiProcessServer


@pytest.fixture(scope="session")
def running_two_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MultiProcessServer]:
    with run_multi_process_server(tmp_path_factory.mktemp("two"), "--worker-timeout=30", workers=2) as server:
        yield server


@pytest.fixture
def two_workers(running_two_workers: MultiProcessServer) -> Iterator[MultiProcessServer]:
    yield running_two_workers
    running_two_workers.check_log()
