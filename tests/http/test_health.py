"""Health is for load balancers: no token, and one status code says it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.http.service import read_to_end

if TYPE_CHECKING:
    from tests.http.service import Service


@pytest.mark.parametrize(
    ("stores", "code", "status"),
    [([True, True], 200, "ok"), ([True, False], 200, "degraded"), ([False, False], 503, "degraded"), ([], 200, "ok")],
)
def test_one_store_that_works_is_enough(service: Service, stores: list[bool], code: int, status: str) -> None:
    service.administration.stores = [{"name": "s", "is_available": is_available} for is_available in stores]
    reply = service.call("GET", "/health", Authorization="none")
    assert reply.status == code
    assert json.loads(reply.text) == {"status": status, "stores": service.administration.stores}
    assert service.asked == []


def test_a_head_has_no_body(service: Service) -> None:
    with service.raw() as connection:
        connection.sendall(b"HEAD /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = read_to_end(connection)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"\r\n\r\n")


def test_no_queue_can_hide_behind_it(service: Service) -> None:
    for name in ("/health", "/Health"):
        assert service.put(name).status == 405
