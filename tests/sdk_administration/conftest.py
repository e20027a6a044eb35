"""Fixtures that run each test with the SDK's sync client and with its aio client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sdk_administration.admin import CLIENTS, AdministrationClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server_process import ServerProcess


@pytest.fixture(params=CLIENTS)
def admin(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[AdministrationClient]:
    admin = AdministrationClient(request.param, server)
    yield admin
    admin.end()


@pytest.fixture
def topic(admin: AdministrationClient, name: str) -> str:
    """A new topic for the test."""
    admin.create_topic(name)
    return name
