"""Which exceptions of the SDK our refusals become, for entities of every kind."""

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


def test_a_name_is_taken_in_every_spelling_by_queues_and_topics_alike(admin: AdministrationClient, topic: str) -> None:
    admin.create_subscription(topic, "all")
    creates: list[Ask] = [
        lambda: admin.create_topic(topic.upper()),
        lambda: admin.create_queue(topic),
        lambda: admin.create_subscription(topic.upper(), "ALL"),
    ]
    for create in creates:
        with pytest.raises(ResourceExistsError):
            create()


def test_what_is_missing(admin: AdministrationClient, topic: str) -> None:
    admin.create_queue(f"{topic}-queue")
    admin.create_subscription(topic, "all")
    asks: list[Ask] = [
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
    for ask in asks:
        with pytest.raises(ResourceNotFoundError):
            ask()


@pytest.mark.parametrize("bad", ["-x", "a b", "x" * 261, "a%2Fb", "a/Subscriptions/b"])
def test_a_name_that_cannot_be(admin: AdministrationClient, bad: str) -> None:
    for create in (admin.create_queue, admin.create_topic):
        with pytest.raises(HttpResponseError) as caught:
            create(bad)
        assert caught.value.status_code == 400


@pytest.mark.parametrize("bad", ["-x", "a b", "x" * 51, "a/b", "$x"])
def test_a_name_that_no_subscription_can_have(admin: AdministrationClient, topic: str, bad: str) -> None:
    with pytest.raises(HttpResponseError) as caught:
        admin.create_subscription(topic, bad)
    assert caught.value.status_code == 400
    assert admin.list_subscriptions(topic) == []


def test_no_name_is_an_error_always(admin: AdministrationClient, topic: str) -> None:
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
    ("option", "told"),
    [
        ({"lock_duration": dt.timedelta(days=25)}, "LockDuration is 'P25D'"),
        ({"max_delivery_count": 0}, "MaxDeliveryCount is '0'"),
        ({"user_metadata": "x" * 1025}, "UserMetadata is 'xxx"),
        ({"forward_to": "nowhere"}, "ForwardTo of .* is 'nowhere'"),
        ({"auto_delete_on_idle": dt.timedelta(minutes=1)}, "AutoDeleteOnIdle is 'PT1M'"),
    ],
)
def test_a_value_that_cannot_be_is_told_with_its_element(
    admin: AdministrationClient, topic: str, option: dict[str, object], told: str
) -> None:
    creates: list[Ask] = [
        lambda: admin.create_queue(f"{topic}-queue", **option),
        lambda: admin.create_subscription(topic, "all", **option),
    ]
    for create in creates:
        with pytest.raises(HttpResponseError, match=told) as caught:
            create()
        assert caught.value.status_code == 400


def test_a_stranger_may_not_even_look(server: ServerProcess, topic: str) -> None:
    stranger = server.admin_connection_string.replace(server.key, "c2VjcmV0")
    with_no_key = AdministrationClient("sync", server, stranger)
    asks: list[Ask] = [
        lambda: with_no_key.get_topic(topic),
        with_no_key.list_queues,
        with_no_key.get_namespace_properties,
        lambda: with_no_key.list_subscriptions(topic),
        lambda: with_no_key.list_rules(topic, "all"),
        lambda: with_no_key.create_rule(topic, "all", "mine"),
    ]
    for ask in asks:
        with pytest.raises(ClientAuthenticationError):
            ask()
    with_no_key.end()
