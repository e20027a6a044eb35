"""A message is settled in a transaction in every way that AMQP has; before the discharge nothing has become of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.plain.coordinator import control
from tests.plain.entity import annotation, names, orders, peek, send_orders
from tests.plain.raw import raw
from twinbus.amqp.message import Message
from twinbus.amqp.outcomes import ACCEPTED, Modified, Rejected, Released, TransactionalState

if TYPE_CHECKING:
    from tests.served import Served
    from twinbus.amqp.composite import Composite

ACTIVE, DEFERRED = 0, 1


async def settled(server: Served, queue: str, outcome: Composite, *, fail: bool = False) -> tuple[int, int]:
    """What the queue and its dead-letter queue hold when its one message was settled so; the locks are gone then."""
    async with raw(server) as client:
        await send_orders(client, queue, [1])
        coordinator, link = await control(client), await client.attach_receiver(queue)
        [delivery] = await client.receive(link)
        txn_id = await coordinator.declare()
        assert await client.settle(link, delivery, TransactionalState(txn_id=txn_id, outcome=outcome)) is None
        assert server.counts(queue) == (1, 0)
        assert await coordinator.discharge(txn_id, fail=fail) is None
        return server.counts(queue)


async def test_an_accepted_message_is_completed(server: Served, queue: str) -> None:
    assert await settled(server, queue, ACCEPTED) == (0, 0)


async def test_a_rejected_message_is_dead_lettered(server: Served, queue: str) -> None:
    assert await settled(server, queue, Rejected()) == (0, 1)


@pytest.mark.parametrize(
    ("outcome", "deliveries"), [(Released(), 0), (Modified(delivery_failed=True), 1)], ids=["released", "modified"]
)
async def test_a_message_that_is_given_back_is_there_again(
    server: Served, queue: str, outcome: Composite, deliveries: int
) -> None:
    assert await settled(server, queue, outcome) == (1, 0)
    async with raw(server) as client:
        [delivery] = await client.receive(await client.attach_receiver(queue))
        header = Message(delivery.payload).header
        assert (header.delivery_count if header is not None else 0) == deliveries


async def test_a_message_that_is_undeliverable_here_is_deferred(server: Served, queue: str) -> None:
    await settled(server, queue, Modified(undeliverable_here=True))
    async with raw(server) as client:
        [message] = await peek(client, queue)
        assert names([message]) == orders(1)
        assert annotation(message, "x-opt-message-state") == DEFERRED


@pytest.mark.parametrize("outcome", [ACCEPTED, Rejected(), Modified(undeliverable_here=True)])
async def test_what_is_rolled_back_is_as_it_was(server: Served, queue: str, outcome: Composite) -> None:
    assert await settled(server, queue, outcome, fail=True) == (1, 0)
    async with raw(server) as client:
        [message] = await peek(client, queue)
        assert annotation(message, "x-opt-message-state") in (None, ACTIVE)
