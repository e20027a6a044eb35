"""Timeouts of HTTP: a client that is slow to send or read loses its connection."""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
from typing import TYPE_CHECKING

from tests.server.http.http_service import TOKEN, read_to_end
from twinbus.model.queue import QueueDescription

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.server.http.http_service import HttpService
    from twinbus.server.http.listener import HttpConnection

HEAD = f"PUT /orders HTTP/1.1\r\nHost: x\r\nAuthorization: {TOKEN['Authorization']}\r\n".encode()


async def wait_for_any_closed(connections: list[HttpConnection]) -> None:
    await asyncio.wait([connection.closed for connection in connections], return_when=asyncio.FIRST_COMPLETED)


def test_a_client_that_sends_nothing_is_disconnected(start_service: Callable[..., HttpService]) -> None:
    service = start_service(first_bytes_s=0.05)
    with service.raw() as connection:
        assert read_to_end(connection) == b""
    with socket.create_connection(("127.0.0.1", service.https_listener.port), timeout=20) as connection:
        assert read_to_end(connection) == b""


def test_a_client_that_does_not_finish_its_headers_is_disconnected(start_service: Callable[..., HttpService]) -> None:
    with start_service(head_timeout_s=0.05).raw() as connection:
        connection.sendall(HEAD)
        assert read_to_end(connection) == b""


def test_a_client_that_does_not_finish_its_second_request_is_disconnected(
    start_service: Callable[..., HttpService],
) -> None:
    with start_service(head_timeout_s=0.3).raw() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert (answer.status, bool(answer.read())) == (http.HTTPStatus.OK, True)
        connection.sendall(b"GET /health HTTP")
        assert read_to_end(connection) == b""


def test_a_client_that_does_not_finish_its_body_gets_408(start_service: Callable[..., HttpService]) -> None:
    service = start_service(body_timeout_s=0.05)
    with service.raw() as connection:
        connection.sendall(HEAD + b"Content-Length: 100\r\n\r\n<entry")
        answer = read_to_end(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"the body did not arrive within 0.05 s" in answer


def test_a_client_that_does_not_finish_a_refused_body_is_disconnected(
    start_service: Callable[..., HttpService],
) -> None:
    with start_service(head_timeout_s=0.3).raw() as connection:
        connection.sendall(b"PUT /orders HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n")
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert (answer.status, bool(answer.read())) == (http.HTTPStatus.UNAUTHORIZED, True)
        connection.sendall(b"<entry")
        assert read_to_end(connection) == b""


def test_a_client_that_does_not_read_is_disconnected(start_service: Callable[..., HttpService]) -> None:
    service = start_service(write_timeout_s=0.05)
    for number in range(100):
        description = QueueDescription(user_metadata="x" * 1024)
        service.loop.run(service.administration.create_queue(f"q{number}", description))
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(20)
        connection.connect(("127.0.0.1", service.http_listener.port))
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" in connection.recv(65_536)
        (server_side,) = service.http_listener.connections
        list_all = (
            f"GET /$Resources/queues?$top=100 HTTP/1.1\r\nHost: x\r\nAuthorization: {TOKEN['Authorization']}\r\n\r\n"
        )
        connection.sendall(list_all.encode() * 40)

        service.loop.run(wait_for_any_closed([server_side]))
        assert service.http_listener.connections == []


def test_an_idle_connection_is_closed_after_the_keep_alive_time(start_service: Callable[..., HttpService]) -> None:
    with start_service(keep_alive_s=0).raw() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" in read_to_end(connection)


def test_a_client_that_does_not_finish_its_tls_handshake_is_disconnected(
    start_service: Callable[..., HttpService],
) -> None:
    service = start_service(tls_handshake_timeout_s=0.05)
    with socket.create_connection(("127.0.0.1", service.https_listener.port), timeout=20) as connection:
        connection.sendall(b"\x16\x03\x01")
        assert read_to_end(connection) == b""


def test_too_large_headers_are_refused(start_service: Callable[..., HttpService]) -> None:
    with start_service(max_head_bytes=4096).raw() as connection:
        connection.sendall(HEAD + b"X-Long: " + b"x" * 10_000)
        assert read_to_end(connection).startswith(b"HTTP/1.1 400 ")


def test_health_is_served_over_tls(service: HttpService) -> None:
    context = ssl.create_default_context(cafile=service.ca_file)
    connection = http.client.HTTPSConnection("localhost", service.https_listener.port, timeout=20, context=context)
    connection.request("GET", "/health")
    assert connection.getresponse().status == 200
    connection.close()
