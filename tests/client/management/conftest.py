"""Fixture `connect_manager`: each test runs once over HTTP and once over HTTPS."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.client.management.manager_factory import ManagerFactory

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess


@pytest.fixture(params=["http", "https"])
def connect_manager(request: pytest.FixtureRequest, server: ServerProcess) -> ManagerFactory:
    """Return a factory of managers that connect to the server."""
    return ManagerFactory(server, request.param)
