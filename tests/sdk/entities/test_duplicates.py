"""Duplicate detection: a message with a known id is accepted and dropped."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage

from tests.sdk.bus import body_of, receive

if TYPE_CHECKING:
    from tests.sdk.bus import Bus
    from tests.support.server_process import ServerProcess

DUPLICATE_DETECTION = {"RequiresDuplicateDetection": "true"}


def test_a_duplicate_message_is_accepted_and_dropped(every_bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(**DUPLICATE_DETECTION)
    sender, another, receiver = every_bus.sender(queue), every_bus.sender(queue), every_bus.receiver(queue)
    sender.send_messages(ServiceBusMessage("first", message_id="1"))
    sender.send_messages(ServiceBusMessage("again", message_id="1"))
    another.send_messages(ServiceBusMessage("and again", message_id="1"))
    sender.send_messages(ServiceBusMessage("other", message_id="2"))
    assert server.message_counts(queue) == (2, 0)
    assert [body_of(message) for message in receive(receiver, 2)] == [b"first", b"other"]


def test_only_the_new_messages_of_a_batch_are_kept(bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(**DUPLICATE_DETECTION)
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    sender.send_messages(ServiceBusMessage("a", message_id="a"))
    sender.send_messages(
        [ServiceBusMessage(f"{message_id} in a batch", message_id=message_id) for message_id in ("b", "a", "c", "b")]
    )
    received = receive(receiver, 3)
    assert [body_of(message) for message in received] == [b"a", b"b in a batch", b"c in a batch"]
    assert [message.sequence_number for message in received] == [1, 2, 3]
    assert server.message_counts(queue) == (3, 0)


def test_a_message_id_is_remembered_after_the_message_is_completed(bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(**DUPLICATE_DETECTION)
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    sender.send_messages(ServiceBusMessage("x", message_id="1"))
    receiver.complete_message(receive(receiver, 1)[0])
    sender.send_messages(ServiceBusMessage("x", message_id="1"))
    assert server.message_counts(queue) == (0, 0)


def test_scheduled_messages_take_part_in_duplicate_detection(bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(**DUPLICATE_DETECTION)
    sender = bus.sender(queue)
    later = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    [number] = sender.schedule_messages(ServiceBusMessage("x", message_id="1"), later)
    assert number == 1
    sender.send_messages(ServiceBusMessage("x", message_id="1"))
    sender.send_messages(ServiceBusMessage("x", message_id="2"))
    sender.schedule_messages(ServiceBusMessage("x", message_id="2"), later)
    assert server.message_counts(queue) == (1, 0)
    assert bus.administration.get_queue_runtime_properties(queue).scheduled_message_count == 1


def test_duplicate_detection_ignores_the_session_id(bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(**DUPLICATE_DETECTION, RequiresSession="true")
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


def test_messages_without_an_id_are_never_duplicates(bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(**DUPLICATE_DETECTION)
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    for _ in range(2):
        sender.send_messages(AmqpAnnotatedMessage(data_body=b"x"))
    assert len({message.message_id for message in receive(receiver, 2)}) == 2


def test_a_queue_without_duplicate_detection_keeps_messages_with_equal_ids(
    bus: Bus, server: ServerProcess, queue: str
) -> None:
    bus.sender(queue).send_messages([ServiceBusMessage("x", message_id="1") for _ in range(3)])
    assert server.message_counts(queue) == (3, 0)
