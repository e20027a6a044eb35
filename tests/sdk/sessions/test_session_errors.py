"""Where a queue has sessions, all its messages and receivers name one; where it has none, no receiver may."""

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


def test_a_session_of_a_queue_that_has_none_is_refused(every_bus: Bus, queue: str) -> None:
    named = every_bus.receiver(queue, session_id="s")
    any_one = every_bus.receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=30)
    with pytest.raises(ServiceBusError, match=f"has no sessions.*{NOT_ALLOWED}"):
        named.receive_messages(max_wait_time=1)
    with pytest.raises(ServiceBusError, match=f"has no sessions.*{NOT_ALLOWED}"):
        any_one.receive_messages(max_wait_time=1)


def test_a_receiver_without_a_session_is_refused_by_a_queue_that_has_them(
    every_bus: Bus, server: ServerProcess
) -> None:
    queue = server.create_queue(**SESSIONS)
    with pytest.raises(ServiceBusError, match=f"requires sessions.*{NOT_ALLOWED}"):
        every_bus.receiver(queue).receive_messages(max_wait_time=1)


def test_a_message_without_a_session_is_refused_and_the_sender_goes_on(bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(**SESSIONS)
    sender = bus.sender(queue)

    def good() -> ServiceBusMessage:
        return ServiceBusMessage("good", session_id="s")

    later = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    with pytest.raises(ServiceBusError, match=f"session id.*{NOT_ALLOWED}"):
        sender.send_messages(ServiceBusMessage("x"))
    with pytest.raises(ServiceBusError, match=f"session id.*{NOT_ALLOWED}"):
        sender.send_messages([good(), ServiceBusMessage("x")])
    with pytest.raises(ServiceBusError, match="session id"):
        sender.schedule_messages([good(), ServiceBusMessage("x")], later)
    sender.send_messages(good())
    receiver = bus.receiver(queue, session_id="s")
    assert [body_of(message) for message in receive(receiver, 1)] == [b"good"]
    assert server.message_counts(queue) == (1, 0), "of a batch with a wrong message nothing was taken"
    assert bus.administration.get_queue_runtime_properties(queue).scheduled_message_count == 0


def test_the_id_of_a_session_has_a_limit_for_who_accepts_it_too(bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(**SESSIONS)
    longest, too_long = bus.receiver(queue, session_id="s" * 128), bus.receiver(queue, session_id="s" * 129)
    assert longest.session.renew_lock() is not None
    with pytest.raises(ServiceBusError, match="128"):
        too_long.receive_messages(max_wait_time=1)
