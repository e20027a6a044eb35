"""Peeking returns messages, locked or not, from a sequence number on, and changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from azure.servicebus import ServiceBusMessage

from tests.sdk.bus import body_of, receive

if TYPE_CHECKING:
    from tests.sdk.bus import Bus
    from tests.support.server_process import ServerProcess


def fill(bus: Bus, queue: str, count: int) -> None:
    bus.sender(queue).send_messages([ServiceBusMessage(f"order {number}") for number in range(1, count + 1)])


def test_a_peek_continues_after_the_previous_one(every_bus: Bus, server: ServerProcess, queue: str) -> None:
    fill(every_bus, queue, 25)
    receiver = every_bus.receiver(queue)
    pages = [[message.sequence_number for message in receiver.peek_messages(10)] for _ in range(4)]
    assert pages == [list(range(1, 11)), list(range(11, 21)), list(range(21, 26)), []]
    assert server.message_counts(queue) == (25, 0)


def test_a_peek_can_start_at_any_sequence_number(bus: Bus, queue: str) -> None:
    fill(bus, queue, 5)
    receiver = bus.receiver(queue)
    assert [body_of(message) for message in receiver.peek_messages(2, sequence_number=3)] == [b"order 3", b"order 4"]
    assert [body_of(message) for message in receiver.peek_messages(9, sequence_number=5)] == [b"order 5"]
    assert receiver.peek_messages(1, sequence_number=6) == []
    assert receiver.peek_messages(1, sequence_number=2**62) == []
    assert len(receiver.peek_messages(9, sequence_number=-1)) == 5
    assert len(receiver.peek_messages(9, sequence_number=1)) == 5


def test_peeking_an_empty_queue_returns_nothing(bus: Bus, queue: str) -> None:
    assert bus.receiver(queue).peek_messages(5) == []


def test_peeking_returns_locked_messages_but_no_completed_ones(bus: Bus, queue: str) -> None:
    fill(bus, queue, 3)
    receiver = bus.receiver(queue)
    first, second = receive(receiver, 2)
    receiver.complete_message(first)
    peeked = receiver.peek_messages(
        9, sequence_number=1
    )  # by default, the SDK continues after the last received message
    assert [body_of(message) for message in peeked] == [b"order 2", b"order 3"]
    receiver.abandon_message(second)
    assert [message.delivery_count for message in receiver.peek_messages(9, sequence_number=1)] == [1, 0]


def test_large_messages_are_peeked_in_several_responses(bus: Bus, queue: str) -> None:
    """A response has a size limit: the next peek returns the messages that did not fit."""
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    for number in range(5):
        sender.send_messages(ServiceBusMessage(bytes([number]) * 200_000))
    bodies = []
    while page := receiver.peek_messages(5):
        bodies += [body_of(message) for message in page]
    assert bodies == [bytes([number]) * 200_000 for number in range(5)]
