"""Each test is run with the SDK's sync client and with its aio client."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from tests.administration.admin import CLIENTS, Admin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.served import Served

_numbers = itertools.count(1)


@pytest.fixture(params=CLIENTS)
def admin(request: pytest.FixtureRequest, server: Served) -> Iterator[Admin]:
    admin = Admin(request.param, server)
    yield admin
    admin.end()


@pytest.fixture
def name() -> str:
    """What no entity is called yet."""
    return f"entity-{next(_numbers)}"


@pytest.fixture
def topic(admin: Admin, name: str) -> str:
    """A topic of the test's own."""
    admin.create_topic(name)
    return name
