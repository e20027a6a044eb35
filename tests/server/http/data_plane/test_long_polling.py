"""Long polling: a receive waits for a message, and a caller that disconnects takes no message."""

from __future__ import annotations

import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from tests.support.http_client import HttpClient
from tests.support.server_process import run_server, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server_process import ServerProcess

METHODS = pytest.mark.parametrize("method", ["POST", "DELETE"])


@METHODS
@pytest.mark.parametrize("timeout", ["0", "0.3", "1"])
def test_an_empty_queue_gets_204_after_the_timeout(
    http_client: HttpClient, queue: str, method: str, timeout: str
) -> None:
    began = time.monotonic()
    answer = http_client.request(method, f"/{queue}/messages/head?timeout={timeout}")
    assert (answer.status, answer.body) == (204, b"")
    assert float(timeout) <= time.monotonic() - began < float(timeout) + 5


@METHODS
def test_stored_messages_are_received_without_waiting(http_client: HttpClient, queue: str, method: str) -> None:
    for _ in range(5):
        http_client.send(queue)
    answers = [http_client.request(method, f"/{queue}/messages/head?timeout=0") for _ in range(6)]
    assert [answer.status for answer in answers] == [201 if method == "POST" else 200] * 5 + [204]


@METHODS
def test_a_sent_message_ends_a_pending_receive(http_client: HttpClient, queue: str, method: str) -> None:
    with ThreadPoolExecutor(8) as threads:
        pending = [threads.submit(http_client.request, method, f"/{queue}/messages/head") for _ in range(6)]
        time.sleep(0.2)
        for number in range(6):
            http_client.send(queue, str(number))
        bodies = [request.result().body for request in pending]
    assert sorted(bodies) == [b"0", b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("timeout", ["", "-1", "soon", "1e3", "NaN", "0x10", "1.", "99999999999", "\u0661"])
def test_an_invalid_timeout_is_refused(http_client: HttpClient, queue: str, timeout: str) -> None:
    refused = http_client.peek_lock(queue, timeout=quote(timeout))
    assert (refused.status, refused.detail[:11]) == (400, "timeout is ")


@METHODS
@pytest.mark.parametrize("how", ["end", "reset", "after asking more"])
def test_a_caller_that_disconnects_while_waiting_takes_no_message(
    http_client: HttpClient, queue: str, method: str, how: str
) -> None:
    for _ in range(3):
        with http_client.raw_socket() as connection:
            connection.sendall(http_client.request_head(method, f"/{queue}/messages/head?timeout=60"))
            time.sleep(0.1)
            if how == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif how == "after asking more":
                connection.sendall(http_client.request_head("GET", "/health") * 3)
    time.sleep(0.3)
    http_client.send(queue, "x")
    received = http_client.peek_lock(queue, timeout=5)
    assert (received.body, received.properties["DeliveryCount"]) == (b"x", 1)
    assert http_client.request("DELETE", received.location).status == 200


@METHODS
def test_a_pipelined_request_ends_a_pending_receive(http_client: HttpClient, queue: str, method: str) -> None:
    with http_client.raw_socket() as connection:
        began = time.monotonic()
        connection.sendall(
            http_client.request_head(method, f"/{queue}/messages/head?timeout=60")
            + http_client.request_head("GET", "/health")
        )
        received = b""
        while b"200 OK" not in received:
            received += connection.recv(65_536)
        assert received.startswith(b"HTTP/1.1 204 ")
        assert time.monotonic() - began < 30


def test_every_message_is_received_once_after_many_disconnects(
    http_client: HttpClient, server: ServerProcess, queue: str
) -> None:
    count = 60

    def connect_and_leave(number: int) -> None:
        with http_client.raw_socket() as connection:
            connection.sendall(http_client.request_head("DELETE", f"/{queue}/messages/head?timeout=60"))
            time.sleep(number % 4 / 100)  # disconnects before any message is sent

    with ThreadPoolExecutor(10) as threads:
        list(threads.map(connect_and_leave, range(80)))
        time.sleep(0.3)
        sent = [threads.submit(http_client.send, queue, str(number)) for number in range(count)]
        received = [threads.submit(http_client.receive_and_delete, queue) for _ in range(count)]
        assert {request.result().status for request in sent} == {201}
        assert sorted(int(request.result().body) for request in received) == list(range(count))
    wait_until(lambda: server.message_counts(queue) == (0, 0))


def test_deleting_the_queue_ends_a_pending_receive_with_404(
    http_client: HttpClient, server: ServerProcess, queue: str
) -> None:
    with ThreadPoolExecutor(1) as threads:
        pending = threads.submit(http_client.peek_lock, queue, 60)
        time.sleep(0.3)
        server.delete_queue(queue)
        answer = pending.result()
    assert (answer.status, "was deleted" in answer.detail) == (404, True)


def test_stopping_the_server_ends_pending_receives_at_once(tmp_path: Path) -> None:
    with run_server(tmp_path) as server, ThreadPoolExecutor(2) as threads:
        client, queue = HttpClient(server), server.create_queue()
        pending = [threads.submit(call, queue, 60) for call in (client.peek_lock, client.receive_and_delete)]
        time.sleep(0.5)
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 4
        assert [request.result().status for request in pending] == [204, 204]
        server.start()
