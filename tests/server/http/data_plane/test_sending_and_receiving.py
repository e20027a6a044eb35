"""Sending and receiving over HTTP: bodies, broker properties and the location of a locked message."""

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


def test_a_locked_message_stays_in_the_queue_until_it_is_completed(
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


def test_the_location_of_a_locked_message_has_its_sequence_number_and_lock_token(
    http_client: HttpClient, server: ServerProcess, queue: str
) -> None:
    http_client.send(queue)
    received = http_client.peek_lock(queue)
    properties = received.properties
    host = f"{server.host}:{server.http_port}"
    assert (
        received.headers["Location"]
        == f"http://{host}/{queue}/messages/{properties['SequenceNumber']}/{uuid.UUID(properties['LockToken'])}"
    )


def test_the_content_type_is_the_senders_without_additions(http_client: HttpClient, queue: str) -> None:
    http_client.send(queue, b"\xff", Content_Type="text/plain")
    assert http_client.peek_lock(queue).headers["Content-Type"] == "text/plain"


def test_a_message_without_a_content_type_has_none(http_client: HttpClient, queue: str) -> None:
    http_client.send(queue, b"x")
    assert http_client.peek_lock(queue).headers["Content-Type"] is None


def test_a_message_received_and_deleted_is_gone(http_client: HttpClient, server: ServerProcess, queue: str) -> None:
    http_client.send_with_properties(queue, "an order", MessageId="m-1")
    received = http_client.receive_and_delete(queue)
    assert (received.status, received.body, received.properties["MessageId"]) == (200, b"an order", "m-1")
    assert "LockToken" not in received.properties
    assert received.headers["Location"] is None
    wait_until(lambda: server.message_counts(queue) == (0, 0))  # the message is deleted just after the response


def test_every_broker_property_that_is_sent_is_received(http_client: HttpClient, queue: str) -> None:
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
    properties = http_client.peek_lock(queue).properties
    assert {name: properties[name] for name in sent} == sent


def test_the_broker_adds_its_own_properties(http_client: HttpClient, queue: str) -> None:
    before = time.time()
    http_client.send(queue)
    properties = http_client.peek_lock(queue).properties
    assert (properties["DeliveryCount"], properties["State"], properties["SequenceNumber"]) == (1, "Active", 1)
    assert re.fullmatch("[0-9a-f]{32}", properties["MessageId"])
    enqueued = parsedate_to_datetime(properties["EnqueuedTimeUtc"]).timestamp()
    assert before - 2 < enqueued < time.time() + 1
    assert 55 < parsedate_to_datetime(properties["LockedUntilUtc"]).timestamp() - enqueued < 65
    assert "TimeToLive" not in properties


def test_a_time_to_live_beyond_the_amqp_header_is_kept(http_client: HttpClient, queue: str) -> None:
    http_client.send_with_properties(queue, TimeToLive=100 * 86_400)
    assert http_client.peek_lock(queue).properties["TimeToLive"] == 100 * 86_400


def test_a_scheduled_message_is_received_when_it_is_due(
    http_client: HttpClient, server: ServerProcess, queue: str
) -> None:
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
        assert "requires sessions, which HTTP does not support" in refused.detail


def test_duplicates_are_accepted_and_not_stored(http_client: HttpClient, server: ServerProcess) -> None:
    queue = server.create_queue(RequiresDuplicateDetection="true")
    assert [http_client.send_with_properties(queue, MessageId="m-1").status for _ in range(2)] == [201, 201]
    assert server.message_counts(queue) == (1, 0)


def test_a_ping_is_accepted_and_never_received(http_client: HttpClient, queue: str) -> None:
    assert http_client.send(queue, Content_Type="application/vnd.ms-servicebus-ping").status == 201
    assert http_client.receive_and_delete(queue, timeout=0).status == 204


@pytest.mark.parametrize("spelled", ["/{}/Messages/HEAD", "/{}/messages/head/", "//{}/messages/head"])
def test_addresses_ignore_case_and_extra_slashes(http_client: HttpClient, queue: str, spelled: str) -> None:
    http_client.send(queue.upper(), "x")
    assert http_client.request("DELETE", f"{spelled.format(queue)}?timeout=10&api-version=2015-01").status == 200


def test_a_name_with_slashes_may_be_percent_encoded(http_client: HttpClient, server: ServerProcess) -> None:
    queue = f"{server.create_queue()}/eu/orders"
    server.request("PUT", queue, QUEUE_ENTRY.format(""), expected=201)
    assert http_client.send(queue.replace("/", "%2F"), "x").status == 201
    received = http_client.peek_lock(queue)
    assert http_client.request("DELETE", received.location).status == 200


def test_the_dead_letter_queue_allows_receives_and_no_sends(http_client: HttpClient, server: ServerProcess) -> None:
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
