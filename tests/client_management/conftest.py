"""One server for all tests of a worker; what a test calls itself is called once over http and once over https."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from tests.client_management.reaching import Reach
from tests.served import started

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.served import Served

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with started(tmp_path_factory.mktemp("client-management")) as server:
        yield server


@pytest.fixture
def server(running: Served) -> Iterator[Served]:
    """Whatever a test did to it, it has not failed, and has told no secret."""
    yield running
    running.check_log()


@pytest.fixture(params=["http", "https"])
def reach(request: pytest.FixtureRequest, server: Served) -> Reach:
    """Makes managers of the server."""
    return Reach(server, request.param)


@pytest.fixture
def name() -> str:
    """What no entity is called yet."""
    return f"entity-{next(_numbers)}"
