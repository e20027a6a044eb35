"""What is sent in a campaign: entities of the primary, the streams of messages to them, and each message of a stream.

Owns: names and contents. A message follows from its stream and its number, so that whoever judges can make it again and
compare. A session's messages are a stream of their own, with a client of its own.
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
"""Of each topic. All others are queues."""
ONCE: Final = frozenset({"payments"})
"""Where duplicates are detected: each message arrives once, whatever happens."""
SESSIONS: Final = {"baskets": 3, "trips": 2}
"""Of each program, to these."""
PLAIN: Final = ("orders", "payments", "news")
WINDOW_MS: Final = 3_600_000
WITH_SESSIONS: Final = QueueDescription(requires_session=True)
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
    """Messages that one client sends, one after the other."""

    name: str
    path: str
    session_id: str | None = None

    @property
    def arrives_at(self) -> list[str]:
        """Where each of its messages has to be in the end."""
        names = SUBSCRIPTIONS.get(self.path)
        return [self.path] if names is None else [f"{self.path}/Subscriptions/{name}" for name in names]


def streams_of(sender: str) -> list[Stream]:
    """What one program sends."""
    plain = [Stream(f"{path}-{sender}", path) for path in PLAIN]
    numbered = [(path, f"{path}-{sender}{number}") for path, count in SESSIONS.items() for number in range(count)]
    return plain + [Stream(name, path, name) for path, name in numbered]


STREAMS: Final = {stream.name: stream for sender in SENDERS for stream in streams_of(sender)}


def message_of(stream: Stream, number: int) -> BrokeredMessage:
    """One of them, with everything that a message can have."""
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
        time_to_live=dt.timedelta(hours=1, seconds=number % 100) if number % 4 == 0 else None,
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
    """What is not as it was sent. Of the properties that begin with x-ms- there are those of a parked message."""
    own = {name: value for name, value in found.properties.items() if not name.startswith("x-ms-")}
    pairs = [(field, getattr(expected, field), getattr(found, field)) for field in _FIELDS]
    pairs += [
        (f"property {name}", expected.properties.get(name), own.get(name))
        for name in expected.properties.keys() | own.keys()
    ]
    return [f"{field} is {after!r:.60}, was {before!r:.60}" for field, before, after in pairs if before != after]


async def make_entities(manager: NamespaceManager, *, are_partitioned: bool) -> None:
    """All that is sent to."""
    payments = QueueDescription(requires_duplicate_detection=True, duplicate_window_ms=WINDOW_MS)
    for path, described in {"orders": QueueDescription(), "payments": payments, "baskets": WITH_SESSIONS}.items():
        await manager.create_queue(path, dataclasses.replace(described, enable_partitioning=are_partitioned))
    for topic, names in SUBSCRIPTIONS.items():
        await manager.create_topic(topic, TopicDescription(enable_partitioning=are_partitioned))
        for name in names:
            await manager.create_subscription(topic, name, SubscriptionDescription(requires_session=topic in SESSIONS))
