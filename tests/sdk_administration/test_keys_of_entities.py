"""Keys of queues and topics: they grant access to their entity and its sub-entities, until their rule changes."""

from __future__ import annotations

import http.client
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusAuthorizationError
from azure.servicebus.management import AuthorizationRule

from tests.sdk_administration.admin import AdministrationClient
from tests.support.raw_client import LinkRefused, RawClient, connect_raw
from tests.support.server_process import TIMEOUT_S
from twinbus.amqp.message import data
from twinbus.amqp.sasl import Credentials

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server_process import ServerProcess

UNAUTHORIZED = "amqp:unauthorized-access"
REFUSED = (ServiceBusAuthenticationError, ServiceBusAuthorizationError)
RIGHTS = {"sender": ["Send"], "listener": ["Listen"], "boss": ["Manage", "Send", "Listen"]}


def rules(seed: str) -> list[AuthorizationRule]:
    """Return a rule for each combination of rights; the secrets contain `seed` to differ between entities."""
    return [
        AuthorizationRule(
            key_name=name,
            rights=list(rights),
            primary_key=f"{seed}-{name}-secret-1",
            secondary_key=f"{seed}-{name}-secret-2",
        )
        for name, rights in RIGHTS.items()
    ]


@pytest.fixture
def admin(server: ServerProcess) -> Iterator[AdministrationClient]:
    admin = AdministrationClient("sync", server)
    yield admin
    assert "-sender-" not in server.log
    assert "-boss-" not in server.log
    admin.end()


@pytest.fixture
def queue(admin: AdministrationClient, name: str) -> str:
    admin.create_queue(name, authorization_rules=rules(name))
    return name


@contextmanager
def client_with(server: ServerProcess, name: str, secret: str, entity: str) -> Iterator[ServiceBusClient]:
    endpoint = server.connection_string.split(";", 1)[0]
    key = f"SharedAccessKeyName={name};SharedAccessKey={secret};EntityPath={entity}"
    text = f"{endpoint};{key};UseDevelopmentEmulator=true"
    with ServiceBusClient.from_connection_string(text, retry_total=0) as client:
        yield client


async def put_token(client: RawClient, server: ServerProcess, name: str, secret: str, path: str) -> object:
    properties = {"operation": "put-token", "name": f"sb://{server.host}/{path}", "type": "jwt"}
    answer = await client.request_status("$cbs", properties, server.token(path, key=secret, key_name=name))
    return answer["status-code"]


def request_status(server: ServerProcess, method: str, path: str, token: str, body: str | None = None) -> int:
    connection = http.client.HTTPConnection(server.host, server.http_port, timeout=TIMEOUT_S)
    try:
        connection.request(method, f"/{path}", body, {"Authorization": token})
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


# --- with the SDK -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("secret", [1, 2])
def test_a_send_key_of_a_queue_allows_only_sending_to_that_queue(
    admin: AdministrationClient, server: ServerProcess, queue: str, secret: int
) -> None:
    other = f"{queue}-other"
    below = f"{queue}/below"
    for path in (other, below):
        admin.create_queue(path)
    with client_with(server, "sender", f"{queue}-sender-secret-{secret}", queue) as client:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages(ServiceBusMessage("x"))
        with pytest.raises(REFUSED), client.get_queue_receiver(queue, max_wait_time=1) as receiver:
            receiver.receive_messages()
    for elsewhere in (other, below):
        with (
            client_with(server, "sender", f"{queue}-sender-secret-{secret}", elsewhere) as client,
            pytest.raises(REFUSED),
            client.get_queue_sender(elsewhere) as sender,
        ):
            sender.send_messages(ServiceBusMessage("x"))
    assert server.message_counts(queue) == (1, 0)
    assert server.message_counts(other) == server.message_counts(below) == (0, 0)


def test_a_key_of_a_topic_is_valid_for_its_subscriptions(
    admin: AdministrationClient, server: ServerProcess, name: str
) -> None:
    admin.create_topic(name, authorization_rules=rules(name))
    admin.create_subscription(name, "all")
    with (
        client_with(server, "sender", f"{name}-sender-secret-1", name) as client,
        client.get_topic_sender(name) as sender,
    ):
        sender.send_messages(ServiceBusMessage("x"))
    with (
        client_with(server, "listener", f"{name}-listener-secret-1", name) as client,
        client.get_subscription_receiver(name, "all") as receiver,
    ):
        [message] = receiver.receive_messages(1)
        receiver.complete_message(message)
        assert receiver.peek_messages() == []


# --- on a connection --------------------------------------------------------------------------------------------------


async def test_a_token_of_an_entity_key_is_valid_only_for_that_entity(
    server: ServerProcess, admin: AdministrationClient, queue: str
) -> None:
    admin.create_queue(f"{queue}/below")
    async with connect_raw(server, Credentials.anonymous()) as client:
        for path in ("", f"{queue}/below", f"{queue}2", "$cbs"):
            assert await put_token(client, server, "boss", f"{queue}-boss-secret-1", path) == 401
        assert await put_token(client, server, "sender", f"{queue}-boss-secret-1", queue) == 401
        assert await put_token(client, server, "boss", f"{queue}-boss-secret-1", queue) == 202
        await client.attach_sender(queue.upper())
        await client.attach_receiver(f"{queue}/$DeadLetterQueue")
        with pytest.raises(LinkRefused, match=UNAUTHORIZED):
            await client.attach_sender(f"{queue}/below")


