"""Receiving single messages with `next` of the sync client, or `__anext__` of the aio client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from azure.servicebus import ServiceBusMessage

from tests.sdk.bus import body_of

if TYPE_CHECKING:
    from tests.sdk.bus import Bus


def test_next_returns_the_messages_in_order(bus: Bus, queue: str) -> None:
    bus.sender(queue).send_messages([ServiceBusMessage("1"), ServiceBusMessage("2")])
    receiver: Any = bus.receiver(queue)
    next_message = receiver.__anext__ if bus.is_aio else receiver.next
    assert [body_of(next_message()) for _ in range(2)] == [b"1", b"2"]
