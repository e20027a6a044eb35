"""The entities of the primary, the streams of messages sent to them, and each message of a stream.

Owns: names and contents. A message is a function of its stream and its number, so that the checks can create it again
and compare. Each session is a stream, and each stream has its own client.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import random
import uuid
from typing import TYPE_CHECKING, Final

from twinbus.client import BrokeredMessage
from twinbus.model.queue import QueueDescription
from twinbus.model.topic import SubscriptionDescription, TopicDescription

if TYPE_CHECKING:
    from twinbus.client.management import NamespaceManager

SENDERS: Final = ("a", "b")
"""Programs that send."""
SUBSCRIPTIONS: Final = {"news": ("one", "other"), "trips": ("riders",)}
"""Subscriptions of each topic. All other entities are queues."""
DUPLICATE_DETECTING: Final = frozenset({"payments"})
"""Entities that detect duplicates: each message arrives once, whatever happens."""
SESSIONS: Final = {"baskets": 3, "trips": 2}
"""Sessions of each program, by entity."""
WITHOUT_SESSIONS: Final = ("orders", "payments", "news")
RECREATED_QUEUE: Final = "drafts"
"""A queue that is deleted and created again. Only the first program, which has no spool, sends to it."""
BATCH_MAX: Final = 6
PAST_TIME: Final = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
WINDOW_MS: Final = 86_400_000
"""Longer than any change of a clock, so that duplicates are detected although the clock is hours ahead."""
QUEUES: Final = {
    "orders": QueueDescription(),
    "payments": QueueDescription(requires_duplicate_detection=True, duplicate_window_ms=WINDOW_MS),
    "baskets": QueueDescription(requires_session=True),
    RECREATED_QUEUE: QueueDescription(),
}
_FIELDS: Final = (
    "message_id",
    "session_id",
    "partition_key",
    "correlation_id",
    "content_type",
    "label",
    "to",
    "reply_to",
    "reply_to_session_id",
    "time_to_live",
    "body",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Stream:
    """Messages that one client sends, one send after the other."""

    name: str
    path: str
    session_id: str | None = None
    pause_s: float = 0.04
    """Mean pause between two sends."""
    batch_max: int = 1
    """Maximum number of messages in one send."""
    is_scheduled: bool = False
    """Sent by `schedule` for a time in the past, so that changes of clocks do not delay the messages."""
    has_fault: bool = False
    """The destination refuses its messages; if they are parked, they are dead-lettered."""

    @property
    def is_topic(self) -> bool:
        return self.path in SUBSCRIPTIONS

    @property
    def destinations(self) -> list[str]:
        """Destinations where each of its messages has to arrive."""
        if self.has_fault:
            return []
        names = SUBSCRIPTIONS.get(self.path)
        return [self.path] if names is None else [f"{self.path}/Subscriptions/{name}" for name in names]


def streams_of(sender: str) -> list[Stream]:
    """Return the streams of one program."""
    streams = [Stream(f"{path}-{sender}", path) for path in WITHOUT_SESSIONS]
    numbered = [(path, f"{path}-{sender}{number}") for path, count in SESSIONS.items() for number in range(count)]
    streams += [Stream(name, path, name) for path, name in numbered]
    streams.append(Stream(f"batches-{sender}", "orders", pause_s=0.2, batch_max=BATCH_MAX))
    streams.append(Stream(f"reminders-{sender}", "orders", pause_s=0.2, is_scheduled=True))
    if sender == SENDERS[0]:
        streams.append(Stream(f"{RECREATED_QUEUE}-{sender}", RECREATED_QUEUE))
        streams.append(Stream(f"strays-{sender}", "baskets", pause_s=0.5, has_fault=True))  # they have no session
    return streams


STREAMS: Final = {stream.name: stream for sender in SENDERS for stream in streams_of(sender)}


def make_message(stream: Stream, number: int) -> BrokeredMessage:
    """Return one message of a stream, with all properties set."""
    name = f"{stream.name}/{number}"
    rng = random.Random(name)
    return BrokeredMessage(
        rng.randbytes(rng.randrange(1, 400)),
        message_id=name,
        session_id=stream.session_id,
        partition_key=None if stream.session_id is not None or number % 2 else f"key {number % 7}",
        correlation_id=f"of {name}",
        content_type="application/octet-stream",
        label=f"label {number % 5}",
        to="somebody",
        reply_to="replies",
        reply_to_session_id="his" if number % 3 == 0 else None,
        time_to_live=dt.timedelta(hours=12, seconds=number % 100) if number % 4 == 0 else None,
        properties={
            "number": number,
            "ratio": number / 8,
            "is even": number % 2 == 0,
            "name": name,
            "id": uuid.UUID(int=rng.getrandbits(128)),
            "when": dt.datetime(2026, 11, 16, tzinfo=dt.UTC) + dt.timedelta(milliseconds=number),
            "bytes": rng.randbytes(8),
        },
    )


def differences(expected: BrokeredMessage, found: BrokeredMessage) -> list[str]:
    """Return the differences from the sent message, except x-ms- properties of parked messages."""
    application_properties = {name: value for name, value in found.properties.items() if not name.startswith("x-ms-")}
    pairs = [(field, getattr(expected, field), getattr(found, field)) for field in _FIELDS]
    pairs += [
        (f"property {name}", expected.properties.get(name), application_properties.get(name))
        for name in expected.properties.keys() | application_properties.keys()
    ]
    return [f"{field} is {after!r:.60}, was {before!r:.60}" for field, before, after in pairs if before != after]


async def create_entities(manager: NamespaceManager, *, are_partitioned: bool) -> None:
    """Create all queues, topics and subscriptions."""
    for path in QUEUES:
        await create_queue(manager, path, is_partitioned=are_partitioned)
    for topic, names in SUBSCRIPTIONS.items():
        await manager.create_topic(topic, TopicDescription(enable_partitioning=are_partitioned))
        for name in names:
            await manager.create_subscription(topic, name, SubscriptionDescription(requires_session=topic in SESSIONS))


async def create_queue(manager: NamespaceManager, path: str, *, is_partitioned: bool) -> None:
    """Create one of the queues."""
    await manager.create_queue(path, dataclasses.replace(QUEUES[path], enable_partitioning=is_partitioned))


async def set_status(manager: NamespaceManager, path: str, status: str) -> None:
    """Enable or disable a queue or a topic."""
    if path in SUBSCRIPTIONS:
        await manager.update_topic(path, dataclasses.replace(await manager.get_topic(path), status=status))
    else:
        await manager.update_queue(path, dataclasses.replace(await manager.get_queue(path), status=status))
