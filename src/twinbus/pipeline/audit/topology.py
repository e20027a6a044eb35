"""Topology: the queues and subscriptions where a message sent to an entity must be, after forwarding.

Owns the routes from entities to their *destinations*, and the *locations* where a message for a destination can be: the
destination itself, entities on the route, and dead-letter queues. The namespace lists its entities
(`topology_of_namespace`). Without administrative access, the topology is inferred from journals
(`topology_from_journals`).
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
"""Maximum number of forwards on a route, which breaks cycles."""


class LocationRole(Enum):
    """What the presence of a message at a location means."""

    MAIN = "main"
    """The message is at its destination."""
    TRANSIT = "transit"
    """The message is in transit to its destination."""
    DEAD_LETTER = "dead"
    """The message was dead-lettered at its destination or on the route."""


@dataclass(frozen=True, slots=True)
class MessageLocation:
    """A location where a message for a destination can be."""

    path: str
    destination: str
    role: LocationRole


@dataclass(frozen=True, slots=True)
class Destination:
    """A queue or subscription that keeps messages until they are received. A field that is None is unknown."""

    path: str
    exists: bool = True
    is_filtered: bool = False
    """Whether this is a subscription whose rules may not match every message."""
    is_subscription: bool = False
    detects_duplicates: bool | None = None
    duplicate_window_ms: int | None = None
    dead_letters_expired: bool | None = None
    """Whether expired messages are dead-lettered."""
    time_to_live_ms: int | None = None
    """Maximum time to live of messages."""
    created_ms: int | None = None
    """Time of creation."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Routes and locations of one namespace."""

    routes: list[tuple[str, str]] = field(default_factory=list)
    """Pairs of an entity and a destination. A pair that occurs twice means two copies."""
    locations: list[MessageLocation] = field(default_factory=list)
    destinations: dict[str, Destination] = field(default_factory=dict)
    """Destinations by path key. All paths here are keys."""

    def inspection_order(self) -> list[str]:
        """Return each existing location once. Dead-letter queues come last, because messages move there."""
        order = sorted(
            self.locations,
            key=lambda location: (location.role is LocationRole.DEAD_LETTER, location.role is LocationRole.MAIN),
        )
        existing = [location.path for location in order if self.destinations[location.destination].exists]
        return list(dict.fromkeys(existing))


@dataclass(frozen=True, slots=True)
class NamespaceEntities:
    """Entities of a namespace by key."""

    queues: dict[str, QueueInfo]
    topics: dict[str, TopicInfo]
    subscriptions: dict[str, list[tuple[SubscriptionInfo, bool]]]
    """Subscriptions of each topic, and whether each subscription matches all messages."""


async def read_namespace(manager: NamespaceManager, entities: Iterable[str]) -> NamespaceEntities:
    """Read from a namespace all entities that a message to one of `entities` can reach."""
    queues = {canonical_key(info.path): info async for info in manager.get_queues()}
    topics = {canonical_key(info.path): info async for info in manager.get_topics()}
    wanted = {canonical_key(info) for info in entities} | {
        canonical_key(target) for info in queues.values() if (target := info.description.forward_to) is not None
    }
    subscriptions: dict[str, list[tuple[SubscriptionInfo, bool]]] = {}
    pending = [key for key in topics if key in wanted]
    while pending:
        key = pending.pop()
        matching = subscriptions[key] = []
        async for info in manager.get_subscriptions(topics[key].path):
            rules = [rule async for rule in manager.get_rules(topics[key].path, info.name)]
            matching.append((info, any(_matches_all(rule.filter) for rule in rules)))
            target = info.description.forward_to
            if target is not None and canonical_key(target) in topics and canonical_key(target) not in subscriptions:
                pending.append(canonical_key(target))
    return NamespaceEntities(queues, topics, subscriptions)


def _matches_all(filter_: Filter) -> bool:
    """Return whether a filter matches all messages. Service Bus writes the true filter as `1=1`."""
    return isinstance(filter_, TrueFilter) or (
        isinstance(filter_, SqlFilter) and "".join(filter_.expression.split()) == "1=1"
    )


def topology_of_namespace(namespace: NamespaceEntities, entities: Iterable[str]) -> Topology:
    """Build the topology of a namespace from its entities."""
    return _RouteBuilder(namespace).build(entities)


def topology_from_journals(entities: Iterable[str], settled_entities: Iterable[str]) -> Topology:
    """Infer the topology from journals: an entity is a queue unless messages were received from its subscriptions."""
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
    """Builder for the routes through a namespace."""

    def __init__(self, namespace: NamespaceEntities) -> None:
        self._namespace = namespace
        self._topology = Topology()

    def build(self, entities: Iterable[str]) -> Topology:
        for key in sorted({canonical_key(entity) for entity in entities}):
            self._follow_from(key, key, _RouteState())
        return self._topology

    def _follow_from(self, start: str, key: str, route: _RouteState) -> None:
        """Follow the route of messages that arrive at an entity."""
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
            for subscription, takes_all in namespace.subscriptions.get(key, []):
                path = subscription_path(topic.path, subscription.name)
                self._end_or_forward(start, path, subscription, route, is_filtered=route.is_filtered or not takes_all)
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
    """State of a route at an entity."""

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
    """Add a destination, if it is new, and its locations."""
    key = destination.path
    if key not in topology.destinations:
        topology.destinations[key] = destination
        topology.locations.extend(
            [
                MessageLocation(key, key, LocationRole.MAIN),
                MessageLocation(_dead_letter_path(key), key, LocationRole.DEAD_LETTER),
            ]
        )
    known_locations = {(location.path, location.destination) for location in topology.locations}
    for hop in hops:
        if (hop, key) not in known_locations:
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
