"""What is used in a campaign: partitioned entities, the streams of messages to them, and how many receive from where.

Owns: names. All keys of a stream, and all its sessions, are its own: one sender sends them, one connection at a time,
so that their order is known.
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
"""Whatever happens to a message, it is not dead-lettered for it."""
SUBSCRIPTIONS: Final = {"news": ("one", "other"), "trips": ("riders",)}
"""Of each topic. All others are queues."""
WITH_SESSIONS: Final = frozenset({"baskets", "trips"})


@dataclass(frozen=True, slots=True)
class Stream:
    """What one sender sends."""

    name: str
    path: str
    has_keys: bool = False
    """Else a message may go to any fragment. What has sessions has keys: these are its sessions."""

    @property
    def keys(self) -> list[str]:
        """None where any fragment will do."""
        if self.path in WITH_SESSIONS:
            return [f"{self.name} session {number}" for number in range(SESSIONS)]
        return [f"{self.name} key {number}" for number in range(KEYS)] if self.has_keys else []

    @property
    def by_fragment(self) -> dict[int, list[str]]:
        """The same, by the fragments that they lead to."""
        return _by_fragment(self)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Who sends what, and how many receive from where."""

    streams: tuple[Stream, ...]
    receivers: dict[str, int]

    @property
    def paths(self) -> list[str]:
        """What is sent to."""
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
    """Where a message arrives that is sent there."""
    names = SUBSCRIPTIONS.get(path)
    return [path] if names is None else [f"{path}/Subscriptions/{name}" for name in names]


def has_sessions(destination: str) -> bool:
    """Its messages are received session by session."""
    return destination.partition("/")[0] in WITH_SESSIONS


def fragment_for(key: str | None) -> int | None:
    """The only one that a message of this key may be in."""
    return None if key is None else fragment_of(key.encode())


@cache
def _by_fragment(stream: Stream) -> dict[int, list[str]]:
    found: dict[int, list[str]] = defaultdict(list)
    for key in stream.keys:
        found[fragment_of(key.encode())].append(key)
    return dict(found)


async def create_entities(manager: NamespaceManager, scenario: Scenario, lock_ms: int) -> None:
    """All that is sent to, partitioned."""
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
            described = SubscriptionDescription(
                requires_session=requires_session, lock_duration_ms=lock_ms, max_delivery_count=MAX_DELIVERY_COUNT
            )
            await manager.create_subscription(path, name, described)
