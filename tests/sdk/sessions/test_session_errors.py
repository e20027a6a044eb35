"""Session errors: missing session ids, sessions on queues without sessions, and session ids that are too long."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from tests.sdk.bus import body_of, receive

if TYPE_CHECKING:
    from tests.sdk.bus import Bus
    from tests.support.server_process import ServerProcess

SESSIONS = {"RequiresSession": "true"}
NOT_ALLOWED = "amqp:not-allowed"


def test_a_session_receiver_of_a_queue_without_sessions_is_refused(every_bus: Bus, queue: str) -> None:
    named = every_bus.receiver(queue, session_id="s")
    next_available = every_bus.receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=30)
    with pytest.raises(ServiceBusError, match=f"has no sessions.*{NOT_ALLOWED}"):
        named.receive_messages(max_wait_time=1)
    with pytest.raises(ServiceBusError, match=f"has no sessions.*{NOT_ALLOWED}"):
        next_available.receive_messages(max_wait_time=1)


def test_a_queue_with_sessions_refuses_a_receiver_without_a_session(every_bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(**SESSIONS)
    with pytest.raises(ServiceBusError, match=f"requires sessions.*{NOT_ALLOWED}"):
        every_bus.receiver(queue).receive_messages(max_wait_time=1)


def test_a_message_without_a_session_id_is_refused_and_the_sender_continues(bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(**SESSIONS)
    sender = bus.sender(queue)

    def valid_message() -> ServiceBusMessage:
        return ServiceBusMessage("good", session_id="s")

    later = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    with pytest.raises(ServiceBusError, match=f"session id.*{NOT_ALLOWED}"):
        sender.send_messages(ServiceBusMessage("x"))
    with pytest.raises(ServiceBusError, match=f"session id.*{NOT_ALLOWED}"):
        sender.send_messages([valid_message(), ServiceBusMessage("x")])
    with pytest.raises(ServiceBusError, match="session id"):
        sender.schedule_messages([valid_message(), ServiceBusMessage("x")], later)
    sender.send_messages(valid_message())
    receiver = bus.receiver(queue, session_id="s")
    assert [body_of(message) for message in receive(receiver, 1)] == [b"good"]
    assert server.message_counts(queue) == (1, 0), "of a batch with a wrong message nothing was taken"
    assert bus.administration.get_queue_runtime_properties(queue).scheduled_message_count == 0


def test_a_receiver_with_a_session_id_over_128_characters_is_refused(bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(**SESSIONS)
    longest, too_long = bus.receiver(queue, session_id="s" * 128), bus.receiver(queue, session_id="s" * 129)
    assert longest.session.renew_lock() is not None
    with pytest.raises(ServiceBusError, match="128"):
        too_long.receive_messages(max_wait_time=1)
