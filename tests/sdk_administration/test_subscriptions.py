"""Subscriptions: create, get, list and delete."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest
from azure.core.exceptions import ResourceNotFoundError

if TYPE_CHECKING:
    from tests.sdk_administration.admin import AdministrationClient

EVERY_OPTION = {
    "auto_delete_on_idle": dt.timedelta(minutes=7),
    "dead_lettering_on_filter_evaluation_exceptions": False,
    "dead_lettering_on_message_expiration": True,
    "default_message_time_to_live": dt.timedelta(days=14),
    "enable_batched_operations": False,
    "lock_duration": dt.timedelta(seconds=13.5),
    "max_delivery_count": 14,
    "requires_session": True,
    "user_metadata": " <all> & 'more' \u00e9\u4e2d ",
}


def test_a_created_subscription_is_found_and_listed_until_it_is_deleted(
    admin: AdministrationClient, topic: str
) -> None:
    created = admin.create_subscription(topic, "all")
    assert (created.name, created.status, created.availability_status) == ("all", "Active", "Available")
    assert (created.lock_duration, created.max_delivery_count) == (dt.timedelta(minutes=1), 10)
    assert created.dead_lettering_on_filter_evaluation_exceptions is True
    assert dict(admin.get_subscription(topic, "all")) == dict(created)
    assert [listed.name for listed in admin.list_subscriptions(topic)] == ["all"]
    admin.delete_subscription(topic, "all")
    assert admin.list_subscriptions(topic) == []
    with pytest.raises(ResourceNotFoundError):
        admin.get_subscription(topic, "all")


def test_every_option_is_stored(admin: AdministrationClient, topic: str) -> None:
    created = admin.create_subscription(topic, "all", **EVERY_OPTION)
    for listed in (created, admin.get_subscription(topic, "all"), *admin.list_subscriptions(topic)):
        assert {option: listed[option] for option in EVERY_OPTION} == EVERY_OPTION


def test_a_subscription_can_forward_to_an_existing_queue(admin: AdministrationClient, topic: str) -> None:
    admin.create_queue(f"{topic}-audit")
    created = admin.create_subscription(topic, "all", forward_to=f"{topic}-audit")
    assert created.forward_to.endswith(f"/{topic}-audit")


def test_topics_with_slashes_in_their_name_have_subscriptions(admin: AdministrationClient, name: str) -> None:
    admin.create_topic(f"{name}/news")
    admin.create_topic(name)
    for subscription in ("rules", "b", "A"):
        admin.create_subscription(f"{name}/news", subscription)
    assert [listed.name for listed in admin.list_subscriptions(f"{name}/news")] == ["A", "b", "rules"]
    assert admin.get_subscription(f"{name}/news", "a").name == "a"
    assert [rule.name for rule in admin.list_rules(f"{name}/news", "rules")] == ["$Default"]
    assert admin.list_subscriptions(name) == []
