"""Topics: create, get, list and delete, with their subscriptions."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest
from azure.core.exceptions import ResourceNotFoundError

if TYPE_CHECKING:
    from tests.sdk_administration.admin import AdministrationClient

EVERY_OPTION = {
    "auto_delete_on_idle": dt.timedelta(minutes=7),
    "default_message_time_to_live": dt.timedelta(days=14),
    "duplicate_detection_history_time_window": dt.timedelta(seconds=90),
    "enable_batched_operations": False,
    "enable_express": True,
    "enable_partitioning": True,
    "max_size_in_megabytes": 3072,
    "requires_duplicate_detection": True,
    "support_ordering": False,
    "user_metadata": " <news> & 'more' \u00e9\u4e2d ",
}
EXPECTED = EVERY_OPTION | {"max_size_in_megabytes": 16 * 3072}
"""Expected properties: the topic is partitioned, and each fragment has the requested size."""


def test_a_created_topic_is_found_and_listed_until_it_is_deleted(admin: AdministrationClient, name: str) -> None:
    created = admin.create_topic(name)
    assert (created.name, created.status, created.availability_status) == (name, "Active", "Available")
    assert (created.max_size_in_megabytes, created.support_ordering) == (1024, True)
    assert dict(admin.get_topic(name)) == dict(created)
    assert [topic.name for topic in admin.list_topics()].count(name) == 1
    assert name not in [queue.name for queue in admin.list_queues()]
    admin.delete_topic(name)
    assert name not in [topic.name for topic in admin.list_topics()]
    with pytest.raises(ResourceNotFoundError):
        admin.get_topic(name)


def test_every_option_is_stored(admin: AdministrationClient, name: str) -> None:
    created = admin.create_topic(name, **EVERY_OPTION)
    listed = next(topic for topic in admin.list_topics() if topic.name == name)
    for topic in (created, admin.get_topic(name), listed):
        assert {option: topic[option] for option in EXPECTED} == EXPECTED


def test_deleting_a_topic_deletes_its_subscriptions(admin: AdministrationClient, topic: str) -> None:
    admin.create_subscription(topic, "all")
    admin.delete_topic(topic)
    with pytest.raises(ResourceNotFoundError):
        admin.get_subscription(topic, "all")
    admin.create_topic(topic)
    assert admin.list_subscriptions(topic) == []
