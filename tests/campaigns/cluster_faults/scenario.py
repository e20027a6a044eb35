"""Scenarios: partitioned entities, the streams of messages to them, and the number of receivers of each.

Owns: names. No two streams share a key or session: one sender sends each, on one connection at a time, so that the
order is known.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from twinbus.model.partition_key import fragment_of
from twinbus.model.queue import QueueDescription
from twinbus.model.topic import SubscriptionDescription, TopicDescription

if TYPE_CHECKING:
    from twinbus.client.management import NamespaceManager

KEYS: Final = 48
SESSIONS: Final = 24
MAX_DELIVERY_COUNT: Final = 1_000_000
"""A delivery count that is never reached: no message is dead-lettered for it."""
SUBSCRIPTIONS: Final = {"news": ("one", "other"), "trips": ("riders",)}
"""Subscriptions of each topic. All other entities are queues."""
WITH_SESSIONS: Final = frozenset({"baskets", "trips"})


@dataclass(frozen=True, slots=True)
class Stream:
    """Messages of one sender."""

    name: str
    path: str
    has_keys: bool = False
    """If not, a message may go to any fragment. An entity with sessions has keys: its session ids."""

    @property
    def keys(self) -> list[str]:
        """Keys of the stream; empty if a message may go to any fragment."""
        if self.path in WITH_SESSIONS:
            return [f"{self.name} session {number}" for number in range(SESSIONS)]
        return [f"{self.name} key {number}" for number in range(KEYS)] if self.has_keys else []

    @property
    def by_fragment(self) -> dict[int, list[str]]:
        """Keys by fragment."""
        return _by_fragment(self)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Streams, and the number of receivers by destination."""

    streams: tuple[Stream, ...]
    receivers: dict[str, int]

    @property
    def paths(self) -> list[str]:
        """Paths of the queues and topics."""
        return sorted({stream.path for stream in self.streams})


ALL_ENTITIES: Final = Scenario(
    (
        *(Stream(f"loose-{number}", "loose") for number in range(4)),
        *(Stream(f"keyed-{number}", "keyed", has_keys=True) for number in range(3)),
        Stream("news-0", "news"),
        Stream("news-1", "news", has_keys=True),
        *(Stream(f"baskets-{number}", "baskets", has_keys=True) for number in range(2)),
    ),
    {"loose": 2, "keyed": 2, "news/Subscriptions/one": 1, "news/Subscriptions/other": 1, "baskets": 4},
)
ONLY_SESSIONS: Final = Scenario(
    (
        *(Stream(f"baskets-{number}", "baskets", has_keys=True) for number in range(5)),
        *(Stream(f"trips-{number}", "trips", has_keys=True) for number in range(2)),
    ),
    {"baskets": 6, "trips/Subscriptions/riders": 3},
)


def destinations_of(path: str) -> list[str]:
    """Return the queue, or the subscriptions of the topic."""
    names = SUBSCRIPTIONS.get(path)
    return [path] if names is None else [f"{path}/Subscriptions/{name}" for name in names]


def has_sessions(destination: str) -> bool:
    """Return whether a destination has sessions."""
    return destination.partition("/")[0] in WITH_SESSIONS


def fragment_for(key: str | None) -> int | None:
    """Return the fragment of a key; None if any fragment may have the message."""
    return None if key is None else fragment_of(key.encode())


@cache
def _by_fragment(stream: Stream) -> dict[int, list[str]]:
    by_fragment: dict[int, list[str]] = defaultdict(list)
    for key in stream.keys:
        by_fragment[fragment_of(key.encode())].append(key)
    return dict(by_fragment)


async def create_entities(manager: NamespaceManager, scenario: Scenario, lock_ms: int) -> None:
    """Create the partitioned queues, topics and subscriptions."""
    for path in scenario.paths:
        requires_session = path in WITH_SESSIONS
        if path not in SUBSCRIPTIONS:
            description = QueueDescription(
                enable_partitioning=True,
                requires_session=requires_session,
                lock_duration_ms=lock_ms,
                max_delivery_count=MAX_DELIVERY_COUNT,
            )
            await manager.create_queue(path, description)
            continue
        await manager.create_topic(path, TopicDescription(enable_partitioning=True))
        for name in SUBSCRIPTIONS[path]:
            subscription = SubscriptionDescription(
                requires_session=requires_session, lock_duration_ms=lock_ms, max_delivery_count=MAX_DELIVERY_COUNT
            )
            await manager.create_subscription(path, name, subscription)
