"""The entities of a broker, as the catalogue has them.

Owns: that what stands in the catalogue is in the broker, changed when that is changed; and the answers to those who
only look. Whether a change is allowed, and who asks for it, is not known here.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from twinbus.broker.namespace import Queue, Subscription, Topic
from twinbus.model import path as paths
from twinbus.model.description import FOREVER_MS
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
"""Entities, in one turn of the loop, when all are loaded."""


class CatalogueReplica:
    """A namespace, to those who look at it. The rest of an `Administration` is added by whoever changes it."""

    def __init__(self, namespace: Namespace, name: str) -> None:
        """Empty."""
        self.namespace = name
        self.created_ms = 0
        self._namespace = namespace
        self._tasks: set[asyncio.Task[None]] = set()

    # --- as the catalogue says ----------------------------------------------------------------------------------------

    async def load(self, entities: Iterable[tuple[EntityRow, Iterable[RuleDescription]]]) -> None:
        """All that there is, and what its fragments hold; a topic comes before its subscriptions."""
        loaded = []
        for row, rules in entities:
            loaded.append(self._add_entity(row, rules))
            if not len(loaded) % MAX_LOADED_PER_TURN:
                await asyncio.sleep(0)  # of ten thousand that takes its time, and who waits is to hear that this lives
        await asyncio.gather(*[_load_entity(entity) for entity in loaded])
        for entity in loaded:
            entity.resume()

    def apply(self, change: Change) -> None:
        """Do what was done in the catalogue."""
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

    # --- what is deleted ----------------------------------------------------------------------------------------------

    async def clean_up(self, deleted: CleanupRow, stores: Iterable[int]) -> bool:
        """Remove a deleted entity's records from these stores. Where one does not work now, the next start does it."""
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
                log.warning("the records of a deleted entity stay until the next start: %s", error)
                return False
        return True

    def idle_seconds(self) -> dict[int, float]:
        """For how many seconds nobody used each entity here that is to be deleted when nobody does, by their ids."""
        now_s, found = self._namespace.clock.monotonic_s(), {}
        for entity in self._namespace.entities.values():
            if entity.description.auto_delete_on_idle_ms >= FOREVER_MS or entity.is_in_use:
                entity.last_used_s = now_s
            if entity.description.auto_delete_on_idle_ms < FOREVER_MS:
                found[entity.entity_id] = now_s - entity.last_used_s
        return found

    # --- looking ------------------------------------------------------------------------------------------------------

    async def refresh(self, entities: Sequence[Queue | Topic | Subscription]) -> None:
        """These are about to be shown: make sure that what is known of them is so."""

    async def get(self, path: str) -> EntityInfo:
        """The entity of that path."""
        entity = self._namespace.find(path)
        await self.refresh([entity])
        return make_info(entity)

    async def list_queues(self, *, skip: int, top: int, prefix: str = "") -> list[QueueInfo]:
        """Some queues, in the order of their paths."""
        queues = {key: one for key, one in self._namespace.entities.items() if isinstance(one, Queue)}
        found = _page(queues, prefix, skip, top)
        await self.refresh(found)
        return [make_queue_info(one) for one in found]

    async def list_topics(self, *, skip: int, top: int, prefix: str = "") -> list[TopicInfo]:
        """Some topics, in the order of their paths."""
        topics = {key: one for key, one in self._namespace.entities.items() if isinstance(one, Topic)}
        found = _page(topics, prefix, skip, top)
        await self.refresh(found)
        return [make_topic_info(one) for one in found]

    async def list_subscriptions(self, topic: str, *, skip: int, top: int, prefix: str = "") -> list[SubscriptionInfo]:
        """Some subscriptions of a topic, in the order of their names."""
        subscriptions: Mapping[str, Subscription] = self._find_topic(topic).subscriptions
        found = _page(subscriptions, prefix, skip, top)
        await self.refresh(found)
        return [make_subscription_info(one) for one in found]

    async def get_rule(self, subscription: str, name: str) -> RuleDescription:
        """A rule."""
        found = self._find_subscription(subscription)
        rule = found.rules.get(paths.canonical_key(name))
        if rule is None:
            raise EntityNotFound(f"{found.path}/Rules/{name}")
        return rule.description

    async def list_rules(self, subscription: str, *, skip: int, top: int) -> list[RuleDescription]:
        """Some rules, in the order of their making."""
        rules = self._find_subscription(subscription).rules.values()
        return [rule.description for rule in rules][skip : skip + top]

    def health(self) -> dict[str, object]:
        """Which stores work, and which of them take messages; `reason` says why one does not."""
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
        """Do something beside all else: a store that hangs must not keep administrators waiting."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def entity_kind(entity: Queue | Topic | Subscription) -> str:
    """Queue, topic or subscription."""
    return type(entity).__name__.lower()


async def _load_entity(entity: Queue | Topic | Subscription) -> None:
    loaded: asyncio.Future[ServiceBusError | None] = asyncio.get_running_loop().create_future()
    entity.load(loaded.set_result)
    error = await loaded
    if error is not None:
        raise error


def _set_result(future: asyncio.Future[ServiceBusError | None], error: ServiceBusError | None) -> None:
    """Whoever waited may have been cancelled: the server stops."""
    if not future.done():
        future.set_result(error)


def _page(items: Mapping[str, T], prefix: str, skip: int, top: int) -> list[T]:
    """Some of those whose keys start so, in the order of their keys."""
    start = paths.canonical_key(prefix)
    return [items[key] for key in sorted(key for key in items if key.startswith(start))[skip : skip + top]]
