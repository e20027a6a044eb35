"""Fixtures for tests that share a server: one for all tests of a worker; after each test its log is looked at.

from tests.one_server import queue, running, server
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.served import started

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.served import Served


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with started(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def server(running: Served) -> Iterator[Served]:
    """Whatever a test did to it, it has not failed."""
    yield running
    running.check_log()


@pytest.fixture
def queue(server: Served) -> str:
    """A queue of the test's own, as a plain create makes it."""
    return server.make_queue()
