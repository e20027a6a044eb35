"""Batches over HTTP are stored as a whole or not at all."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.http_client import BATCH

if TYPE_CHECKING:
    from tests.support.http_client import HttpClient
    from tests.support.server_process import ServerProcess


def test_messages_of_a_batch_are_received_in_order(http_client: HttpClient, queue: str) -> None:
    sent = http_client.send_batch(
        queue,
        [
            {"Body": "first", "BrokerProperties": {"MessageId": "m-1", "Label": "l", "TimeToLiveTimeSpan": "00:01:30"}},
            {"Body": "zweite Łódź", "UserProperties": {"Priority": "High", "Count": 3, "IsBig": True, "No": None}},
            {},
        ],
    )
    assert (sent.status, sent.body) == (201, b"")
    first, second, third = (http_client.receive_and_delete(queue) for _ in range(3))
    assert (first.body, second.body.decode(), third.body) == (b"first", "zweite Łódź", b"")
    assert {name: first.properties[name] for name in ("MessageId", "Label", "TimeToLive")} == {
        "MessageId": "m-1",
        "Label": "l",
        "TimeToLive": 90,
    }
    assert (second.headers["Priority"], second.headers["Count"], second.headers["IsBig"]) == ('"High"', "3", "true")


@pytest.mark.parametrize(
    ("items", "reason"),
    [
        ([], "a batch of 0 messages"),
        ({}, "the batch: Expected `array`"),
        ([1], "the batch: Expected `object`"),
        ([{"Body": 1}], "Expected `str`, got `int`"),
        ([{"Body": None}], "Expected `str`, got `null`"),
        ([{"Body": "x"}, {"BrokerProperties": []}], "at `$[1].BrokerProperties`"),
        ([{"BrokerProperties": {"TimeToLive": "soon"}}], "at `$[0].BrokerProperties.TimeToLive`"),
        ([{"BrokerProperties": {"TimeToLiveTimeSpan": "soon"}}], "TimeToLiveTimeSpan is 'soon'"),
        ([{"UserProperties": {"a": [1]}}], "at `$[0].UserProperties[...]`"),
        ([{"Body": "x"}, {"BrokerProperties": {"SessionId": "a", "PartitionKey": "b"}}], "they have to agree"),
        ([{"Body": "x"}, {"BrokerProperties": {"MessageId": "x" * 129}}], "129 characters"),
    ],
)
def test_an_invalid_message_fails_the_whole_batch(
    http_client: HttpClient, server: ServerProcess, queue: str, items: object, reason: str
) -> None:
    refused = http_client.send_batch(queue, items)
    assert refused.status == 400
    assert reason in refused.detail
    assert server.message_counts(queue) == (0, 0)


@pytest.mark.parametrize("body", [b"", b"[", b"\xff", b'[{"Body": "\\ud800"}]', b"[" * 5000, b'[{"Body": "x"}] x'])
def test_a_batch_that_is_not_json_is_refused(http_client: HttpClient, queue: str, body: bytes) -> None:
    refused = http_client.send(queue, body, Content_Type=f"{BATCH}; charset=utf-8")
    assert (refused.status, refused.detail[:11]) == (400, "the batch: ")


def test_a_batch_has_the_size_limit_of_a_message(http_client: HttpClient, server: ServerProcess, queue: str) -> None:
    assert http_client.send_batch(queue, [{"Body": "x" * 200_000}]).status == 201
    large = http_client.send_batch(queue, [{"Body": "x" * 150_000}, {"Body": "x" * 150_000}])
    assert (large.status, large.detail[:12]) == (403, "the body has")
    many = http_client.send(queue, json.dumps([{}] * 9_000), Content_Type=BATCH)
    assert (many.status, "a batch can have" in many.detail) == (403, True)
    assert server.message_counts(queue) == (1, 0)


def test_other_requests_are_served_while_a_large_batch_is_stored(http_client: HttpClient, queue: str) -> None:
    longest, is_over = 0.0, threading.Event()

    def poll_health() -> None:
        nonlocal longest
        while not is_over.is_set():
            began = time.monotonic()
            http_client.request("GET", "/health")
            longest = max(longest, time.monotonic() - began)

    poller = threading.Thread(target=poll_health)
    poller.start()
    durations = []
    for _ in range(5):
        began = time.monotonic()
        assert http_client.send_batch(queue, [{"Body": "x"}] * 4_000).status == 201
        durations.append(time.monotonic() - began)
    is_over.set()
    poller.join()
    assert longest < max(durations) * 0.7, "somebody waited for as long as a batch takes"
