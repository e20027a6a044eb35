"""Abandoned messages: redelivery with a higher delivery count, and dead-lettering after the last delivery."""

from __future__ import annotations

from typing import TYPE_CHECKING

from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue

from tests.sdk.bus import body_of, receive

if TYPE_CHECKING:
    from tests.sdk.bus import Bus
    from tests.support.server_process import ServerProcess


def test_an_abandoned_message_is_redelivered_at_once_with_a_higher_delivery_count(every_bus: Bus, queue: str) -> None:
    sender, receiver = every_bus.sender(queue), every_bus.receiver(queue)
    sender.send_messages(ServiceBusMessage("x", application_properties={"a": 1}))
    tokens = set()
    for count in range(4):
        [message] = receive(receiver, 1, timeout_s=5)
        assert (message.delivery_count, message.sequence_number) == (count, 1)
        assert message.application_properties == {b"a": 1}
        tokens.add(message.lock_token)
        receiver.abandon_message(message)
    assert len(tokens) == 4


def test_an_abandoned_message_is_redelivered_before_later_messages(bus: Bus, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    sender.send_messages([ServiceBusMessage("first"), ServiceBusMessage("second")])
    [message] = receive(receiver, 1)
    receiver.abandon_message(message)
    [again] = receive(receiver, 1)
    assert (body_of(again), again.delivery_count) == (b"first", 1)


def test_a_message_is_dead_lettered_after_its_last_delivery(bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(MaxDeliveryCount="3")
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    dead_letters = bus.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    sender.send_messages(ServiceBusMessage("poison", message_id="7", application_properties={"a": 1}))
    for count in range(3):
        [message] = receive(receiver, 1)
        assert message.delivery_count == count
        receiver.abandon_message(message)
    [dead] = receive(dead_letters, 1)
    assert (body_of(dead), dead.message_id) == (b"poison", "7")
    assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"
    assert "3" in (dead.dead_letter_error_description or "")
    assert dead.application_properties[b"a"] == 1
    assert server.message_counts(queue) == (0, 1)
    assert receiver.receive_messages(max_wait_time=0.3) == []
