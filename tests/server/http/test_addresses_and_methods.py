"""Routes: the addresses, the methods of each address, and the rights that a request needs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from starlette.responses import Response

from tests.server.http.http_service import read_to_end
from tests.server.http.in_memory_administration import InMemoryAdministration
from twinbus.model.errors import Unauthorized
from twinbus.server.auth.key_registry import KeyRegistry
from twinbus.server.auth.keys import KeyRing
from twinbus.server.auth.sas import verify
from twinbus.server.http import app
from twinbus.server.http.app import HttpApp
from twinbus.server.http.routes import route

if TYPE_CHECKING:
    from tests.server.http.conftest import StartService
    from tests.server.http.http_service import HttpService
    from twinbus.server.http.call import Call

LOGGER = app.__name__


@pytest.mark.parametrize(
    ("target", "allowed"),
    [
        ("/orders", "PUT, GET, DELETE"),
        ("/$Resources/queues", "GET"),
        ("/$Resources/topics", "GET"),
        ("/news/subscriptions", "GET"),
        ("/news/subscriptions/all", "PUT, GET, DELETE"),
        ("/news/subscriptions/all/rules", "GET"),
        ("/news/subscriptions/all/rules/one", "PUT, GET, DELETE"),
        ("/$namespaceinfo", "GET"),
        ("/health", "GET, HEAD"),
    ],
)
@pytest.mark.parametrize("method", ["POST", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_an_unsupported_method_is_refused_with_the_allowed_methods(
    service: HttpService, target: str, allowed: str, method: str
) -> None:
    reply = service.request(method, target)
    assert reply.status == 405
    assert reply.headers["allow"] == allowed
    assert repr(method) in reply.detail


@pytest.mark.parametrize(
    "target", ["/$Resources", "/$Resources/relays", "/$management", "/$cbs/x", "/$Resources/queues/x"]
)
def test_an_unknown_address_is_not_found(service: HttpService, target: str) -> None:
    for method in ("GET", "PUT", "DELETE", "POST"):
        reply = service.request(method, target)
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
        ("GET", "/orders/subscriptions"),
        ("PUT", "/orders/subscriptions/all"),
        ("GET", "/orders/subscriptions/all"),
        ("DELETE", "/orders/subscriptions/all"),
        ("GET", "/orders/subscriptions/all/rules"),
        ("PUT", "/orders/subscriptions/all/rules/one"),
        ("GET", "/orders/subscriptions/all/rules/one"),
        ("DELETE", "/orders/subscriptions/all/rules/one"),
    ],
)
def test_no_request_is_carried_out_without_a_token(service: HttpService, method: str, target: str) -> None:
    service.put("/orders")
    before = dict(service.administration.queues)
    assert service.request(method, target, Authorization="Basic cm9vdA==").status == 401
    assert service.administration.queues == before


def test_administration_requires_manage_on_the_entity_or_the_namespace(service: HttpService) -> None:
    service.put("/a%2Fb")
    service.request("GET", "/a/b?enrich=false")
    service.request("DELETE", "/A/B")
    service.request("GET", "/$namespaceinfo")
    assert service.authorisation_requests == [
        ("Manage", "a/b"),
        ("Manage", "a/b"),
        ("Manage", "A/B"),
        ("Manage", "$namespaceinfo"),
    ]


def test_a_token_is_required_for_the_exact_address(service: HttpService) -> None:
    for address in ("a/b/Subscriptions/c", "a/b/subscriptions", "a/subscriptions/c/rules/d", "$Resources/topics"):
        service.authorisation_requests.clear()
        service.request("GET", f"/{address}/?enrich=true&$top=1")
        assert service.authorisation_requests == [("Manage", address)]


def test_extra_routes_take_precedence(start_service: StartService) -> None:
    authorised: list[tuple[str, str]] = []

    async def answer(call: Call) -> Response:
        return Response(call.entity)

    def authorise(_: str | None, right: str, path: str, _host: str = "", _address: str = "") -> None:
        authorised.append((right, path))

    extra = (route("(?P<entity>.+?)/messages", "Send", POST=answer),)
    service = start_service(HttpApp(InMemoryAdministration(), authorise, extra_routes=extra))
    assert service.request("POST", "/a%2Fb/messages/").text == "a/b"
    assert authorised == [("Send", "a/b/messages")]
    assert service.request("PUT", "/a/b/messages").headers["allow"] == "POST"
    assert service.put("/a/b").status == 201


def test_forwarding_requires_the_right_to_send_to_the_target(service: HttpService) -> None:
    forward = "<ForwardTo>sb://h/audit</ForwardTo>"
    reply = service.put("/orders", forward, ServiceBusSupplementaryAuthorization="SharedAccessSignature skn=stranger")
    assert reply.status == 401
    assert "the right Send for 'audit'" in reply.detail
    assert service.administration.queues == {}
    assert service.put("/orders", forward).status == 201, "a token for all of the namespace serves for both"


def test_an_internal_error_is_logged_once_and_its_cause_is_not_sent(
    service: HttpService, caplog: pytest.LogCaptureFixture
) -> None:
    service.administration.fails_with = RuntimeError("the secret of the house")
    reply = service.request("GET", "/orders")
    assert reply.status == 500
    assert "secret" not in reply.text
    assert "Traceback" not in reply.text
    (record,) = caplog.records
    assert record.name == LOGGER
    assert reply.detail.split("TrackingId:")[1] in record.getMessage()
    assert record.exc_info is not None


def test_invalid_requests_are_not_logged(service: HttpService, caplog: pytest.LogCaptureFixture) -> None:
    service.request("GET", "/missing")
    service.request("PUT", "/orders", "<entry")
    with service.raw() as connection:
        connection.sendall(b"this is no HTTP\r\n\r\n")
        assert read_to_end(connection).startswith(b"HTTP/1.1 400 ")
    assert caplog.records == []


def test_every_reply_has_a_date(service: HttpService) -> None:
    assert service.request("GET", "/missing").headers["date"].endswith("GMT")


@pytest.mark.parametrize(
    "part", ["/", "x", "/x", "/subscriptions/x", "/subscriptions/", "/rules", "subscriptions/rules/"]
)
def test_an_unauthorised_request_with_a_long_address_takes_linear_time(service: HttpService, part: str) -> None:
    start_s = time.process_time()
    service.request("GET", "/" + part * (60_000 // len(part)) + "!", Authorization="none")
    assert time.process_time() - start_s < 0.5


def test_verifying_a_long_token_takes_linear_time() -> None:
    start_s = time.process_time()
    token = f"SharedAccessSignature sr={'a' * 8_000}&sig=x&se=1&skn=k"
    with pytest.raises(Unauthorized):
        verify(token, "orders", KeyRegistry(KeyRing([]), {}), 0)
    assert time.process_time() - start_s < 0.1
