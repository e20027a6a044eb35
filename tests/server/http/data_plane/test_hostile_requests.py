"""Ambiguous or endless HTTP requests (request smuggling, slow bodies) are refused and harm no other client."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.server.http.http_service import read_to_end
from tests.support.server_process import QUEUE_ENTRY, wait_until
from twinbus.model.signature import make_token

if TYPE_CHECKING:
    from tests.support.http_client import HttpClient
    from tests.support.server_process import ServerProcess


@pytest.mark.parametrize(
    "lines",
    [
        ("Content-Length: 5", "Content-Length: 6"),
        ("Content-Length: 5", "Content-Length: 5"),
        ("Content-Length: 5", "content-length:5"),
        ("Content-Length: 5, 5",),
        ("Content-Length: 5 5",),
        ("Content-Length:",),
        ("Content-Length: 5", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: chunked", "Content-Length: 5"),
        ("Content-Length: 5, 6",),
        ("Content-Length: +5",),
        ("Content-Length: 0x5",),
        ("Content-Length: -1",),
        ("Content-Length: 5_0",),
        ("Content-Length: \u0665",),
        ("Transfer-Encoding: chunked, identity",),
        ("Transfer-Encoding: xchunked",),
        ("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding : chunked",),
        ("Transfer-Encoding\t: chunked",),
        ("X: y\r\n folded: z",),
        ("X: y\r\n\tContent-Length: 5",),
        ("X: y\x00z",),
        ("X: y\rContent-Length: 5",),
        ("Host: other",),
        (": no name",),
        ("no colon",),
    ],
)
def test_an_ambiguous_request_is_refused(
    http_client: HttpClient, server: ServerProcess, queue: str, lines: tuple[str, ...]
) -> None:
    head = http_client.request_head("POST", f"/{queue}/messages", *(line.encode().decode("latin-1") for line in lines))
    with http_client.raw_socket() as connection:
        connection.sendall(head + b"x" * 5)
        answer = read_to_end(connection)
    assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert answer.count(b"HTTP/1.1") == 1
    assert server.message_counts(queue) == (0, 0)


@pytest.mark.parametrize("host", ["Host: a:1/orders", "Host: a/b", "Host: user@a", "Host:", "Host: a b", "Host: a:1?x"])
def test_an_invalid_host_is_refused(http_client: HttpClient, server: ServerProcess, queue: str, host: str) -> None:
    with http_client.raw_socket() as connection:
        connection.sendall(
            http_client.request_head("POST", f"/{queue}/messages", "Content-Length: 1", "Connection: close", host=host)
            + b"x"
        )
        answer = read_to_end(connection)
    assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert b"it has to be a name or an address" in answer
    assert server.message_counts(queue) == (0, 0)


def test_the_host_header_does_not_widen_the_scope_of_a_token(
    http_client: HttpClient, server: ServerProcess, queue: str
) -> None:
    """A token for the bare host is valid for the namespace; a token for `host/queue` is valid for that queue only."""
    narrow = make_token("a:1/orders", server.key_name, server.key, int(time.time()) + 600)
    body = QUEUE_ENTRY.format(f"<ForwardTo>sb://h/{queue}</ForwardTo>")
    headers = {"ServiceBusSupplementaryAuthorization": narrow, "Content_Type": "application/atom+xml"}
    assert http_client.request("PUT", f"/{queue}-forwards", body, Host="a:1/orders", **headers).status == 400
    assert http_client.request("PUT", f"/{queue}-forwards", body, Host="a:1", **headers).status == 401


@pytest.mark.parametrize("target", ["http://x/{}/messages", "http://other/{}/messages", "{}/messages", "*"])
def test_a_request_target_that_is_not_a_path_is_refused(
    http_client: HttpClient, server: ServerProcess, queue: str, target: str
) -> None:
    with http_client.raw_socket() as connection:
        head = http_client.request_head("POST", target.format(queue), "Content-Length: 1", "Connection: close")
        connection.sendall(head + b"x")
        answer = read_to_end(connection)
    assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert server.message_counts(queue) == (0, 0)


@pytest.mark.parametrize(
    "chunks",
    [b"5 \nhello0\r\n\r\n", b"0x5\r\nhello\r\n0\r\n\r\n", b"-1\r\n\r\n", b"5\r\nhelloXX0\r\n\r\n", b"F" * 30 + b"\r\n"],
)
def test_malformed_chunks_are_refused(
    http_client: HttpClient, server: ServerProcess, queue: str, chunks: bytes
) -> None:
    with http_client.raw_socket() as connection:
        connection.sendall(
            http_client.request_head("POST", f"/{queue}/messages", "Transfer-Encoding: chunked") + chunks
        )
        answer = read_to_end(connection)
    assert not answer or answer.startswith(b"HTTP/1.1 400 ")
    assert server.message_counts(queue) == (0, 0)


def test_lines_that_end_in_lf_alone_are_refused(http_client: HttpClient, server: ServerProcess, queue: str) -> None:
    head = http_client.request_head("POST", f"/{queue}/messages", "Content-Length: 1")
    for broken in (head.replace(b"\r\n", b"\n"), head.replace(b"\r\n", b"\n", 1), head[:-2] + b"\n"):
        with http_client.raw_socket() as connection:
            for piece in (broken[:50], broken[50:] + b"x"):
                connection.sendall(piece)
            answer = read_to_end(connection)
        assert answer.startswith(b"HTTP/1.1 400 "), broken
    assert server.message_counts(queue) == (0, 0)


def test_a_second_request_on_a_connection_is_checked_like_the_first(
    http_client: HttpClient, server: ServerProcess, queue: str
) -> None:
    send = http_client.request_head("POST", f"/{queue}/messages", "Content-Length: 4") + b"a\n\nb"
    with http_client.raw_socket() as connection:
        connection.sendall(send + send + send.replace(b"\r\n", b"\n"))
        answer = read_to_end(connection)
    assert answer.count(b"HTTP/1.1 201 ") == 2
    assert answer.count(b"HTTP/1.1 400 ") == 1
    assert server.message_counts(queue) == (2, 0)


def test_pipelined_requests_are_answered_in_order(http_client: HttpClient, server: ServerProcess, queue: str) -> None:
    send = http_client.request_head("POST", f"/{queue}/messages", "Content-Length: 1")
    last = http_client.request_head("DELETE", f"/{queue}/messages/head", "Connection: close")
    with http_client.raw_socket() as connection:
        connection.sendall(b"".join(send + b"%d" % number for number in range(5)) + last)
        answer = read_to_end(connection)
    assert answer.count(b"HTTP/1.1 201 ") == 5
    assert answer.endswith(b"\r\n\r\n0")
    assert server.message_counts(queue) == (4, 0)


def test_the_rest_of_a_refused_body_is_not_parsed_as_a_request(
    http_client: HttpClient, server: ServerProcess, queue: str
) -> None:
    inner = http_client.request_head("POST", f"/{queue}/messages", "Content-Length: 1") + b"x"
    with http_client.raw_socket() as connection:
        body = inner + b" " * (300_000 - len(inner))
        connection.sendall(
            http_client.request_head("POST", f"/{queue}/messages", "Content-Length: 300000", "Connection: close") + body
        )
        answer = read_to_end(connection)
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert server.message_counts(queue) == (0, 0)


def test_slow_clients_do_not_delay_other_clients(http_client: HttpClient, server: ServerProcess, queue: str) -> None:
    """`tests/server/http/test_slow_clients.py` tests, with a shorter timeout, that slow clients are disconnected."""
    slow = [http_client.raw_socket() for _ in range(50)]
    try:
        for number, connection in enumerate(slow):
            head = http_client.request_head("POST", f"/{queue}/messages", "Content-Length: 100")
            connection.sendall(head[: 20 * number] if number < 25 else head + b"x" * number)
        began = time.monotonic()
        for _ in range(10):
            assert http_client.send(queue, "x").status == 201
            assert http_client.receive_and_delete(queue).status == 200
        assert time.monotonic() - began < 10
    finally:
        for connection in slow:
            connection.close()
    wait_until(lambda: server.message_counts(queue) == (0, 0))


@pytest.mark.parametrize(
    "target",
    [
        "/a" + "/" * 60_000 + "b",
        "/" * 60_000,
        "/" + "a" * 60_000,
        "/a" + "/messages" * 6_000,
        "/a" + "/messages/" * 6_000,
        "/" + "/messages/head" * 4_000 + "/",
        "/" + "%2F" * 20_000 + "x",
    ],
)
def test_a_very_long_address_is_refused_quickly(http_client: HttpClient, target: str) -> None:
    began = time.monotonic()
    for method in ("GET", "POST", "DELETE"):
        assert http_client.request(method, target).status in {400, 404, 405}
    assert time.monotonic() - began < 3
