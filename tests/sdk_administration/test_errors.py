"""Errors: the SDK exceptions for refused administration requests, for entities of every kind."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)

from tests.sdk_administration.admin import AdministrationClient

if TYPE_CHECKING:
    from tests.sdk_administration.admin import Ask
    from tests.support.server_process import ServerProcess


def test_queues_and_topics_share_case_insensitive_names(admin: AdministrationClient, topic: str) -> None:
    admin.create_subscription(topic, "all")
    creates: list[Ask] = [
        lambda: admin.create_topic(topic.upper()),
        lambda: admin.create_queue(topic),
        lambda: admin.create_subscription(topic.upper(), "ALL"),
    ]
    for create in creates:
        with pytest.raises(ResourceExistsError):
            create()


def test_missing_entities_are_not_found(admin: AdministrationClient, topic: str) -> None:
    admin.create_queue(f"{topic}-queue")
    admin.create_subscription(topic, "all")
    calls: list[Ask] = [
        lambda: admin.get_queue("missing"),
        lambda: admin.delete_queue("missing"),
        lambda: admin.get_topic("missing"),
        lambda: admin.delete_topic("missing"),
        lambda: admin.get_subscription(topic, "missing"),
        lambda: admin.get_subscription("missing", "all"),
        lambda: admin.delete_subscription(topic, "missing"),
        lambda: admin.create_subscription("missing", "all"),
        lambda: admin.create_subscription(f"{topic}-queue", "all"),
        lambda: admin.list_subscriptions("missing"),
        lambda: admin.list_subscriptions(f"{topic}-queue"),
        lambda: admin.get_rule(topic, "all", "missing"),
        lambda: admin.get_rule(topic, "missing", "$Default"),
        lambda: admin.list_rules(topic, "missing"),
    ]
    for call in calls:
        with pytest.raises(ResourceNotFoundError):
            call()


@pytest.mark.parametrize("bad", ["-x", "a b", "x" * 261, "a%2Fb", "a/Subscriptions/b"])
def test_an_invalid_queue_or_topic_name_is_refused(admin: AdministrationClient, bad: str) -> None:
    for create in (admin.create_queue, admin.create_topic):
        with pytest.raises(HttpResponseError) as caught:
            create(bad)
        assert caught.value.status_code == 400


@pytest.mark.parametrize("bad", ["-x", "a b", "x" * 51, "a/b", "$x"])
def test_an_invalid_subscription_name_is_refused(admin: AdministrationClient, topic: str, bad: str) -> None:
    with pytest.raises(HttpResponseError) as caught:
        admin.create_subscription(topic, bad)
    assert caught.value.status_code == 400
    assert admin.list_subscriptions(topic) == []


def test_an_empty_name_is_refused(admin: AdministrationClient, topic: str) -> None:
    creates: list[Ask] = [
        lambda: admin.create_queue(""),
        lambda: admin.create_topic(""),
        lambda: admin.create_subscription(topic, ""),
        lambda: admin.create_subscription("", "all"),
        lambda: admin.create_rule(topic, "all", ""),
    ]
    for create in creates:
        with pytest.raises(HttpResponseError) as caught:
            create()
        assert caught.value.status_code in (400, 404, 405)


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({"lock_duration": dt.timedelta(days=25)}, "LockDuration is 'P25D'"),
        ({"max_delivery_count": 0}, "MaxDeliveryCount is '0'"),
        ({"user_metadata": "x" * 1025}, "UserMetadata is 'xxx"),
        ({"forward_to": "nowhere"}, "ForwardTo of .* is 'nowhere'"),
        ({"auto_delete_on_idle": dt.timedelta(minutes=1)}, "AutoDeleteOnIdle is 'PT1M'"),
    ],
)
def test_the_error_for_an_invalid_value_names_its_element(
    admin: AdministrationClient, topic: str, option: dict[str, object], reason: str
) -> None:
    creates: list[Ask] = [
        lambda: admin.create_queue(f"{topic}-queue", **option),
        lambda: admin.create_subscription(topic, "all", **option),
    ]
    for create in creates:
        with pytest.raises(HttpResponseError, match=reason) as caught:
            create()
        assert caught.value.status_code == 400


def test_a_wrong_key_may_not_read_anything(server: ServerProcess, topic: str) -> None:
    connection_string = server.admin_connection_string.replace(server.key, "c2VjcmV0")
    unauthorized = AdministrationClient("sync", server, connection_string)
    calls: list[Ask] = [
        lambda: unauthorized.get_topic(topic),
        unauthorized.list_queues,
        unauthorized.get_namespace_properties,
        lambda: unauthorized.list_subscriptions(topic),
        lambda: unauthorized.list_rules(topic, "all"),
        lambda: unauthorized.create_rule(topic, "all", "mine"),
    ]
    for call in calls:
        with pytest.raises(ClientAuthenticationError):
            call()
    unauthorized.end()
