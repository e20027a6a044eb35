"""A queue that detects duplicates accepts a message whose id it has seen, and keeps the first one only."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage

from tests.sdk.bus import body_of, receive

if TYPE_CHECKING:
    from tests.sdk.bus import Bus
    from tests.support.server_process import ServerProcess

DETECTS = {"RequiresDuplicateDetection": "true"}


def test_a_message_that_is_sent_again_is_accepted_and_dropped(every_bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(**DETECTS)
    sender, another, receiver = every_bus.sender(queue), every_bus.sender(queue), every_bus.receiver(queue)
    sender.send_messages(ServiceBusMessage("first", message_id="1"))
    sender.send_messages(ServiceBusMessage("again", message_id="1"))
    another.send_messages(ServiceBusMessage("and again", message_id="1"))
    sender.send_messages(ServiceBusMessage("other", message_id="2"))
    assert server.message_counts(queue) == (2, 0)
    assert [body_of(message) for message in receive(receiver, 2)] == [b"first", b"other"]


def test_of_a_batch_those_are_kept_that_are_new(bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(**DETECTS)
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    sender.send_messages(ServiceBusMessage("a", message_id="a"))
    sender.send_messages([ServiceBusMessage(f"{one} in a batch", message_id=one) for one in ("b", "a", "c", "b")])
    found = receive(receiver, 3)
    assert [body_of(message) for message in found] == [b"a", b"b in a batch", b"c in a batch"]
    assert [message.sequence_number for message in found] == [1, 2, 3]
    assert server.message_counts(queue) == (3, 0)


def test_a_message_is_remembered_when_it_is_long_completed(bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(**DETECTS)
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    sender.send_messages(ServiceBusMessage("x", message_id="1"))
    receiver.complete_message(receive(receiver, 1)[0])
    sender.send_messages(ServiceBusMessage("x", message_id="1"))
    assert server.message_counts(queue) == (0, 0)


def test_a_scheduled_message_is_a_duplicate_like_any_other(bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(**DETECTS)
    sender = bus.sender(queue)
    later = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    [number] = sender.schedule_messages(ServiceBusMessage("x", message_id="1"), later)
    assert number == 1
    sender.send_messages(ServiceBusMessage("x", message_id="1"))
    sender.send_messages(ServiceBusMessage("x", message_id="2"))
    sender.schedule_messages(ServiceBusMessage("x", message_id="2"), later)
    assert server.message_counts(queue) == (1, 0)
    assert bus.administration.get_queue_runtime_properties(queue).scheduled_message_count == 1


def test_in_a_queue_with_sessions_the_id_alone_says_what_is_a_duplicate(bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(**DETECTS, RequiresSession="true")
    bus.sender(queue).send_messages(
        [
            ServiceBusMessage("first", message_id="1", session_id="s"),
            ServiceBusMessage("again", message_id="1", session_id="s"),
            ServiceBusMessage("elsewhere", message_id="1", session_id="t"),
            ServiceBusMessage("other", message_id="2", session_id="s"),
        ]
    )
    receiver = bus.receiver(queue, session_id="s")
    assert [body_of(message) for message in receive(receiver, 2)] == [b"first", b"other"]
    assert server.message_counts(queue) == (2, 0)


def test_messages_without_an_id_are_all_different(bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(**DETECTS)
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    for _ in range(2):
        sender.send_messages(AmqpAnnotatedMessage(data_body=b"x"))
    assert len({message.message_id for message in receive(receiver, 2)}) == 2


def test_a_queue_that_detects_none_keeps_all(bus: Bus, server: ServerProcess, queue: str) -> None:
    bus.sender(queue).send_messages([ServiceBusMessage("x", message_id="1") for _ in range(3)])
    assert server.message_counts(queue) == (3, 0)
