"""Blocking clients at the server of the other tests, closed at the end of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from twinbus.client.sync import NO_RETRY, MessagingFactory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server_process import ServerProcess


@pytest.fixture(params=["plain", "tls"])
def factory(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[MessagingFactory]:
    shown = server.connection_string if request.param == "plain" else server.tls_connection_string
    with MessagingFactory.from_connection_string(
        shown, ca_file=server.ca_file, retry_policy=NO_RETRY, operation_timeout=20
    ) as factory:
        yield factory
    server.check_log()
