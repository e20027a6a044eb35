"""Dead-letter queues: messages dead-lettered by the receiver or by the namespace, and receiving them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.client.bus import cut_connection, receive_one
from twinbus.client import BrokeredMessage, ReceiveMode

if TYPE_CHECKING:
    from tests.client.bus import Bus


@pytest.mark.parametrize("is_cut", [False, True], ids=["on its link", "by its lock"])
async def test_a_dead_lettered_message_has_its_reason_and_description(every_bus: Bus, is_cut: bool) -> None:  # noqa: FBT001
    queue = every_bus.create_queue()
    await queue.send(BrokeredMessage("bad", properties={"kept": 1}))
    message = await receive_one(queue)
    if is_cut:
        await cut_connection(every_bus.shared_factory)
    await queue.dead_letter(message, "unreadable", "no order at all")
    assert every_bus.message_counts(queue) == (0, 1)
    receiver = queue.dead_letter_receiver()
    dead = await receive_one(receiver)
    assert (dead.text, dead.properties["kept"]) == ("bad", 1)
    assert (dead.dead_letter_reason, dead.dead_letter_error_description) == ("unreadable", "no order at all")
    await receiver.renew_lock(dead)
    await receiver.complete(dead)
    assert every_bus.message_counts(queue) == (0, 0)


async def test_a_message_can_be_dead_lettered_without_a_reason(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send(BrokeredMessage("x"))
    await queue.dead_letter(await receive_one(queue))
    receiver = queue.dead_letter_receiver(ReceiveMode.RECEIVE_AND_DELETE)
    peeked = await receiver.peek()
    assert peeked is not None
    assert (await receive_one(receiver)).message_id == peeked.message_id
    assert bus.message_counts(queue) == (0, 0)


async def test_a_message_is_dead_lettered_after_its_last_delivery(bus: Bus) -> None:
    queue = bus.create_queue(MaxDeliveryCount="2")
    await queue.send(BrokeredMessage("x"))
    for count in (1, 2):
        message = await receive_one(queue)
        assert message.delivery_count == count
        await queue.abandon(message)
    dead = await receive_one(queue.dead_letter_receiver())
    assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"
