"""Q17: several hosts compete for a queue, and one is its exclusive receiver; the next gets all messages of the last.

A host locks messages, defers some and receives them by sequence number, as a pump of a backlog queue does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from proton import Message as ProtonMessage
from proton import symbol
from proton.reactor import ReceiverOption
from proton.utils import LinkDetached

from tests.support.entity_operations import (
    attach_exclusive_receiver,
    defer,
    message_ids,
    order_ids,
    request_management,
    send_orders,
    sequence_numbers,
)
from tests.support.proton_client import TIMEOUT_S, connect_proton, wait_for
from tests.support.raw_client import LinkRefused, connect_raw
from tests.support.server_process import wait_until
from twinbus.amqp.message import Message
from twinbus.amqp.outcomes import ACCEPTED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from proton import Link

    from tests.support.entity_operations import ManagementResponse
    from tests.support.raw_client import RawClient
    from tests.support.server_process import ServerProcess
    from twinbus.amqp.delivery import IncomingDelivery
    from twinbus.amqp.receiver import Receiver

LOCKED = "amqp:resource-locked"


async def receive_deferred(
    client: RawClient, queue: str, numbers: list[int], **arguments: object
) -> ManagementResponse:
    body = {"sequence-numbers": numbers, **arguments}
    return await request_management(client, queue, "com.microsoft:receive-by-sequence-number", body)


def deferred_ids(answer: ManagementResponse) -> list[str]:
    assert answer.status == 200, answer.text
    return message_ids([Message(item["message"]) for item in answer.body["messages"]])


def counts(deliveries: Iterable[IncomingDelivery]) -> list[int | None]:
    headers = [Message(delivery.payload).header for delivery in deliveries]
    return [header.delivery_count if header is not None else None for header in headers]


async def claim_when_free(client: RawClient, queue: str, epoch: int) -> Receiver:
    """Retry, because the server may notice a lost socket late."""
    for _ in range(1_000):
        try:
            return await attach_exclusive_receiver(client, queue, epoch)
        except LinkRefused as refused:
            assert str(refused) == LOCKED  # noqa: PT017
    raise AssertionError("the claim is still there")


async def test_deferred_messages_need_the_connection_or_the_epoch_of_the_holder(
    server: ServerProcess, queue: str
) -> None:
    async with connect_raw(server) as holder, connect_raw(server) as other:
        await send_orders(other, queue, [1, 2])
        link = await attach_exclusive_receiver(holder, queue, 7)
        numbers = [await defer(holder, link, delivery) for delivery in await holder.receive(link, 2)]
        refused = await receive_deferred(other, queue, numbers)
        assert (refused.status, refused.condition) == (409, LOCKED)
        assert deferred_ids(await receive_deferred(holder, queue, numbers[:1])) == order_ids(1)
        assert (await receive_deferred(other, queue, numbers[1:], epoch=6)).condition == LOCKED
        assert deferred_ids(await receive_deferred(other, queue, numbers[1:], epoch=7)) == order_ids(2)


@pytest.mark.parametrize("way", ["displaced", "detached", "closed", "dead"])
async def test_the_next_host_gets_deferred_messages_locked_by_the_last_one_at_once(
    server: ServerProcess, queue: str, way: str
) -> None:
    async with connect_raw(server) as new, connect_raw(server) as old:
        await send_orders(new, queue, [1, 2])
        link = await attach_exclusive_receiver(old, queue, 1)
        numbers = [await defer(old, link, delivery) for delivery in await old.receive(link, 2)]
        assert deferred_ids(await receive_deferred(old, queue, numbers)) == order_ids(1, 2)
        await end_link(old, link, way)
        await claim_when_free(new, queue, 2)
        assert deferred_ids(await receive_deferred(new, queue, numbers)) == order_ids(1, 2)


@pytest.mark.parametrize("way", ["displaced", "detached", "closed", "dead"])
async def test_q17_the_next_host_gets_all_in_order_with_raised_counts_for_locked_ones(
    server: ServerProcess, queue: str, way: str
) -> None:
    async with connect_raw(server) as new, connect_raw(server) as old:
        await send_orders(new, queue, range(1, 6))
        link = await attach_exclusive_receiver(old, queue, 1)
        await old.receive(link, 3)
        await end_link(old, link, way)
        received = await new.receive(await claim_when_free(new, queue, 1), 5)
        assert message_ids(received) == order_ids(1, 2, 3, 4, 5)
        assert counts(received) == [1, 1, 1, 0, 0]


async def end_link(client: RawClient, link: Receiver, way: str) -> None:
    if way == "detached":
        await client.detach(link)
    elif way == "closed":
        client.peer.close()
        await client.wait_until_closed()
    elif way == "dead":
        client.peer.transport.abort()
        await client.wait_until_closed()


async def test_the_last_host_cannot_settle_its_messages_any_more(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as new, connect_raw(server) as old:
        await send_orders(new, queue, [1])
        link = await attach_exclusive_receiver(old, queue, 1)
        [number] = [await defer(old, link, delivery) for delivery in await old.receive(link)]
        [held] = (await receive_deferred(old, queue, [number])).body["messages"]
        await old.detach(link)
        await attach_exclusive_receiver(new, queue, 2)
        body = {"disposition-status": "completed", "lock-tokens": [held["lock-token"]]}
        answer = await request_management(old, queue, "com.microsoft:update-disposition", body)
        assert answer.condition == "com.microsoft:message-lock-lost"
        assert server.message_counts(queue) == (0, 0)
        assert deferred_ids(await receive_deferred(new, queue, [number])) == order_ids(1)


async def test_a_lower_epoch_gets_all_messages_once_the_holder_has_detached(server: ServerProcess, queue: str) -> None:
    """An older host was on standby: without the messages of the newer one it would forward the rest out of order."""
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1, 2])
        link = await attach_exclusive_receiver(client, queue, 7)
        await client.receive(link)
        await client.detach(link)
        assert message_ids(await client.receive_all(await attach_exclusive_receiver(client, queue, 6), 2)) == order_ids(
            1, 2
        )


async def test_locks_of_receivers_without_a_claim_are_left_alone(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1, 2, 3])
        before = await client.attach_receiver(queue)
        [first] = await client.receive(before)
        await client.detach(before)
        await client.detach(await attach_exclusive_receiver(client, queue, 1))
        between = await client.attach_receiver(queue)
        await client.receive(between)
        await client.detach(between)
        link = await attach_exclusive_receiver(client, queue, 2)
        received = await client.receive_all(link, 1)
        assert message_ids(received) == order_ids(3)
        assert sequence_numbers([first]) == [1]


async def test_messages_completed_by_the_last_host_are_not_redelivered(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as old, connect_raw(server) as new:
        await send_orders(new, queue, [1, 2, 3])
        link = await attach_exclusive_receiver(old, queue, 1)
        [first, *_] = await old.receive(link, 3)
        assert await old.settle(link, first, ACCEPTED) is None
        assert message_ids(await new.receive_all(await attach_exclusive_receiver(new, queue, 1), 2)) == order_ids(2, 3)


# --- a third-party client ---------------------------------------------------------------------------------------------


class Epoch(ReceiverOption):
    """Receiver option that sets the epoch."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch

    def apply(self, link: Link) -> None:
        link.properties = {symbol("com.microsoft:epoch"): self._epoch}


def test_proton_claims_and_is_displaced(server: ServerProcess, queue: str) -> None:
    with connect_proton(server) as old, connect_proton(server) as new:
        sender = new.create_sender(queue)
        sender.send(message("one"))
        first = old.create_receiver(queue, credit=1, options=Epoch(1))
        assert first.receive(timeout=TIMEOUT_S).body == "one"
        with pytest.raises(LinkDetached, match="epoch 1"):
            new.create_receiver(queue, credit=1)
        with pytest.raises(LinkDetached, match="0 is lower"):
            new.create_receiver(queue, credit=1, options=Epoch(0))
        second = new.create_receiver(queue, credit=1, options=Epoch(2))
        received = second.receive(timeout=TIMEOUT_S)
        assert (received.body, received.delivery_count) == ("one", 1)
        second.accept()
        with pytest.raises(LinkDetached, match="amqp:link:stolen"):
            wait_for(old, lambda: first.link.state & first.link.REMOTE_CLOSED)
    wait_until(lambda: server.message_counts(queue) == (0, 0))  # proton does not wait until its accept is applied


def message(body: str) -> ProtonMessage:
    return ProtonMessage(body=body, id=body)
