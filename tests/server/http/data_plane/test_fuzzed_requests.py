"""Fuzzed HTTP requests: each gets a reply that is no internal error, and nothing is logged.

Requests are assembled from valid and invalid pieces. Each run uses the same requests, unless it is started with
`--hypothesis-seed=random`.
"""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.support.http_client import BATCH
from tests.support.server_process import QUEUE_ENTRY

if TYPE_CHECKING:
    from tests.support.http_client import HttpClient

METHODS = st.sampled_from(["GET", "PUT", "POST", "DELETE", "PATCH", "HEAD", "OPTIONS", "BREW"])
PIECES = st.sampled_from(
    [
        "QUEUE",
        "QUEUE",
        "QUEUE",
        "messages",
        "messages",
        "head",
        "head",
        "1",
        "00000000-0000-0000-0000-000000000000",
        "$DeadLetterQueue",
        "$Transfer",
        "$management",
        "$cbs",
        "$Resources",
        "queues",
        "topics",
        "$namespaceinfo",
        "$servicebus",
        "websocket",
        "health",
        "subscriptions",
        "rules",
        "missing",
        "",
        "..",
        "%2F",
        "%00",
        "%FF%FE",
        "%25",
        "%E2%80%AE",
        "sb:",
        "a" * 300,
    ]
)
TOKEN = "5d9aa1b4-5e5b-4a3c-9e0a-111111111111"
TARGETS = st.one_of(
    st.sampled_from(
        [
            ["QUEUE"],
            ["QUEUE", "messages"],
            ["QUEUE", "messages", "head"],
            ["QUEUE", "messages", "1", TOKEN],
            ["QUEUE", "$DeadLetterQueue", "messages", "head"],
            ["$Resources", "queues"],
            ["$servicebus", "websocket"],
        ]
    ),
    st.lists(PIECES, max_size=6),
)
QUERIES = st.sampled_from(
    [
        "timeout=0",
        "timeout=0&api-version=2021-05",
        "timeout=x",
        "timeout=0&$skip=1&$top=1",
        "timeout=0&$top=-1",
        "timeout=0&%00=%FF",
        "timeout=0&a&a&&=",
    ]
)
"""Each query has a timeout of 0, so that no request waits for a message."""
JSON_PIECES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=6,
)
NAMES = ("MessageId", "SessionId", "PartitionKey", "TimeToLive", "TimeToLiveTimeSpan", "ScheduledEnqueueTimeUtc", "To")
PROPERTIES = st.one_of(
    JSON_PIECES,
    st.dictionaries(st.sampled_from(NAMES), JSON_PIECES, max_size=3),
    st.dictionaries(st.sampled_from(NAMES), st.text(max_size=30), max_size=3),
    st.fixed_dictionaries({"TimeToLive": st.floats()}),
    st.fixed_dictionaries({"ScheduledEnqueueTimeUtc": st.datetimes().map(str)}),
)

VALUES = st.one_of(
    st.binary(max_size=30).map(lambda raw: bytes(byte for byte in raw if byte >= 0x20 and byte != 0x7F)),
    JSON_PIECES.map(lambda value: json.dumps(value).encode()),
)
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "BrokerProperties": PROPERTIES.map(lambda value: json.dumps(value).encode()),
        "Content-Type": st.sampled_from([b"text/plain", BATCH.encode(), b"application/atom+xml", b"\xff", b""]),
        "If-Match": st.sampled_from([b"*", b'"x"']),
        "Priority": VALUES,
        "X!#$%&'*+-.^_`|~9": VALUES,
        "Upgrade": st.sampled_from([b"websocket", b"h2c"]),
        "Connection": st.just(b"upgrade"),
        "Expect": st.just(b"100-continue"),
        "Sec-WebSocket-Version": st.just(b"13"),
    },
)
ITEMS = st.fixed_dictionaries(
    {}, optional={"Body": JSON_PIECES, "BrokerProperties": PROPERTIES, "UserProperties": PROPERTIES}
)
BODIES = st.one_of(
    st.just(b""),
    st.binary(max_size=100),
    st.lists(ITEMS, max_size=3).map(lambda items: json.dumps(items).encode()),
    st.text(max_size=30).map(lambda text: QUEUE_ENTRY.format(f"<LockDuration>{text}</LockDuration>").encode()),
)


@seed(20_260_101)
@settings(
    max_examples=600,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    method=METHODS,
    pieces=TARGETS,
    query=QUERIES,
    headers=HEADERS,
    body=BODIES,
    is_known=st.integers(0, 9).map(bool),
)
def send_request(
    http_client: HttpClient,
    queue: str,
    *,
    method: str,
    pieces: list[str],
    query: str,
    headers: dict[str, bytes],
    body: bytes,
    is_known: bool,
) -> None:
    method = "GET" if method == "DELETE" and pieces == ["QUEUE"] else method  # keep the queue for later requests
    target = "/" + "/".join(queue if piece == "QUEUE" else piece for piece in pieces) + f"?{query}"
    authorization = {"Authorization": http_client.server.token("").encode()} if is_known else {}
    connection = http_client.connection
    connection.request(method, target, body, authorization | headers)
    answer = connection.getresponse()
    content = answer.read()
    assert answer.status < 500 or answer.status == 501, (answer.status, content)
    assert answer.status != 101


def test_no_fuzzed_request_causes_an_internal_error(http_client: HttpClient, queue: str) -> None:
    with closing(
        http.client.HTTPConnection(http_client.server.host, http_client.server.http_port, timeout=20)
    ) as http_client.connection:
        send_request(http_client, queue)
