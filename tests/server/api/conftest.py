"""The JSON API of the shared server, and clients whose connections it shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from azure.servicebus import ServiceBusClient

from tests.server.api.api_client import ApiClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server_process import ServerProcess


@pytest.fixture
def api(server: ServerProcess) -> ApiClient:
    return ApiClient(server)


@pytest.fixture
def sdk(server: ServerProcess) -> Iterator[ServiceBusClient]:
    """A client of the official SDK."""
    with ServiceBusClient.from_connection_string(server.connection_string, retry_total=0) as client:
        yield client
