"""System properties: sequence number, times, lock and delivery count, as the broker sets them."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import TYPE_CHECKING

from azure.servicebus import ServiceBusMessage, ServiceBusMessageState, ServiceBusReceiveMode

from tests.sdk.bus import receive

if TYPE_CHECKING:
    from tests.sdk.bus import Bus

TTL = dt.timedelta(hours=1)
SLACK = dt.timedelta(seconds=10)


def test_sequence_numbers_start_at_one_and_have_no_gaps(bus: Bus, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    sender.send_messages(ServiceBusMessage("x"))
    sender.send_messages([ServiceBusMessage("x") for _ in range(3)])
    assert [message.sequence_number for message in receive(receiver, 4)] == [1, 2, 3, 4]


def test_enqueued_time_expiry_and_lock_start_now_and_the_lock_lasts_a_minute(bus: Bus, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    before = dt.datetime.now(dt.UTC)
    sender.send_messages(ServiceBusMessage("x", time_to_live=TTL))
    [message] = receive(receiver, 1)
    assert abs(message.enqueued_time_utc - before) < SLACK
    assert message.expires_at_utc == message.enqueued_time_utc + TTL
    assert abs(message.locked_until_utc - before - dt.timedelta(minutes=1)) < SLACK
    assert message.delivery_count == 0
    assert message.state is ServiceBusMessageState.ACTIVE
    assert (message.dead_letter_source, message.scheduled_enqueue_time_utc) == (None, None)


def test_a_message_that_never_expires_has_no_expiry(bus: Bus, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    sender.send_messages(ServiceBusMessage("x"))
    [message] = receive(receiver, 1)
    assert (message.time_to_live, message.expires_at_utc) == (None, None)


def test_the_delivery_tag_is_the_lock_token_in_dotnet_byte_order(bus: Bus, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    sender.send_messages([ServiceBusMessage("x"), ServiceBusMessage("y")])
    first, second = receive(receiver, 2)
    for message in (first, second):
        # The SDK reads its lock token from the tag, in .NET byte order; the annotation has it in RFC 4122 order.
        assert isinstance(message.lock_token, uuid.UUID)
        assert message.lock_token == message.raw_amqp_message.delivery_annotations[b"x-opt-lock-token"]
    assert first.lock_token != second.lock_token


def test_received_and_deleted_or_peeked_messages_have_no_lock(bus: Bus, queue: str) -> None:
    sender = bus.sender(queue)
    receiver = bus.receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    sender.send_messages(ServiceBusMessage("x"))
    [peeked] = receiver.peek_messages()
    [received] = receive(receiver, 1)
    for message in (peeked, received):
        assert message.sequence_number == 1
        assert message.enqueued_time_utc is not None
        assert message.delivery_count == 0
        assert b"x-opt-locked-until" not in (message.raw_amqp_message.annotations or {})
        assert not message.raw_amqp_message.delivery_annotations
    assert received.lock_token is None
