"""Revoked keys: links opened with a changed or deleted key are detached within a second."""

from __future__ import annotations

import asyncio
import itertools
import json
from contextlib import AsyncExitStack
from http.client import HTTPConnection
from typing import TYPE_CHECKING

import pytest

from tests.sdk_administration.admin import AdministrationClient
from tests.sdk_administration.test_keys_of_entities import UNAUTHORIZED, put_token, rules
from tests.support.raw_client import LinkRefused, RawClient, connect_raw
from tests.support.server_process import TIMEOUT_S
from tests.support.transaction_coordinator import attach_coordinator
from twinbus.amqp.events import LinkDetached
from twinbus.amqp.message import data
from twinbus.amqp.outcomes import TransactionalState
from twinbus.amqp.sasl import Credentials
from twinbus.amqp.terminus import Source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server_process import ServerProcess
    from twinbus.amqp.link import Link

WITHIN_S = 1.0
NEW_SECRET = "bmV3LXNlY3JldC1vZi1hLXJ1bGUtdGhhdC1jaGFuZ2Vk"
SESSION = "com.microsoft:session-filter"
_numbers = itertools.count(1)


@pytest.fixture
def admin(server: ServerProcess) -> Iterator[AdministrationClient]:
    admin = AdministrationClient("sync", server)
    yield admin
    admin.end()


@pytest.fixture
def queue(admin: AdministrationClient) -> str:
    name = f"revoked-{next(_numbers)}"
    admin.create_queue(name, authorization_rules=rules(name))
    admin.create_queue(f"{name}-sessions", requires_session=True, authorization_rules=rules(name))
    return name


def revoke(admin: AdministrationClient, queue: str, key: str, change: str) -> None:
    """Change or delete a key of both queues."""
    for path in (queue, f"{queue}-sessions"):
        properties = admin.get_queue(path)
        rule = next(rule for rule in properties.authorization_rules if rule.key_name == key)
        if change == "primary secret":
            rule.primary_key = NEW_SECRET
        elif change == "secondary secret":
            rule.secondary_key = NEW_SECRET
        elif change == "rights":
            rule.rights = ["Send"] if key == "listener" else ["Listen"]
        else:
            properties.authorization_rules.remove(rule)
        admin.update_queue(properties)


async def authenticate(client: RawClient, server: ServerProcess, method: str, key: str, queue: str) -> None:
    if method == "token":
        for path in (queue, f"{queue}-sessions"):
            assert await put_token(client, server, key, f"{queue}-{key}-secret-1", path) == 202


def credentials(method: str, key: str, queue: str) -> Credentials:
    return Credentials.plain(key, f"{queue}-{key}-secret-1") if method == "password" else Credentials.anonymous()


async def listening_links(client: RawClient, queue: str) -> dict[str, Link]:
    """Attach a link of each kind that needs Listen, or any right."""
    sessions = f"{queue}-sessions"
    return {
        "receiver": await client.attach_receiver(queue),
        "dead letters": await client.attach_receiver(f"{queue}/$DeadLetterQueue"),
        "browser": await client.attach_receiver(None, source=Source(address=queue, distribution_mode="copy")),
        "session": await client.attach_receiver(None, source=Source(address=sessions, filter={SESSION: "a"})),
    }


async def assert_all_detached(client: RawClient, links: dict[str, Link]) -> None:
    async with asyncio.timeout(WITHIN_S):
        for kind, link in links.items():
            assert await client.detach_condition(link) == UNAUTHORIZED, kind


