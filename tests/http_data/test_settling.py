"""Complete, unlock and renew, by the place of a message: by no other lock, and for no other message."""

from __future__ import annotations

import time
import uuid
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.http_data.web import Web
    from tests.served import Served


def test_a_message_that_is_unlocked_is_there_again_with_a_delivery_more(web: Web, queue: str) -> None:
    web.send(queue, "x")
    assert web.call("PUT", web.lock(queue).place).status == 200
    again = web.lock(queue)
    assert (again.body, again.properties["DeliveryCount"]) == (b"x", 2)


def test_a_lock_that_is_renewed_lasts_longer(web: Web, server: Served) -> None:
    queue = server.make_queue(LockDuration="PT5S")
    web.send(queue, "x")
    received = web.lock(queue)
    until = parsedate_to_datetime(received.properties["LockedUntilUtc"]).timestamp()
    for _ in range(3):
        time.sleep(2)
        assert web.call("POST", received.place).status == 200
    assert time.time() > until
    assert web.lock(queue, timeout=0).status == 204
    assert web.call("DELETE", received.place).status == 200


def test_a_message_is_named_by_its_number_or_its_id(web: Web, queue: str) -> None:
    for _ in range(2):
        web.send_with(queue, MessageId="an/order 7")
    first, second = web.lock(queue), web.lock(queue)
    for received, name in ((first, "an%2Forder%207"), (second, second.properties["SequenceNumber"])):
        target = f"/{queue}/messages/{name}/{received.properties['LockToken'].upper()}"
        assert web.call("POST", target).status == 200
        assert web.call("DELETE", target).status == 200


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
def test_a_lock_that_is_not_is_not_found(web: Web, server: Served, queue: str, method: str) -> None:
    web.send(queue)
    received = web.lock(queue)
    number, token = received.properties["SequenceNumber"], received.properties["LockToken"]
    for strange in (uuid.uuid4(), uuid.UUID(int=0), uuid.UUID(bytes=uuid.UUID(token).bytes[:8] + bytes(7) + b"\x09")):
        refused = web.call(method, f"/{queue}/messages/{number}/{strange}")
        assert (refused.status, refused.detail[:29]) == (404, "The lock supplied is invalid.")
    for name in (number + 1, "other", received.properties["MessageId"] + "x"):
        refused = web.call(method, f"/{queue}/messages/{name}/{token}")
        assert (refused.status, refused.detail[:27]) == (404, "the lock is on another mess")
    for nonsense in ("lock", "0", token[:-1], f"{token}0"):
        refused = web.call(method, f"/{queue}/messages/{number}/{nonsense}")
        assert (refused.status, "is no lock token" in refused.detail) == (400, True)
    assert web.call("DELETE", received.place).status == 200
    assert web.call(method, received.place).status == 404
    assert server.counts(queue) == (0, 0)


def test_the_lock_of_another_message_or_queue_opens_nothing(web: Web, server: Served, queue: str) -> None:
    other = server.make_queue()
    for name in (queue, queue, other):
        web.send(name)
    first, second, foreign = web.lock(queue), web.lock(queue), web.lock(other)
    for token in (second.properties["LockToken"], foreign.properties["LockToken"]):
        target = f"/{queue}/messages/{first.properties['SequenceNumber']}/{token}"
        assert web.call("DELETE", target).status == 404
    assert server.counts(queue) == (2, 0)
    assert [web.call("DELETE", one.place).status for one in (first, second, foreign)] == [200, 200, 200]


def test_a_lock_that_has_expired_is_not_found(web: Web, server: Served) -> None:
    queue = server.make_queue(LockDuration="PT5S")
    web.send(queue)
    received = web.lock(queue)
    again = web.lock(queue, timeout=20)
    assert again.properties["DeliveryCount"] == 2
    for method in ("PUT", "POST", "DELETE"):
        assert web.call(method, received.place).status == 404
    assert web.call("DELETE", again.place).status == 200


def test_who_settles_has_nothing_else_to_say(web: Web, queue: str) -> None:
    web.send(queue)
    received = web.lock(queue)
    refused = web.call("DELETE", received.place, "now")
    assert (refused.status, refused.detail[:51]) == (413, "the body has 3 bytes or more; it can have 0. Tracki")
    assert web.call("DELETE", received.place).status == 200
