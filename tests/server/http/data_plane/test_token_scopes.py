"""A token is valid for addresses that start with its resource, compared by whole segments, and for no others."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from tests.sdk_administration.test_keys_of_entities import UNAUTHORIZED
from tests.support.raw_client import LinkRefused, connect_raw
from tests.support.server_process import AUTHORIZATION_RULE, QUEUE_ENTRY
from twinbus.amqp.sasl import Credentials
from twinbus.model.signature import make_token

if TYPE_CHECKING:
    from tests.support.http_client import HttpClient
    from tests.support.server_process import ServerProcess

SECRET = "b25lLWtleS1vZi1vbmUtcXVldWUtYW5kLW5vLW90aGVy"


def token(server: ServerProcess, resource: str, name: str | None = None, secret: str | None = None) -> str:
    """A token for exactly this resource."""
    return make_token(resource, name or server.key_name, secret or server.key, int(time.time()) + 600)


@pytest.mark.parametrize(
    "resource",
    [
        "http://{host}/{queue}/messages",
        "http://{host}:{port}/{queue}/messages/",
        "https://CONTOSO.servicebus.windows.net/{QUEUE}/Messages",
        "sb://{host}/{queue}/messages?api-version=2015-01&timeout=60",
        "http://{host}/{encoded}%2Fmessages",
        "http://{host}/{queue}",
        "http://{host}/",
        "http://{host}",
    ],
)
def test_a_token_for_any_prefix_of_the_request_address_is_accepted(
    http_client: HttpClient, server: ServerProcess, queue: str, resource: str
) -> None:
    encoded = "".join(f"%{ord(letter):02x}" for letter in queue)
    signed = token(server, resource.format(host=server.host, port=server.http_port, queue=queue, QUEUE=queue.upper(),
                                          encoded=encoded))  # fmt: skip
    assert http_client.request("POST", f"/{queue}/messages", "x", token=signed).status == 201
    assert http_client.request("DELETE", f"/{queue}/messages/head", token=signed).body == b"x"


def test_a_token_for_the_exact_address_of_every_request_is_accepted(
    http_client: HttpClient, server: ServerProcess, queue: str
) -> None:
    def call(method: str, target: str) -> int:
        return http_client.request(method, target, token=token(server, f"http://{server.host}{target}")).status

    for message_id in ("plain", "a%2Fb+c d%"):
        http_client.send_with_properties(queue, "x", MessageId=message_id)
        locked = http_client.request(
            "POST", f"/{queue}/messages/head", token=token(server, f"http://h/{queue}/messages/head")
        )
        assert locked.status == 201
        message_address = f"/{queue}/messages/{quote(message_id, safe='')}/{locked.location.rpartition('/')[2]}"
        assert [call("POST", message_address), call("PUT", message_address)] == [200, 200]
        assert call("DELETE", f"/{queue}/messages/head?timeout=5") == 200
    assert call("GET", f"/{queue}") == 200


@pytest.mark.parametrize(
    ("scope", "method", "target"),
    [
        ("{}", "POST", "/{}2/messages"),
        ("{}/messages", "POST", "/{}2/messages"),
        ("{}/mess", "POST", "/{}/messages"),
        ("{}/messages2", "POST", "/{}/messages"),
        ("{}/messages/head", "POST", "/{}/messages"),
        ("{}/messages/1", "POST", "/{}/messages/head"),
        ("{}/messages/head", "DELETE", "/{}/messages/1/5d9aa1b4-5e5b-4a3c-9e0a-111111111111"),
        (
            "{}/messages/1/5d9aa1b4-5e5b-4a3c-9e0a-111111111111",
            "DELETE",
            "/{}/messages/2/5d9aa1b4-5e5b-4a3c-9e0a-111111111111",
        ),
        ("{}/messages", "POST", "/{}/$DeadLetterQueue/messages/head"),
        ("{}/$DeadLetterQueue/messages", "POST", "/{}/messages/head"),
        ("{}/messages", "GET", "/{}"),
        ("{}/messages", "PUT", "/{}"),
        ("{}/messages", "DELETE", "/{}"),
        ("{}/messages", "GET", "/{}/subscriptions"),
        ("{}/messages", "GET", "/$Resources/queues"),
        ("{}/messages", "POST", "/http%3A%2F%2F{}%2Fmessages/{}2/messages"),
        ("{}%252Fmessages", "POST", "/{}/messages"),
        ("messages", "POST", "/{}/messages"),
    ],
)
def test_a_token_is_refused_for_an_address_that_it_is_not_a_prefix_of(
    http_client: HttpClient, server: ServerProcess, queue: str, scope: str, method: str, target: str
) -> None:
    signed = token(server, f"http://{server.host}/{scope.format(queue)}")
    assert http_client.request(method, target.replace("{}", queue), token=signed).status == 401
    assert server.message_counts(queue) == (0, 0)


def test_keys_of_an_entity_are_valid_for_addresses_of_that_entity_only(
    http_client: HttpClient, server: ServerProcess, queue: str
) -> None:
    for name, key_name in ((f"{queue}-own", "sender"), (f"{queue}/messages", "other")):
        server.request(
            "PUT", name, QUEUE_ENTRY.format(AUTHORIZATION_RULE.format(name=key_name, key=SECRET)), expected=201
        )
    own = f"{queue}-own"

    def status(method: str, target: str, resource: str, key_name: str) -> int:
        signed = token(server, f"http://{server.host}/{resource}", key_name, SECRET)
        return http_client.request(method, target, "x", token=signed).status

    assert status("POST", f"/{own}/messages", f"{own}/messages", "sender") == 201
    assert (
        status("POST", f"/{own}/messages/head?timeout=0", f"{own}/messages", "sender") == 401
    )  # the key has only Send
    assert status("POST", f"/{queue}/messages", f"{queue}/messages", "sender") == 401  # another queue's key
    # A key of the queue `q/messages` is not valid for the queue `q`, whose messages have the same address.
    assert status("POST", f"/{queue}/messages", f"{queue}/messages", "other") == 401
    assert status("POST", f"/{queue}/messages/messages", f"{queue}/messages", "other") == 201
    assert server.message_counts(queue) == (0, 0)
    server.delete_queue(f"{queue}/messages")


async def test_over_amqp_a_token_for_the_messages_address_allows_no_link(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server, Credentials.anonymous()) as client:
        for audience in (f"http://{server.host}/{queue}/messages", f"amqp://{server.host}/{queue}"):
            signed = token(server, f"http://{server.host}/{queue}/messages")
            properties = {"operation": "put-token", "name": audience, "type": "servicebus.windows.net:sastoken"}
            answer = await client.request_status("$cbs", properties, signed)
            assert answer["status-code"] == (202 if audience.endswith("messages") else 401)
        async with asyncio.timeout(10):
            for attach in (client.attach_sender, client.attach_receiver):
                with pytest.raises(LinkRefused, match=UNAUTHORIZED):
                    await attach(queue)
