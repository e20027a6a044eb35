"""A message goes in by one request and comes out by another, with its body, its properties and its place."""

from __future__ import annotations

import re
import time
import uuid
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

import pytest

from tests.support.server_process import QUEUE_ENTRY, wait_until

if TYPE_CHECKING:
    from tests.support.http_client import HttpClient
    from tests.support.server_process import ServerProcess


def test_what_is_sent_is_received_under_a_lock_and_stays_until_it_is_completed(
    http_client: HttpClient, server: ServerProcess, queue: str
) -> None:
    sent = http_client.send(queue, b"\x00\xff an order", Content_Type="application/x-order; v=1")
    assert (sent.status, sent.body) == (201, b"")
    received = http_client.peek_lock(queue)
    assert (received.status, received.body) == (201, b"\x00\xff an order")
    assert received.headers["Content-Type"] == "application/x-order; v=1"
    assert server.message_counts(queue) == (1, 0)
    assert http_client.request("DELETE", received.location).status == 200
    assert server.message_counts(queue) == (0, 0)


def test_the_place_of_a_locked_message_names_its_number_and_its_lock(
    http_client: HttpClient, server: ServerProcess, queue: str
) -> None:
    http_client.send(queue)
    received = http_client.peek_lock(queue)
    told = received.properties
    host = f"{server.host}:{server.http_port}"
    assert (
        received.headers["Location"]
        == f"http://{host}/{queue}/messages/{told['SequenceNumber']}/{uuid.UUID(told['LockToken'])}"
    )


def test_a_content_type_is_that_of_the_sender_and_no_more(http_client: HttpClient, queue: str) -> None:
    http_client.send(queue, b"\xff", Content_Type="text/plain")
    assert http_client.peek_lock(queue).headers["Content-Type"] == "text/plain"


def test_a_message_without_a_content_type_has_none(http_client: HttpClient, queue: str) -> None:
    http_client.send(queue, b"x")
    assert http_client.peek_lock(queue).headers["Content-Type"] is None


def test_what_is_received_and_deleted_is_gone(http_client: HttpClient, server: ServerProcess, queue: str) -> None:
    http_client.send_with_properties(queue, "an order", MessageId="m-1")
    received = http_client.receive_and_delete(queue)
    assert (received.status, received.body, received.properties["MessageId"]) == (200, b"an order", "m-1")
    assert "LockToken" not in received.properties
    assert received.headers["Location"] is None
    wait_until(lambda: server.message_counts(queue) == (0, 0))  # a moment after the answer


def test_every_broker_property_that_is_sent_comes_back(http_client: HttpClient, queue: str) -> None:
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
    assert (
        http_client.send_with_properties(queue, "x", **sent, ForcePersistence=True, Unheard="of", State=7).status == 201
    )
    told = http_client.peek_lock(queue).properties
    assert {name: told[name] for name in sent} == sent


def test_what_the_broker_adds_is_told(http_client: HttpClient, queue: str) -> None:
    before = time.time()
    http_client.send(queue)
    told = http_client.peek_lock(queue).properties
    assert (told["DeliveryCount"], told["State"], told["SequenceNumber"]) == (1, "Active", 1)
    assert re.fullmatch("[0-9a-f]{32}", told["MessageId"])
    enqueued = parsedate_to_datetime(told["EnqueuedTimeUtc"]).timestamp()
    assert before - 2 < enqueued < time.time() + 1
    assert 55 < parsedate_to_datetime(told["LockedUntilUtc"]).timestamp() - enqueued < 65
    assert "TimeToLive" not in told


def test_a_life_longer_than_amqp_can_say_is_kept(http_client: HttpClient, queue: str) -> None:
    http_client.send_with_properties(queue, TimeToLive=100 * 86_400)
    assert http_client.peek_lock(queue).properties["TimeToLive"] == 100 * 86_400


def test_a_scheduled_message_comes_when_it_is_due(http_client: HttpClient, server: ServerProcess, queue: str) -> None:
    due = time.gmtime(time.time() + 2)
    http_client.send_with_properties(
        queue, "later", ScheduledEnqueueTimeUtc=time.strftime("%a, %d %b %Y %H:%M:%S GMT", due)
    )
    http_client.send_with_properties(queue, "now", ScheduledEnqueueTimeUtc="2001-01-01T00:00:00Z")
    assert server.message_counts(queue)[0] == 1
    assert http_client.receive_and_delete(queue).body == b"now"
    later = http_client.receive_and_delete(queue)
    assert later.body == b"later"
    assert parsedate_to_datetime(later.properties["ScheduledEnqueueTimeUtc"]).timestamp() <= time.time()


def test_a_message_can_be_sent_to_an_entity_with_sessions_but_not_received(
    http_client: HttpClient, server: ServerProcess
) -> None:
    queue = server.create_queue(RequiresSession="true")
    assert http_client.send_with_properties(queue, SessionId="eu").status == 201
    without = http_client.send(queue)
    assert (without.status, "session" in without.detail) == (400, True)
    for method in ("POST", "DELETE"):
        refused = http_client.request(method, f"/{queue}/messages/head?timeout=0")
        assert refused.status == 400
        assert "requires sessions, which HTTP has not" in refused.detail


def test_duplicates_are_accepted_and_not_stored(http_client: HttpClient, server: ServerProcess) -> None:
    queue = server.create_queue(RequiresDuplicateDetection="true")
    assert [http_client.send_with_properties(queue, MessageId="m-1").status for _ in range(2)] == [201, 201]
    assert server.message_counts(queue) == (1, 0)


def test_a_ping_is_accepted_and_never_seen(http_client: HttpClient, queue: str) -> None:
    assert http_client.send(queue, Content_Type="application/vnd.ms-servicebus-ping").status == 201
    assert http_client.receive_and_delete(queue, timeout=0).status == 204


@pytest.mark.parametrize("spelled", ["/{}/Messages/HEAD", "/{}/messages/head/", "//{}/messages/head"])
def test_addresses_are_found_in_any_spelling(http_client: HttpClient, queue: str, spelled: str) -> None:
    http_client.send(queue.upper(), "x")
    assert http_client.request("DELETE", f"{spelled.format(queue)}?timeout=10&api-version=2015-01").status == 200


def test_a_name_with_slashes_may_be_written_with_percent_signs(http_client: HttpClient, server: ServerProcess) -> None:
    queue = f"{server.create_queue()}/eu/orders"
    server.request("PUT", queue, QUEUE_ENTRY.format(""), expected=201)
    assert http_client.send(queue.replace("/", "%2F"), "x").status == 201
    received = http_client.peek_lock(queue)
    assert http_client.request("DELETE", received.location).status == 200


def test_the_dead_letter_queue_is_received_from_and_not_sent_to(http_client: HttpClient, server: ServerProcess) -> None:
    queue = server.create_queue(MaxDeliveryCount="1")
    http_client.send(queue, "poison")
    assert http_client.request("PUT", http_client.peek_lock(queue).location).status == 200
    dead = http_client.peek_lock(f"{queue}/$DeadLetterQueue")
    assert (dead.status, dead.body) == (201, b"poison")
    assert dead.headers["DeadLetterReason"] == '"MaxDeliveryCountExceeded"'
    assert f"/{queue}/$DeadLetterQueue/messages/" in dead.headers["Location"]
    assert http_client.request("DELETE", dead.location).status == 200
    assert server.message_counts(queue) == (0, 0)
    assert http_client.send(f"{queue}/$deadletterqueue", "x").status == 400
