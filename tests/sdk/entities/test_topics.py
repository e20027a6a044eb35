"""Topics: copies for each subscription, rules, scheduling, sessions, and errors."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import MessagingEntityNotFoundError, ServiceBusError
from azure.servicebus.management import CorrelationRuleFilter, SqlRuleAction, SqlRuleFilter

from tests.sdk.bus import body_of, receive

if TYPE_CHECKING:
    from tests.sdk.bus import Bus

LARGE = "x" * 5_000


def test_each_subscription_gets_and_settles_its_own_copy(every_bus: Bus) -> None:
    topic = every_bus.topic("one", "two")
    sender = every_bus.topic_sender(topic)
    sender.send_messages(ServiceBusMessage(LARGE, application_properties={"n": 1}))
    for name in ("one", "two"):
        receiver = every_bus.subscription_receiver(topic, name)
        (message,) = receive(receiver, 1)
        assert body_of(message) == LARGE.encode()
        assert message.application_properties == {b"n": 1}
        assert message.enqueued_sequence_number == 1
        receiver.complete_message(message)
    runtime = every_bus.administration.get_subscription_runtime_properties(topic, "one")
    assert (runtime.active_message_count, runtime.total_message_count) == (0, 0)


def test_a_batch_is_published_to_every_subscription_in_order(bus: Bus) -> None:
    topic = bus.topic("one", "two")
    sender = bus.topic_sender(topic)
    sender.send_messages([ServiceBusMessage(f"{number}") for number in range(20)])
    for name in ("one", "two"):
        received = receive(bus.subscription_receiver(topic, name, receive_mode="receiveanddelete"), 20)
        assert [body_of(message) for message in received] == [b"%d" % number for number in range(20)]


def test_a_sql_rule_filters_and_changes_messages(bus: Bus) -> None:
    topic = bus.topic()
    administration = bus.administration
    administration.create_subscription(topic, "red")
    administration.delete_rule(topic, "red", "$Default")
    rule, action = SqlRuleFilter("color = 'red' AND size > 2"), SqlRuleAction("SET sys.Label = 'hot'; SET seen = 1")
    administration.create_rule(topic, "red", "warm", filter=rule, action=action)
    sender, receiver = bus.topic_sender(topic), bus.subscription_receiver(topic, "red")
    for color, size in (("red", 1), ("blue", 3), ("red", 3)):
        sender.send_messages(
            ServiceBusMessage(f"{color} {size}", application_properties={"color": color, "size": size})
        )
    (message,) = receive(receiver, 1)
    assert (body_of(message), message.subject, message.application_properties[b"seen"]) == (b"red 3", "hot", 1)
    assert not receiver.receive_messages(max_wait_time=0.5)


def test_a_correlation_rule_filters_messages(bus: Bus) -> None:
    topic = bus.topic("all")
    administration = bus.administration
    administration.create_subscription(topic, "mine")
    administration.delete_rule(topic, "mine", "$Default")
    correlation_filter = CorrelationRuleFilter(label="order", properties={"region": "eu"})
    administration.create_rule(topic, "mine", "eu", filter=correlation_filter)
    sender = bus.topic_sender(topic)
    for subject, region in (("order", "eu"), ("order", "us"), ("offer", "eu")):
        sender.send_messages(
            ServiceBusMessage(f"{subject} {region}", subject=subject, application_properties={"region": region})
        )
    assert [body_of(message) for message in receive(bus.subscription_receiver(topic, "mine"), 1)] == [b"order eu"]
    assert len(receive(bus.subscription_receiver(topic, "all"), 3)) == 3
    runtime = administration.get_subscription_runtime_properties(topic, "mine")
    assert runtime.active_message_count == 1


def test_a_scheduled_message_is_published_when_it_is_due_and_can_be_cancelled(bus: Bus) -> None:
    topic = bus.topic("one")
    sender, receiver = bus.topic_sender(topic), bus.subscription_receiver(topic, "one")
    now = dt.datetime.now(dt.UTC).replace(microsecond=0)
    (kept,) = sender.schedule_messages(ServiceBusMessage("soon"), now + dt.timedelta(seconds=2))
    (cancelled,) = sender.schedule_messages(ServiceBusMessage("never"), now + dt.timedelta(seconds=2))
    assert kept != cancelled
    sender.cancel_scheduled_messages(cancelled)
    assert bus.administration.get_topic_runtime_properties(topic).scheduled_message_count == 1
    (message,) = receive(receiver, 1)
    assert body_of(message) == b"soon"
    assert message.enqueued_time_utc >= now + dt.timedelta(seconds=2)


def test_a_subscription_with_sessions_delivers_a_session_and_stores_its_state(bus: Bus) -> None:
    topic = bus.topic()
    bus.administration.create_subscription(topic, "one", requires_session=True)
    sender = bus.topic_sender(topic)
    for number in range(4):
        sender.send_messages(ServiceBusMessage(f"{number}", session_id=f"s{number % 2}"))
    receiver = bus.subscription_receiver(topic, "one", session_id="s1")
    received = receive(receiver, 2)
    assert [(body_of(message), message.session_id) for message in received] == [(b"1", "s1"), (b"3", "s1")]
    receiver.session.set_state(b"half")
    assert receiver.session.get_state() == b"half"


def test_dead_lettering_deferral_and_peeking_work_on_a_subscription(bus: Bus) -> None:
    topic = bus.topic("one", "two")
    sender, receiver = bus.topic_sender(topic), bus.subscription_receiver(topic, "one")
    sender.send_messages([ServiceBusMessage(LARGE + name) for name in ("dead", "deferred", "left")])
    dead, deferred = receive(receiver, 2)
    receiver.dead_letter_message(dead, reason="bad", error_description="very")
    receiver.defer_message(deferred)
    assert len(receiver.peek_messages(5, sequence_number=1)) == 2
    (again,) = receiver.receive_deferred_messages([deferred.sequence_number])
    receiver.complete_message(again)
    assert body_of(again) == LARGE.encode() + b"deferred"
    (dead_letter,) = receive(bus.subscription_receiver(topic, "one", sub_queue=ServiceBusSubQueue.DEAD_LETTER), 1)
    assert (body_of(dead_letter), dead_letter.dead_letter_reason) == (LARGE.encode() + b"dead", "bad")
    assert len(receive(bus.subscription_receiver(topic, "two", receive_mode="receiveanddelete"), 3)) == 3


def test_receiving_from_a_topic_and_sending_to_a_subscription_are_refused(bus: Bus) -> None:
    topic = bus.topic("one")
    with pytest.raises(ServiceBusError):
        bus.receiver(topic).receive_messages(max_wait_time=1)
    with pytest.raises(ServiceBusError):
        bus.sender(f"{topic}/Subscriptions/one").send_messages(ServiceBusMessage("1"))


def test_a_receiver_of_a_missing_subscription_is_refused(bus: Bus) -> None:
    topic = bus.topic("one")
    with pytest.raises(MessagingEntityNotFoundError):
        bus.subscription_receiver(topic, "other").receive_messages(max_wait_time=1)
