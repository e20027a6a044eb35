"""Messages are asked for one by one: by `next`, as the sync client calls it, or by its counterpart in aio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from azure.servicebus import ServiceBusMessage

from tests.sdk.bus import body_of

if TYPE_CHECKING:
    from tests.sdk.bus import Bus


def test_the_next_message_comes_and_then_the_one_behind_it(bus: Bus, queue: str) -> None:
    bus.sender(queue).send_messages([ServiceBusMessage("1"), ServiceBusMessage("2")])
    receiver: Any = bus.receiver(queue)
    following = receiver.__anext__ if bus.is_aio else receiver.next
    assert [body_of(following()) for _ in range(2)] == [b"1", b"2"]
