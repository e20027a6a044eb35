"""Deferral: a deferred message is received by its sequence number, in a queue, a session or a dead-letter queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.exceptions import MessageNotFoundError, ServiceBusError

from tests.sdk.bus import body_of, receive

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceiver

    from tests.sdk.bus import Bus
    from tests.support.server_process import ServerProcess

DEAD_LETTER = ServiceBusSubQueue.DEAD_LETTER


def defer(bus: Bus, queue: str, receiver: ServiceBusReceiver, *bodies: str, session: str | None = None) -> list[int]:
    """Send and defer messages; return their sequence numbers."""
    bus.sender(queue).send_messages([ServiceBusMessage(body, session_id=session) for body in bodies])
    received = receive(receiver, len(bodies))
    for message in received:
        receiver.defer_message(message)
    return [message.sequence_number for message in received]


def test_a_deferred_message_is_received_only_by_its_sequence_number(
    every_bus: Bus, server: ServerProcess, queue: str
) -> None:
    receiver, other = every_bus.receiver(queue), every_bus.receiver(queue)
    first, second, third = defer(every_bus, queue, receiver, "1", "2", "3")
    assert server.message_counts(queue) == (0, 0)
    assert other.receive_messages(max_wait_time=0.3) == []
    received = other.receive_deferred_messages([third, first])
    assert [(body_of(message), message.sequence_number) for message in received] == [(b"3", third), (b"1", first)]
    for message in received:
        assert message.lock_token is not None
        other.complete_message(message)
    [last] = receiver.receive_deferred_messages(second)
    receiver.complete_message(last)
    assert receiver.peek_messages(9, sequence_number=1) == []


def test_a_request_with_a_number_of_no_deferred_message_fails_and_locks_none(
    bus: Bus, server: ServerProcess, queue: str
) -> None:
    other_queue = server.create_queue()
    receiver, other_receiver = bus.receiver(queue), bus.receiver(other_queue)
    [good] = defer(bus, queue, receiver, "good")
    foreign = defer(bus, other_queue, other_receiver, *"abcde")[-1]
    bus.sender(queue).send_messages(ServiceBusMessage("active"))
    active = good + 1
    assert [message.sequence_number for message in receiver.peek_messages(sequence_number=active)] == [active]
    for wrong in ([active], [good, foreign, 2**63 - 1]):
        with pytest.raises(MessageNotFoundError, match="deferred"):
            receiver.receive_deferred_messages(wrong)
    for impossible in ([good, 0], [good, good]):
        with pytest.raises(ServiceBusError, match="argument-error"):
            receiver.receive_deferred_messages(impossible)
    [message] = receiver.receive_deferred_messages(good)
    receiver.complete_message(message)
    with pytest.raises(MessageNotFoundError, match="deferred"):
        receiver.receive_deferred_messages(good)


def test_a_locked_deferred_message_is_unavailable_to_others_until_it_is_abandoned(bus: Bus, queue: str) -> None:
    receiver, other = bus.receiver(queue), bus.receiver(queue)
    [number] = defer(bus, queue, receiver, "x")
    [message] = receiver.receive_deferred_messages(number)
    with pytest.raises(MessageNotFoundError):
        other.receive_deferred_messages(number)
    before, count = message.locked_until_utc, message.delivery_count
    assert before is not None
    assert count is not None
    assert receiver.renew_message_lock(message) > before
    receiver.abandon_message(message)
    assert other.receive_messages(max_wait_time=0.3) == [], "it is deferred as before"
    [again] = other.receive_deferred_messages(number)
    assert again.delivery_count == count + 1
    other.defer_message(again)
    [once_more] = receiver.receive_deferred_messages(number)
    receiver.complete_message(once_more)


def test_a_deferred_message_can_be_dead_lettered_directly_or_by_its_delivery_count(
    bus: Bus, server: ServerProcess
) -> None:
    queue = server.create_queue(MaxDeliveryCount="1")
    receiver, dead_letters = bus.receiver(queue), bus.receiver(queue, sub_queue=DEAD_LETTER)
    numbers = defer(bus, queue, receiver, "bad", "worse")
    bad, worse = receiver.receive_deferred_messages(numbers)
    receiver.dead_letter_message(bad, reason="unreadable")
    receiver.abandon_message(worse)
    assert server.message_counts(queue) == (0, 2)
    received = receive(dead_letters, 2)
    assert [(body_of(message), message.dead_letter_reason) for message in received] == [
        (b"bad", "unreadable"),
        (b"worse", "MaxDeliveryCountExceeded"),
    ]
    with pytest.raises(MessageNotFoundError):
        receiver.receive_deferred_messages(numbers)


def test_deferred_messages_can_be_received_and_deleted(bus: Bus, queue: str) -> None:
    receiver = bus.receiver(queue)
    numbers = defer(bus, queue, receiver, "1", "2")
    deleting_receiver = bus.receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    received = deleting_receiver.receive_deferred_messages(numbers)
    assert [(body_of(message), message.lock_token) for message in received] == [(b"1", None), (b"2", None)]
    with pytest.raises(MessageNotFoundError):
        deleting_receiver.receive_deferred_messages(numbers[0])


def test_dead_letters_can_be_deferred(bus: Bus, server: ServerProcess, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    dead_letters = bus.receiver(queue, sub_queue=DEAD_LETTER)
    sender.send_messages([ServiceBusMessage("filler"), ServiceBusMessage("broken")])
    filler, broken = receive(receiver, 2)
    receiver.complete_message(filler)
    receiver.dead_letter_message(broken, reason="why")
    [dead] = receive(dead_letters, 1)
    dead_letters.defer_message(dead)
    assert dead_letters.receive_messages(max_wait_time=0.3) == []
    with pytest.raises(MessageNotFoundError):
        receiver.receive_deferred_messages(dead.sequence_number)
    [again] = dead_letters.receive_deferred_messages(dead.sequence_number)
    assert (body_of(again), again.dead_letter_reason) == (b"broken", "why")
    assert dead_letters.renew_message_lock(again) is not None
    dead_letters.complete_message(again)
    assert dead_letters.peek_messages(9, sequence_number=1) == []
    assert server.message_counts(queue) == (0, 0)


def test_a_message_deferred_in_a_session_is_received_by_the_holder_of_the_session(
    bus: Bus, server: ServerProcess
) -> None:
    queue = server.create_queue(RequiresSession="true")
    holder, other = bus.receiver(queue, session_id="s"), bus.receiver(queue, session_id="t")
    kept, returned = defer(bus, queue, holder, "1", "2", session="s")
    with pytest.raises(MessageNotFoundError):
        other.receive_deferred_messages(kept)
    [message] = holder.receive_deferred_messages(kept)
    assert (body_of(message), message.session_id) == (b"1", "s")
    holder.complete_message(message)
    [unsettled] = holder.receive_deferred_messages(returned)
    holder.close()
    next_holder = bus.receiver(queue, session_id="s")
    [again] = next_holder.receive_deferred_messages(returned)
    assert (body_of(again), again.delivery_count) == (b"2", unsettled.delivery_count)
    next_holder.complete_message(again)
    with pytest.raises(MessageNotFoundError):
        next_holder.receive_deferred_messages([kept])
