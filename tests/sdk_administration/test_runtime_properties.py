"""What is in entities is told truly: messages that wait, are dead, or are for later."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import CorrelationRuleFilter, SqlRuleFilter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.sdk_administration.admin import AdministrationClient, Ask
    from tests.support.server_process import ServerProcess

LATER = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)


@pytest.fixture
def bus(server: ServerProcess) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(server.connection_string) as client:
        yield client


def is_now(time: dt.datetime | None) -> bool:
    return time is not None and abs(dt.datetime.now(dt.UTC) - time) < dt.timedelta(minutes=1)


def test_the_counts_of_a_queue(admin: AdministrationClient, bus: ServiceBusClient, name: str) -> None:
    admin.create_queue(name)
    with bus.get_queue_sender(name) as sender, bus.get_queue_receiver(name) as receiver:
        sender.send_messages([ServiceBusMessage(str(number)) for number in range(3)])
        sender.schedule_messages([ServiceBusMessage("later")], LATER)
        [message] = receiver.receive_messages(1)
        receiver.dead_letter_message(message)
    listed = next(one for one in admin.list_queues_runtime_properties() if one.name == name)
    for runtime in (admin.get_queue_runtime_properties(name), listed):
        assert (runtime.name, runtime.active_message_count, runtime.dead_letter_message_count) == (name, 2, 1)
        assert (runtime.scheduled_message_count, runtime.total_message_count) == (1, 4)
        assert (runtime.transfer_message_count, runtime.transfer_dead_letter_message_count) == (0, 0)
        assert runtime.size_in_bytes > 0
        assert is_now(runtime.created_at_utc)
        assert is_now(runtime.updated_at_utc)
        assert is_now(runtime.accessed_at_utc)


def test_the_counts_of_a_topic_and_its_subscriptions(
    admin: AdministrationClient, bus: ServiceBusClient, topic: str
) -> None:
    admin.create_subscription(topic, "all")
    admin.create_subscription(topic, "few")
    admin.delete_rule(topic, "few", "$Default")
    admin.create_rule(topic, "few", "by-label", filter=CorrelationRuleFilter(label="few"))
    admin.create_rule(topic, "few", "by-number", filter=SqlRuleFilter("number > 1"))
    with bus.get_topic_sender(topic) as sender:
        sender.send_messages([ServiceBusMessage("x", subject=label) for label in ("few", "many", "many")])
        sender.schedule_messages([ServiceBusMessage("later")], LATER)
    with bus.get_subscription_receiver(topic, "all") as receiver:
        [message] = receiver.receive_messages(1)
        receiver.dead_letter_message(message)
    listed = next(one for one in admin.list_topics_runtime_properties() if one.name == topic)
    for runtime in (admin.get_topic_runtime_properties(topic), listed):
        assert (runtime.name, runtime.subscription_count, runtime.scheduled_message_count) == (topic, 2, 1)
        assert (runtime.sql_filter_count, runtime.correlation_filter_count) == (2, 1), "$Default counts as SQL"
        assert runtime.size_in_bytes > 0
        assert is_now(runtime.created_at_utc)
        assert is_now(runtime.updated_at_utc)
        assert is_now(runtime.accessed_at_utc)
    every = admin.list_subscriptions_runtime_properties(topic)
    counts = [(one.name, one.active_message_count, one.dead_letter_message_count) for one in every]
    assert counts == [("all", 2, 1), ("few", 1, 0)]
    found = admin.get_subscription_runtime_properties(topic, "all")
    assert (found.name, found.total_message_count, found.transfer_message_count) == ("all", 3, 0)
    assert found.transfer_dead_letter_message_count == 0
    assert is_now(found.created_at_utc)
    assert is_now(found.updated_at_utc)
    assert is_now(found.accessed_at_utc)


def test_nothing_is_told_of_what_is_not_there(admin: AdministrationClient, topic: str) -> None:
    asks: list[Ask] = [
        lambda: admin.get_queue_runtime_properties("missing"),
        lambda: admin.get_topic_runtime_properties("missing"),
        lambda: admin.get_subscription_runtime_properties(topic, "missing"),
        lambda: admin.list_subscriptions_runtime_properties("missing"),
    ]
    for ask in asks:
        with pytest.raises(ResourceNotFoundError):
            ask()
