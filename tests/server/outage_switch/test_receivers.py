"""Receivers during an outage get no messages, can settle locked messages, and lose nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.entity_operations import (
    accept_session,
    browse,
    defer,
    lock_token_of,
    message_ids,
    order_ids,
    peek,
    request_management,
    send_orders,
)
from tests.support.raw_client import LinkRefused, connect_raw
from twinbus.amqp.outcomes import ACCEPTED, Modified

if TYPE_CHECKING:
    from tests.server.outage_switch.switch_client import OutageSwitchClient
    from tests.support.server_process import ServerProcess


@pytest.mark.parametrize("kind", ["refuse", "busy", "silent"])
async def test_an_attached_receiver_gets_nothing_during_an_outage_and_the_rest_after_it(
    server: ServerProcess, switch: OutageSwitchClient, queue: str, kind: str
) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1, 2, 3])
        link = await client.attach_receiver(queue)
        [first] = await client.receive(link)
        switch.begin(queue, kind=kind)
        assert await client.drain(link) == []
        assert await client.settle(link, first, ACCEPTED) is None
        link.grant(10)
        switch.end(queue)
        await client.wait_until(lambda: len(client.received(link)) == 3)
        assert message_ids(client.received(link)) == order_ids(1, 2, 3)


@pytest.mark.parametrize("kind", ["refuse", "busy", "silent"])
async def test_locked_messages_are_settled_and_renewed_by_management_request_too(
    server: ServerProcess, switch: OutageSwitchClient, queue: str, kind: str
) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1, 2])
        link = await client.attach_receiver(queue)
        first, second = await client.receive(link, 2)
        switch.begin(queue, kind=kind)
        assert (
            await request_management(client, queue, "com.microsoft:renew-lock", {"lock-tokens": [lock_token_of(first)]})
        ).status == 200
        tokens = {"disposition-status": "completed", "lock-tokens": [lock_token_of(first)]}
        assert (await request_management(client, queue, "com.microsoft:update-disposition", tokens)).status == 200
        assert await client.settle(link, second, Modified(delivery_failed=True)) is None
        switch.end(queue)
    assert server.message_counts(queue) == (1, 0)


async def test_an_accepted_session_keeps_its_lock_and_state(server: ServerProcess, switch: OutageSwitchClient) -> None:
    queue = server.create_queue(RequiresSession="true")
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1], session="a")
        link = await accept_session(client, queue, "a")
        [delivery] = await client.receive(link)
        switch.begin(queue)
        session = {"session-id": "a"}
        assert (await request_management(client, queue, "com.microsoft:renew-session-lock", session)).status == 200
        body = {**session, "session-state": b"half"}
        assert (await request_management(client, queue, "com.microsoft:set-session-state", body)).status == 200
        reply = await request_management(client, queue, "com.microsoft:get-session-state", session)
        assert reply.body["session-state"] == b"half"
        assert await client.settle(link, delivery, ACCEPTED) is None
        with pytest.raises(LinkRefused, match="amqp:internal-error"):
            await accept_session(client, queue, "b")


@pytest.mark.parametrize(("kind", "condition"), [("refuse", "amqp:internal-error"), ("busy", "server-busy")])
async def test_new_receivers_and_browsers_are_refused(
    server: ServerProcess, switch: OutageSwitchClient, queue: str, kind: str, condition: str
) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1])
        link = await client.attach_receiver(queue)
        number = await defer(client, link, (await client.receive(link))[0])
        await client.detach(link)
        switch.begin(queue, kind=kind)
        for path in (queue, f"{queue}/$DeadLetterQueue"):
            with pytest.raises(LinkRefused, match=condition):
                await client.attach_receiver(path)
        with pytest.raises(LinkRefused, match=condition):
            await browse(client, queue)
        body = {"sequence-numbers": [number]}
        assert (await request_management(client, queue, "com.microsoft:receive-by-sequence-number", body)).status == 503
        assert (await request_management(client, queue, "twinbus:purge", {"state": "deferred"})).status == 503
        switch.end(queue)
        assert message_ids(await peek(client, queue)) == order_ids(1)


def test_over_http_receives_are_refused_and_locked_messages_are_settled(switch: OutageSwitchClient, queue: str) -> None:
    for _ in range(2):
        assert switch.send(queue, b"body").status == 201
    location = switch.peek_lock(queue).location
    switch.begin(queue)
    assert switch.peek_lock(queue).status == switch.receive_and_delete(queue).status == 503
    assert switch.request("DELETE", location).status == 200
    switch.end(queue)
    assert switch.server.message_counts(queue) == (1, 0)


def test_an_outage_of_a_topic_includes_its_subscriptions(
    server: ServerProcess, switch: OutageSwitchClient, queue: str
) -> None:
    topic = f"topic-of-{queue}"
    server.create_entity(topic, "TopicDescription")
    server.create_entity(f"{topic}/subscriptions/all", "SubscriptionDescription")
    assert switch.send(topic, b"body").status == 201
    switch.begin(topic)
    assert switch.send(topic).status == 503
    assert switch.peek_lock(f"{topic}/subscriptions/all").status == 503
    switch.end(topic)
    assert switch.receive_and_delete(f"{topic}/subscriptions/all").body == b"body"
