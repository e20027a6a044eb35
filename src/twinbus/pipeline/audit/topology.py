"""Where a message that was sent to an entity has to be: in the queue, in each subscription, or where these forward to.

Owns: the way from an entity to its *destinations*, and the *places* where a message for a destination can be found: the
destination itself, entities on the way to it, and dead-letter queues. A namespace is asked for all that (`described`);
of one that nobody may ask, no more is known than what journals name (`supposed`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from twinbus.model.description import FOREVER_MS
from twinbus.model.path import SubQueue, key_of, split_subscription, subscription_path
from twinbus.model.rule import SqlFilter, TrueFilter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twinbus.client import NamespaceManager
    from twinbus.model.info import QueueInfo, SubscriptionInfo, TopicInfo
    from twinbus.model.rule import Filter

MOST_HOPS: Final = 16
"""Whoever forwards in a circle is not followed for ever."""


class Role(Enum):
    """What it means that a message is at a place."""

    MAIN = "main"
    """It is at its destination."""
    TRANSIT = "transit"
    """It is on its way there."""
    DEAD = "dead"
    """It was dead-lettered there, or on its way."""


@dataclass(frozen=True, slots=True)
class Place:
    """Somewhere that a message for a destination can be."""

    path: str
    destination: str
    role: Role


@dataclass(frozen=True, slots=True)
class Destination:
    """Where messages come to rest until they are received. What is None is not known."""

    path: str
    is_there: bool = True
    is_filtered: bool = False
    """A subscription whose rules need not match every message."""
    is_subscription: bool = False
    detects_duplicates: bool | None = None
    duplicate_window_ms: int | None = None
    keeps_expired: bool | None = None
    """What expires there is dead-lettered."""
    time_to_live_ms: int | None = None
    """The longest that a message lives there."""
    made_ms: int | None = None
    """When it was created."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Of one namespace."""

    routes: list[tuple[str, str]] = field(default_factory=list)
    """From an entity that messages are sent to, to a destination. A pair that is there twice is two copies."""
    places: list[Place] = field(default_factory=list)
    destinations: dict[str, Destination] = field(default_factory=dict)
    """By the key of their path, as everything here."""

    def places_to_look_at(self) -> list[str]:
        """Each once: messages go from main to dead-letter queues, so these come last."""
        order = sorted(self.places, key=lambda place: (place.role is Role.DEAD, place.role is Role.MAIN))
        there = [place.path for place in order if self.destinations[place.destination].is_there]
        return list(dict.fromkeys(there))


@dataclass(frozen=True, slots=True)
class Namespace:
    """All entities of one, by key."""

    queues: dict[str, QueueInfo]
    topics: dict[str, TopicInfo]
    subscriptions: dict[str, list[tuple[SubscriptionInfo, bool]]]
    """Of each topic, each with whether it takes all messages."""


async def read_namespace(manager: NamespaceManager, entities: Iterable[str]) -> Namespace:
    """Ask a namespace for all that can matter to messages sent to `entities`."""
    queues = {key_of(one.path): one async for one in manager.get_queues()}
    topics = {key_of(one.path): one async for one in manager.get_topics()}
    wanted = {key_of(one) for one in entities} | {
        key_of(target) for one in queues.values() if (target := one.description.forward_to) is not None
    }
    subscriptions: dict[str, list[tuple[SubscriptionInfo, bool]]] = {}
    waiting = [key for key in topics if key in wanted]
    while waiting:
        key = waiting.pop()
        found = subscriptions[key] = []
        async for one in manager.get_subscriptions(topics[key].path):
            rules = [rule async for rule in manager.get_rules(topics[key].path, one.name)]
            found.append((one, any(_takes_all(rule.filter) for rule in rules)))
            target = one.description.forward_to
            if target is not None and key_of(target) in topics and key_of(target) not in subscriptions:
                waiting.append(key_of(target))
    return Namespace(queues, topics, subscriptions)


def _takes_all(rule: Filter) -> bool:
    """`1=1` is what Service Bus itself writes for the true filter."""
    return isinstance(rule, TrueFilter) or (isinstance(rule, SqlFilter) and "".join(rule.expression.split()) == "1=1")


def described(namespace: Namespace, entities: Iterable[str]) -> Topology:
    """What a namespace says of itself."""
    return _Following(namespace).follow(entities)


