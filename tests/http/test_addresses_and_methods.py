"""Which addresses there are, which methods each has, and who may use them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.http.service import read_to_end
from twinbus.server.http import app

if TYPE_CHECKING:
    from tests.http.service import Service

LOGGER = app.__name__


@pytest.mark.parametrize(
    ("target", "allowed"),
    [
        ("/orders", "PUT, GET, DELETE"),
        ("/$Resources/queues", "GET"),
        ("/$namespaceinfo", "GET"),
        ("/health", "GET, HEAD"),
    ],
)
@pytest.mark.parametrize("method", ["POST", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_a_method_that_an_address_does_not_have(service: Service, target: str, allowed: str, method: str) -> None:
    reply = service.call(method, target)
    assert reply.status == 405
    assert reply.headers["allow"] == allowed
    assert repr(method) in reply.detail


@pytest.mark.parametrize(
    "target", ["/$Resources", "/$Resources/relays", "/$management", "/$cbs/x", "/$Resources/queues/x"]
)
def test_an_address_that_is_none(service: Service, target: str) -> None:
    for method in ("GET", "PUT", "DELETE", "POST"):
        reply = service.call(method, target)
        assert reply.status == 404
        assert "TrackingId:" in reply.detail


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("PUT", "/orders"),
        ("GET", "/orders"),
        ("DELETE", "/orders"),
        ("GET", "/$Resources/queues"),
        ("GET", "/$Resources/topics"),
        ("GET", "/$namespaceinfo"),
    ],
)
def test_nothing_is_done_without_a_token(service: Service, method: str, target: str) -> None:
    service.put("/orders")
    before = dict(service.administration.queues)
    assert service.call(method, target, Authorization="Basic cm9vdA==").status == 401
    assert service.administration.queues == before


def test_the_right_to_manage_is_asked_for_the_entity_or_the_namespace(service: Service) -> None:
    service.put("/a%2Fb")
    service.call("GET", "/a/b?enrich=false")
    service.call("DELETE", "/A/B")
    service.call("GET", "/$namespaceinfo")
    assert service.asked == [("Manage", "a/b"), ("Manage", "a/b"), ("Manage", "A/B"), ("Manage", "")]


def test_a_target_of_forwarding_needs_a_token_that_may_send_there(service: Service) -> None:
    forward = "<ForwardTo>sb://h/audit</ForwardTo>"
    reply = service.put("/orders", forward, ServiceBusSupplementaryAuthorization="SharedAccessSignature skn=stranger")
    assert reply.status == 401
    assert "the right Send for 'audit'" in reply.detail
    assert service.administration.queues == {}
    assert service.put("/orders", forward).status == 201, "a token for all of the namespace serves for both"


def test_an_unexpected_failure_is_logged_once_and_told_without_its_cause(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    service.administration.fails_with = RuntimeError("the secret of the house")
    reply = service.call("GET", "/orders")
    assert reply.status == 500
    assert "secret" not in reply.text
    assert "Traceback" not in reply.text
    (record,) = caplog.records
    assert record.name == LOGGER
    assert reply.detail.split("TrackingId:")[1] in record.getMessage()
    assert record.exc_info is not None


def test_what_a_caller_did_wrong_is_not_logged(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    service.call("GET", "/missing")
    service.call("PUT", "/orders", "<entry")
    with service.raw() as connection:
        connection.sendall(b"this is no HTTP\r\n\r\n")
        assert read_to_end(connection).startswith(b"HTTP/1.1 400 ")
    assert caplog.records == []


def test_every_answer_has_a_date(service: Service) -> None:
    assert service.call("GET", "/missing").headers["date"].endswith("GMT")
