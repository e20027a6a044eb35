"""Scheduled messages: sequence numbers, delivery when due, and cancellation."""

from __future__ import annotations

import datetime as dt
import time
from typing import TYPE_CHECKING

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusMessageState
from azure.servicebus.exceptions import MessageNotFoundError, MessageSizeExceededError, ServiceBusError

from tests.sdk.bus import body_of, receive

if TYPE_CHECKING:
    from tests.sdk.bus import Bus
    from tests.support.server_process import ServerProcess


def from_now(**duration: float) -> dt.datetime:
    return dt.datetime.now(dt.UTC) + dt.timedelta(**duration)


def scheduled_count(bus: Bus, queue: str) -> int | None:
    return bus.administration.get_queue_runtime_properties(queue).scheduled_message_count


def test_a_scheduled_message_is_delivered_when_due_with_a_new_sequence_number(
    every_bus: Bus, server: ServerProcess, queue: str
) -> None:
    sender, receiver = every_bus.sender(queue), every_bus.receiver(queue)
    sender.send_messages(ServiceBusMessage("now"))
    receiver.complete_message(receive(receiver, 1)[0])
    due = from_now(seconds=2.5)
    assert sender.schedule_messages([ServiceBusMessage("in a call"), ServiceBusMessage("and another")], due) == [2, 3]
    sender.send_messages(ServiceBusMessage("in a send", scheduled_enqueue_time_utc=due))
    assert server.message_counts(queue) == (0, 0)
    received = receive(receiver, 3)
    assert dt.datetime.now(dt.UTC) >= due
    assert sorted(body_of(message) for message in received) == [b"and another", b"in a call", b"in a send"]
    assert [message.sequence_number for message in received] == [5, 6, 7]
    for message in received:
        assert message.state is ServiceBusMessageState.ACTIVE
        assert message.enqueued_time_utc >= due.replace(microsecond=due.microsecond // 1000 * 1000)
        assert abs(message.scheduled_enqueue_time_utc - due) < dt.timedelta(milliseconds=1)


def test_a_scheduled_message_keeps_its_properties(bus: Bus, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    sender.schedule_messages(
        ServiceBusMessage("x", message_id="7", subject="s", application_properties={"a": 1}), from_now(seconds=0.5)
    )
    [message] = receive(receiver, 1)
    assert (message.message_id, message.subject, message.application_properties) == ("7", "s", {b"a": 1})
    receiver.complete_message(message)


def test_a_scheduled_message_is_delivered_to_its_session(bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(RequiresSession="true")
    bus.sender(queue).schedule_messages(ServiceBusMessage("x", session_id="s"), from_now(seconds=1))
    receiver = bus.receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=30)
    assert [body_of(message) for message in receive(receiver, 1)] == [b"x"]
    assert receiver.session.session_id == "s"


def test_cancelled_messages_are_not_delivered(bus: Bus, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    due = from_now(seconds=2)
    first, *others = sender.schedule_messages([ServiceBusMessage(f"cancelled {number}") for number in range(200)], due)
    [_, last] = sender.schedule_messages([ServiceBusMessage("kept"), ServiceBusMessage("cancelled")], due)
    sender.cancel_scheduled_messages(first)
    sender.cancel_scheduled_messages([*others, last])
    assert scheduled_count(bus, queue) == 1
    assert [body_of(message) for message in receive(receiver, 1)] == [b"kept"]
    assert receiver.receive_messages(max_wait_time=0.5) == []
    assert scheduled_count(bus, queue) == 0


def test_cancelling_a_number_of_no_scheduled_message_is_refused(bus: Bus, server: ServerProcess, queue: str) -> None:
    other_queue = server.create_queue()
    sender, other_sender, receiver = bus.sender(queue), bus.sender(other_queue), bus.receiver(queue)
    later = from_now(hours=1)
    sender.send_messages(ServiceBusMessage("active"))
    cancelled, kept = sender.schedule_messages([ServiceBusMessage("x"), ServiceBusMessage("x")], later)
    foreign = other_sender.schedule_messages([ServiceBusMessage("x") for _ in range(5)], later)[-1]
    sender.cancel_scheduled_messages(cancelled)
    [active] = receive(receiver, 1)
    for wrong in ([cancelled], [kept, active.sequence_number], [foreign, kept, 2**63 - 1]):
        with pytest.raises(MessageNotFoundError, match="scheduled"):
            sender.cancel_scheduled_messages(wrong)
    for impossible in ([kept, 0], [kept, kept]):
        with pytest.raises(ServiceBusError, match="argument-error"):
            sender.cancel_scheduled_messages(impossible)
    assert scheduled_count(bus, queue) == 1, "with a wrong number among them none is cancelled"
    assert scheduled_count(bus, other_queue) == 5
    sender.cancel_scheduled_messages(kept)
    assert scheduled_count(bus, queue) == 0


def test_a_message_that_was_due_cannot_be_cancelled(bus: Bus, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    [number] = sender.schedule_messages(ServiceBusMessage("x"), from_now(seconds=0.5))
    [message] = receive(receiver, 1)
    for over in (number, message.sequence_number):
        with pytest.raises(MessageNotFoundError, match="scheduled"):
            sender.cancel_scheduled_messages(over)
    receiver.complete_message(message)


def test_a_message_scheduled_in_the_past_is_delivered_at_once(bus: Bus, server: ServerProcess, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    started = time.monotonic()
    long_ago = dt.datetime(1970, 1, 2, tzinfo=dt.UTC)
    [number] = sender.schedule_messages(ServiceBusMessage("in a call"), from_now(hours=-1))
    sender.send_messages(ServiceBusMessage("in a send", scheduled_enqueue_time_utc=long_ago))
    received = receive(receiver, 2)
    assert time.monotonic() - started < 5
    assert [body_of(message) for message in received] == [b"in a call", b"in a send"]
    assert [message.sequence_number for message in received] == [number, number + 1]
    assert all(abs(message.enqueued_time_utc - dt.datetime.now(dt.UTC)).total_seconds() < 10 for message in received)
    assert server.message_counts(queue) == (2, 0)


def test_a_message_can_be_scheduled_for_the_year_9999(bus: Bus, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    end = dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)
    [number] = sender.schedule_messages(ServiceBusMessage("x"), end)
    [message] = receiver.peek_messages()
    assert (message.sequence_number, message.state) == (number, ServiceBusMessageState.SCHEDULED)
    assert message.scheduled_enqueue_time_utc == end
    sender.cancel_scheduled_messages(number)
    assert receiver.peek_messages(sequence_number=1) == []


def test_a_scheduled_message_over_the_size_limit_is_refused(bus: Bus, queue: str) -> None:
    sender = bus.sender(queue)
    with pytest.raises(MessageSizeExceededError):
        sender.schedule_messages(ServiceBusMessage(b"x" * 263_000), from_now(hours=1))
    assert scheduled_count(bus, queue) == 0


def test_a_sender_can_continue_after_a_schedule_request_that_is_too_large(bus: Bus, queue: str) -> None:
    sender = bus.sender(queue)
    with pytest.raises(MessageSizeExceededError):
        sender.schedule_messages([ServiceBusMessage(b"x" * 100_000) for _ in range(3)], from_now(hours=1))
    assert sender.schedule_messages(ServiceBusMessage("x"), from_now(hours=1)) == [1]