@pytest.mark.parametrize("method", ["password", "token"])
@pytest.mark.parametrize("change", ["primary secret", "rights", "deleted"])
async def test_links_of_every_kind_are_detached_when_their_key_is_revoked(
    server: ServerProcess, admin: AdministrationClient, queue: str, method: str, change: str
) -> None:
    async with AsyncExitStack() as stack:
        listener = await stack.enter_async_context(connect_raw(server, credentials(method, "listener", queue)))
        sender = await stack.enter_async_context(connect_raw(server, credentials(method, "sender", queue)))
        await authenticate(listener, server, method, "listener", queue)
        await authenticate(sender, server, method, "sender", queue)
        listening = await listening_links(listener, queue)
        sending: dict[str, Link] = {"sender": await sender.attach_sender(queue)}
        if change != "rights":  # otherwise another right remains, which is enough for these links
            listening["answers"] = await listener.attach_receiver(f"{queue}/$management")
            listening["requests"] = await listener.attach_sender(f"{queue}/$management")
            sending["coordinator"] = (await attach_coordinator(sender)).link
        revoke(admin, queue, "listener", change)
        revoke(admin, queue, "sender", change)
        await assert_all_detached(listener, listening)
        await assert_all_detached(sender, sending)
        with pytest.raises(LinkRefused, match=UNAUTHORIZED):
            await sender.attach_sender(queue)
    assert server.message_counts(queue) == (0, 0)


@pytest.mark.parametrize("method", ["password", "token"])
async def test_links_of_other_keys_and_secrets_stay_attached(
    server: ServerProcess, admin: AdministrationClient, queue: str, method: str
) -> None:
    """Changes of the other secret, of another key, or that only add rights detach no link."""
    async with connect_raw(server, credentials(method, "sender", queue)) as client:
        await authenticate(client, server, method, "sender", queue)
        link = await client.attach_sender(queue)
        revoke(admin, queue, "sender", "secondary secret")
        revoke(admin, queue, "listener", "deleted")
        properties = admin.get_queue(queue)
        properties.authorization_rules[0].rights = ["Send", "Listen"]
        properties.max_delivery_count = 3
        admin.update_queue(properties)
        assert await client.send(link, data(b"x")) is None
        assert link not in [event.link for event in client.events_of(LinkDetached)]
        await client.attach_receiver(queue)


async def test_a_connection_can_continue_with_another_token(
    server: ServerProcess, admin: AdministrationClient, queue: str
) -> None:
    async with connect_raw(server, Credentials.anonymous()) as client:
        await authenticate(client, server, "token", "sender", queue)
        link = await client.attach_sender(queue)
        revoke(admin, queue, "sender", "primary secret")
        assert await client.detach_condition(link) == UNAUTHORIZED
        assert await put_token(client, server, "sender", f"{queue}-sender-secret-2", queue) == 202
        assert await client.send(await client.attach_sender(queue), data(b"x")) is None


async def test_a_transaction_of_a_revoked_key_is_rolled_back(
    server: ServerProcess, admin: AdministrationClient, queue: str
) -> None:
    async with connect_raw(server, credentials("password", "sender", queue)) as client:
        coordinator, link = await attach_coordinator(client), await client.attach_sender(queue)
        state = TransactionalState(txn_id=await coordinator.declare())
        assert await client.send(link, data(b"x"), state=state) is None
        revoke(admin, queue, "sender", "deleted")
        await assert_all_detached(client, {"coordinator": coordinator.link, "sender": link})
    assert server.message_counts(queue) == (0, 0)


def test_a_waiting_http_receive_is_refused_after_its_key_was_changed(
    server: ServerProcess, admin: AdministrationClient, queue: str
) -> None:
    connection = HTTPConnection(server.host, server.http_port, timeout=TIMEOUT_S)
    token = server.token(queue, key=f"{queue}-listener-secret-1", key_name="listener")
    try:
        connection.request("DELETE", f"/{queue}/messages/head?timeout=20", headers={"Authorization": token})
        revoke(admin, queue, "listener", "primary secret")
        root = {"Authorization": server.token(queue)}
        server.request("POST", f"{queue}/messages", json.dumps("x"), expected=201, headers=root)
        assert connection.getresponse().status == 401
    finally:
        connection.close()
    assert server.message_counts(queue) == (1, 0)