def supposed(entities: Iterable[str], settled: Iterable[str]) -> Topology:
    """What is likely where nobody can be asked: a queue, unless somebody has received from subscriptions of it."""
    topology = Topology()
    subscriptions: dict[str, list[str]] = {}
    for path in settled:
        topic, name = split_subscription(path.split("/$", 1)[0])
        if name:
            subscriptions.setdefault(key_of(topic), []).append(key_of(subscription_path(topic, name)))
    for key in sorted({key_of(entity) for entity in entities}):
        for path in sorted(set(subscriptions.get(key, [key]))):
            is_subscription = path != key
            topology.routes.append((key, path))
            _add(
                topology, Destination(path, is_there=True, is_filtered=is_subscription, is_subscription=is_subscription)
            )
    return topology


class _Following:
    """The ways through a namespace."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._topology = Topology()

    def follow(self, entities: Iterable[str]) -> Topology:
        for key in sorted({key_of(entity) for entity in entities}):
            self._from(key, key, _Way())
        return self._topology

    def _from(self, start: str, key: str, way: _Way) -> None:
        """Go on from an entity that messages come to."""
        namespace = self._namespace
        if key in namespace.queues:
            info = namespace.queues[key]
            way = way.beyond(info.description.requires_duplicate_detection, info.description.duplicate_window_ms)
            self._rest_or_go_on(start, info.path, info, way, is_filtered=way.is_filtered)
        elif key in namespace.topics:
            topic = namespace.topics[key]
            way = way.beyond(topic.description.requires_duplicate_detection, topic.description.duplicate_window_ms)
            way = way.living(topic.description.default_time_to_live_ms)
            for one, takes_all in namespace.subscriptions.get(key, []):
                path = subscription_path(topic.path, one.name)
                self._rest_or_go_on(start, path, one, way, is_filtered=way.is_filtered or not takes_all)
            if not namespace.subscriptions.get(key):
                self._topology.routes.append((start, key))
                _add(self._topology, Destination(key, is_there=False))
        else:
            self._topology.routes.append((start, key))
            _add(self._topology, Destination(key, is_there=False))

    def _rest_or_go_on(
        self, start: str, path: str, info: QueueInfo | SubscriptionInfo, way: _Way, *, is_filtered: bool
    ) -> None:
        description, key = info.description, key_of(path)
        way = way.living(description.default_time_to_live_ms)
        target = description.forward_to
        if target is not None and len(way.hops) < MOST_HOPS:
            onward = _Way((*way.hops, key), way.detects, way.window_ms, way.lives_ms, is_filtered=is_filtered)
            self._from(start, key_of(target), onward)
            return
        self._topology.routes.append((start, key))
        destination = Destination(
            key,
            is_filtered=is_filtered,
            is_subscription=bool(split_subscription(path)[1]),
            detects_duplicates=way.detects,
            duplicate_window_ms=way.window_ms,
            keeps_expired=description.dead_lettering_on_expiration,
            time_to_live_ms=None if way.lives_ms >= FOREVER_MS else way.lives_ms,
            made_ms=info.runtime.created_ms,
        )
        _add(self._topology, destination, way.hops)
        dead_to = description.forward_dead_lettered_to
        if dead_to is not None:
            self._topology.places.append(Place(key_of(dead_to), key, Role.DEAD))


@dataclass(frozen=True, slots=True)
class _Way:
    """What is known of a message that has come so far."""

    hops: tuple[str, ...] = ()
    detects: bool = False
    window_ms: int | None = None
    lives_ms: int = FOREVER_MS
    is_filtered: bool = False

    def beyond(self, detects: bool, window_ms: int) -> _Way:  # noqa: FBT001
        window = min(window_ms, self.window_ms or window_ms) if detects else self.window_ms
        return _Way(self.hops, self.detects or detects, window, self.lives_ms, self.is_filtered)

    def living(self, lives_ms: int) -> _Way:
        return _Way(self.hops, self.detects, self.window_ms, min(self.lives_ms, lives_ms), self.is_filtered)


def _add(topology: Topology, destination: Destination, hops: tuple[str, ...] = ()) -> None:
    """A destination, if it is new, and what belongs to it."""
    key = destination.path
    if key not in topology.destinations:
        topology.destinations[key] = destination
        topology.places.extend([Place(key, key, Role.MAIN), Place(_dead(key), key, Role.DEAD)])
    known = {(place.path, place.destination) for place in topology.places}
    for hop in hops:
        if (hop, key) not in known:
            topology.places.extend([Place(hop, key, Role.TRANSIT), Place(_dead(hop), key, Role.DEAD)])
            topology.places.append(Place(key_of(hop + SubQueue.TRANSFER_DEAD_LETTER.value), key, Role.DEAD))


def _dead(key: str) -> str:
    return key_of(key + SubQueue.DEAD_LETTER.value)
