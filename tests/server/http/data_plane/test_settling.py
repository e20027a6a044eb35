"""Completing, unlocking and renewing a message over HTTP, which needs the message's own lock token."""

from __future__ import annotations

import time
import uuid
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.http_client import HttpClient
    from tests.support.server_process import ServerProcess


def test_an_unlocked_message_is_delivered_again_with_a_higher_delivery_count(
    http_client: HttpClient, queue: str
) -> None:
    http_client.send(queue, "x")
    assert http_client.request("PUT", http_client.peek_lock(queue).location).status == 200
    redelivered = http_client.peek_lock(queue)
    assert (redelivered.body, redelivered.properties["DeliveryCount"]) == (b"x", 2)


def test_a_renewed_lock_lasts_longer(http_client: HttpClient, server: ServerProcess) -> None:
    queue = server.create_queue(LockDuration="PT5S")
    http_client.send(queue, "x")
    received = http_client.peek_lock(queue)
    until = parsedate_to_datetime(received.properties["LockedUntilUtc"]).timestamp()
    for _ in range(3):
        time.sleep(2)
        assert http_client.request("POST", received.location).status == 200
    assert time.time() > until
    assert http_client.peek_lock(queue, timeout=0).status == 204
    assert http_client.request("DELETE", received.location).status == 200


def test_a_message_is_addressed_by_its_sequence_number_or_message_id(http_client: HttpClient, queue: str) -> None:
    for _ in range(2):
        http_client.send_with_properties(queue, MessageId="an/order 7")
    first, second = http_client.peek_lock(queue), http_client.peek_lock(queue)
    for received, name in ((first, "an%2Forder%207"), (second, second.properties["SequenceNumber"])):
        target = f"/{queue}/messages/{name}/{received.properties['LockToken'].upper()}"
        assert http_client.request("POST", target).status == 200
        assert http_client.request("DELETE", target).status == 200


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
def test_an_unknown_lock_is_not_found(http_client: HttpClient, server: ServerProcess, queue: str, method: str) -> None:
    http_client.send(queue)
    received = http_client.peek_lock(queue)
    number, token = received.properties["SequenceNumber"], received.properties["LockToken"]
    for unknown in (uuid.uuid4(), uuid.UUID(int=0), uuid.UUID(bytes=uuid.UUID(token).bytes[:8] + bytes(7) + b"\x09")):
        refused = http_client.request(method, f"/{queue}/messages/{number}/{unknown}")
        assert (refused.status, refused.detail[:29]) == (404, "The lock supplied is invalid.")
    for name in (number + 1, "other", received.properties["MessageId"] + "x"):
        refused = http_client.request(method, f"/{queue}/messages/{name}/{token}")
        assert (refused.status, refused.detail[:27]) == (404, "the lock is not on the mess")
    for malformed in ("lock", "0", token[:-1], f"{token}0"):
        refused = http_client.request(method, f"/{queue}/messages/{number}/{malformed}")
        assert (refused.status, "is not a lock token" in refused.detail) == (400, True)
    assert http_client.request("DELETE", received.location).status == 200
    assert http_client.request(method, received.location).status == 404
    assert server.message_counts(queue) == (0, 0)


def test_the_lock_of_another_message_or_queue_settles_nothing(
    http_client: HttpClient, server: ServerProcess, queue: str
) -> None:
    other = server.create_queue()
    for name in (queue, queue, other):
        http_client.send(name)
    first, second, foreign = http_client.peek_lock(queue), http_client.peek_lock(queue), http_client.peek_lock(other)
    for token in (second.properties["LockToken"], foreign.properties["LockToken"]):
        target = f"/{queue}/messages/{first.properties['SequenceNumber']}/{token}"
        assert http_client.request("DELETE", target).status == 404
    assert server.message_counts(queue) == (2, 0)
    assert [http_client.request("DELETE", message.location).status for message in (first, second, foreign)] == [
        200,
        200,
        200,
    ]


def test_an_expired_lock_is_not_found(http_client: HttpClient, server: ServerProcess) -> None:
    queue = server.create_queue(LockDuration="PT5S")
    http_client.send(queue)
    received = http_client.peek_lock(queue)
    redelivered = http_client.peek_lock(queue, timeout=20)
    assert redelivered.properties["DeliveryCount"] == 2
    for method in ("PUT", "POST", "DELETE"):
        assert http_client.request(method, received.location).status == 404
    assert http_client.request("DELETE", redelivered.location).status == 200


def test_a_settlement_with_a_body_is_refused(http_client: HttpClient, queue: str) -> None:
    http_client.send(queue)
    received = http_client.peek_lock(queue)
    refused = http_client.request("DELETE", received.location, "now")
    assert (refused.status, refused.detail[:51]) == (413, "the body has 3 bytes or more; it can have 0. Tracki")
    assert http_client.request("DELETE", received.location).status == 200
