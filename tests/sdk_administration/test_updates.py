"""Updates change the given properties; properties fixed at creation cannot be changed."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError

if TYPE_CHECKING:
    from tests.sdk_administration.admin import AdministrationClient, Ask


def changed(before: Any, after: Any) -> dict[str, object]:  # noqa: ANN401  # properties of any kind
    return {name: value for name, value in after.items() if before[name] != value}


def test_an_update_changes_a_queue(admin: AdministrationClient, name: str) -> None:
    before = admin.create_queue(name, user_metadata="mine", max_delivery_count=3, requires_duplicate_detection=True)
    before.max_delivery_count = 4
    admin.update_queue(before, lock_duration=dt.timedelta(seconds=30), status="SendDisabled")
    expected = {"lock_duration": dt.timedelta(seconds=30), "status": "SendDisabled"}
    after = admin.get_queue(name)
    assert after.max_delivery_count == 4
    assert changed(before, after) == expected
    runtime = admin.get_queue_runtime_properties(name)
    assert runtime.updated_at_utc > runtime.created_at_utc
    after.user_metadata = None
    admin.update_queue(dict(after))
    assert admin.get_queue(name).user_metadata is None


def test_an_update_changes_a_topic(admin: AdministrationClient, topic: str) -> None:
    before = admin.get_topic(topic)
    expected = {
        "default_message_time_to_live": dt.timedelta(hours=1),
        "user_metadata": "mine",
        "status": "SendDisabled",
    }
    admin.update_topic(before, **expected)
    assert changed(before, admin.get_topic(topic)) == expected
    admin.update_topic(dict(before), max_size_in_megabytes=2048)
    assert changed(before, admin.get_topic(topic)) == {"max_size_in_megabytes": 2048}


def test_an_update_changes_a_subscription(admin: AdministrationClient, topic: str) -> None:
    admin.create_queue(f"{topic}-audit")
    before = admin.create_subscription(topic, "all")
    admin.create_rule(topic, "all", "one")
    admin.update_subscription(topic, before, forward_to=f"{topic}-audit", max_delivery_count=7)
    after = admin.get_subscription(topic, "all")
    assert set(changed(before, after)) == {"forward_to", "max_delivery_count"}
    assert [rule.name for rule in admin.list_rules(topic, "all")] == ["$Default", "one"]
    after.forward_to = None
    admin.update_subscription(topic, after)
    assert changed(before, admin.get_subscription(topic, "all")) == {"max_delivery_count": 7}


@pytest.mark.parametrize(
    ("option", "kinds"),
    [("requires_session", "qs"), ("requires_duplicate_detection", "qt"), ("enable_partitioning", "qt")],
)
def test_properties_fixed_at_creation_cannot_be_changed(
    admin: AdministrationClient, topic: str, option: str, kinds: str
) -> None:
    queue, subscription = admin.create_queue(f"{topic}-queue"), admin.create_subscription(topic, "all")
    topic_properties = admin.get_topic(topic)
    change = {option: True}
    updates: dict[str, Ask] = {
        "q": lambda: admin.update_queue(queue, **change),
        "t": lambda: admin.update_topic(topic_properties, **change),
        "s": lambda: admin.update_subscription(topic, subscription, **change),
    }
    for kind in kinds:
        with pytest.raises(HttpResponseError, match="cannot be changed: it is set at creation") as caught:
            updates[kind]()
        assert caught.value.status_code == 400


def test_updating_missing_entities_is_refused(admin: AdministrationClient, topic: str) -> None:
    queue, subscription = admin.create_queue(f"{topic}-queue"), admin.create_subscription(topic, "all")
    topic_properties = admin.get_topic(topic)
    admin.delete_queue(f"{topic}-queue")
    admin.delete_topic(topic)
    updates: list[Ask] = [
        lambda: admin.update_queue(queue),
        lambda: admin.update_topic(topic_properties),
        lambda: admin.update_subscription(topic, subscription),
    ]
    for update in updates:
        with pytest.raises(ResourceNotFoundError):
            update()


def test_a_description_of_another_kind_is_refused(admin: AdministrationClient, topic: str) -> None:
    queue = admin.create_queue(f"{topic}-queue")
    queue.name = topic
    with pytest.raises(HttpResponseError, match="is described by a TopicDescription, not a QueueDescription"):
        admin.update_queue(queue)
