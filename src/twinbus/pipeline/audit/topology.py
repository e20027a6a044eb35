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
from twinbus.model.path import SubQueue, canonical_key, split_subscription, subscription_path
from twinbus.model.rule import SqlFilter, TrueFilter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twinbus.client import NamespaceManager
    from twinbus.model.info import QueueInfo, SubscriptionInfo, TopicInfo
    from twinbus.model.rule import Filter

MAX_HOPS: Final = 16
"""Whoever forwards in a circle is not followed for ever."""


class LocationRole(Enum):
    """What it means that a message is at a place."""

    MAIN = "main"
    """It is at its destination."""
    TRANSIT = "transit"
    """It is on its way there."""
    DEAD_LETTER = "dead"
    """It was dead-lettered there, or on its way."""


@dataclass(frozen=True, slots=True)
class MessageLocation:
    """Somewhere that a message for a destination can be."""

    path: str
    destination: str
    role: LocationRole


@dataclass(frozen=True, slots=True)
class Destination:
    """Where messages come to rest until they are received. What is None is not known."""

    path: str
    exists: bool = True
    is_filtered: bool = False
    """A subscription whose rules need not match every message."""
    is_subscription: bool = False
    detects_duplicates: bool | None = None
    duplicate_window_ms: int | None = None
    dead_letters_expired: bool | None = None
    """What expires there is dead-lettered."""
    time_to_live_ms: int | None = None
    """The longest that a message lives there."""
    created_ms: int | None = None
    """When it was created."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Of one namespace."""

    routes: list[tuple[str, str]] = field(default_factory=list)
    """From an entity that messages are sent to, to a destination. A pair that is there twice is two copies."""
    locations: list[MessageLocation] = field(default_factory=list)
    destinations: dict[str, Destination] = field(default_factory=dict)
    """By the key of their path, as everything here."""

    def inspection_order(self) -> list[str]:
        """Each once: messages go from main to dead-letter queues, so these come last."""
        order = sorted(
            self.locations, key=lambda place: (place.role is LocationRole.DEAD_LETTER, place.role is LocationRole.MAIN)
        )
        there = [place.path for place in order if self.destinations[place.destination].exists]
        return list(dict.fromkeys(there))


@dataclass(frozen=True, slots=True)
class NamespaceEntities:
    """All entities of one, by key."""

    queues: dict[str, QueueInfo]
    topics: dict[str, TopicInfo]
    subscriptions: dict[str, list[tuple[SubscriptionInfo, bool]]]
    """Of each topic, each with whether it takes all messages."""


async def read_namespace(manager: NamespaceManager, entities: Iterable[str]) -> NamespaceEntities:
    """Ask a namespace for all that can matter to messages sent to `entities`."""
    queues = {canonical_key(one.path): one async for one in manager.get_queues()}
    topics = {canonical_key(one.path): one async for one in manager.get_topics()}
    wanted = {canonical_key(one) for one in entities} | {
        canonical_key(target) for one in queues.values() if (target := one.description.forward_to) is not None
    }
    subscriptions: dict[str, list[tuple[SubscriptionInfo, bool]]] = {}
    waiting = [key for key in topics if key in wanted]
    while waiting:
        key = waiting.pop()
        found = subscriptions[key] = []
        async for one in manager.get_subscriptions(topics[key].path):
            rules = [rule async for rule in manager.get_rules(topics[key].path, one.name)]
            found.append((one, any(_matches_all(rule.filter) for rule in rules)))
            target = one.description.forward_to
            if target is not None and canonical_key(target) in topics and canonical_key(target) not in subscriptions:
                waiting.append(canonical_key(target))
    return NamespaceEntities(queues, topics, subscriptions)


def _matches_all(filter_: Filter) -> bool:
    """`1=1` is what Service Bus itself writes for the true filter."""
    return isinstance(filter_, TrueFilter) or (
        isinstance(filter_, SqlFilter) and "".join(filter_.expression.split()) == "1=1"
    )


def topology_of_namespace(namespace: NamespaceEntities, entities: Iterable[str]) -> Topology:
    """What a namespace says of itself."""
    return _RouteBuilder(namespace).build(entities)


def topology_from_journals(entities: Iterable[str], settled_entities: Iterable[str]) -> Topology:
    """What is likely where nobody can be asked: a queue, unless somebody has received from subscriptions of it."""
    topology = Topology()
    subscriptions: dict[str, list[str]] = {}
    for path in settled_entities:
        topic, name = split_subscription(path.split("/$", 1)[0])
        if name:
            subscriptions.setdefault(canonical_key(topic), []).append(canonical_key(subscription_path(topic, name)))
    for key in sorted({canonical_key(entity) for entity in entities}):
        for path in sorted(set(subscriptions.get(key, [key]))):
            is_subscription = path != key
            topology.routes.append((key, path))
            _add_destination(
                topology, Destination(path, exists=True, is_filtered=is_subscription, is_subscription=is_subscription)
            )
    return topology


