"""Paging: lists over several pages are complete and have no duplicates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from azure.core.exceptions import HttpResponseError

if TYPE_CHECKING:
    from tests.sdk_administration.admin import AdministrationClient, Ask

SIZES = (1, 2, 5, 7, 8, 100)


def test_queues_and_topics_are_listed_over_several_pages(admin: AdministrationClient, name: str) -> None:
    queues, topics = ([f"{name}/{kind}{number}" for number in range(7)] for kind in ("queue", "topic"))
    for queue, topic in zip(queues, topics, strict=True):
        admin.create_queue(queue)
        admin.create_topic(topic)
    for size in (7, 100):  # every page is a request, and the lists contain queues of other tests
        for listed, expected in (
            (admin.list_queues(max_page_size=size), queues),
            (admin.list_queues_runtime_properties(max_page_size=size), queues),
            (admin.list_topics(max_page_size=size), topics),
            (admin.list_topics_runtime_properties(max_page_size=size), topics),
        ):
            assert [entity.name for entity in listed if entity.name.startswith(f"{name}/")] == expected
    all_names = [entity.name for entity in admin.list_queues()]
    assert [entity.name for entity in admin.list_queues(start_index=3, max_page_size=2)] == all_names[3:]
    for queue, topic in zip(queues, topics, strict=True):
        admin.delete_queue(queue)
        admin.delete_topic(topic)


def test_subscriptions_and_rules_are_listed_over_several_pages(admin: AdministrationClient, topic: str) -> None:
    names = [f"s{number}" for number in range(7)]
    for name in names:
        admin.create_subscription(topic, name)
        admin.create_rule(topic, "s0", name)
    for size in SIZES:
        assert [entity.name for entity in admin.list_subscriptions(topic, max_page_size=size)] == names
        assert [
            entity.name for entity in admin.list_subscriptions_runtime_properties(topic, max_page_size=size)
        ] == names
        assert [entity.name for entity in admin.list_rules(topic, "s0", max_page_size=size)] == ["$Default", *names]
    assert [entity.name for entity in admin.list_rules(topic, "s0", start_index=5)] == names[4:]


def test_an_invalid_page_is_refused(admin: AdministrationClient, topic: str) -> None:
    admin.create_subscription(topic, "all")
    calls: list[Ask] = [
        admin.list_queues,
        admin.list_topics,
        lambda **page: admin.list_subscriptions(topic, **page),
        lambda **page: admin.list_rules(topic, "all", **page),
    ]
    for call in calls:
        for page in ({"start_index": -1}, {"max_page_size": -1}):
            with pytest.raises(HttpResponseError) as caught:
                call(**page)
            assert caught.value.status_code == 400
