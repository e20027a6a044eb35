"""Custom properties as HTTP headers: JSON in HTTP, typed values in AMQP, and never confused with standard headers."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage

from tests.support.http_client import BATCH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.http_client import HttpClient
    from tests.support.server_process import ServerProcess

VALUES = {
    '"High"': "High",
    '"Łódź \\ud83d\\ude00"': "Łódź 😀",
    "12": 12,
    "-3": -3,
    "12.5": 12.5,
    "true": True,
    "false": False,
    "null": None,
    "99999999999999999999": 1e20,
}


@pytest.fixture
def client(server: ServerProcess) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(server.connection_string, retry_total=0) as client:
        yield client


def receive_over_amqp(client: ServiceBusClient, queue: str) -> Any:  # noqa: ANN401  # a type of the SDK
    with client.get_queue_receiver(queue) as receiver:
        (message,) = receiver.receive_messages(max_wait_time=10)
        receiver.complete_message(message)
    return message


def test_header_values_are_parsed_as_json_and_names_keep_their_case(
    http_client: HttpClient, queue: str, client: ServiceBusClient
) -> None:
    names = {f"X{number}-Mixed.Case": text for number, text in enumerate(VALUES)}
    http_client.send(queue, "x", **names, Priority="High, said without quotes", User_Agent="a browser", X_MS_Thing="1")
    properties = receive_over_amqp(client, queue).application_properties
    assert {name.decode(): value for name, value in properties.items()} == {
        **{name: _bytes(VALUES[text]) for name, text in names.items()},
        "Priority": b"High, said without quotes",
    }


def _bytes(value: object) -> object:
    """Strings as the SDK returns them."""
    return value.encode() if isinstance(value, str) else value


def test_a_message_sent_over_http_has_all_its_properties_over_amqp(
    http_client: HttpClient, queue: str, client: ServiceBusClient
) -> None:
    http_client.send(
        queue,
        b"\x00 an order",
        Content_Type="text/order",
        BrokerProperties='{"MessageId": "m-1", "Label": "l", "CorrelationId": "c", "SessionId": "s", "To": "t", '
        '"ReplyTo": "r", "ReplyToSessionId": "rs", "PartitionKey": "s", "TimeToLiveTimeSpan": "1.00:01:30"}',
    )
    message = receive_over_amqp(client, queue)
    assert b"".join(message.body) == b"\x00 an order"
    expected = ("m-1", "l", "c", "s", "t", "r", "rs", "s", "text/order", 86_490)
    assert expected == (
        message.message_id,
        message.subject,
        message.correlation_id,
        message.session_id,
        message.to,
        message.reply_to,
        message.reply_to_session_id,
        message.partition_key,
        message.content_type,
        message.time_to_live.total_seconds(),
    )


def test_amqp_properties_become_headers_if_http_allows_them(
    http_client: HttpClient, queue: str, client: ServiceBusClient
) -> None:
    when, name = datetime(2026, 1, 1, 12, tzinfo=UTC), uuid.uuid4()
    properties: dict[Any, Any] = {
        "Priority": 'H"igh\r\nSet-Cookie: x',
        "Łódź": 1,
        "with space": 1,
        "Content-Length": 0,
        "Transfer-Encoding": "chunked",
        "Connection": "close",
        "Set-Cookie": "x",
        "Location": "elsewhere",
        "BrokerProperties": "{}",
        "When": when,
        "Id": name,
        "Weight": 1.5,
        "IsBig": True,
    }
    with client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage(b"x", application_properties=properties))
    received = http_client.peek_lock(queue)
    standard = {"content-length", "date", "brokerproperties", "location"}
    assert {key: value for key, value in received.headers.items() if key.lower() not in standard} == {
        "Priority": '"H\\"igh\\r\\nSet-Cookie: x"',
        "When": '"Thu, 01 Jan 2026 12:00:00 GMT"',
        "Id": f'"{name}"',
        "Weight": "1.5",
        "IsBig": "true",
    }
    assert received.body == b"x"
    assert received.headers["Location"].startswith(f"http://{http_client.server.host}:")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (AmqpAnnotatedMessage(value_body="text"), b"text"),
        (AmqpAnnotatedMessage(value_body={"a": 1}), b"\x00Sw"),
        (AmqpAnnotatedMessage(sequence_body=["a", b"b"]), b"\x00Sv"),
    ],
)
def test_bodies_that_are_not_bytes_are_returned_as_text_or_encoded(
    http_client: HttpClient, queue: str, client: ServiceBusClient, message: AmqpAnnotatedMessage, expected: bytes
) -> None:
    with client.get_queue_sender(queue) as sender:
        sender.send_messages(message)
    assert http_client.peek_lock(queue).body.startswith(expected)


@pytest.mark.parametrize("number", ["1" * 400, "-" + "9" * 400, "1" * 5_000, "1e999", "-1e999"])
def test_a_number_beyond_64_bits_is_refused(
    http_client: HttpClient, server: ServerProcess, queue: str, number: str
) -> None:
    header = http_client.send(queue, "x", Weight=number)
    batch = http_client.send(queue, f'[{{"UserProperties": {{"Weight": {number}}}}}]', Content_Type=BATCH)
    assert (header.status, batch.status) == (400, 400)
    assert "'Weight' is a number that does not fit in 64 bits" in header.detail
    assert http_client.send(queue, "x", Weight=f'"{number}"').status == 201
    assert server.message_counts(queue) == (1, 0)
