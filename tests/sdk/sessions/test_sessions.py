"""Sessions: a receiver accepts a named session or the next available one, and gets its messages in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.exceptions import OperationTimeoutError, SessionCannotBeLockedError

from tests.sdk.bus import body_of, receive

if TYPE_CHECKING:
    from tests.sdk.bus import Bus
    from tests.support.server_process import ServerProcess

SESSIONS = {"RequiresSession": "true"}


def messages(session: str, *bodies: str) -> list[ServiceBusMessage]:
    return [ServiceBusMessage(body, session_id=session) for body in bodies]


def test_a_receiver_of_a_named_session_gets_only_its_messages_in_order(every_bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(**SESSIONS)
    sender, receiver = every_bus.sender(queue), every_bus.receiver(queue, session_id="red")
    for number in range(5):
        sender.send_messages(messages("red", f"red {number}") + messages("blue", f"blue {number}"))
    received = receive(receiver, 5)
    assert [body_of(message) for message in received] == [b"red 0", b"red 1", b"red 2", b"red 3", b"red 4"]
    assert [message.session_id for message in received] == ["red"] * 5
    assert [message.sequence_number for message in received] == [1, 3, 5, 7, 9]
    assert receiver.session.session_id == "red"
    for message in received:
        receiver.complete_message(message)
    assert receiver.receive_messages(max_wait_time=0.3) == []
    assert server.message_counts(queue) == (5, 0)


def test_the_next_available_session_is_that_of_the_oldest_message(every_bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(**SESSIONS)
    every_bus.sender(queue).send_messages(messages("b", "1") + messages("a", "2") + messages("b", "3"))
    first = every_bus.receiver(queue, session_id=NEXT_AVAILABLE_SESSION)
    assert first.session.session_id == "b"
    second = every_bus.receiver(queue, session_id=NEXT_AVAILABLE_SESSION)
    assert second.session.session_id == "a"
    assert [body_of(message) for message in receive(first, 2)] == [b"1", b"3"]
    assert [body_of(message) for message in receive(second, 1)] == [b"2"]


def test_a_receiver_waiting_for_the_next_session_gets_the_first_one_or_times_out(
    bus: Bus, server: ServerProcess
) -> None:
    queue = server.create_queue(**SESSIONS)
    impatient = bus.receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1)
    with pytest.raises(OperationTimeoutError):
        impatient.receive_messages()
    patient = bus.receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=30)
    sender = bus.sender(queue)
    sender.send_messages(messages("late", "it came"))
    assert [body_of(message) for message in receive(patient, 1)] == [b"it came"]
    assert patient.session.session_id == "late"
    sender.send_messages(messages("late", "more"))
    assert [body_of(message) for message in receive(patient, 1)] == [b"more"]


def test_a_session_has_one_receiver_and_is_released_with_its_messages_on_close(bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(**SESSIONS)
    bus.sender(queue).send_messages(messages("mine", "0", "1", "2", "3"))
    holder = bus.receiver(queue, session_id="mine", prefetch_count=10)
    completed, _ = receive(holder, 2)
    holder.complete_message(completed)
    by_name = bus.receiver(queue, session_id="mine")
    next_available = bus.receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1)
    with pytest.raises(SessionCannotBeLockedError, match="mine"):
        by_name.receive_messages(max_wait_time=1)
    with pytest.raises(OperationTimeoutError):
        next_available.receive_messages()
    holder.close()
    again = receive(bus.receiver(queue, session_id=NEXT_AVAILABLE_SESSION), 3)
    assert [(body_of(message), message.delivery_count) for message in again] == [(b"1", 0), (b"2", 0), (b"3", 0)]


def test_an_empty_session_can_be_accepted_by_name_and_gets_later_messages(bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(**SESSIONS)
    receiver = bus.receiver(queue, session_id="empty")
    assert receiver.session.session_id == "empty"
    bus.sender(queue).send_messages(messages("other", "not this") + messages("empty", "this"))
    assert [body_of(message) for message in receive(receiver, 1)] == [b"this"]


def test_an_abandoned_message_is_redelivered_before_later_messages(bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(**SESSIONS)
    bus.sender(queue).send_messages(messages("s", "1", "2", "3"))
    receiver = bus.receiver(queue, session_id="s")
    first, second = receive(receiver, 2)
    receiver.abandon_message(second)
    receiver.abandon_message(first)
    received = receive(receiver, 3)
    assert [(body_of(message), message.delivery_count) for message in received] == [(b"1", 1), (b"2", 1), (b"3", 0)]


def test_dead_letters_of_a_session_are_received_without_a_session(bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(**SESSIONS, MaxDeliveryCount="1")
    bus.sender(queue).send_messages(messages("s", "bad", "worse", "good"))
    receiver = bus.receiver(queue, session_id="s")
    bad, worse, good = receive(receiver, 3)
    receiver.dead_letter_message(bad, reason="unreadable")
    receiver.abandon_message(worse)
    receiver.complete_message(good)
    dead_letters = bus.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    received = receive(dead_letters, 2)
    assert [(body_of(message), message.session_id) for message in received] == [(b"bad", "s"), (b"worse", "s")]
    assert [message.dead_letter_reason for message in received] == ["unreadable", "MaxDeliveryCountExceeded"]
    for message in received:
        dead_letters.complete_message(message)
    assert server.message_counts(queue) == (0, 0)


def test_messages_of_a_session_can_be_received_and_deleted(bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(**SESSIONS)
    bus.sender(queue).send_messages(messages("s", "1", "2") + messages("t", "3"))
    receiver = bus.receiver(queue, session_id="s", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    assert [body_of(message) for message in receive(receiver, 2)] == [b"1", b"2"]
    assert receiver.receive_messages(max_wait_time=0.3) == []
    assert server.message_counts(queue) == (1, 0)


def test_a_session_id_may_be_any_text(bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(**SESSIONS)
    ids = ["", "x", "xx", "ü" * 128, "a/b c\n'\"\0%2F"]
    receivers = [bus.receiver(queue, session_id=session_id) for session_id in ids[1:]]
    bus.sender(queue).send_messages(
        [message for session_id in ids for message in messages(session_id, f"in {session_id}")]
    )
    for session_id, receiver in zip(ids[1:], receivers, strict=True):
        [message] = receive(receiver, 1)
        assert (body_of(message), message.session_id) == (f"in {session_id}".encode(), session_id)
        assert receiver.session.session_id == session_id
        assert receiver.session.renew_lock() is not None
        receiver.complete_message(message)
    assert bus.list_sessions(queue) == [""]
    empty = bus.receiver(queue, session_id="")
    empty.complete_message(receive(empty, 1)[0])
    assert bus.list_sessions(queue) == []


def test_a_queue_without_sessions_accepts_session_ids_and_delivers_to_any_receiver(
    bus: Bus, server: ServerProcess, queue: str
) -> None:
    sender, first, second = bus.sender(queue), bus.receiver(queue), bus.receiver(queue)
    sender.send_messages([*messages("s", "1", "2"), ServiceBusMessage("3")])
    received = receive(first, 1) + receive(second, 2)
    assert [(body_of(message), message.session_id) for message in received] == [(b"1", "s"), (b"2", "s"), (b"3", None)]
    first.complete_message(received[0])
    assert server.message_counts(queue) == (2, 0)
