"""A client over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.http_data.web import Web

if TYPE_CHECKING:
    from tests.served import Served


@pytest.fixture
def web(server: Served) -> Web:
    return Web(server)
