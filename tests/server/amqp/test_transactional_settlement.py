"""Messages are settled in a transaction with every AMQP outcome, which takes effect at the discharge."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.entity_operations import annotation_of, message_ids, order_ids, peek, send_orders
from tests.support.raw_client import connect_raw
from tests.support.transaction_coordinator import attach_coordinator
from twinbus.amqp.message import Message
from twinbus.amqp.outcomes import ACCEPTED, Modified, Rejected, Released, TransactionalState

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess
    from twinbus.amqp.codec.composite import Composite

ACTIVE, DEFERRED = 0, 1


async def settle_in_transaction(
    server: ServerProcess, queue: str, outcome: Composite, *, fail: bool = False
) -> tuple[int, int]:
    """Settle one message and discharge; return the message counts after the connection has closed."""
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1])
        coordinator, link = await attach_coordinator(client), await client.attach_receiver(queue)
        [delivery] = await client.receive(link)
        txn_id = await coordinator.declare()
        assert await client.settle(link, delivery, TransactionalState(txn_id=txn_id, outcome=outcome)) is None
        assert server.message_counts(queue) == (1, 0)
        assert await coordinator.discharge(txn_id, fail=fail) is None
        return server.message_counts(queue)


async def test_an_accepted_message_is_completed(server: ServerProcess, queue: str) -> None:
    assert await settle_in_transaction(server, queue, ACCEPTED) == (0, 0)


async def test_a_rejected_message_is_dead_lettered(server: ServerProcess, queue: str) -> None:
    assert await settle_in_transaction(server, queue, Rejected()) == (0, 1)


@pytest.mark.parametrize(
    ("outcome", "deliveries"), [(Released(), 0), (Modified(delivery_failed=True), 1)], ids=["released", "modified"]
)
async def test_a_released_or_modified_message_is_available_again(
    server: ServerProcess, queue: str, outcome: Composite, deliveries: int
) -> None:
    assert await settle_in_transaction(server, queue, outcome) == (1, 0)
    async with connect_raw(server) as client:
        [delivery] = await client.receive(await client.attach_receiver(queue))
        header = Message(delivery.payload).header
        assert (header.delivery_count if header is not None else 0) == deliveries


async def test_a_message_that_is_undeliverable_here_is_deferred(server: ServerProcess, queue: str) -> None:
    await settle_in_transaction(server, queue, Modified(undeliverable_here=True))
    async with connect_raw(server) as client:
        [message] = await peek(client, queue)
        assert message_ids([message]) == order_ids(1)
        assert annotation_of(message, "x-opt-message-state") == DEFERRED


@pytest.mark.parametrize("outcome", [ACCEPTED, Rejected(), Modified(undeliverable_here=True)])
async def test_a_rollback_leaves_the_message_unchanged(server: ServerProcess, queue: str, outcome: Composite) -> None:
    assert await settle_in_transaction(server, queue, outcome, fail=True) == (1, 0)
    async with connect_raw(server) as client:
        [message] = await peek(client, queue)
        assert annotation_of(message, "x-opt-message-state") in (None, ACTIVE)
