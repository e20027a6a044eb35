"""Names of entities in addresses: slashes, percent-encoding, case, and the Host header in replies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from azure.servicebus.management import ServiceBusAdministrationClient

    from tests.server.http.http_service import HttpService


@pytest.mark.parametrize("name", ["a/b/c", "a.b-c_d", "ORDERS", "9", "contoso/x-servicebus-transfer/3", "x" * 260])
def test_the_sdk_finds_a_queue_by_the_name_it_was_created_with(
    client: ServiceBusAdministrationClient, service: HttpService, name: str
) -> None:
    client.create_queue(name)
    assert [info.path for info in service.administration.queues.values()] == [name]
    assert client.get_queue(name).name == name
    assert [queue.name for queue in client.list_queues()] == [name]
    client.delete_queue(name)
    assert service.administration.queues == {}


@pytest.mark.parametrize("target", ["/a/b", "/a%2Fb", "/a%2fb", "//a/b/", "/%61/b"])
def test_a_slash_may_be_encoded(service: HttpService, target: str) -> None:
    assert service.put(target).status == 201
    assert list(service.administration.queues) == ["a/b"]


def test_a_name_is_decoded_once(service: HttpService) -> None:
    reply = service.put("/a%252Fb")
    assert reply.status == 400
    assert "'a%2Fb' is not a valid path" in reply.detail


def test_a_queue_keeps_the_case_it_was_created_with(service: HttpService) -> None:
    service.put("/Orders")
    reply = service.request("GET", "/oRDERS")
    assert '<title type="text">Orders</title>' in reply.text
    assert f"<id>http://127.0.0.1:{service.http_listener.port}/Orders</id>" in reply.text


@pytest.mark.parametrize("method", ["PUT", "GET", "DELETE"])
def test_an_empty_name_is_refused(service: HttpService, method: str) -> None:
    assert service.request(method, "/").status == 400
    assert service.request(method, "/", If_Match="*").status == 400


@pytest.mark.parametrize("host", ["a", "A.b-c_d:1", "127.0.0.1:65535", "[::1]", "[::1]:5300"])
def test_addresses_in_a_reply_have_the_host_of_the_request(service: HttpService, host: str) -> None:
    reply = service.put("/orders", "<ForwardTo>audit</ForwardTo>", Host=host)
    assert reply.status == 201
    assert reply.element("ForwardTo") == f"sb://{host}/audit"


@pytest.mark.parametrize(
    "host", ["", "[", "a b", "x:y:z", "'<>&", "a:1/orders", "a/b", "a:", "user@a", "a:1?x", "a#", "a,b", "[::1]x", "é"]
)
def test_an_invalid_host_is_refused(service: HttpService, host: str) -> None:
    reply = service.put("/orders", Host=host)
    assert reply.status == 400
    assert reply.detail.startswith(f"Host is {host!r}; it has to be a name or an address")
    assert service.administration.queues == {}


@pytest.mark.parametrize("target", ["/%00%01", "/%FF%FE", "/%EF%BF%BF", "/" + "x" * 5000, "/a%0D%0Ab"])
def test_any_bytes_in_a_name_get_an_xml_reply(service: HttpService, target: str) -> None:
    assert service.request("GET", target).detail.startswith("The messaging entity ")
    assert service.put(target).status == 400