async def test_an_entity_key_as_password_is_valid_only_for_its_entity(
    server: ServerProcess, admin: AdministrationClient, queue: str
) -> None:
    admin.create_queue(f"{queue}-other")
    async with connect_raw(server, Credentials.plain("sender", f"{queue}-sender-secret-2")) as client:
        assert await client.send(await client.attach_sender(queue), data(b"x")) is None
        for attach in (client.attach_receiver(queue), client.attach_sender(f"{queue}-other")):
            with pytest.raises(LinkRefused, match=UNAUTHORIZED):
                await attach
    assert server.message_counts(queue) == (1, 0)


async def test_a_key_that_several_entities_share_is_valid_for_each(
    server: ServerProcess, admin: AdministrationClient, queue: str
) -> None:
    admin.create_queue(f"{queue}-twin", authorization_rules=rules(queue))
    async with connect_raw(server, Credentials.plain("sender", f"{queue}-sender-secret-1")) as client:
        for path in (queue, f"{queue}-twin"):
            assert await client.send(await client.attach_sender(path), data(b"x")) is None


@pytest.mark.parametrize("method", ["token", "password"])
@pytest.mark.parametrize("change", ["other secret", "other rights", "deleted", "entity deleted"])
async def test_a_changed_rule_no_longer_grants_access(
    server: ServerProcess, admin: AdministrationClient, queue: str, method: str, change: str
) -> None:
    secret = f"{queue}-sender-secret-1"
    credentials = Credentials.plain("sender", secret) if method == "password" else Credentials.anonymous()
    async with connect_raw(server, credentials) as client:
        if method == "token":
            assert await put_token(client, server, "sender", secret, queue) == 202
        link = await client.attach_sender(queue)
        properties = admin.get_queue(queue)
        if change == "other secret":
            properties.authorization_rules[0].primary_key = "bmV3LXNlY3JldC1uZXc"
        elif change == "other rights":
            properties.authorization_rules[0].rights = ["Listen"]
        else:
            del properties.authorization_rules[0]
        admin.update_queue(properties)
        if change == "entity deleted":
            admin.delete_queue(queue)
            admin.create_queue(queue)
        else:
            assert await client.detach_condition(link) == UNAUTHORIZED
        with pytest.raises(LinkRefused, match=UNAUTHORIZED):
            await client.attach_sender(queue)
        if change == "other rights":
            await client.attach_receiver(queue)
        elif method == "token":
            assert await put_token(client, server, "sender", secret, queue) == 401


async def test_changing_the_primary_secret_does_not_affect_users_of_the_secondary(
    server: ServerProcess, admin: AdministrationClient, queue: str
) -> None:
    async with connect_raw(server, Credentials.anonymous()) as client:
        assert await put_token(client, server, "sender", f"{queue}-sender-secret-2", queue) == 202
        properties = admin.get_queue(queue)
        properties.authorization_rules[0].primary_key = "bmV3LXNlY3JldC1uZXc"
        admin.update_queue(properties)
        await client.attach_sender(queue)


# --- over HTTP --------------------------------------------------------------------------------------------------------


def test_entity_keys_work_over_http(server: ServerProcess, admin: AdministrationClient, name: str) -> None:
    admin.create_topic(name, authorization_rules=rules(name))
    admin.create_topic(f"{name}/below", authorization_rules=rules("below"))
    admin.create_subscription(name, "all")
    boss = server.token(name, key=f"{name}-boss-secret-2", key_name="boss")
    assert request_status(server, "GET", name, boss) == 200
    assert request_status(server, "GET", f"{name}/subscriptions", boss) == 200
    assert request_status(server, "GET", f"{name}/subscriptions/all/rules/$Default", boss) == 200
    for elsewhere in (f"{name}/below", "$Resources/topics", "$namespaceinfo", ""):
        assert request_status(server, "GET", elsewhere, boss) == 401
    for key_name in ("sender", "listener"):
        assert (
            request_status(
                server, "GET", name, server.token(name, key=f"{name}-{key_name}-secret-1", key_name=key_name)
            )
            == 401
        )
    below = server.token(f"{name}/subscriptions/all", key=f"{name}-boss-secret-1", key_name="boss")
    assert request_status(server, "DELETE", f"{name}/Subscriptions/all/rules/$Default", below) == 200
    assert request_status(server, "GET", name, below) == 401
    assert request_status(server, "DELETE", name, boss) == 200
    assert request_status(server, "GET", name, boss) == 401, "the key is gone with its topic"


def test_entity_keys_are_valid_after_a_restart(server: ServerProcess, admin: AdministrationClient, queue: str) -> None:
    server.stop()
    server.start()
    boss = server.token(queue, key=f"{queue}-boss-secret-1", key_name="boss")
    assert request_status(server, "GET", queue, boss) == 200
    assert admin.get_queue(queue).authorization_rules[0].key_name == "sender"
