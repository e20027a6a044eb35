"""Peeking returns active, deferred and scheduled messages with their states, in order of sequence number."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusMessageState, ServiceBusSubQueue

from tests.sdk.bus import body_of, receive

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from azure.servicebus import ServiceBusReceiver, ServiceBusSender

    from tests.sdk.bus import Bus
    from tests.support.server_process import ServerProcess

ACTIVE, DEFERRED, SCHEDULED = (
    ServiceBusMessageState.ACTIVE,
    ServiceBusMessageState.DEFERRED,
    ServiceBusMessageState.SCHEDULED,
)
LATER = dt.timedelta(hours=1)


def fill(sender: ServiceBusSender, receiver: ServiceBusReceiver, session: str | None = None) -> None:
    """Create messages: 1 and 3 are deferred, 2 and 6 active, 4 and 5 scheduled; 2 is locked."""
    sender.send_messages([ServiceBusMessage(f"{number}", session_id=session) for number in (1, 2, 3)])
    first, _, third = receive(receiver, 3)
    receiver.defer_message(third)
    receiver.defer_message(first)
    due = dt.datetime.now(dt.UTC) + LATER
    sender.schedule_messages([ServiceBusMessage(f"{number}", session_id=session) for number in (4, 5)], due)
    sender.send_messages(ServiceBusMessage("6", session_id=session))


def summaries(messages: Iterable[Any]) -> list[tuple[int, bytes, ServiceBusMessageState]]:
    return [(message.sequence_number, body_of(message), message.state) for message in messages]


EXPECTED = [
    (1, b"1", DEFERRED),
    (2, b"2", ACTIVE),
    (3, b"3", DEFERRED),
    (4, b"4", SCHEDULED),
    (5, b"5", SCHEDULED),
    (6, b"6", ACTIVE),
]


def test_peeking_returns_all_states_in_order_from_any_sequence_number(every_bus: Bus, queue: str) -> None:
    receiver = every_bus.receiver(queue)
    fill(every_bus.sender(queue), receiver)
    assert summaries(receiver.peek_messages(20, sequence_number=1)) == EXPECTED
    assert summaries(receiver.peek_messages(20, sequence_number=3)) == EXPECTED[2:]
    assert summaries(receiver.peek_messages(3, sequence_number=2)) == EXPECTED[1:4]
    assert summaries(receiver.peek_messages(1, sequence_number=5)) == EXPECTED[4:5]
    assert receiver.peek_messages(20, sequence_number=7) == []


def test_repeated_peeks_continue_through_all_states(bus: Bus, queue: str) -> None:
    receiver = bus.receiver(queue)
    fill(bus.sender(queue), receiver)
    other = bus.receiver(queue)
    pages = [summaries(other.peek_messages(2)) for _ in range(4)]
    assert pages == [EXPECTED[:2], EXPECTED[2:4], EXPECTED[4:], []]


def test_peeking_within_a_session_returns_its_active_messages_page_by_page(bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(RequiresSession="true")
    sender, receiver = bus.sender(queue), bus.receiver(queue, session_id="s")
    sender.send_messages([ServiceBusMessage(f"{n}", session_id="st"[n % 2]) for n in range(40)])
    assert [body_of(message) for message in receiver.peek_messages(3)] == [b"0", b"2", b"4"]
    assert [body_of(message) for message in receiver.peek_messages(2)] == [b"6", b"8"]
    assert [message.sequence_number for message in receiver.peek_messages(50, sequence_number=30)] == [
        31,
        33,
        35,
        37,
        39,
    ]
    [locked] = receive(receiver, 1)
    receiver.abandon_message(locked)
    [peeked] = receiver.peek_messages(sequence_number=1)
    assert (peeked.session_id, peeked.delivery_count) == ("s", 1)
    assert receiver.peek_messages(sequence_number=41) == []


def test_peeking_within_a_session_returns_all_states_of_that_session_only(bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(RequiresSession="true")
    sender, receiver = bus.sender(queue), bus.receiver(queue, session_id="s")
    fill(sender, receiver, "s")
    sender.send_messages(ServiceBusMessage("other", session_id="t"))
    sender.schedule_messages(ServiceBusMessage("other", session_id="t"), dt.datetime.now(dt.UTC) + LATER)
    assert summaries(receiver.peek_messages(20, sequence_number=1)) == EXPECTED
    assert summaries(receiver.peek_messages(2, sequence_number=3)) == EXPECTED[2:4]
    other = bus.receiver(queue, session_id=NEXT_AVAILABLE_SESSION)
    assert [body_of(message) for message in other.peek_messages(20)] == [b"other", b"other"]


def test_peeking_returns_deferred_dead_letters(bus: Bus, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    dead_letters = bus.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    sender.send_messages([ServiceBusMessage("1"), ServiceBusMessage("2")])
    for message in receive(receiver, 2):
        receiver.dead_letter_message(message)
    [first] = receive(dead_letters, 1)
    dead_letters.defer_message(first)
    assert summaries(dead_letters.peek_messages(9, sequence_number=1)) == [(1, b"1", DEFERRED), (2, b"2", ACTIVE)]
    assert receiver.peek_messages(9, sequence_number=1) == []
