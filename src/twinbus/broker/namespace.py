"""A namespace: its entities by path, and the stores that hold them.

Owns: the entities in memory, and the stores that hold their fragments. Names and descriptions of entities are stored in
the catalogue, whose owner calls `add_...`, `update_...` and `remove`; this module must not know the catalogue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.clock import TimeServices
from twinbus.broker.commit_log import CommitLog
from twinbus.broker.entities.entity_cleanup import delete_entity_records
from twinbus.broker.entities.local_parts import TopicPart
from twinbus.broker.entities.part_factory import LocalPartFactory
from twinbus.broker.entities.queue import Queue
from twinbus.broker.entities.subscription import Subscription
from twinbus.broker.entities.topic import Topic
from twinbus.broker.entities.transaction import Transaction
from twinbus.broker.fragment.locks import TokenSource
from twinbus.broker.intake.message_intake import MessageIntake
from twinbus.broker.ports.outage import Outages
from twinbus.broker.ports.read_limiter import ReadLimiter
from twinbus.broker.remote.part import RemotePartFactory
from twinbus.broker.remote.peer_client import RemoteStore
from twinbus.broker.work_budget import UNITS_PER_TURN, WorkBudget
from twinbus.model.callbacks import ignore
from twinbus.model.errors import EntityDeleted, EntityNotFound, NotAllowed
from twinbus.model.limits import NamespaceLimits
from twinbus.model.path import canonical_key, split_subscription

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from twinbus.broker.clock import Clock
    from twinbus.broker.entities.part_factory import PartFactory
    from twinbus.broker.ports.callbacks import OnDone
    from twinbus.broker.remote.peer_client import PeerClient
    from twinbus.model.queue import QueueDescription
    from twinbus.model.topic import SubscriptionDescription, TopicDescription
    from twinbus.store.protocol import Store

__all__ = ["Namespace", "Queue", "Subscription", "Topic", "Transaction"]
MAX_CONCURRENT_SEARCHES = 4
_ID_BITS = 128
_FIRST_FRAGMENT_BITS = 16


class Namespace:
    """The entities of one broker."""

    def __init__(
        self,
        *,
        clock: Clock,
        random: Random,
        call_at_turn_end: Callable[[Callable[[], None]], object],
        on_failed: Callable[[CommitLog], None],
        limits: NamespaceLimits | None = None,
        store_timeout_s: float = 10.0,
        work_units: int = UNITS_PER_TURN,
    ) -> None:
        """Create a namespace without stores and entities.

        `call_at_turn_end` schedules a call for the end of a turn. `on_failed` is called with the commit log of a failed
        store, and must reopen the store. `work_units` limits the evaluation of rules in one turn (`work_budget`).
        """
        self.limits = limits or NamespaceLimits()
        self.clock = clock
        self._time_services = TimeServices(clock)
        self.timers = self._time_services.timers
        self.stores: list[CommitLog | RemoteStore] = []
        self._part_factories: list[PartFactory] = []
        self.entities: dict[str, Queue | Topic | Subscription] = {}
        """The entities, by the canonical keys of their paths."""
        self.on_forwarded: Callable[[str, int], None] = lambda _path, _count: None
        """The callback for forwarded messages, called with the path of their entity and their number."""
        self.read_limiter = ReadLimiter()
        """The limit on concurrent reads by browsers in this process."""
        self.on_entity_changed: Callable[[str], None] = ignore
        """The callback for an added, updated or removed entity, called with the canonical key of its path."""
        self.outages = Outages(clock, self.timers, self.entities)
        self.intake = MessageIntake(self.limits, lambda: f"{random.getrandbits(_ID_BITS):032x}")
        self._random = random
        self._token_source = TokenSource(random)
        self._call_at_turn_end = call_at_turn_end
        self.work_budget = WorkBudget(call_at_turn_end, work_units)
        """The work budget of this process, for the evaluation of rules and filters."""
        self.search_limiter = ReadLimiter(MAX_CONCURRENT_SEARCHES)
        """The limit on concurrent searches in this process."""
        self._on_failed = on_failed
        self._store_timeout_s = store_timeout_s

    def add_store(self, store: Store) -> CommitLog:
        """Add a store of this process and return its commit log; stores are numbered in the order they are added."""
        commit_log = CommitLog(
            store,
            clock=self.clock,
            timers=self.timers,
            call_at_turn_end=self._call_at_turn_end,
            timeout_s=self._store_timeout_s,
            max_pending_bytes=self.limits.max_pending_bytes,
            on_failed=self._on_failed,
        )
        self.stores.append(commit_log)
        self._part_factories.append(
            LocalPartFactory(
                commit_log,
                time_services=self._time_services,
                token_source=self._token_source,
                limits=self.limits,
                work_budget=self.work_budget,
                find_destination=self.find_sendable,
                on_forwarded=self._on_forwarded,
            )
        )
        return commit_log

    def add_remote_store(self, name: str, owner: PeerClient) -> RemoteStore:
        """Add a store that another process owns, under the next number; its fragments are reached through `owner`."""
        store = RemoteStore(name, len(self.stores), owner, max_pending_bytes=self.limits.max_pending_bytes)
        self.stores.append(store)
        self._part_factories.append(RemotePartFactory(store, self._time_services))
        return store

    def commit_log(self, store: int) -> CommitLog:
        """Return the commit log of a store of this process."""
        commit_log = self.stores[store]
        assert isinstance(commit_log, CommitLog)
        return commit_log

    # --- finding ------------------------------------------------------------------------------------------------------

    def find(self, path: str) -> Queue | Topic | Subscription:
        """Return the entity at a path, ignoring case, or raise EntityNotFound."""
        entity = self.entities.get(canonical_key(path))
        if entity is None:
            raise EntityNotFound(path)
        return entity

    def find_sendable(self, path: str) -> Queue | Topic:
        """Return the queue or topic at a path. Raises EntityNotFound, and NotAllowed for a subscription."""
        entity = self.find(path)
        if isinstance(entity, Subscription):
            raise NotAllowed(f"nothing can be sent to '{entity.path}': a subscription is filled by its topic")
        return entity

    def find_receivable(self, path: str) -> Queue | Subscription:
        """Return the queue or subscription at a path. Raises EntityNotFound, and NotAllowed for a topic."""
        entity = self.find(path)
        if isinstance(entity, Topic):
            raise NotAllowed(
                f"nothing can be received from the topic '{entity.path}': receive from a subscription of it"
            )
        return entity

    # --- queues -------------------------------------------------------------------------------------------------------

    def add_queue(
        self,
        entity_id: int,
        path: str,
        description: QueueDescription,
        stores: Sequence[int],
        *,
        created_ms: int,
        updated_ms: int,
    ) -> Queue:
        """Add a queue with a fragment in each of these stores; load a queue that may hold messages before using it."""
        queue = Queue(
            entity_id,
            path,
            description,
            round_robin_start=self._first_fragment_of(description),
            created_ms=created_ms,
            updated_ms=updated_ms,
        )
        for number, store in enumerate(stores):
            queue.parts.append(self._part_factories[store].make_queue_part(queue, number))
            queue.parts[-1].store = store
        queue.apply_description(description, self.limits)
        self._add(queue)
        return queue

    def update_queue(self, path: str, description: QueueDescription, *, updated_ms: int) -> Queue:
        """Change the description of a queue; existing locks keep their expiry."""
        queue = self.find(path)
        assert isinstance(queue, Queue)
        queue.updated_ms = updated_ms
        queue.apply_description(description, self.limits)
        self.on_entity_changed(canonical_key(path))
        return queue

    # --- topics and subscriptions -------------------------------------------------------------------------------------

    def add_topic(
        self,
        entity_id: int,
        path: str,
        description: TopicDescription,
        stores: Sequence[int],
        *,
        created_ms: int,
        updated_ms: int,
    ) -> Topic:
        """Add a topic with a fragment in each of these stores, without subscriptions."""
        topic = Topic(
            entity_id,
            path,
            description,
            stores,
            round_robin_start=self._first_fragment_of(description),
            created_ms=created_ms,
            updated_ms=updated_ms,
        )
        for number, store in enumerate(stores):
            topic.parts.append(self._part_factories[store].make_topic_part(topic, number))
            topic.parts[-1].store = store
        topic.apply_description(description, self.limits)
        self._add(topic)
        return topic

    def update_topic(self, path: str, description: TopicDescription, *, updated_ms: int) -> Topic:
        """Change the description of a topic."""
        topic = self.find(path)
        assert isinstance(topic, Topic)
        topic.updated_ms = updated_ms
        topic.apply_description(description, self.limits)
        self.on_entity_changed(canonical_key(path))
        return topic

    def add_subscription(
        self, entity_id: int, path: str, description: SubscriptionDescription, *, created_ms: int, updated_ms: int
    ) -> Subscription:
        """Add a subscription without rules; until a rule is added, the subscription gets no messages.

        The fragments of the subscription are in the same stores as the topic's fragments, so that all copies of a
        message are written in one batch.
        """
        topic_path, name = split_subscription(path)
        topic = self.find(topic_path)
        assert isinstance(topic, Topic)
        subscription = Subscription(entity_id, path, description, topic, created_ms=created_ms, updated_ms=updated_ms)
        for store, topic_part in zip(topic.stores, topic.parts, strict=True):
            factory = self._part_factories[store]
            subscription.parts.append(factory.make_subscription_part(subscription, topic_part, canonical_key(name)))
            subscription.parts[-1].store = store
        topic.subscriptions[canonical_key(name)] = subscription
        subscription.apply_description(description, self.limits)
        self._add(subscription)
        return subscription

    def update_subscription(self, path: str, description: SubscriptionDescription, *, updated_ms: int) -> Subscription:
        """Change the description of a subscription."""
        subscription = self.find(path)
        assert isinstance(subscription, Subscription)
        subscription.updated_ms = updated_ms
        subscription.apply_description(description, self.limits)
        self.on_entity_changed(canonical_key(path))
        return subscription

    # --- all entities -------------------------------------------------------------------------------------------------

    def remove(self, path: str) -> None:
        """Remove a deleted entity (a topic with its subscriptions) and detach its links."""
        key = canonical_key(path)
        entity = self.entities.pop(key)
        error = EntityDeleted(f"The messaging entity '{entity.path}' could not be found: it was deleted.")
        if isinstance(entity, Topic):
            for subscription in list(entity.subscriptions.values()):
                self.remove(subscription.path)
        elif isinstance(entity, Subscription):
            entity.detach_from_topic()
        entity.close(error)
        self.on_entity_changed(key)

    def _add(self, entity: Queue | Topic | Subscription) -> None:
        entity.last_used_s = self.clock.monotonic_s()
        key = canonical_key(entity.path)
        self.entities[key] = entity
        self.outages.apply_to(entity)
        self.on_entity_changed(key)

    def _on_forwarded(self, path: str, count: int) -> None:
        self.on_forwarded(path, count)

    def delete_entity_records(self, entity_id: int, store: int, on_done: OnDone, topic_id: int | None = None) -> None:
        """Remove all records of a deleted entity from a store; a subscription needs the `topic_id` of its topic."""
        topics = [entity for entity in self.entities.values() if isinstance(entity, Topic)]
        topic = next((topic for topic in topics if topic.entity_id == topic_id), None)
        commit_log = self.commit_log(store)
        shared_bodies = [
            (part.number, part.main.shared_bodies)
            for part in (topic.parts if topic is not None else ())
            if isinstance(part, TopicPart) and part.main.commit_log is commit_log
        ]
        delete_entity_records(commit_log, entity_id, shared_bodies, on_done)

    def _first_fragment_of(self, description: QueueDescription | TopicDescription) -> int:
        """Return the fragment that gets the first message without a key: a random one in a partitioned entity."""
        return self._random.getrandbits(_FIRST_FRAGMENT_BITS) if description.enable_partitioning else 0

    def begin_transaction(self) -> Transaction:
        """Begin a transaction; its first operation binds it to a part of an entity."""
        return Transaction(self.intake)

    def make_token(self) -> bytes:
        """Return a random token of 16 bytes."""
        return self._random.getrandbits(_ID_BITS).to_bytes(16, "big")
