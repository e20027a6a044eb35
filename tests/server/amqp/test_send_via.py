"""Messages are sent to a destination via another entity, in one transaction with receives from that entity."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.entity_operations import message_ids, order_ids, order_message, send_orders
from tests.support.raw_client import LinkRefused, connect_raw
from tests.support.server_process import wait_until
from tests.support.transaction_coordinator import attach_coordinator
from twinbus.amqp.outcomes import ACCEPTED, TransactionalState
from twinbus.amqp.sasl import Credentials

if TYPE_CHECKING:
    from tests.support.raw_client import RawClient
    from tests.support.server_process import ServerProcess
    from twinbus.amqp.sender import Sender

VIA = "com.microsoft:transfer-destination-address"


async def attach_via(client: RawClient, via: str, destination: object) -> Sender:
    return await client.attach_sender(via, properties={VIA: destination})


async def test_messages_sent_via_a_queue_arrive_at_their_destination(server: ServerProcess, queue: str) -> None:
    destination = server.create_queue()
    async with connect_raw(server) as client:
        link = await attach_via(client, queue, f"amqps://{server.host}/{destination}")
        for number in range(3):
            assert await client.send(link, order_message(number)) is None
        received = await client.receive(await client.attach_receiver(destination), 3)
        assert message_ids(received) == order_ids(0, 1, 2)
    assert server.message_counts(queue) == (0, 0)


@pytest.mark.parametrize("fail", [False, True], ids=["committed", "rolled back"])
async def test_a_receive_and_a_send_via_take_effect_together(server: ServerProcess, queue: str, *, fail: bool) -> None:
    destination = server.create_queue()
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1])
        coordinator, receiver = await attach_coordinator(client), await client.attach_receiver(queue)
        sender = await attach_via(client, queue, destination)
        [delivery] = await client.receive(receiver)
        txn_id = await coordinator.declare()
        assert await client.send(sender, order_message(2), state=TransactionalState(txn_id=txn_id)) is None
        assert await client.settle(receiver, delivery, TransactionalState(txn_id=txn_id, outcome=ACCEPTED)) is None
        assert await coordinator.discharge(txn_id, fail=fail) is None
        destination_counts, queue_counts = ((0, 0), (1, 0)) if fail else ((1, 0), (0, 0))
        wait_until(
            lambda: (
                (server.message_counts(destination), server.message_counts(queue)) == (destination_counts, queue_counts)
            )
        )


async def test_an_invalid_destination_is_refused(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        with pytest.raises(LinkRefused, match="amqp:not-found"):
            await attach_via(client, queue, "nowhere")
        with pytest.raises(LinkRefused, match="argument-error"):
            await attach_via(client, queue, 7)


async def test_a_send_via_needs_a_token_for_the_destination_too(server: ServerProcess, queue: str) -> None:
    destination = server.create_queue()
    async with connect_raw(server, Credentials.anonymous()) as client:
        for path in (queue, destination):
            with pytest.raises(LinkRefused, match="amqp:unauthorized-access"):
                await attach_via(client, queue, destination)
            properties = {"operation": "put-token", "name": f"sb://{server.host}/{path}", "type": "jwt"}
            await client.request_status("$cbs", properties, server.token(path))
        assert await client.send(await attach_via(client, queue, destination), order_message(1)) is None


async def test_a_via_link_is_detached_when_the_token_for_the_destination_expires(
    server: ServerProcess, queue: str
) -> None:
    destination = server.create_queue()
    async with connect_raw(server, Credentials.anonymous()) as client:
        for path, lifetime_s in ((queue, 3_600), (destination, 3)):
            properties = {"operation": "put-token", "name": f"sb://{server.host}/{path}", "type": "jwt"}
            await client.request_status("$cbs", properties, server.token(path, lifetime_s=lifetime_s))
        via, direct = await attach_via(client, queue, destination), await client.attach_sender(queue)
        assert await client.detach_condition(via) == "amqp:unauthorized-access"
        assert await client.send(direct, order_message(1)) is None
