"""R105: the official SDK works with partitioned entities as with any other."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.exceptions import ServiceBusError

from tests.sdk.bus import body_of, receive
from tests.support.partitioned_namespace import FRAGMENTS, key_for_fragment

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceiver

    from tests.sdk.bus import Bus

NUMBERS = [f"{number}" for number in range(FRAGMENTS)]


def test_r105_r121_messages_of_all_fragments_are_received_and_settled(bus: Bus) -> None:
    queue = _queue(bus)
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    sender.send_messages(_one_per_fragment())
    held = receive(receiver, FRAGMENTS)
    assert sorted(map(_text, held)) == sorted(NUMBERS)
    assert sorted(message.sequence_number >> 48 for message in held) == list(range(FRAGMENTS))
    for number, message in enumerate(held):
        (receiver.complete_message, receiver.abandon_message, receiver.defer_message, receiver.dead_letter_message)[
            number % 4
        ](message)
    deferred = receiver.receive_deferred_messages([message.sequence_number for message in held[2::4]])
    assert sorted(map(_text, deferred)) == sorted(map(_text, held[2::4]))
    for message in [*deferred, *receive(receiver, 4)]:
        receiver.renew_message_lock(message)
        receiver.complete_message(message)
    dead = bus.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    assert sorted(map(_text, receive(dead, 4))) == sorted(map(_text, held[3::4]))
    assert receiver.peek_messages(100) == []


def test_r105_messages_are_prefetched_from_all_fragments(bus: Bus) -> None:
    queue = _queue(bus)
    bus.sender(queue).send_messages(_one_per_fragment())
    receiver = bus.receiver(queue, prefetch_count=10, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    assert sorted(map(_text, receive(receiver, FRAGMENTS))) == sorted(NUMBERS)


def test_q28_messages_are_peeked_in_the_order_of_their_age(bus: Bus) -> None:
    queue = _queue(bus)
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    for number in range(20):
        sender.send_messages(ServiceBusMessage(f"{number}", partition_key=key_for_fragment(number * 7 % 5)))
    peeked: list[Any] = []
    following = 1
    while page := receiver.peek_messages(3, sequence_number=following):
        peeked += page
        following = (page[-1].sequence_number or 0) + 1
    assert sorted(map(_text, peeked), key=int) == [f"{number}" for number in range(20)]
    assert peeked == sorted(peeked, key=lambda message: message.enqueued_time_utc)


def test_scheduled_messages_of_several_fragments_are_cancelled(bus: Bus) -> None:
    queue = _queue(bus)
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    later = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    numbers = sender.schedule_messages(_one_per_fragment(), later)
    assert [number >> 48 for number in numbers] == list(range(FRAGMENTS)), "in the order of the messages"
    sender.cancel_scheduled_messages(numbers[1:])
    assert list(map(_text, receiver.peek_messages(100))) == ["0"]


def test_r096_r113_sessions_are_accepted_by_id_or_as_the_next_available(bus: Bus) -> None:
    queue = _queue(bus, requires_session=True)
    sender = bus.sender(queue)
    for number in range(3):
        batch = [ServiceBusMessage(f"{number}", session_id=key_for_fragment(fragment)) for fragment in (2, 11)]
        sender.send_messages(batch)
    named = bus.receiver(queue, session_id=key_for_fragment(11))
    assert list(map(_text, receive(named, 3))) == ["0", "1", "2"]
    named.session.set_state(b"packed")
    assert named.session.get_state() == b"packed"
    free = bus.receiver(queue, session_id=NEXT_AVAILABLE_SESSION)
    assert list(map(_text, receive(free, 3))) == ["0", "1", "2"]
    assert free.session.session_id == key_for_fragment(2)
    assert sorted(bus.list_sessions(queue)) == sorted([key_for_fragment(2), key_for_fragment(11)])


def test_r099_r112_without_keys_all_fragments_are_used_and_duplicates_are_dropped(bus: Bus) -> None:
    queue, detecting = _queue(bus), _queue(bus, requires_duplicate_detection=True)
    sender, detecting_sender = bus.sender(queue), bus.sender(detecting)
    for number in range(FRAGMENTS):
        sender.send_messages(ServiceBusMessage(f"{number}"))
        for _ in range(2):
            detecting_sender.send_messages(ServiceBusMessage(f"{number}", message_id=f"order {number}"))
    received = _receive_and_complete(bus.receiver(queue), FRAGMENTS)
    assert sorted(message.sequence_number >> 48 for message in received) == list(range(FRAGMENTS))
    assert bus.administration.get_queue_runtime_properties(detecting).active_message_count == FRAGMENTS


def test_r086_a_partitioned_topic_publishes_to_its_subscriptions(bus: Bus) -> None:
    topic = bus.topic("all", enable_partitioning=True)
    bus.topic_sender(topic).send_messages(_one_per_fragment())
    assert sorted(map(_text, _receive_and_complete(bus.subscription_receiver(topic, "all"), FRAGMENTS))) == sorted(
        NUMBERS
    )


def test_r108_the_server_refuses_two_different_keys(bus: Bus) -> None:
    queue = _queue(bus)
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    message = ServiceBusMessage("x", session_id="apples")
    message.raw_amqp_message.annotations = {"x-opt-partition-key": "pears"}  # bypasses the SDK's own check
    with pytest.raises(ServiceBusError, match=r"'pears' and its session id 'apples'"):
        sender.send_messages(message)
    assert receiver.peek_messages(10) == []
    message.raw_amqp_message.annotations = {"x-opt-partition-key": "apples"}
    sender.send_messages(message)
    assert list(map(_text, receiver.peek_messages(10))) == ["x"]


def _queue(bus: Bus, **options: Any) -> str:  # noqa: ANN401  # properties of a queue
    name = f"queue-{uuid.uuid4().hex}"
    bus.administration.create_queue(name, enable_partitioning=True, **options)
    return name


def _one_per_fragment() -> list[ServiceBusMessage]:
    return [ServiceBusMessage(f"{number}", partition_key=key_for_fragment(number)) for number in range(FRAGMENTS)]


def _receive_and_complete(receiver: ServiceBusReceiver, count: int) -> list[Any]:
    received = receive(receiver, count)
    for message in received:
        receiver.complete_message(message)
    return received


def _text(message: Any) -> str:  # noqa: ANN401  # received or peeked
    return body_of(message).decode()
