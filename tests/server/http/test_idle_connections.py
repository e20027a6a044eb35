"""At the limit of connections, the connection that has been idle longest is dropped in favour of the new one."""

from __future__ import annotations

import contextlib
import http.client
import logging
from typing import TYPE_CHECKING

import pytest

from tests.server.http.http_service import TOKEN
from twinbus.server.runtime.admission import Admission

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.server.http.http_service import HttpService

HELD = 4
MANY = 60


@pytest.fixture
def connect(start_service: Callable[..., HttpService]) -> Iterator[Callable[[], http.client.HTTPConnection]]:
    service = start_service(admission=Admission(max_connections=2 * HELD))
    with contextlib.ExitStack() as stack:

        def connect() -> http.client.HTTPConnection:
            connection = http.client.HTTPConnection("127.0.0.1", service.http_listener.port, timeout=20)
            connection.auto_open = False
            connection.connect()
            stack.callback(connection.close)
            return connection

        yield connect


def get_status(connection: http.client.HTTPConnection, target: str = "/health") -> int:
    connection.request("GET", target, headers=TOKEN)
    answer = connection.getresponse()
    answer.read()
    return answer.status


def is_open(connection: http.client.HTTPConnection) -> bool:
    try:
        return get_status(connection) == http.HTTPStatus.OK
    except (ConnectionError, http.client.HTTPException):
        return False


def test_idle_connections_block_no_new_connection(
    connect: Callable[[], http.client.HTTPConnection], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        connections = [connect() for _ in range(MANY)]
        for connection in connections:
            with contextlib.suppress(ConnectionError, http.client.HTTPException):
                get_status(connection)
        assert get_status(connect()) == http.HTTPStatus.OK
    assert len(caplog.records) == 1


def test_the_connection_that_was_idle_longest_is_dropped(connect: Callable[[], http.client.HTTPConnection]) -> None:
    connections = []
    for _ in range(HELD):
        connections.append(connect())
        assert get_status(connections[-1]) == http.HTTPStatus.OK
    assert get_status(connections[0]) == http.HTTPStatus.OK  # now the second connection is idle longest
    newest = connect()
    assert get_status(newest) == http.HTTPStatus.OK
    assert [is_open(connection) for connection in (*connections, newest)] == [True, False, True, True, True]


def test_connections_without_a_token_are_dropped_first(
    connect: Callable[[], http.client.HTTPConnection],
) -> None:
    authorised = connect()
    assert get_status(authorised, "/$Resources/queues") == http.HTTPStatus.OK
    for _ in range(MANY):
        assert get_status(connect()) == http.HTTPStatus.OK
    assert is_open(authorised)
