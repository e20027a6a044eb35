"""One server for all tests of a worker. Each test has a queue of its own, and no outage is left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.outage.switch import Switch
from tests.served import started

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.served import Served


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with started(tmp_path_factory.mktemp("outage")) as server:
        yield server


@pytest.fixture
def server(running: Served) -> Iterator[Served]:
    yield running
    Switch(running).end()
    running.check_log()


@pytest.fixture
def switch(server: Served) -> Switch:
    return Switch(server)


@pytest.fixture
def queue(server: Served) -> str:
    return server.make_queue()
