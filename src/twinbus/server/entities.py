"""The entities of a namespace: made, changed and deleted, in the catalogue first and then in the broker.

Owns: that both agree, also after a power cut between them. A deleted entity's records are removed after it is gone from
the catalogue; what a stop left behind is removed at the next start.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from twinbus.broker.filters.rule import compile_rule
from twinbus.broker.kinds import AnyEntity, AnyQueue, AnySubscription, AnyTopic
from twinbus.broker.partitioned.entity import Partitioned
from twinbus.broker.partitioned.queue import PartitionedQueue
from twinbus.broker.partitioned.topic import PartitionedTopic
from twinbus.model import path as paths
from twinbus.model.description import FOREVER_MS, FRAGMENTS, shown_size_mb
from twinbus.model.errors import (
    EntityAlreadyExists,
    EntityNotFound,
    InvalidArgument,
    QuotaExceeded,
    StoreUnavailable,
)
from twinbus.model.info import QueueInfo, SubscriptionInfo, TopicInfo
from twinbus.model.queue import QueueDescription
from twinbus.model.rule import DEFAULT_RULE, CorrelationFilter, RuleDescription, SqlFilter
from twinbus.model.topic import SubscriptionDescription, TopicDescription
from twinbus.store.catalogue import QUEUE, SUBSCRIPTION, TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from twinbus.broker.clock import Timer
    from twinbus.broker.namespace import Namespace
    from twinbus.model.errors import ServiceBusError
    from twinbus.model.info import Description, EntityInfo
    from twinbus.store.catalogue import Catalogue, DoomedRow, EntityRow

log: Final = logging.getLogger(__name__)

T = TypeVar("T")
FIXED: Final = {
    "enable_partitioning": "EnablePartitioning",
    "requires_session": "RequiresSession",
    "requires_duplicate_detection": "RequiresDuplicateDetection",
}
"""What is set when an entity is created, and never after."""
IDLE_LOOK_S: Final = 15.0
"""How often entities are looked at that delete themselves when nobody uses them."""


class Entities:
    """A namespace, to those who manage it."""

    def __init__(self, namespace: Namespace, name: str, *, stores: int) -> None:
        """New entities are spread over the first `stores` stores."""
        self.namespace = name
        self.created_ms = 0
        self._namespace = namespace
        self._stores = stores
        self._catalogue: Catalogue
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="catalogue")
        """SQLite waits for the disk, so it does so here; and one change comes after the other."""
        self._turn = asyncio.Lock()
        self._burials: set[asyncio.Task[None]] = set()
        self._idle_look: Timer | None = None

    async def open(self, open_catalogue: Callable[[], Catalogue]) -> None:
        """Read the catalogue, and load what each entity's fragments hold."""
        self._catalogue = await self._call(open_catalogue)
        rows = await self._call(self._catalogue.all)
        _check_stores(rows, len(self._namespace.journals))
        self.created_ms = min((row.created_ms for row in rows), default=self._namespace.clock.wall_ms())
        by_id = {row.id: self._add(row) for row in rows}  # in the order of their making: a topic comes first
        for rule in await self._call(self._catalogue.rules):
            subscription = by_id[rule.entity_id]
            assert isinstance(subscription, AnySubscription)
            subscription.put_rule(rule.description)
        await asyncio.gather(*[self._load(entity) for entity in by_id.values()])
        for entity in by_id.values():
            entity.settled_down()
        for doomed in await self._call(self._catalogue.doomed):
            self._start(self._bury(doomed))
        self._look_for_idle()

    async def close(self) -> None:
        """Finish what is being changed, and let go of the file. What is still to be buried is so at the next start."""
        if self._idle_look is not None:
            self._idle_look.cancel()
        for burial in self._burials:
            burial.cancel()
        async with self._turn:
            await self._call(self._catalogue.close)
        self._thread.shutdown()

    # --- making -------------------------------------------------------------------------------------------------------

    async def create_queue(self, path: str, description: QueueDescription) -> QueueInfo:
        """Make a queue."""
        queue = await self._create(QUEUE, paths.check_name(path), description)
        assert isinstance(queue, AnyQueue)
        return _queue_info(queue)

    async def create_topic(self, path: str, description: TopicDescription) -> TopicInfo:
        """Make a topic."""
        topic = await self._create(TOPIC, paths.check_name(path), description)
        assert isinstance(topic, AnyTopic)
        return _topic_info(topic)

    async def create_subscription(
        self, topic: str, name: str, description: SubscriptionDescription, rule: RuleDescription | None = None
    ) -> SubscriptionInfo:
        """Make a subscription with one rule."""
        rule = rule or RuleDescription(name=DEFAULT_RULE)
        rule = msgspec.structs.replace(rule, created_ms=self._namespace.clock.wall_ms())
        compile_rule(rule)
        path = paths.subscription_path(self._topic(topic).path, paths.check_subscription_name(name))
        subscription = await self._create(SUBSCRIPTION, path, description, [rule])
        assert isinstance(subscription, AnySubscription)
        return _subscription_info(subscription)

    async def _create(
        self, kind: str, path: str, description: Description, rules: Sequence[RuleDescription] = ()
    ) -> AnyEntity:
        async with self._turn:
            self._check_room(path, description)
            stores = self._choose_stores(path, description)
            self._check_targets(path, description)
            now_ms = self._namespace.clock.wall_ms()
            row = await self._call(self._catalogue.create, kind, path, description, stores, now_ms, rules)
            entity = self._add(row)
            for rule in rules:
                assert isinstance(entity, AnySubscription)
                entity.put_rule(rule)
        log.info("%s created", kind, extra={"path": path, "stores": stores})
        return entity

    def _check_room(self, path: str, description: Description) -> None:
        if paths.key_of(path) in self._namespace.entities:
            raise EntityAlreadyExists(f"The messaging entity '{path}' already exists.")
        most = self._namespace.limits.max_entities
        if len(self._namespace.entities) >= most:
            raise QuotaExceeded(f"the namespace has {most} entities, its limit: delete one first")
        if getattr(description, "enable_partitioning", False):
            most = self._namespace.limits.max_partitioned
            kinds = (PartitionedQueue, PartitionedTopic)
            if sum(isinstance(entity, kinds) for entity in self._namespace.entities.values()) >= most:
                raise QuotaExceeded(f"the namespace has {most} partitioned entities, its limit: delete one first")

    def _check_targets(self, path: str, description: Description) -> None:
        """What messages are forwarded to has to be there, and to be something that they can be sent to."""
        for name, field in (("ForwardTo", "forward_to"), ("ForwardDeadLetteredMessagesTo", "forward_dead_lettered_to")):
            target = getattr(description, field, None)
            if target is None:
                continue
            try:
                found = self._namespace.find_sendable(target)
            except EntityNotFound as error:
                raise InvalidArgument(f"{name} of '{path}' is '{target}': {error}") from None
            if paths.key_of(found.path) == paths.key_of(path) and field == "forward_to":
                raise InvalidArgument(f"{name} of '{path}' is '{target}', the entity itself")

    def _add(self, row: EntityRow) -> AnyEntity:
        """To the broker, what is in the catalogue."""
        times = {"created_ms": row.created_ms, "updated_ms": row.updated_ms}
        namespace, description, stores = self._namespace, row.description, row.fragments
        is_plain = len(stores) == 1
        if isinstance(description, QueueDescription):
            if is_plain:
                return namespace.add_queue(row.id, row.path, description, stores[0], **times)
            return namespace.add_partitioned_queue(row.id, row.path, description, stores, **times)
        if isinstance(description, TopicDescription):
            if is_plain:
                return namespace.add_topic(row.id, row.path, description, stores[0], **times)
            return namespace.add_partitioned_topic(row.id, row.path, description, stores, **times)
        add = namespace.add_subscription if is_plain else namespace.add_partitioned_subscription
        return add(row.id, row.path, description, **times)

    # --- finding ------------------------------------------------------------------------------------------------------

    async def get(self, path: str) -> EntityInfo:
        """The entity of that path."""
        return _info(self._namespace.find(path))

    async def list_queues(self, *, skip: int, top: int, prefix: str = "") -> list[QueueInfo]:
        """Some queues, in the order of their paths."""
        queues = {key: one for key, one in self._namespace.entities.items() if isinstance(one, AnyQueue)}
        return [_queue_info(one) for one in _listed(queues, prefix, skip, top)]

    async def list_topics(self, *, skip: int, top: int, prefix: str = "") -> list[TopicInfo]:
        """Some topics, in the order of their paths."""
        topics = {key: one for key, one in self._namespace.entities.items() if isinstance(one, AnyTopic)}
        return [_topic_info(one) for one in _listed(topics, prefix, skip, top)]

    async def list_subscriptions(self, topic: str, *, skip: int, top: int, prefix: str = "") -> list[SubscriptionInfo]:
        """Some subscriptions of a topic, in the order of their names."""
        found: Mapping[str, AnySubscription] = self._topic(topic).subscriptions
        return [_subscription_info(one) for one in _listed(found, prefix, skip, top)]

    def _topic(self, path: str) -> AnyTopic:
        topic = self._namespace.find(path)
        if not isinstance(topic, AnyTopic):
            raise EntityNotFound(path)
        return topic

    def _subscription(self, path: str) -> AnySubscription:
        subscription = self._namespace.find(path)
        if not isinstance(subscription, AnySubscription):
            raise EntityNotFound(path)
        return subscription

    # --- changing -----------------------------------------------------------------------------------------------------

    async def update(self, path: str, description: Description) -> EntityInfo:
        """Describe an entity anew."""
        async with self._turn:
            entity = self._namespace.find(path)
            _check_works(entity)
            if type(entity.description) is not type(description):
                raise InvalidArgument(f"'{entity.path}' is a {_kind(entity)}, and stays one")
            for field, name in FIXED.items():
                if getattr(entity.description, field, None) != getattr(description, field, None):
                    raise InvalidArgument(f"{name} of '{entity.path}' cannot be changed: it is set at creation")
            self._check_targets(entity.path, description)
            now_ms = self._namespace.clock.wall_ms()
            await self._call(self._catalogue.update, paths.key_of(path), description, now_ms)
            if isinstance(description, QueueDescription):
                self._namespace.update_queue(path, description, updated_ms=now_ms)
            elif isinstance(description, TopicDescription):
                self._namespace.update_topic(path, description, updated_ms=now_ms)
            else:
                self._namespace.update_subscription(path, description, updated_ms=now_ms)
        return _info(entity)

    async def delete(self, path: str) -> None:
        """Delete an entity and all it holds."""
        async with self._turn:
            entity = self._namespace.find(path)
            _check_works(entity)
            keys, topic_id = [paths.key_of(entity.path)], None
            if isinstance(entity, AnyTopic):
                keys += [paths.key_of(one.path) for one in entity.subscriptions.values()]
            elif isinstance(entity, AnySubscription):
                topic_id = entity.topic.entity_id
            rows = await self._call(lambda: self._catalogue.delete(*keys, topic_id=topic_id))
            self._namespace.remove(entity.path)
        log.info("%s deleted", _kind(entity), extra={"path": entity.path})
        for row in rows:
            self._start(self._bury(row))  # a store that hangs must not keep administrators waiting

    # --- rules --------------------------------------------------------------------------------------------------------

    async def create_rule(self, subscription: str, rule: RuleDescription) -> RuleDescription:
        """Add a rule to a subscription."""
        rule = msgspec.structs.replace(rule, created_ms=self._namespace.clock.wall_ms())
        compile_rule(rule)
        async with self._turn:
            found = self._subscription(subscription)
            if paths.key_of(rule.name) in found.rules:
                raise EntityAlreadyExists(f"The rule '{rule.name}' of '{found.path}' already exists.")
            most = self._namespace.limits.max_rules
            if len(found.rules) >= most:
                raise QuotaExceeded(f"'{found.path}' has {most} rules, its limit: delete one first")
            await self._call(self._catalogue.add_rule, found.entity_id, rule)
            found.put_rule(rule)
        return rule

    async def get_rule(self, subscription: str, name: str) -> RuleDescription:
        """A rule."""
        return self._rule(self._subscription(subscription), name)

    async def list_rules(self, subscription: str, *, skip: int, top: int) -> list[RuleDescription]:
        """Some rules, in the order of their making."""
        rules = self._subscription(subscription).rules.values()
        return [rule.description for rule in rules][skip : skip + top]

    async def update_rule(self, subscription: str, rule: RuleDescription) -> RuleDescription:
        """Another rule takes the place of the one of the same name."""
        compile_rule(rule)
        async with self._turn:
            found = self._subscription(subscription)
            before = self._rule(found, rule.name)
            rule = msgspec.structs.replace(rule, name=before.name, created_ms=before.created_ms)
            await self._call(self._catalogue.update_rule, found.entity_id, rule)
            found.put_rule(rule)
        return rule

    async def delete_rule(self, subscription: str, name: str) -> None:
        """Delete a rule."""
        async with self._turn:
            found = self._subscription(subscription)
            self._rule(found, name)
            await self._call(self._catalogue.delete_rule, found.entity_id, name)
            found.remove_rule(name)

    def _rule(self, subscription: AnySubscription, name: str) -> RuleDescription:
        rule = subscription.rules.get(paths.key_of(name))
        if rule is None:
            raise EntityNotFound(f"{subscription.path}/Rules/{name}")
        return rule.description

    # --- health -------------------------------------------------------------------------------------------------------

    def health(self) -> dict[str, object]:
        """Which stores work."""
        stores = [
            {"name": journal.store.name, "is_available": journal.trouble is None}
            for journal in self._namespace.journals
        ]
        is_well = all(store["is_available"] for store in stores)
        return {"status": "ok" if is_well else "degraded", "stores": stores}

    # --- entities that nobody uses ------------------------------------------------------------------------------------

    def _look_for_idle(self) -> None:
        """Delete entities that were not used for as long as their descriptions say."""
        now_s = self._namespace.clock.monotonic_s()
        for entity in list(self._namespace.entities.values()):
            if entity.description.auto_delete_on_idle_ms >= FOREVER_MS or entity.is_in_use:
                entity.used_s = now_s
            elif now_s - entity.used_s >= entity.description.auto_delete_on_idle_ms / 1000:
                self._start(self._delete_idle(entity))
        self._idle_look = self._namespace.timers.call_at(now_s + IDLE_LOOK_S, self._look_for_idle)

    async def _delete_idle(self, entity: AnyEntity) -> None:
        idle_s = entity.description.auto_delete_on_idle_ms / 1000
        if self._namespace.entities.get(paths.key_of(entity.path)) is entity and not entity.is_in_use:
            with suppress(StoreUnavailable):  # then at a later look
                await self.delete(entity.path)
                log.info("%s was deleted: it was idle", _kind(entity), extra={"path": entity.path, "idle_s": idle_s})

    # --- inside -------------------------------------------------------------------------------------------------------

    def _choose_stores(self, path: str, description: Description) -> list[int]:
        """Where the fragments of a new entity are to lie: those of a subscription where its topic's do."""
        if isinstance(description, SubscriptionDescription):
            topic = self._topic(paths.split_subscription(path)[0])
            _check_works(topic)
            parts = topic.parts if isinstance(topic, PartitionedTopic) else [topic]
            return [self._namespace.journals.index(part.main.journal) for part in parts]
        if not description.enable_partitioning:
            return [self._choose_store()]
        for number, journal in enumerate(self._namespace.journals[: self._stores]):
            if journal.trouble is not None:
                raise StoreUnavailable(
                    f"store {number} does not work now, and a fragment of '{path}' would lie in it: try again later"
                )
        return [number % self._stores for number in range(FRAGMENTS)]

    def _choose_store(self) -> int:
        """Of the stores that work the one with the fewest entities; of those that are equal, the first."""
        journals = self._namespace.journals[: self._stores]
        working = [number for number, journal in enumerate(journals) if journal.trouble is None]
        if not working:
            raise StoreUnavailable("no store works now: nothing can be created")
        return min(working, key=lambda number: (len(journals[number].keepers), number))

    def _start(self, burial: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(burial)
        self._burials.add(task)
        task.add_done_callback(self._burials.discard)

    async def _load(self, entity: AnyEntity) -> None:
        loaded: asyncio.Future[ServiceBusError | None] = asyncio.get_running_loop().create_future()
        entity.load(loaded.set_result)
        error = await loaded
        if error is not None:
            raise error

    async def _bury(self, doomed: DoomedRow) -> None:
        """Remove an entity's records. Where a store does not work now, the next start does it."""
        for store in set(doomed.fragments):
            removed: asyncio.Future[ServiceBusError | None] = asyncio.get_running_loop().create_future()
            try:
                self._namespace.bury(doomed.id, store, partial(_tell, removed), doomed.topic_id)
                error = await removed
            except StoreUnavailable as unavailable:
                error = unavailable
            if error is not None:
                log.warning("the records of a deleted entity stay until the next start: %s", error)
                return
        await self._call(self._catalogue.buried, doomed.id)

    async def _call(self, call: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)


def _tell(future: asyncio.Future[ServiceBusError | None], error: ServiceBusError | None) -> None:
    """Whoever waited may have been cancelled: the server stops."""
    if not future.done():
        future.set_result(error)


def _check_works(entity: AnyEntity) -> None:
    """StoreUnavailable while a store of a partitioned entity does not work: nothing is done to a part of it."""
    if isinstance(entity, Partitioned):
        for part in entity.parts:
            journal = part.main.journal
            if journal.trouble is not None:
                raise StoreUnavailable(
                    f"store {journal.store.name} does not work now, and a fragment of '{entity.path}' lies in it: try "
                    "again later"
                )


def _check_stores(rows: Sequence[EntityRow], count: int) -> None:
    for row in rows:
        if max(row.fragments) >= count:
            raise StoreUnavailable(
                f"'{row.path}' lies in store {max(row.fragments)}, and there are {count}: was stores.json lost?"
            )


def _listed(found: Mapping[str, T], prefix: str, skip: int, top: int) -> list[T]:
    """Some of those whose keys start so, in the order of their keys."""
    start = paths.key_of(prefix)
    return [found[key] for key in sorted(key for key in found if key.startswith(start))[skip : skip + top]]


def _info(entity: AnyEntity) -> EntityInfo:
    if isinstance(entity, AnyQueue):
        return _queue_info(entity)
    return _topic_info(entity) if isinstance(entity, AnyTopic) else _subscription_info(entity)


def _kind(entity: AnyEntity) -> str:
    return type(entity).__name__.removeprefix("Partitioned").lower()


def _queue_info(queue: AnyQueue) -> QueueInfo:
    description = queue.description
    if isinstance(queue, PartitionedQueue):
        description = replace(description, max_size_mb=shown_size_mb(description.max_size_mb))
    return QueueInfo(path=queue.path, description=description, runtime=queue.runtime())


def _topic_info(topic: AnyTopic) -> TopicInfo:
    filters = [rule.description.filter for one in topic.subscriptions.values() for rule in one.rules.values()]
    correlations = sum(isinstance(one, CorrelationFilter) for one in filters)
    runtime = replace(
        topic.runtime(),
        sql_filter_count=sum(isinstance(one, SqlFilter) for one in filters),
        correlation_filter_count=correlations,
    )
    description = topic.description
    if isinstance(topic, PartitionedTopic):
        description = replace(description, max_size_mb=shown_size_mb(description.max_size_mb))
    return TopicInfo(path=topic.path, description=description, runtime=runtime)


def _subscription_info(subscription: AnySubscription) -> SubscriptionInfo:
    topic, name = paths.split_subscription(subscription.path)
    return SubscriptionInfo(
        path=subscription.path,
        topic=topic,
        name=name,
        description=subscription.description,
        runtime=subscription.runtime(),
    )
