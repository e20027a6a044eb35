"""Senders during an outage get the errors of a failed store or of a busy server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError, ServiceBusServerBusyError

from tests.support.entity_operations import (
    FAR_FUTURE_MS,
    message_ids,
    order_ids,
    order_message,
    request_management,
    send_orders,
)
from tests.support.raw_client import LinkRefused, connect_raw
from tests.support.transaction_coordinator import attach_coordinator
from twinbus.amqp.message import Properties, build
from twinbus.amqp.outcomes import TransactionalState
from twinbus.model.message import PING_CONTENT_TYPE

if TYPE_CHECKING:
    from tests.server.outage_switch.switch_client import OutageSwitchClient
    from tests.support.server_process import ServerProcess

PING = build(properties=Properties(content_type=PING_CONTENT_TYPE), body=b"")
CONDITIONS = {"refuse": "amqp:internal-error", "busy": "com.microsoft:server-busy"}


@pytest.mark.parametrize(("kind", "condition"), CONDITIONS.items())
async def test_sends_and_pings_are_rejected_and_the_link_stays_attached(
    server: ServerProcess, switch: OutageSwitchClient, queue: str, kind: str, condition: str
) -> None:
    async with connect_raw(server) as client:
        link = await client.attach_sender(queue)
        assert await client.send(link, order_message(1)) is None
        switch.begin(queue, kind=kind)
        for payload in (order_message(2), PING, order_message(3)):
            assert await client.send(link, payload) == condition
        switch.end(queue)
        for payload in (PING, order_message(4)):
            assert await client.send(link, payload) is None
        assert message_ids(await client.receive_all(await client.attach_receiver(queue), 2)) == order_ids(1, 4)


@pytest.mark.parametrize(("kind", "condition"), CONDITIONS.items())
async def test_a_sender_that_attaches_is_refused(
    server: ServerProcess, switch: OutageSwitchClient, queue: str, kind: str, condition: str
) -> None:
    async with connect_raw(server) as client:
        switch.begin(queue, kind=kind)
        with pytest.raises(LinkRefused, match=condition) as caught:
            await client.attach_sender(queue)
        assert "an outage is rehearsed until" in caught.value.text
        switch.end(queue)
        await send_orders(client, queue, [1])


@pytest.mark.parametrize("kind", CONDITIONS)
def test_over_http_a_send_gets_503(switch: OutageSwitchClient, queue: str, kind: str) -> None:
    switch.begin(queue, kind=kind)
    reply = switch.send(queue, b"body")
    assert reply.status == 503
    assert "an outage is rehearsed" in reply.detail
    switch.end(queue)
    assert switch.server.message_counts(queue) == (0, 0)


async def test_scheduling_and_cancelling_are_refused(
    server: ServerProcess, switch: OutageSwitchClient, queue: str
) -> None:
    async with connect_raw(server) as client:
        switch.begin(queue)
        body = {"messages": [{"message": order_message(1, due_ms=FAR_FUTURE_MS), "message-id": "1"}]}
        answer = await request_management(client, queue, "com.microsoft:schedule-message", body)
        assert (answer.status, answer.condition) == (503, "amqp:internal-error")
        answer = await request_management(
            client, queue, "com.microsoft:cancel-scheduled-message", {"sequence-numbers": [1]}
        )
        assert answer.status == 503


async def test_a_transaction_with_a_send_in_it_is_rolled_back(
    server: ServerProcess, switch: OutageSwitchClient, queue: str
) -> None:
    async with connect_raw(server) as client:
        link, coordinator = await client.attach_sender(queue), await attach_coordinator(client)
        txn_id = await coordinator.declare()
        assert await client.send(link, order_message(1), state=TransactionalState(txn_id=txn_id)) is None
        switch.begin(queue)
        assert await coordinator.discharge(txn_id) == "amqp:internal-error"
        switch.end(queue)
    assert server.message_counts(queue) == (0, 0)


async def test_an_outage_of_a_queue_does_not_affect_other_queues(
    server: ServerProcess, switch: OutageSwitchClient, queue: str
) -> None:
    other = server.create_queue()
    switch.begin(queue)
    async with connect_raw(server) as client:
        await send_orders(client, other, [1])
        assert message_ids(await client.receive(await client.attach_receiver(other))) == order_ids(1)


async def test_an_outage_of_the_namespace_includes_queues_created_during_it(
    server: ServerProcess, switch: OutageSwitchClient, queue: str
) -> None:
    switch.begin("*")
    created = server.create_queue()
    async with connect_raw(server) as client:
        for path in (queue, created):
            with pytest.raises(LinkRefused, match="amqp:internal-error"):
                await client.attach_sender(path)
        switch.end("*")
        await send_orders(client, created, [1])


@pytest.mark.parametrize(("kind", "error"), [("refuse", ServiceBusError), ("busy", ServiceBusServerBusyError)])
def test_the_azure_sdk_raises_the_matching_error(
    server: ServerProcess, switch: OutageSwitchClient, queue: str, kind: str, error: type[Exception]
) -> None:
    with (
        ServiceBusClient.from_connection_string(server.connection_string, retry_total=0) as client,
        client.get_queue_sender(queue) as sender,
    ):
        sender.send_messages(ServiceBusMessage("before"))
        switch.begin(queue, kind=kind)
        with pytest.raises(error):
            sender.send_messages(ServiceBusMessage("meanwhile"))
        switch.end(queue)
        sender.send_messages(ServiceBusMessage("after"))
    assert server.message_counts(queue) == (2, 0)
