"""Each test is run with the SDK's sync client and with its aio client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.administration.admin import CLIENTS, Admin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.served import Served


@pytest.fixture(params=CLIENTS)
def admin(request: pytest.FixtureRequest, server: Served) -> Iterator[Admin]:
    admin = Admin(request.param, server)
    yield admin
    admin.end()


@pytest.fixture
def topic(admin: Admin, name: str) -> str:
    """A topic of the test's own."""
    admin.create_topic(name)
    return name
