"""What a test calls itself is called once over http and once over https."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.client_management.reaching import Reach

if TYPE_CHECKING:
    from tests.served import Served


@pytest.fixture(params=["http", "https"])
def reach(request: pytest.FixtureRequest, server: Served) -> Reach:
    """Makes managers of the server."""
    return Reach(server, request.param)
