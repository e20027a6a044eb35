"""Over HTTP a message is sent to a topic, and received from each of its subscriptions."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.http_data.web import Web
    from tests.served import Served


@pytest.fixture
def topic(server: Served) -> str:
    name = f"topic-{uuid.uuid4().hex}"
    server.put(name, "TopicDescription")
    for subscription in ("one", "two"):
        server.put(f"{name}/subscriptions/{subscription}", "SubscriptionDescription")
    return name


def test_each_subscription_has_its_copy_and_settles_it(web: Web, topic: str) -> None:
    assert web.send_with(topic, "news", MessageId="m-1").status == 201
    for subscription in ("one", "Two"):
        received = web.lock(f"{topic}/Subscriptions/{subscription}")
        assert (received.status, received.body, received.properties["MessageId"]) == (201, b"news", "m-1")
        assert web.call("POST", received.place).status == 200
        assert web.call("PUT", received.place).status == 200
        again = web.lock(f"{topic}/subscriptions/{subscription}")
        assert (again.body, again.properties["DeliveryCount"]) == (b"news", 2)
        assert web.call("DELETE", again.place).status == 200
        assert web.take(f"{topic}/subscriptions/{subscription}", timeout=0).status == 204


def test_a_batch_is_published_and_received_and_deleted(web: Web, topic: str) -> None:
    assert web.send_batch(topic, [{"Body": "1"}, {"Body": "2"}]).status == 201
    for subscription in ("one", "two"):
        assert [web.take(f"{topic}/subscriptions/{subscription}").body for _ in range(2)] == [b"1", b"2"]


def test_a_topic_is_not_received_from_and_a_subscription_is_not_sent_to(web: Web, topic: str) -> None:
    assert web.lock(topic, timeout=0).status == 400
    assert web.send(f"{topic}/subscriptions/one", "x").status == 400
    assert web.take(f"{topic}/subscriptions/one/$DeadLetterQueue", timeout=0).status == 204
