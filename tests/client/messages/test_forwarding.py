"""Forwarding of messages and dead letters; forwarded dead letters have their source."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.client.bus import numbered_messages, receive, receive_one, texts
from tests.support.server_process import QUEUE_ENTRY
from twinbus.client import BrokeredMessage
from twinbus.model.errors import CallerError

if TYPE_CHECKING:
    from tests.client.bus import Bus
    from twinbus.client import QueueClient


def forwarding_queue(bus: Bus, name: str, element: str) -> QueueClient:
    """Create a forwarding queue; the request needs a token that is also valid for the target."""
    headers = {"Authorization": bus.server.token("")}
    bus.server.request("PUT", name, QUEUE_ENTRY.format(element), expected=201, headers=headers)
    return bus.shared_factory.create_queue_client(name)


async def test_messages_and_dead_letters_are_forwarded(bus: Bus) -> None:
    target = bus.create_queue()
    source = forwarding_queue(bus, f"to-{target.path}", f"<ForwardTo>{target.path}</ForwardTo>")
    await source.send_batch(numbered_messages(5))
    assert texts(await receive(target, 5)) == ["0", "1", "2", "3", "4"]
    with pytest.raises(CallerError, match="forwarded"):
        await source.receive(1)
    element = f"<ForwardDeadLetteredMessagesTo>{target.path}</ForwardDeadLetteredMessagesTo>"
    failing = forwarding_queue(bus, f"dead-to-{target.path}", element)
    await failing.send(BrokeredMessage("bad"))
    await failing.dead_letter(await receive_one(failing), "why")
    message = await receive_one(target)
    assert (message.text, message.dead_letter_reason, message.dead_letter_source) == ("bad", "why", failing.path)
