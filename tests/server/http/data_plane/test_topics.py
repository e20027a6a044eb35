"""Topics over HTTP: a message sent to a topic is received from each of its subscriptions."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.http_client import HttpClient
    from tests.support.server_process import ServerProcess


@pytest.fixture
def topic(server: ServerProcess) -> str:
    name = f"topic-{uuid.uuid4().hex}"
    server.create_entity(name, "TopicDescription")
    for subscription in ("one", "two"):
        server.create_entity(f"{name}/subscriptions/{subscription}", "SubscriptionDescription")
    return name


def test_each_subscription_settles_its_own_copy(http_client: HttpClient, topic: str) -> None:
    assert http_client.send_with_properties(topic, "news", MessageId="m-1").status == 201
    for subscription in ("one", "Two"):
        received = http_client.peek_lock(f"{topic}/Subscriptions/{subscription}")
        assert (received.status, received.body, received.properties["MessageId"]) == (201, b"news", "m-1")
        assert http_client.request("POST", received.location).status == 200
        assert http_client.request("PUT", received.location).status == 200
        redelivered = http_client.peek_lock(f"{topic}/subscriptions/{subscription}")
        assert (redelivered.body, redelivered.properties["DeliveryCount"]) == (b"news", 2)
        assert http_client.request("DELETE", redelivered.location).status == 200
        assert http_client.receive_and_delete(f"{topic}/subscriptions/{subscription}", timeout=0).status == 204


def test_a_batch_is_published_and_received_and_deleted(http_client: HttpClient, topic: str) -> None:
    assert http_client.send_batch(topic, [{"Body": "1"}, {"Body": "2"}]).status == 201
    for subscription in ("one", "two"):
        assert [http_client.receive_and_delete(f"{topic}/subscriptions/{subscription}").body for _ in range(2)] == [
            b"1",
            b"2",
        ]


def test_topics_allow_no_receives_and_subscriptions_no_sends(http_client: HttpClient, topic: str) -> None:
    assert http_client.peek_lock(topic, timeout=0).status == 400
    assert http_client.send(f"{topic}/subscriptions/one", "x").status == 400
    assert http_client.receive_and_delete(f"{topic}/subscriptions/one/$DeadLetterQueue", timeout=0).status == 204
