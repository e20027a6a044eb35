"""Peeking shows messages, locked or not, from a number on, and changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from azure.servicebus import ServiceBusMessage

from tests.sdk.bus import body_of, receive

if TYPE_CHECKING:
    from tests.sdk.bus import Bus
    from tests.support.server_process import ServerProcess


def fill(bus: Bus, queue: str, count: int) -> None:
    bus.sender(queue).send_messages([ServiceBusMessage(f"order {number}") for number in range(1, count + 1)])


def test_peeking_goes_on_where_it_stopped(every_bus: Bus, server: ServerProcess, queue: str) -> None:
    fill(every_bus, queue, 25)
    receiver = every_bus.receiver(queue)
    pages = [[message.sequence_number for message in receiver.peek_messages(10)] for _ in range(4)]
    assert pages == [list(range(1, 11)), list(range(11, 21)), list(range(21, 26)), []]
    assert server.message_counts(queue) == (25, 0)


def test_peeking_starts_at_any_number(bus: Bus, queue: str) -> None:
    fill(bus, queue, 5)
    receiver = bus.receiver(queue)
    assert [body_of(message) for message in receiver.peek_messages(2, sequence_number=3)] == [b"order 3", b"order 4"]
    assert [body_of(message) for message in receiver.peek_messages(9, sequence_number=5)] == [b"order 5"]
    assert receiver.peek_messages(1, sequence_number=6) == []
    assert receiver.peek_messages(1, sequence_number=2**62) == []
    assert len(receiver.peek_messages(9, sequence_number=-1)) == 5
    assert len(receiver.peek_messages(9, sequence_number=1)) == 5


def test_an_empty_queue_shows_nothing(bus: Bus, queue: str) -> None:
    assert bus.receiver(queue).peek_messages(5) == []


def test_locked_messages_are_shown_and_completed_ones_are_not(bus: Bus, queue: str) -> None:
    fill(bus, queue, 3)
    receiver = bus.receiver(queue)
    first, second = receive(receiver, 2)
    receiver.complete_message(first)
    left = receiver.peek_messages(9, sequence_number=1)  # unasked, the SDK goes on behind what it has received
    assert [body_of(message) for message in left] == [b"order 2", b"order 3"]
    receiver.abandon_message(second)
    assert [message.delivery_count for message in receiver.peek_messages(9, sequence_number=1)] == [1, 0]


def test_large_messages_are_peeked_some_at_a_time(bus: Bus, queue: str) -> None:
    """An answer has its limit: what does not fit is in the next one."""
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    for number in range(5):
        sender.send_messages(ServiceBusMessage(bytes([number]) * 200_000))
    seen = []
    while page := receiver.peek_messages(5):
        seen += [body_of(message) for message in page]
    assert seen == [bytes([number]) * 200_000 for number in range(5)]
