"""What a test calls itself is called once over http and once over https."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.client.management.manager_factory import ManagerFactory

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess


@pytest.fixture(params=["http", "https"])
def connect_manager(request: pytest.FixtureRequest, server: ServerProcess) -> ManagerFactory:
    """Makes managers of the server."""
    return ManagerFactory(server, request.param)
