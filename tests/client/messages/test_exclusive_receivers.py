"""Exclusive receivers: a receiver with an epoch excludes others until one with a higher epoch replaces it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.client.bus import numbered_messages, receive_one
from twinbus.model.errors import EntityClaimed, LinkStolen

if TYPE_CHECKING:
    from tests.client.bus import Bus


async def test_other_receivers_are_refused_while_a_queue_has_an_exclusive_receiver(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send_batch(numbered_messages(2))
    async with bus.shared_factory.create_message_receiver(queue.path, epoch=1) as exclusive_receiver:
        assert (await receive_one(exclusive_receiver)).text == "0"
        with pytest.raises(EntityClaimed):
            await queue.receive(1)
        with pytest.raises(EntityClaimed):
            await bus.shared_factory.create_message_receiver(queue.path, epoch=0).open()
        assert await queue.peek() is not None
    assert (await receive_one(queue)).text == "1"


async def test_an_exclusive_receiver_is_refused_while_others_receive(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.receiver.open()
    with pytest.raises(EntityClaimed):
        await bus.shared_factory.create_message_receiver(queue.path, epoch=1).receive(1)


async def test_an_exclusive_receiver_with_a_higher_epoch_detaches_the_older_one(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send_batch(numbered_messages(1))
    old, new = (bus.shared_factory.create_message_receiver(queue.path, epoch=epoch) for epoch in (1, 2))
    assert (await receive_one(old)).text == "0"
    message = await receive_one(new)
    assert (message.text, message.delivery_count) == ("0", 2)
    with pytest.raises((LinkStolen, EntityClaimed)):
        await old.receive(1)
