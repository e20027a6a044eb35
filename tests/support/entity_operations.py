"""Operations on an entity with a raw client: `$management` requests, browsing, sessions, numbered test messages.

answer = await request_management(client, queue, "twinbus:purge", {"state": "deferred"})
assert answer.status == 200, answer.text
"""

from __future__ import annotations

import http.client
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.support.server_process import QUEUE_ENTRY, TIMEOUT_S
from twinbus.amqp.message import Message, Properties, build, data
from twinbus.amqp.outcomes import Modified
from twinbus.amqp.terminus import Source
from twinbus.amqp.types import Int, Timestamp

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.raw_client import RawClient
    from tests.support.server_process import ServerProcess
    from twinbus.amqp.delivery import IncomingDelivery
    from twinbus.amqp.outcomes import TransactionalState
    from twinbus.amqp.receiver import Receiver

EPOCH = "com.microsoft:epoch"
SESSION = "com.microsoft:session-filter"
FAR_FUTURE_MS = 4_000_000_000_000
"""The year 2096: messages scheduled for then are not due while a test runs."""


class ManagementResponse(NamedTuple):
    """Response of `$management`."""

    status: int
    condition: str | None
    text: str
    body: dict[str, Any]


async def request_management(
    client: RawClient, entity: str, operation: object, body: object = None, *, state: TransactionalState | None = None
) -> ManagementResponse:
    """Send a request to `$management`, optionally in a transaction (default body: an empty map)."""
    properties = {"operation": operation}
    response = await client.request(f"{entity}/$management", properties, {} if body is None else body, state=state)
    status, content = response.application_properties, response.value
    assert isinstance(status, dict)
    assert isinstance(content, dict)
    condition = status.get("errorCondition")
    return ManagementResponse(
        int(status["statusCode"]),
        str(condition) if condition is not None else None,
        str(status["statusDescription"]),
        {str(key): value for key, value in content.items()},
    )


async def peek(client: RawClient, entity: str, **arguments: object) -> list[Message]:
    """Return the messages of an entity without locking them: active, deferred and scheduled."""
    body = {"from-sequence-number": 1, "message-count": Int(1_000), **arguments}
    response = await request_management(client, entity, "com.microsoft:peek-message", body)
    assert response.status in (200, 204), response.text
    return [Message(item["message"]) for item in response.body.get("messages", [])]


# --- messages -------------------------------------------------------------------------------------------------------


def order_message(number: int, *, session: str | None = None, due_ms: int | None = None) -> bytes:
    """Build a message with an id and body that contain its number."""
    name = f"order {number}"
    annotations = {"x-opt-scheduled-enqueue-time": Timestamp(due_ms)} if due_ms is not None else None
    properties = Properties(message_id=name, group_id=session)
    return build(message_annotations=annotations, properties=properties, body=data(name.encode()))


async def send(client: RawClient, queue: str, *payloads: bytes) -> None:
    """Send messages on a new link, and check that each is accepted."""
    link = await client.attach_sender(queue)
    for payload in payloads:
        assert await client.send(link, payload) is None
    await client.detach(link)


async def send_orders(client: RawClient, queue: str, numbers: Iterable[int], *, session: str | None = None) -> None:
    await send(client, queue, *[order_message(number, session=session) for number in numbers])


def message_ids(items: Iterable[IncomingDelivery | Message]) -> list[str]:
    """Return the message ids of deliveries or messages."""
    messages = [item if isinstance(item, Message) else Message(item.payload) for item in items]
    return [str(message.properties and message.properties.message_id) for message in messages]


def order_ids(*numbers: int) -> list[str]:
    return [f"order {number}" for number in numbers]


def annotation_of(item: IncomingDelivery | Message, name: str) -> Any:  # noqa: ANN401  # any AMQP value
    message = item if isinstance(item, Message) else Message(item.payload)
    annotations = message.message_annotations
    assert isinstance(annotations, dict)
    return annotations.get(name)


def sequence_numbers(items: Iterable[IncomingDelivery | Message]) -> list[int]:
    return [annotation_of(item, "x-opt-sequence-number") for item in items]


def lock_token_of(delivery: IncomingDelivery) -> uuid.UUID:
    return uuid.UUID(bytes_le=bytes(delivery.tag))


async def defer(client: RawClient, link: Receiver, delivery: IncomingDelivery) -> int:
    """Defer a message, and return the sequence number with which it can be received."""
    assert await client.settle(link, delivery, Modified(delivery_failed=True, undeliverable_here=True)) is None
    number: int = annotation_of(delivery, "x-opt-sequence-number")
    return number


# --- links ----------------------------------------------------------------------------------------------------------


async def browse(client: RawClient, entity: str, **filters: object) -> Receiver:
    """Attach a browsing link; `from_sequence_number=7` sets the filter `twinbus:from-sequence-number`."""
    filter_set = {f"twinbus:{name.replace('_', '-')}": value for name, value in filters.items()}
    source = Source(address=entity, distribution_mode="copy", filter=filter_set or None)
    return await client.attach_receiver(entity, source=source)


async def attach_exclusive_receiver(client: RawClient, entity: str, epoch: object) -> Receiver:
    """Attach an exclusive receiver with an epoch."""
    return await client.attach_receiver(entity, properties={EPOCH: epoch})


async def accept_session(
    client: RawClient,
    queue: str,
    session: object,
    *,
    properties: dict[str, object] | None = None,
    settled: bool = False,
) -> Receiver:
    source = Source(address=queue, filter={SESSION: session})
    return await client.attach_receiver(queue, source=source, properties=properties, settled=settled)


# --- entity status --------------------------------------------------------------------------------------------------


def set_status(server: ServerProcess, queue: str, status: str) -> None:
    """Set the status of a queue that otherwise has the default description."""
    connection = http.client.HTTPConnection(server.host, server._ports["http"], timeout=TIMEOUT_S)  # noqa: SLF001
    headers = {"Authorization": server.token(queue), "Content-Type": "application/atom+xml", "If-Match": "*"}
    try:
        body = QUEUE_ENTRY.format(f"<Status>{status}</Status>")
        connection.request("PUT", f"/{queue}?api-version=2021-05", body, headers)
        response = connection.getresponse()
        assert response.status == 200, response.read()
    finally:
        connection.close()
