"""A receiver with an epoch has its queue for itself, until a newer one takes its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.client.bus import numbered_messages, receive_one
from twinbus.model.errors import EntityClaimed, LinkStolen

if TYPE_CHECKING:
    from tests.client.bus import Bus


async def test_nobody_else_can_receive_while_a_queue_is_claimed(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send_batch(numbered_messages(2))
    async with bus.shared_factory.create_message_receiver(queue.path, epoch=1) as claimant:
        assert (await receive_one(claimant)).text == "0"
        with pytest.raises(EntityClaimed):
            await queue.receive(1)
        with pytest.raises(EntityClaimed):
            await bus.shared_factory.create_message_receiver(queue.path, epoch=0).open()
        assert await queue.peek() is not None
    assert (await receive_one(queue)).text == "1"


async def test_a_claim_is_refused_while_others_receive(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.receiver.open()
    with pytest.raises(EntityClaimed):
        await bus.shared_factory.create_message_receiver(queue.path, epoch=1).receive(1)


async def test_a_newer_claim_takes_the_place_of_an_older_one_which_is_told(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send_batch(numbered_messages(1))
    old, new = (bus.shared_factory.create_message_receiver(queue.path, epoch=epoch) for epoch in (1, 2))
    assert (await receive_one(old)).text == "0"
    message = await receive_one(new)
    assert (message.text, message.delivery_count) == ("0", 2)
    with pytest.raises((LinkStolen, EntityClaimed)):
        await old.receive(1)
