"""A message goes in by one request and comes out by another, with its body, its properties and its place."""

from __future__ import annotations

import re
import time
import uuid
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

import pytest

from tests.served import ATOM, wait_until

if TYPE_CHECKING:
    from tests.http_data.web import Web
    from tests.served import Served


def test_what_is_sent_is_received_under_a_lock_and_stays_until_it_is_completed(
    web: Web, server: Served, queue: str
) -> None:
    sent = web.send(queue, b"\x00\xff an order", Content_Type="application/x-order; v=1")
    assert (sent.status, sent.body) == (201, b"")
    received = web.lock(queue)
    assert (received.status, received.body) == (201, b"\x00\xff an order")
    assert received.headers["Content-Type"] == "application/x-order; v=1"
    assert server.counts(queue) == (1, 0)
    assert web.call("DELETE", received.place).status == 200
    assert server.counts(queue) == (0, 0)


def test_the_place_of_a_locked_message_names_its_number_and_its_lock(web: Web, server: Served, queue: str) -> None:
    web.send(queue)
    received = web.lock(queue)
    told = received.properties
    host = f"{server.host}:{server.http_port}"
    assert (
        received.headers["Location"]
        == f"http://{host}/{queue}/messages/{told['SequenceNumber']}/{uuid.UUID(told['LockToken'])}"
    )


def test_a_content_type_is_that_of_the_sender_and_no_more(web: Web, queue: str) -> None:
    web.send(queue, b"\xff", Content_Type="text/plain")
    assert web.lock(queue).headers["Content-Type"] == "text/plain"


def test_a_message_without_a_content_type_has_none(web: Web, queue: str) -> None:
    web.send(queue, b"x")
    assert web.lock(queue).headers["Content-Type"] is None


def test_what_is_received_and_deleted_is_gone(web: Web, server: Served, queue: str) -> None:
    web.send_with(queue, "an order", MessageId="m-1")
    received = web.take(queue)
    assert (received.status, received.body, received.properties["MessageId"]) == (200, b"an order", "m-1")
    assert "LockToken" not in received.properties
    assert received.headers["Location"] is None
    wait_until(lambda: server.counts(queue) == (0, 0))  # a moment after the answer


def test_every_broker_property_that_is_sent_comes_back(web: Web, queue: str) -> None:
    sent = {
        "CorrelationId": "c-1",
        "Label": 'an "order" für Łódź 🐇',
        "MessageId": "m-1",
        "PartitionKey": "eu",
        "ReplyTo": "replies",
        "ReplyToSessionId": "r-1",
        "SessionId": "eu",
        "TimeToLive": 90.5,
        "To": "somewhere",
        "ViaPartitionKey": "via",
    }
    assert web.send_with(queue, "x", **sent, ForcePersistence=True, Unheard="of", State=7).status == 201
    told = web.lock(queue).properties
    assert {name: told[name] for name in sent} == sent


def test_what_the_broker_adds_is_told(web: Web, queue: str) -> None:
    before = time.time()
    web.send(queue)
    told = web.lock(queue).properties
    assert (told["DeliveryCount"], told["State"], told["SequenceNumber"]) == (1, "Active", 1)
    assert re.fullmatch("[0-9a-f]{32}", told["MessageId"])
    enqueued = parsedate_to_datetime(told["EnqueuedTimeUtc"]).timestamp()
    assert before - 2 < enqueued < time.time() + 1
    assert 55 < parsedate_to_datetime(told["LockedUntilUtc"]).timestamp() - enqueued < 65
    assert "TimeToLive" not in told


def test_a_life_longer_than_amqp_can_say_is_kept(web: Web, queue: str) -> None:
    web.send_with(queue, TimeToLive=100 * 86_400)
    assert web.lock(queue).properties["TimeToLive"] == 100 * 86_400


def test_a_scheduled_message_comes_when_it_is_due(web: Web, server: Served, queue: str) -> None:
    due = time.gmtime(time.time() + 2)
    web.send_with(queue, "later", ScheduledEnqueueTimeUtc=time.strftime("%a, %d %b %Y %H:%M:%S GMT", due))
    web.send_with(queue, "now", ScheduledEnqueueTimeUtc="2001-01-01T00:00:00Z")
    assert server.counts(queue)[0] == 1
    assert web.take(queue).body == b"now"
    later = web.take(queue)
    assert later.body == b"later"
    assert parsedate_to_datetime(later.properties["ScheduledEnqueueTimeUtc"]).timestamp() <= time.time()


def test_a_message_can_be_sent_to_an_entity_with_sessions_but_not_received(web: Web, server: Served) -> None:
    queue = server.make_queue(RequiresSession="true")
    assert web.send_with(queue, SessionId="eu").status == 201
    without = web.send(queue)
    assert (without.status, "session" in without.detail) == (400, True)
    for method in ("POST", "DELETE"):
        refused = web.call(method, f"/{queue}/messages/head?timeout=0")
        assert refused.status == 400
        assert "requires sessions, which HTTP has not" in refused.detail


def test_duplicates_are_accepted_and_not_stored(web: Web, server: Served) -> None:
    queue = server.make_queue(RequiresDuplicateDetection="true")
    assert [web.send_with(queue, MessageId="m-1").status for _ in range(2)] == [201, 201]
    assert server.counts(queue) == (1, 0)


def test_a_ping_is_accepted_and_never_seen(web: Web, queue: str) -> None:
    assert web.send(queue, Content_Type="application/vnd.ms-servicebus-ping").status == 201
    assert web.take(queue, timeout=0).status == 204


@pytest.mark.parametrize("spelled", ["/{}/Messages/HEAD", "/{}/messages/head/", "//{}/messages/head"])
def test_addresses_are_found_in_any_spelling(web: Web, queue: str, spelled: str) -> None:
    web.send(queue.upper(), "x")
    assert web.call("DELETE", f"{spelled.format(queue)}?timeout=10&api-version=2015-01").status == 200


def test_a_name_with_slashes_may_be_written_with_percent_signs(web: Web, server: Served) -> None:
    queue = f"{server.make_queue()}/eu/orders"
    server.ask("PUT", queue, ATOM.format(""), expected=201)
    assert web.send(queue.replace("/", "%2F"), "x").status == 201
    received = web.lock(queue)
    assert web.call("DELETE", received.place).status == 200


def test_the_dead_letter_queue_is_received_from_and_not_sent_to(web: Web, server: Served) -> None:
    queue = server.make_queue(MaxDeliveryCount="1")
    web.send(queue, "poison")
    assert web.call("PUT", web.lock(queue).place).status == 200
    dead = web.lock(f"{queue}/$DeadLetterQueue")
    assert (dead.status, dead.body) == (201, b"poison")
    assert dead.headers["DeadLetterReason"] == '"MaxDeliveryCountExceeded"'
    assert f"/{queue}/$DeadLetterQueue/messages/" in dead.headers["Location"]
    assert web.call("DELETE", dead.place).status == 200
    assert server.counts(queue) == (0, 0)
    assert web.send(f"{queue}/$deadletterqueue", "x").status == 400
