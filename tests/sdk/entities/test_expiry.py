"""Expiry: the time to live of message and queue, and dropping or dead-lettering of expired messages."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue

from tests.sdk.bus import body_of, receive
from tests.support.server_process import wait_until

if TYPE_CHECKING:
    from tests.sdk.bus import Bus
    from tests.support.server_process import ServerProcess

SECOND = dt.timedelta(seconds=1)
EXPIRED = ("TTLExpiredException", "The message expired and was dead lettered.")


def test_an_expired_message_is_dropped_or_dead_lettered_as_its_queue_is_configured(
    every_bus: Bus, server: ServerProcess
) -> None:
    drops, keeps = server.create_queue(), server.create_queue()
    shortest = server.create_queue(DefaultMessageTimeToLive="PT1S", DeadLetteringOnMessageExpiration="true")
    every_bus.update_queue(keeps, dead_lettering_on_message_expiration=True)
    every_bus.sender(shortest).send_messages([ServiceBusMessage("x"), ServiceBusMessage("y", time_to_live=60 * SECOND)])
    for queue in (drops, keeps):
        short = ServiceBusMessage("short", time_to_live=SECOND, application_properties={"a": 1})
        every_bus.sender(queue).send_messages([ServiceBusMessage("long", time_to_live=3600 * SECOND), short])
        assert server.message_counts(queue) == (2, 0)
    dead_letters = every_bus.receiver(keeps, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    wait_until(lambda: server.message_counts(drops) == (1, 0))
    wait_until(lambda: server.message_counts(keeps) == (1, 1))
    wait_until(lambda: server.message_counts(shortest) == (0, 2))
    [dead] = receive(dead_letters, 1)
    assert (body_of(dead), dead.application_properties[b"a"]) == (b"short", 1)
    assert (dead.dead_letter_reason, dead.dead_letter_error_description) == EXPIRED
    [alive] = receive(every_bus.receiver(keeps), 1)
    assert body_of(alive) == b"long"


def test_the_default_time_to_live_of_a_queue_limits_that_of_its_messages(bus: Bus, server: ServerProcess) -> None:
    hour = dt.timedelta(hours=1)
    queue = server.create_queue(DefaultMessageTimeToLive="PT1H")
    bus.sender(queue).send_messages(
        [
            ServiceBusMessage("of the queue"),
            ServiceBusMessage("too long", time_to_live=2 * hour),
            ServiceBusMessage("shorter", time_to_live=hour / 2),
        ]
    )
    received = receive(bus.receiver(queue), 3)
    lives = [message.time_to_live for message in received]
    assert lives == [hour, hour, hour / 2]
    assert [message.expires_at_utc - message.enqueued_time_utc for message in received] == lives


def test_an_expired_message_is_not_received(bus: Bus, server: ServerProcess) -> None:
    """An expired message is not delivered, even before it is removed."""
    queue = server.create_queue()
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    sender.send_messages(ServiceBusMessage("x", time_to_live=2 * SECOND))
    expires_at = receiver.peek_messages()[0].expires_at_utc
    assert expires_at is not None
    wait_until(lambda: dt.datetime.now(dt.UTC) > expires_at)
    assert receiver.receive_messages(max_wait_time=0.5) == []
    wait_until(lambda: server.message_counts(queue) == (0, 0))


def test_a_locked_message_can_be_settled_after_its_expiry(bus: Bus, server: ServerProcess) -> None:
    """An abandoned message expires then; deferred messages and dead letters do not expire."""
    queue = server.create_queue(DeadLetteringOnMessageExpiration="true")
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    bodies = ("completed", "abandoned", "deferred", "dead-lettered")
    sender.send_messages([ServiceBusMessage(body, time_to_live=3 * SECOND) for body in bodies])
    completed, abandoned, deferred, dead_lettered = receive(receiver, 4)
    receiver.defer_message(deferred)
    receiver.dead_letter_message(dead_lettered, reason="mine")
    wait_until(lambda: dt.datetime.now(dt.UTC) > completed.expires_at_utc + SECOND)
    assert server.message_counts(queue) == (2, 1)
    receiver.complete_message(completed)
    receiver.abandon_message(abandoned)
    assert receiver.receive_messages(max_wait_time=0.5) == []
    wait_until(lambda: server.message_counts(queue) == (0, 2))
    dead_letters = receive(bus.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER), 2)
    assert [(body_of(message), message.dead_letter_reason) for message in dead_letters] == [
        (b"dead-lettered", "mine"),
        (b"abandoned", "TTLExpiredException"),
    ]
    [late] = receiver.receive_deferred_messages(deferred.sequence_number)
    assert body_of(late) == b"deferred"
    receiver.complete_message(late)


def test_messages_of_sessions_expire_too(bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(RequiresSession="true", DeadLetteringOnMessageExpiration="true")
    receiver = bus.receiver(queue, session_id="held")
    bus.sender(queue).send_messages(
        [
            ServiceBusMessage("x", session_id="free", time_to_live=SECOND),
            ServiceBusMessage("y", session_id="held", time_to_live=SECOND),
            ServiceBusMessage("z", session_id="held"),
        ]
    )
    wait_until(lambda: server.message_counts(queue) == (1, 2))
    assert [body_of(message) for message in receive(receiver, 1)] == [b"z"]
    assert bus.list_sessions(queue) == ["held"]
    dead_letters = bus.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    received = receive(dead_letters, 2)
    assert [(message.session_id, message.dead_letter_reason) for message in received] == [
        ("free", "TTLExpiredException"),
        ("held", "TTLExpiredException"),
    ]


def test_a_time_to_live_of_49_days_is_kept(bus: Bus, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    life = dt.timedelta(days=49)
    sender.send_messages(ServiceBusMessage("x", time_to_live=life))
    [message] = receive(receiver, 1)
    assert (message.time_to_live, message.expires_at_utc) == (life, message.enqueued_time_utc + life)
