"""Runtime properties: counts of active, dead-lettered and scheduled messages, sizes and times."""

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


def test_a_queue_has_message_counts_size_and_times(
    admin: AdministrationClient, bus: ServiceBusClient, name: str
) -> None:
    admin.create_queue(name)
    with bus.get_queue_sender(name) as sender, bus.get_queue_receiver(name) as receiver:
        sender.send_messages([ServiceBusMessage(str(number)) for number in range(3)])
        sender.schedule_messages([ServiceBusMessage("later")], LATER)
        [message] = receiver.receive_messages(1)
        receiver.dead_letter_message(message)
    listed = next(queue for queue in admin.list_queues_runtime_properties() if queue.name == name)
    for runtime in (admin.get_queue_runtime_properties(name), listed):
        assert (runtime.name, runtime.active_message_count, runtime.dead_letter_message_count) == (name, 2, 1)
        assert (runtime.scheduled_message_count, runtime.total_message_count) == (1, 4)
        assert (runtime.transfer_message_count, runtime.transfer_dead_letter_message_count) == (0, 0)
        assert runtime.size_in_bytes > 0
        assert is_now(runtime.created_at_utc)
        assert is_now(runtime.updated_at_utc)
        assert is_now(runtime.accessed_at_utc)


def test_a_topic_and_its_subscriptions_have_counts_sizes_and_times(
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
    listed = next(entity for entity in admin.list_topics_runtime_properties() if entity.name == topic)
    for runtime in (admin.get_topic_runtime_properties(topic), listed):
        assert (runtime.name, runtime.subscription_count, runtime.scheduled_message_count) == (topic, 2, 1)
        assert (runtime.sql_filter_count, runtime.correlation_filter_count) == (2, 1), "$Default counts as SQL"
        assert runtime.size_in_bytes > 0
        assert is_now(runtime.created_at_utc)
        assert is_now(runtime.updated_at_utc)
        assert is_now(runtime.accessed_at_utc)
    subscriptions = admin.list_subscriptions_runtime_properties(topic)
    counts = [(entity.name, entity.active_message_count, entity.dead_letter_message_count) for entity in subscriptions]
    assert counts == [("all", 2, 1), ("few", 1, 0)]
    subscription = admin.get_subscription_runtime_properties(topic, "all")
    assert (subscription.name, subscription.total_message_count, subscription.transfer_message_count) == ("all", 3, 0)
    assert subscription.transfer_dead_letter_message_count == 0
    assert is_now(subscription.created_at_utc)
    assert is_now(subscription.updated_at_utc)
    assert is_now(subscription.accessed_at_utc)


def test_runtime_properties_of_missing_entities_are_not_found(admin: AdministrationClient, topic: str) -> None:
    calls: list[Ask] = [
        lambda: admin.get_queue_runtime_properties("missing"),
        lambda: admin.get_topic_runtime_properties("missing"),
        lambda: admin.get_subscription_runtime_properties(topic, "missing"),
        lambda: admin.list_subscriptions_runtime_properties("missing"),
    ]
    for call in calls:
        with pytest.raises(ResourceNotFoundError):
            call()
