"""`/health` for load balancers: it needs no token, and the status code is the result."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.server.http.http_service import read_to_end

if TYPE_CHECKING:
    from tests.server.http.http_service import HttpService


HEALTHY, FULL, DOWN = (True, True), (True, False), (False, False)
"""States of a store: is it available, does it take messages."""


@pytest.mark.parametrize(
    ("stores", "codes", "status"),
    [
        ([HEALTHY, HEALTHY], (200, 200), "ok"),
        ([HEALTHY, DOWN], (200, 200), "degraded"),
        ([DOWN, DOWN], (503, 503), "degraded"),
        ([HEALTHY, FULL], (200, 200), "degraded"),
        ([FULL, FULL], (200, 503), "degraded"),
        ([FULL, DOWN], (200, 503), "degraded"),
        ([], (200, 200), "ok"),
    ],
)
def test_one_available_store_is_enough_and_for_sends_one_that_takes_messages(
    service: HttpService, stores: list[tuple[bool, bool]], codes: tuple[int, int], status: str
) -> None:
    service.administration.stores = [
        {"name": "s", "is_available": works, "takes_messages": takes} for works, takes in stores
    ]
    replies = [service.request("GET", path, Authorization="none") for path in ("/health", "/health?for=send")]
    assert tuple(reply.status for reply in replies) == codes
    for reply in replies:
        assert json.loads(reply.text) == {"status": status, "stores": service.administration.stores}
    assert service.authorisation_requests == []


def test_health_for_anything_but_sends_is_refused(service: HttpService) -> None:
    reply = service.request("GET", "/health?for=receive", Authorization="none")
    assert reply.status == 400
    assert "it can be send" in reply.text


def test_a_head_request_gets_no_body(service: HttpService) -> None:
    with service.raw() as connection:
        connection.sendall(b"HEAD /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = read_to_end(connection)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"\r\n\r\n")


def test_no_queue_can_be_named_health(service: HttpService) -> None:
    for name in ("/health", "/Health"):
        assert service.put(name).status == 405
