"""Abandoned messages are redelivered with a higher delivery count, released messages with the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.client.bus import cut_connection, numbered_messages, receive_one
from twinbus.client import BrokeredMessage

if TYPE_CHECKING:
    from tests.client.bus import Bus


@pytest.mark.parametrize("is_cut", [False, True], ids=["on its link", "by its lock"])
async def test_an_abandoned_message_is_redelivered_first_with_changed_properties(bus: Bus, is_cut: bool) -> None:  # noqa: FBT001
    queue = bus.create_queue()
    await queue.send_batch(numbered_messages(2, properties={"kept": 1, "tries": 0}))
    message = await receive_one(queue)
    if is_cut:
        await cut_connection(bus.shared_factory)
    await queue.abandon(message, {"tries": 1})
    redelivered = await receive_one(queue)
    assert (redelivered.text, redelivered.delivery_count, redelivered.properties) == ("0", 2, {"kept": 1, "tries": 1})


async def test_releasing_a_message_does_not_increase_its_delivery_count(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send(BrokeredMessage("x"))
    await queue.receiver.release(await receive_one(queue))
    assert (await receive_one(queue)).delivery_count == 1
