"""Contents of the namespace of the fixtures, as the official SDK shows them.

    contents = await read_contents(server)
    contents["messages"]["orders"][0]["message_id"]

`write_fixtures` stores the contents that the earlier version shows; the tests compare them with those of the present
version. Owns: the names of the entities, and the JSON form of a message. Knows nothing of how a server stores messages.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus import ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient

if TYPE_CHECKING:
    from collections.abc import Iterable

    from azure.servicebus import ServiceBusReceivedMessage
    from azure.servicebus.aio import ServiceBusReceiver

    from tests.support.server_process import ServerProcess

QUEUES: Final = ("orders", "orders-partitioned", "unique", "purged", "exclusive", "recreated", "due")
FORWARDING: Final = "forwarding"
SESSION_QUEUES: Final = ("sessions", "sessions-partitioned")
SESSIONS: Final = ("apples", "pears", "plums")
DELETED: Final = "deleted"
SUBSCRIPTIONS: Final = (("news", "all"), ("news", "large"), ("news", "urgent"), ("news-partitioned", "all"))
PEEKED: Final = 100
LONG: Final = 200
"""Bodies from this length on are stored as digests."""
_TRANSFER: Final = "/$Transfer"
_DEAD: Final = "/$DeadLetterQueue"
_ELEMENT: Final = re.compile(r"<(\w+)>([^<]*)</\1>")
_COUNT: Final = re.compile(r"(\w*MessageCount)>(\d+)</")
_CHANGING: Final = re.compile(r"id|updated|AccessedAt|UpdatedAt|SizeInBytes|\w*MessageCount")


def connect_client(server: ServerProcess) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(server.connection_string)


def receive_addresses() -> list[str]:
    """Return the address of every queue, subscription, sub-queue and session, the last behind a `#`.

    A queue that forwards its messages can be neither received from nor peeked at.
    """
    plain = [*QUEUES, *(f"{topic}/Subscriptions/{name}" for topic, name in SUBSCRIPTIONS)]
    sessions = [f"{queue}#{session}" for queue in SESSION_QUEUES for session in SESSIONS]
    dead = [f"{path}{_DEAD}" for path in (*plain, FORWARDING, *SESSION_QUEUES)]
    return [*plain, *dead, f"{FORWARDING}{_TRANSFER}{_DEAD}", *sessions]


def receiver_of(client: ServiceBusClient, address: str, **options: Any) -> ServiceBusReceiver:  # noqa: ANN401
    """Return the SDK's receiver of an address."""
    address, _, session = address.partition("#")
    if session:
        options["session_id"] = session
    if address.endswith(_TRANSFER + _DEAD):
        options["sub_queue"] = ServiceBusSubQueue.TRANSFER_DEAD_LETTER
    elif address.endswith(_DEAD):
        options["sub_queue"] = ServiceBusSubQueue.DEAD_LETTER
    path = address.removesuffix(_DEAD).removesuffix(_TRANSFER)
    topic, _, subscription = path.partition("/Subscriptions/")
    if subscription:
        return client.get_subscription_receiver(topic, subscription, **options)
    return client.get_queue_receiver(path, **options)


async def read_contents(server: ServerProcess, wanted: Iterable[str] | None = None) -> dict[str, Any]:
    """Return descriptions, rules and counts, and the messages and session states of the addresses (default: all)."""
    addresses = receive_addresses() if wanted is None else list(wanted)
    async with connect_client(server) as client:
        peeked = await asyncio.gather(*[peek_messages(client, address) for address in addresses])
    subscription_paths = [f"{topic}/Subscriptions/{name}" for topic, name in SUBSCRIPTIONS]
    topics = dict.fromkeys(topic for topic, _ in SUBSCRIPTIONS)
    described = [
        *QUEUES,
        FORWARDING,
        *SESSION_QUEUES,
        *topics,
        *subscription_paths,
        *(f"{one}/Rules" for one in subscription_paths),
    ]
    return {
        "descriptions": {path: _elements(server, path) for path in described},
        "counts": read_counts(server),
        "messages": {address: messages for address, (messages, _) in zip(addresses, peeked, strict=True)},
        "session_states": {
            address: state for address, (_, state) in zip(addresses, peeked, strict=True) if "#" in address
        },
        "authority": _digest(await asyncio.to_thread(Path(server.ca_file).read_bytes)),
        "key": _digest(server.key.encode()),
    }


def read_counts(server: ServerProcess) -> dict[str, dict[str, int]]:
    """Return the counts of all queues and subscriptions that are not 0, by state."""
    paths = [*QUEUES, FORWARDING, *SESSION_QUEUES, *(f"{topic}/Subscriptions/{name}" for topic, name in SUBSCRIPTIONS)]
    counts = {path: _COUNT.findall(server.request("GET", path, expected=200)) for path in paths}
    return {path: {state: int(count) for state, count in by_state if int(count)} for path, by_state in counts.items()}


async def peek_messages(client: ServiceBusClient, address: str) -> tuple[list[dict[str, Any]], str | None]:
    """Return all messages of an address in the order of their sequence numbers, and the state of a session."""
    messages: list[dict[str, Any]] = []
    state: bytes | None = None
    async with receiver_of(client, address) as receiver:
        while batch := await receiver.peek_messages(
            PEEKED, sequence_number=messages[-1]["sequence_number"] + 1 if messages else 1
        ):
            messages += [message_fields(message) for message in batch]
        if "#" in address:
            state = await receiver.session.get_state()
    return messages, None if state is None else bytes(state).decode()


def message_fields(message: ServiceBusReceivedMessage) -> dict[str, Any]:
    """Return the fields of a message for JSON."""
    properties = message.application_properties or {}
    return {
        "sequence_number": message.sequence_number,
        "enqueued_sequence_number": message.enqueued_sequence_number,
        "enqueued_time": str(message.enqueued_time_utc),
        "scheduled_time": str(message.scheduled_enqueue_time_utc),
        "state": message.state.name,
        "delivery_count": message.delivery_count,
        "message_id": message.message_id,
        "session_id": message.session_id,
        "partition_key": message.partition_key,
        "correlation_id": message.correlation_id,
        "subject": message.subject,
        "content_type": message.content_type,
        "body": _short(b"".join(message.body)),
        "properties": {_text(name): _text(value) for name, value in properties.items()},
        "dead_letter": [message.dead_letter_reason, message.dead_letter_error_description, message.dead_letter_source],
    }


def _short(body: bytes) -> str:
    return body.decode() if len(body) < LONG else f"{len(body)} bytes, {_digest(body)}"


def _text(value: object) -> object:
    return value.decode() if isinstance(value, bytes) else value


def _elements(server: ServerProcess, path: str) -> list[list[str]]:
    """Return the elements of a description or of a list of rules, without those that change by use."""
    text = re.sub(
        r"sb://[^/]+/", "", server.request("GET", path, expected=200)
    )  # ForwardTo has the address of the server
    return [[name, value] for name, value in _ELEMENT.findall(text) if not _CHANGING.fullmatch(name)]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
