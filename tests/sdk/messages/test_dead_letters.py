"""Dead letters: their reason, and receiving, settling, peeking and renewing in the dead-letter queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue

from tests.sdk.bus import body_of, receive

if TYPE_CHECKING:
    from tests.sdk.bus import Bus
    from tests.support.server_process import ServerProcess

DEAD_LETTER = ServiceBusSubQueue.DEAD_LETTER


def test_a_dead_lettered_message_is_in_the_dead_letter_queue_with_its_reason(
    every_bus: Bus, server: ServerProcess, queue: str
) -> None:
    sender, receiver = every_bus.sender(queue), every_bus.receiver(queue)
    dead_letters = every_bus.receiver(queue, sub_queue=DEAD_LETTER)
    sender.send_messages(ServiceBusMessage("broken", message_id="7", application_properties={"a": 1}))
    [message] = receive(receiver, 1)
    receiver.dead_letter_message(message, reason="unreadable", error_description="it is no JSON")
    assert server.message_counts(queue) == (0, 1)
    [dead] = receive(dead_letters, 1)
    assert (body_of(dead), dead.message_id) == (b"broken", "7")
    assert (dead.dead_letter_reason, dead.dead_letter_error_description) == ("unreadable", "it is no JSON")
    assert dead.application_properties[b"a"] == 1
    dead_letters.complete_message(dead)
    assert server.message_counts(queue) == (0, 0)


def test_a_message_can_be_dead_lettered_without_a_reason(bus: Bus, server: ServerProcess, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    sender.send_messages(ServiceBusMessage("broken"))
    receiver.dead_letter_message(receive(receiver, 1)[0])
    assert server.message_counts(queue) == (0, 1)
    [dead] = bus.receiver(queue, sub_queue=DEAD_LETTER).peek_messages()
    assert body_of(dead) == b"broken"
    assert not dead.dead_letter_reason


def test_an_abandoned_dead_letter_stays_in_the_dead_letter_queue(bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(MaxDeliveryCount="1")
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    dead_letters = bus.receiver(queue, sub_queue=DEAD_LETTER)
    sender.send_messages(ServiceBusMessage("broken"))
    receiver.abandon_message(receive(receiver, 1)[0])
    counts = []
    for _ in range(3):
        [dead] = receive(dead_letters, 1)
        counts.append(dead.delivery_count)
        dead_letters.abandon_message(dead)
    assert counts == sorted(set(counts)), "each delivery counts one more"
    assert server.message_counts(queue) == (0, 1)


def test_dead_letters_can_be_received_and_deleted_and_peeked(bus: Bus, server: ServerProcess, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    dead_letters = bus.receiver(queue, sub_queue=DEAD_LETTER, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    sender.send_messages([ServiceBusMessage(f"broken {number}") for number in range(3)])
    for message in receive(receiver, 3):
        receiver.dead_letter_message(message, reason="all of them")
    expected = [b"broken 0", b"broken 1", b"broken 2"]
    assert [body_of(message) for message in dead_letters.peek_messages(10)] == expected
    assert [body_of(message) for message in receive(dead_letters, 3)] == expected
    assert server.message_counts(queue) == (0, 0)


def test_the_lock_of_a_dead_letter_can_be_renewed(bus: Bus, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    dead_letters = bus.receiver(queue, sub_queue=DEAD_LETTER)
    sender.send_messages(ServiceBusMessage("broken"))
    receiver.dead_letter_message(receive(receiver, 1)[0])
    [dead] = receive(dead_letters, 1)
    before = dead.locked_until_utc
    assert dead_letters.renew_message_lock(dead) > before
