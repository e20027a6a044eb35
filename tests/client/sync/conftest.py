"""Fixture `factory`: a blocking client of the shared server, closed after each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from twinbus.client.sync import NO_RETRY, MessagingFactory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server_process import ServerProcess


@pytest.fixture(params=["plain", "tls"])
def factory(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[MessagingFactory]:
    address = server.connection_string if request.param == "plain" else server.tls_connection_string
    with MessagingFactory.from_connection_string(
        address, ca_file=server.ca_file, retry_policy=NO_RETRY, operation_timeout=20
    ) as factory:
        yield factory
    server.check_log()