class _RouteBuilder:
    """The ways through a namespace."""

    def __init__(self, namespace: NamespaceEntities) -> None:
        self._namespace = namespace
        self._topology = Topology()

    def build(self, entities: Iterable[str]) -> Topology:
        for key in sorted({canonical_key(entity) for entity in entities}):
            self._follow_from(key, key, _RouteState())
        return self._topology

    def _follow_from(self, start: str, key: str, route: _RouteState) -> None:
        """Go on from an entity that messages come to."""
        namespace = self._namespace
        if key in namespace.queues:
            info = namespace.queues[key]
            route = route.with_duplicate_detection(
                info.description.requires_duplicate_detection, info.description.duplicate_window_ms
            )
            self._end_or_forward(start, info.path, info, route, is_filtered=route.is_filtered)
        elif key in namespace.topics:
            topic = namespace.topics[key]
            route = route.with_duplicate_detection(
                topic.description.requires_duplicate_detection, topic.description.duplicate_window_ms
            )
            route = route.with_time_to_live(topic.description.default_time_to_live_ms)
            for one, takes_all in namespace.subscriptions.get(key, []):
                path = subscription_path(topic.path, one.name)
                self._end_or_forward(start, path, one, route, is_filtered=route.is_filtered or not takes_all)
            if not namespace.subscriptions.get(key):
                self._topology.routes.append((start, key))
                _add_destination(self._topology, Destination(key, exists=False))
        else:
            self._topology.routes.append((start, key))
            _add_destination(self._topology, Destination(key, exists=False))

    def _end_or_forward(
        self, start: str, path: str, info: QueueInfo | SubscriptionInfo, route: _RouteState, *, is_filtered: bool
    ) -> None:
        description, key = info.description, canonical_key(path)
        route = route.with_time_to_live(description.default_time_to_live_ms)
        target = description.forward_to
        if target is not None and len(route.hops) < MAX_HOPS:
            onward = _RouteState(
                (*route.hops, key),
                route.detects_duplicates,
                route.duplicate_window_ms,
                route.time_to_live_ms,
                is_filtered=is_filtered,
            )
            self._follow_from(start, canonical_key(target), onward)
            return
        self._topology.routes.append((start, key))
        destination = Destination(
            key,
            is_filtered=is_filtered,
            is_subscription=bool(split_subscription(path)[1]),
            detects_duplicates=route.detects_duplicates,
            duplicate_window_ms=route.duplicate_window_ms,
            dead_letters_expired=description.dead_lettering_on_expiration,
            time_to_live_ms=None if route.time_to_live_ms >= FOREVER_MS else route.time_to_live_ms,
            created_ms=info.runtime.created_ms,
        )
        _add_destination(self._topology, destination, route.hops)
        dead_to = description.forward_dead_lettered_to
        if dead_to is not None:
            self._topology.locations.append(MessageLocation(canonical_key(dead_to), key, LocationRole.DEAD_LETTER))


@dataclass(frozen=True, slots=True)
class _RouteState:
    """What is known of a message that has come so far."""

    hops: tuple[str, ...] = ()
    detects_duplicates: bool = False
    duplicate_window_ms: int | None = None
    time_to_live_ms: int = FOREVER_MS
    is_filtered: bool = False

    def with_duplicate_detection(self, detects_duplicates: bool, duplicate_window_ms: int) -> _RouteState:  # noqa: FBT001
        window = (
            min(duplicate_window_ms, self.duplicate_window_ms or duplicate_window_ms)
            if detects_duplicates
            else self.duplicate_window_ms
        )
        return _RouteState(
            self.hops, self.detects_duplicates or detects_duplicates, window, self.time_to_live_ms, self.is_filtered
        )

    def with_time_to_live(self, time_to_live_ms: int) -> _RouteState:
        return _RouteState(
            self.hops,
            self.detects_duplicates,
            self.duplicate_window_ms,
            min(self.time_to_live_ms, time_to_live_ms),
            self.is_filtered,
        )


def _add_destination(topology: Topology, destination: Destination, hops: tuple[str, ...] = ()) -> None:
    """A destination, if it is new, and what belongs to it."""
    key = destination.path
    if key not in topology.destinations:
        topology.destinations[key] = destination
        topology.locations.extend(
            [
                MessageLocation(key, key, LocationRole.MAIN),
                MessageLocation(_dead_letter_path(key), key, LocationRole.DEAD_LETTER),
            ]
        )
    known = {(place.path, place.destination) for place in topology.locations}
    for hop in hops:
        if (hop, key) not in known:
            topology.locations.extend(
                [
                    MessageLocation(hop, key, LocationRole.TRANSIT),
                    MessageLocation(_dead_letter_path(hop), key, LocationRole.DEAD_LETTER),
                ]
            )
            topology.locations.append(
                MessageLocation(canonical_key(hop + SubQueue.TRANSFER_DEAD_LETTER.value), key, LocationRole.DEAD_LETTER)
            )


def _dead_letter_path(key: str) -> str:
    return canonical_key(key + SubQueue.DEAD_LETTER.value)
