"""Invalid requests are refused with a reason and change nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.server.http.http_service import read_to_end
from tests.support.http_client import HttpClient
from tests.support.in_process_server import run_server_in_process
from twinbus.server.auth.keys import Key, Right

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server_process import ServerProcess


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ("", "BrokerProperties: Input data was truncated"),
        ("{", "BrokerProperties: Input data was truncated"),
        ("[]", "BrokerProperties: Expected `object`, got `array`"),
        ("null", "BrokerProperties: Expected `object`, got `null`"),
        ('{"MessageId": 7}', "BrokerProperties: Expected `str | null`, got `int` - at `$.MessageId`"),
        ('{"Label": ["x"]}', "at `$.Label`"),
        ('{"TimeToLive": "60"}', "at `$.TimeToLive`"),
        ('{"TimeToLive": 0}', "TimeToLive is 0 s; it has to be above zero"),
        ('{"TimeToLive": -1e300}', "it has to be above zero"),
        ('{"TimeToLive": NaN}', "BrokerProperties: "),
        ('{"TimeToLiveTimeSpan": "1 hour"}', "TimeToLiveTimeSpan is '1 hour'"),
        ('{"TimeToLiveTimeSpan": "00:00:00"}', "it has to be above zero"),
        ('{"SessionId": "a", "PartitionKey": "b"}', "PartitionKey is 'b' and SessionId 'a': they have to agree"),
        ('{"ScheduledEnqueueTimeUtc": "tomorrow"}', "ScheduledEnqueueTimeUtc is 'tomorrow'"),
        ('{"ScheduledEnqueueTimeUtc": "2026-13-01"}', "ScheduledEnqueueTimeUtc is "),
        ('{"ScheduledEnqueueTimeUtc": ""}', "ScheduledEnqueueTimeUtc is "),
        ('{"ForcePersistence": "yes"}', "at `$.ForcePersistence`"),
        ('{"ContentType": "für"}', "it must have 1 to 255 printable ASCII characters"),
        (json.dumps({"MessageId": "x" * 129}), "the message-id has 129 characters; the limit is 128"),
        (json.dumps({"SessionId": "x" * 129}), "129 characters"),
        (json.dumps({"PartitionKey": "x" * 129}), "129 characters"),
        ('{"Label": "\\ud800"}', "BrokerProperties: "),
        ('{"a":' * 2_000, "BrokerProperties: "),
    ],
)
def test_invalid_broker_properties_are_refused(
    http_client: HttpClient, server: ServerProcess, queue: str, properties: str, reason: str
) -> None:
    refused = http_client.send(queue, "x", BrokerProperties=properties)
    assert refused.status == 400
    assert reason in refused.detail
    assert server.message_counts(queue) == (0, 0)


def test_two_broker_properties_headers_are_refused(http_client: HttpClient, queue: str) -> None:
    with http_client.raw_socket() as connection:
        lines = ("BrokerProperties: {}", "brokerproperties: {}", "Content-Length: 0", "Connection: close")
        connection.sendall(http_client.request_head("POST", f"/{queue}/messages", *lines))
        assert b"there are several BrokerProperties headers" in read_to_end(connection)


def test_a_message_above_the_size_limit_is_refused(http_client: HttpClient, server: ServerProcess, queue: str) -> None:
    assert http_client.send(queue, b"x" * 262_000).status == 201
    too_large = http_client.send(queue, b"x" * 262_140)
    assert (too_large.status, "it can have 262144" in too_large.detail) == (403, True)
    assert http_client.send(queue, b"x" * 262_145).status == 403
    assert http_client.send(queue, b"x" * 20_000_000).status == 403
    assert http_client.send(queue, "x", **{f"P{number}": "x" * 30_000 for number in range(2)}).status == 201
    assert http_client.send(queue, "x", P="x" * 33_000).status == 403
    assert server.message_counts(queue) == (2, 0)


@pytest.mark.parametrize("lines", [["BrokerProperties: " + "x" * 70_000], [f"P{n}: " + "x" * 10_000 for n in range(7)]])
def test_headers_above_the_limit_are_refused(
    http_client: HttpClient, server: ServerProcess, queue: str, lines: list[str]
) -> None:
    with http_client.raw_socket() as connection:
        connection.sendall(http_client.request_head("POST", f"/{queue}/messages", *lines, "Content-Length: 0"))
        assert read_to_end(connection).startswith(b"HTTP/1.1 400 ")
    assert server.message_counts(queue) == (0, 0)


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", "/{}/messages"),
        ("POST", "/{}/messages/head"),
        ("DELETE", "/{}/messages/head"),
        ("PUT", "/{}/messages/1/5d9aa1b4-5e5b-4a3c-9e0a-111111111111"),
        ("POST", "/{}/messages/1/5d9aa1b4-5e5b-4a3c-9e0a-111111111111"),
        ("DELETE", "/{}/messages/1/5d9aa1b4-5e5b-4a3c-9e0a-111111111111"),
    ],
)
class TestEachRequest:
    """Refusals that are the same for every request of the data plane."""

    def test_a_missing_entity_is_not_found(self, http_client: HttpClient, method: str, target: str) -> None:
        for name in ("missing", "missing/subscriptions/all", "missing/$DeadLetterQueue"):
            refused = http_client.request(method, target.format(name))
            assert refused.status == 404
            assert refused.detail.startswith("The messaging entity 'missing")

    def test_an_address_without_messages_is_not_found(
        self, http_client: HttpClient, queue: str, method: str, target: str
    ) -> None:
        assert http_client.request(method, target.format(f"{queue}/$management")).status == 404

    def test_an_expired_forged_or_foreign_token_is_refused(
        self, http_client: HttpClient, server: ServerProcess, queue: str, method: str, target: str
    ) -> None:
        for token in (
            server.token("", lifetime_s=-10),
            server.token(f"{queue}2"),
            server.token("", key="c2VjcmV0"),
            server.token("", key_name="nobody"),
            "Bearer e30.e30.e30",
            "nonsense",
        ):
            assert http_client.request(method, target.format(queue), token=token).status == 401

    def test_the_token_is_checked_before_the_body_is_read(
        self, http_client: HttpClient, queue: str, method: str, target: str
    ) -> None:
        with http_client.raw_socket() as connection:
            connection.sendall(f"{method} {target.format(queue)} HTTP/1.1\r\nHost: x\r\n".encode())
            connection.sendall(b"Content-Length: 1000000\r\n\r\n")
            assert connection.recv(65_536).startswith(b"HTTP/1.1 401 ")


def test_a_disabled_queue_refuses_sends_and_receives(http_client: HttpClient, server: ServerProcess) -> None:
    queue = server.create_queue(Status="Disabled")
    for answer in (http_client.send(queue), http_client.peek_lock(queue), http_client.receive_and_delete(queue)):
        assert (answer.status, "is Disabled" in answer.detail) == (400, True)


def test_an_unsupported_method_is_refused_with_the_allowed_methods(http_client: HttpClient, queue: str) -> None:
    refused = http_client.request("PATCH", f"/{queue}/messages/head")
    assert (refused.status, refused.headers["Allow"]) == (405, "POST, DELETE, PUT, GET")


def test_an_entity_may_be_named_messages(http_client: HttpClient, server: ServerProcess) -> None:
    from tests.support.server_process import QUEUE_ENTRY  # noqa: PLC0415

    name = f"{server.create_queue()}/messages"
    server.request("PUT", name, QUEUE_ENTRY.format(""), expected=201)
    assert http_client.send(name, "x").status == 201
    assert http_client.receive_and_delete(name).body == b"x"
    server.delete_queue(name)


def test_each_right_allows_only_its_own_operations(tmp_path: Path) -> None:
    keys = [
        Key("root", "cm9vdA=="),
        Key("sender", "c2VuZGVy", rights=frozenset({Right.SEND})),
        Key("listener", "bGlzdGVuZXI=", rights=frozenset({Right.LISTEN})),
    ]
    with run_server_in_process(tmp_path, keys=keys) as server:
        server._ready["connection_string"] = "SharedAccessKeyName=root;SharedAccessKey=cm9vdA=="  # noqa: SLF001
        client, queue = HttpClient(server), server.create_queue()
        sender = server.token(queue, key_name="sender", key="c2VuZGVy")
        listener = server.token(queue, key_name="listener", key="bGlzdGVuZXI=")
        assert client.request("POST", f"/{queue}/messages", "x", token=listener).status == 401
        assert client.request("POST", f"/{queue}/messages", "x", token=sender).status == 201
        for method in ("POST", "DELETE"):
            assert client.request(method, f"/{queue}/messages/head?timeout=0", token=sender).status == 401
        received = client.request("POST", f"/{queue}/messages/head", token=listener)
        assert received.body == b"x"
        for method in ("PUT", "POST", "DELETE"):
            assert client.request(method, received.location, token=sender).status == 401
        assert client.request("DELETE", received.location, token=listener).status == 200
        assert client.request("GET", f"/{queue}", token=listener).status == 401
