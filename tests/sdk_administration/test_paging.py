"""Lists come in pages, which the SDK follows: none is missed or told twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from azure.core.exceptions import HttpResponseError

if TYPE_CHECKING:
    from tests.sdk_administration.admin import AdministrationClient, Ask

SIZES = (1, 2, 5, 7, 8, 100)


def test_pages_of_queues_and_topics(admin: AdministrationClient, name: str) -> None:
    queues, topics = ([f"{name}/{kind}{number}" for number in range(7)] for kind in ("queue", "topic"))
    for queue, topic in zip(queues, topics, strict=True):
        admin.create_queue(queue)
        admin.create_topic(topic)
    for size in (7, 100):  # every page is a request, and other tests' queues are listed as well
        for found, wanted in (
            (admin.list_queues(max_page_size=size), queues),
            (admin.list_queues_runtime_properties(max_page_size=size), queues),
            (admin.list_topics(max_page_size=size), topics),
            (admin.list_topics_runtime_properties(max_page_size=size), topics),
        ):
            assert [one.name for one in found if one.name.startswith(f"{name}/")] == wanted
    every = [one.name for one in admin.list_queues()]
    assert [one.name for one in admin.list_queues(start_index=3, max_page_size=2)] == every[3:]
    for queue, topic in zip(queues, topics, strict=True):
        admin.delete_queue(queue)
        admin.delete_topic(topic)


def test_pages_of_subscriptions_and_rules(admin: AdministrationClient, topic: str) -> None:
    names = [f"s{number}" for number in range(7)]
    for name in names:
        admin.create_subscription(topic, name)
        admin.create_rule(topic, "s0", name)
    for size in SIZES:
        assert [one.name for one in admin.list_subscriptions(topic, max_page_size=size)] == names
        assert [one.name for one in admin.list_subscriptions_runtime_properties(topic, max_page_size=size)] == names
        assert [one.name for one in admin.list_rules(topic, "s0", max_page_size=size)] == ["$Default", *names]
    assert [one.name for one in admin.list_rules(topic, "s0", start_index=5)] == names[4:]


def test_a_page_that_cannot_be_is_refused(admin: AdministrationClient, topic: str) -> None:
    admin.create_subscription(topic, "all")
    asks: list[Ask] = [
        admin.list_queues,
        admin.list_topics,
        lambda **page: admin.list_subscriptions(topic, **page),
        lambda **page: admin.list_rules(topic, "all", **page),
    ]
    for ask in asks:
        for page in ({"start_index": -1}, {"max_page_size": -1}):
            with pytest.raises(HttpResponseError) as caught:
                ask(**page)
            assert caught.value.status_code == 400
