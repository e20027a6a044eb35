"""An HTTP client of the shared server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.http_client import HttpClient

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess


@pytest.fixture
def http_client(server: ServerProcess) -> HttpClient:
    return HttpClient(server)
