"""One server for all tests of a worker; each test has a queue of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.http_data.web import Web
from tests.served import started

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.served import Served


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with started(tmp_path_factory.mktemp("http-data")) as server:
        yield server


@pytest.fixture
def web(server: Served) -> Iterator[Web]:
    yield Web(server)
    server.check_log()


@pytest.fixture
def queue(server: Served) -> str:
    return server.make_queue()
