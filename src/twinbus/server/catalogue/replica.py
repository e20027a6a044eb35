"""The replica of the catalogue in a broker process.

Owns: the broker's entities, which it keeps consistent with the catalogue, and the read operations of an
`Administration`. Must not know whether a change is allowed, nor who requested it.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from twinbus.broker.namespace import Queue, Subscription, Topic
from twinbus.model import path as paths
from twinbus.model.errors import EntityNotFound, ServiceBusError, StoreUnavailable
from twinbus.model.queue import QueueDescription
from twinbus.model.topic import TopicDescription
from twinbus.server.catalogue.changes import EntityCreated, EntityDeleted, EntityUpdated, RulePut
from twinbus.server.catalogue.entity_info import make_info, make_queue_info, make_subscription_info, make_topic_info

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Mapping, Sequence

    from twinbus.broker.namespace import Namespace
    from twinbus.model.info import EntityInfo, QueueInfo, SubscriptionInfo, TopicInfo
    from twinbus.model.rule import RuleDescription
    from twinbus.server.catalogue.changes import Change
    from twinbus.store.catalogue import CleanupRow, EntityRow

log: Final = logging.getLogger(__name__)

T = TypeVar("T")
MAX_LOADED_PER_TURN: Final = 100
"""How many entities `load` adds before it yields to the event loop."""


class CatalogueReplica:
    """The entities of a namespace in one process. Subclasses add the write operations of an `Administration`."""

    def __init__(self, namespace: Namespace, name: str) -> None:
        """Create a replica without entities; `name` is the name of the namespace."""
        self.namespace = name
        self.created_ms = 0
        self._namespace = namespace
        self._tasks: set[asyncio.Task[None]] = set()

    # --- changes from the catalogue -----------------------------------------------------------------------------------

    async def load(self, entities: Iterable[tuple[EntityRow, Iterable[RuleDescription]]]) -> None:
        """Add all entities and load their fragments. A topic must come before its subscriptions."""
        loaded = []
        for row, rules in entities:
            loaded.append(self._add_entity(row, rules))
            if not len(loaded) % MAX_LOADED_PER_TURN:
                await asyncio.sleep(0)  # let the worker send its heartbeats: loading ten thousand entities takes long
        await asyncio.gather(*[_load_entity(entity) for entity in loaded])
        for entity in loaded:
            entity.resume()

    def apply(self, change: Change) -> None:
        """Apply a catalogue change to the broker."""
        if isinstance(change, EntityCreated):
            self._add_entity(change.row, change.rules)
            log.info("%s created", change.row.kind, extra={"path": change.row.path, "stores": change.row.fragments})
        elif isinstance(change, EntityUpdated):
            self._update_entity(change.row)
        elif isinstance(change, EntityDeleted):
            kind = entity_kind(self._namespace.find(change.path))
            self._namespace.remove(change.path)
            log.info("%s deleted", kind, extra={"path": change.path})
        elif isinstance(change, RulePut):
            self._find_subscription(change.subscription).put_rule(change.rule)
        else:
            self._find_subscription(change.subscription).remove_rule(change.name)

    def _add_entity(self, row: EntityRow, rules: Iterable[RuleDescription]) -> Queue | Topic | Subscription:
        entity = self._create_entity(row)
        for rule in rules:
            assert isinstance(entity, Subscription)
            entity.put_rule(rule)
        return entity

    def _create_entity(self, row: EntityRow) -> Queue | Topic | Subscription:
        times = {"created_ms": row.created_ms, "updated_ms": row.updated_ms}
        namespace, description, stores = self._namespace, row.description, row.fragments
        if isinstance(description, QueueDescription):
            return namespace.add_queue(row.id, row.path, description, stores, **times)
        if isinstance(description, TopicDescription):
            return namespace.add_topic(row.id, row.path, description, stores, **times)
        return namespace.add_subscription(row.id, row.path, description, **times)

    def _update_entity(self, row: EntityRow) -> None:
        description = row.description
        if isinstance(description, QueueDescription):
            self._namespace.update_queue(row.path, description, updated_ms=row.updated_ms)
        elif isinstance(description, TopicDescription):
            self._namespace.update_topic(row.path, description, updated_ms=row.updated_ms)
        else:
            self._namespace.update_subscription(row.path, description, updated_ms=row.updated_ms)

    # --- deleted and idle entities ------------------------------------------------------------------------------------

    async def clean_up(self, deleted: CleanupRow, stores: Iterable[int]) -> bool:
        """Remove a deleted entity's records from `stores`, and return whether all were removed.

        If a store is unavailable, the records in that store and in the stores after it stay until the next startup.
        """
        for store in stores:
            removed: asyncio.Future[ServiceBusError | None] = asyncio.get_running_loop().create_future()
            try:
                self._namespace.delete_entity_records(
                    deleted.id, store, partial(_set_result, removed), deleted.topic_id
                )
                error = await removed
            except StoreUnavailable as unavailable:
                error = unavailable
            if error is not None:
                log.warning("records of a deleted entity remain until the next start: %s", error)
                return False
        return True

    # --- reads --------------------------------------------------------------------------------------------------------

    async def refresh(self, entities: Sequence[Queue | Topic | Subscription]) -> None:
        """Update the counters of entities before clients read them.

        The default does nothing: all counters are local.
        """

    async def get(self, path: str) -> EntityInfo:
        """Return the entity at `path`. Raise EntityNotFound if there is none."""
        entity = self._namespace.find(path)
        await self.refresh([entity])
        return make_info(entity)

    async def list_queues(self, *, skip: int, top: int, prefix: str = "") -> list[QueueInfo]:
        """Return one page of the queues whose path starts with `prefix`, in order of path."""
        queues = {key: entity for key, entity in self._namespace.entities.items() if isinstance(entity, Queue)}
        page = _page(queues, prefix, skip, top)
        await self.refresh(page)
        return [make_queue_info(entity) for entity in page]

    async def list_topics(self, *, skip: int, top: int, prefix: str = "") -> list[TopicInfo]:
        """Return one page of the topics whose path starts with `prefix`, in order of path."""
        topics = {key: entity for key, entity in self._namespace.entities.items() if isinstance(entity, Topic)}
        page = _page(topics, prefix, skip, top)
        await self.refresh(page)
        return [make_topic_info(entity) for entity in page]

    async def list_subscriptions(self, topic: str, *, skip: int, top: int, prefix: str = "") -> list[SubscriptionInfo]:
        """Return one page of a topic's subscriptions whose name starts with `prefix`, in order of name."""
        subscriptions: Mapping[str, Subscription] = self._find_topic(topic).subscriptions
        page = _page(subscriptions, prefix, skip, top)
        await self.refresh(page)
        return [make_subscription_info(subscription) for subscription in page]

    async def get_rule(self, subscription: str, name: str) -> RuleDescription:
        """Return a rule of a subscription by name. Raise EntityNotFound if there is none."""
        entity = self._find_subscription(subscription)
        rule = entity.rules.get(paths.canonical_key(name))
        if rule is None:
            raise EntityNotFound(f"{entity.path}/Rules/{name}")
        return rule.description

    async def list_rules(self, subscription: str, *, skip: int, top: int) -> list[RuleDescription]:
        """Return up to `top` rules of a subscription, in order of creation, after skipping `skip`."""
        rules = self._find_subscription(subscription).rules.values()
        return [rule.description for rule in rules][skip : skip + top]

    def health(self) -> dict[str, object]:
        """Return the health of each store and of the namespace; `reason` says why a store is degraded."""
        stores = [journal.health() for journal in self._namespace.stores]
        by_reason: dict[object, list[str]] = {}
        for store in stores:
            if "reason" in store:
                by_reason.setdefault(store["reason"], []).append(str(store["name"]))
        if not by_reason:
            return {"status": "ok", "stores": stores}
        reasons = [f"store {', '.join(names)}: {reason}" for reason, names in by_reason.items()]
        return {"status": "degraded", "reason": "; ".join(reasons), "stores": stores}

    # --- inside -------------------------------------------------------------------------------------------------------

    def _find_topic(self, path: str) -> Topic:
        topic = self._namespace.find(path)
        if not isinstance(topic, Topic):
            raise EntityNotFound(path)
        return topic

    def _find_subscription(self, path: str) -> Subscription:
        subscription = self._namespace.find(path)
        if not isinstance(subscription, Subscription):
            raise EntityNotFound(path)
        return subscription

    def _start_task(self, coroutine: Coroutine[None, None, None]) -> None:
        """Run a coroutine in the background, so that a store that hangs does not block the caller."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def entity_kind(entity: Queue | Topic | Subscription) -> str:
    """Return "queue", "topic" or "subscription"."""
    return type(entity).__name__.lower()


async def _load_entity(entity: Queue | Topic | Subscription) -> None:
    loaded: asyncio.Future[ServiceBusError | None] = asyncio.get_running_loop().create_future()
    entity.load(loaded.set_result)
    error = await loaded
    if error is not None:
        raise error


def _set_result(future: asyncio.Future[ServiceBusError | None], error: ServiceBusError | None) -> None:
    """Set the result, unless the future was cancelled because the server is stopping."""
    if not future.done():
        future.set_result(error)


def _page(items: Mapping[str, T], prefix: str, skip: int, top: int) -> list[T]:
    """Return up to `top` items whose key starts with `prefix`, in order of key, after skipping `skip`."""
    start = paths.canonical_key(prefix)
    return [items[key] for key in sorted(key for key in items if key.startswith(start))[skip : skip + top]]
