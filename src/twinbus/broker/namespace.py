"""A namespace: its entities by path, over some stores.

Owns: which entities there are, and where each lies. What an entity is called and described as is kept elsewhere (in the
catalogue); this is told of it.
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
        """`defer` makes a call at the end of a turn; `on_failed` reopens the store of a journal.

        `work_units` is how much of the rules of topics is evaluated in one turn (`work`).
        """
        self.limits = limits or NamespaceLimits()
        self.clock = clock
        self._time_services = TimeServices(clock)
        self.timers = self._time_services.timers
        self.stores: list[CommitLog | RemoteStore] = []
        self._part_factories: list[PartFactory] = []
        self.entities: dict[str, Queue | Topic | Subscription] = {}
        """By the keys of their paths."""
        self.on_forwarded: Callable[[str, int], None] = lambda _path, _count: None
        """Hears how many messages of an entity were forwarded, by itself."""
        self.read_limiter = ReadLimiter()
        """Of the browsers in this process."""
        self.on_entity_changed: Callable[[str], None] = ignore
        """Called with the key of an entity's path after the entity was added, described anew or removed."""
        self.outages = Outages(clock, self.timers, self.entities)
        self.intake = MessageIntake(self.limits, lambda: f"{random.getrandbits(_ID_BITS):032x}")
        self._random = random
        self._token_source = TokenSource(random)
        self._call_at_turn_end = call_at_turn_end
        self._work_budget = WorkBudget(call_at_turn_end, work_units)
        self._on_failed = on_failed
        self._store_timeout_s = store_timeout_s

    def add_store(self, store: Store) -> CommitLog:
        """Stores are known by the order in which they are added."""
        journal = CommitLog(
            store,
            clock=self.clock,
            timers=self.timers,
            call_at_turn_end=self._call_at_turn_end,
            timeout_s=self._store_timeout_s,
            max_pending_bytes=self.limits.max_pending_bytes,
            on_failed=self._on_failed,
        )
        self.stores.append(journal)
        self._part_factories.append(
            LocalPartFactory(
                journal,
                time_services=self._time_services,
                token_source=self._token_source,
                limits=self.limits,
                work_budget=self._work_budget,
                find_destination=self.find_sendable,
                on_forwarded=self._on_forwarded,
            )
        )
        return journal

    def add_remote_store(self, name: str, owner: PeerClient) -> RemoteStore:
        """A store that another process has, at its place among all: fragments in it are asked for there."""
        store = RemoteStore(name, len(self.stores), owner, max_pending_bytes=self.limits.max_pending_bytes)
        self.stores.append(store)
        self._part_factories.append(RemotePartFactory(store, self._time_services))
        return store

    def commit_log(self, store: int) -> CommitLog:
        """Return the journal of a store of this process."""
        journal = self.stores[store]
        assert isinstance(journal, CommitLog)
        return journal

    # --- finding ------------------------------------------------------------------------------------------------------

    def find(self, path: str) -> Queue | Topic | Subscription:
        """Return the entity of a path, in any spelling. EntityNotFound."""
        entity = self.entities.get(canonical_key(path))
        if entity is None:
            raise EntityNotFound(path)
        return entity

    def find_sendable(self, path: str) -> Queue | Topic:
        """Return the queue or topic of a path. EntityNotFound, NotAllowed."""
        entity = self.find(path)
        if isinstance(entity, Subscription):
            raise NotAllowed(f"nothing can be sent to '{entity.path}': a subscription is filled by its topic")
        return entity

    def find_receivable(self, path: str) -> Queue | Subscription:
        """Return the queue or subscription of a path. EntityNotFound, NotAllowed."""
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
        """Add a queue with a fragment in each of these stores; a queue that may hold messages is loaded before use."""
        queue = Queue(
            entity_id,
            path,
            description,
            first_fragment=self._first_fragment_of(description),
            created_ms=created_ms,
            updated_ms=updated_ms,
        )
        for number, store in enumerate(stores):
            queue.parts.append(self._part_factories[store].make_queue_part(queue, number))
        queue.apply_description(description, self.limits)
        self._add(queue)
        return queue

    def update_queue(self, path: str, description: QueueDescription, *, updated_ms: int) -> Queue:
        """Change the description of a queue; existing locks keep their time."""
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
            first_fragment=self._first_fragment_of(description),
            created_ms=created_ms,
            updated_ms=updated_ms,
        )
        for number, store in enumerate(stores):
            topic.parts.append(self._part_factories[store].make_topic_part(topic, number))
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
        """Add a subscription without rules: it gets no messages before it has one.

        Its fragments lie in the stores of the topic's, so that the copies of a message are one batch.
        """
        topic_path, name = split_subscription(path)
        topic = self.find(topic_path)
        assert isinstance(topic, Topic)
        subscription = Subscription(entity_id, path, description, topic, created_ms=created_ms, updated_ms=updated_ms)
        for store, topic_part in zip(topic.stores, topic.parts, strict=True):
            factory = self._part_factories[store]
            subscription.parts.append(factory.make_subscription_part(subscription, topic_part, canonical_key(name)))
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

    # --- all of them --------------------------------------------------------------------------------------------------

    def remove(self, path: str) -> None:
        """Remove a deleted entity, a topic with its subscriptions, and notify its users."""
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
        """Remove all records of a deleted entity from a store; `topic_id` is that of a subscription's topic."""
        topics = [entity for entity in self.entities.values() if isinstance(entity, Topic)]
        topic = next((topic for topic in topics if topic.entity_id == topic_id), None)
        journal = self.commit_log(store)
        bodies = [
            (part.number, part.main.shared_bodies)
            for part in (topic.parts if topic is not None else ())
            if isinstance(part, TopicPart) and part.main.commit_log is journal
        ]
        delete_entity_records(journal, entity_id, bodies, on_done)

    def _first_fragment_of(self, description: QueueDescription | TopicDescription) -> int:
        """Return where messages without a key begin to be spread: at another part for each entity, at each start."""
        return self._random.getrandbits(_FIRST_FRAGMENT_BITS) if description.enable_partitioning else 0

    def begin_transaction(self) -> Transaction:
        """Begin a transaction, which is bound to a part of an entity by its first operation."""
        return Transaction(self.intake)

    def make_token(self) -> bytes:
        """Return sixteen bytes that nobody can guess."""
        return self._random.getrandbits(_ID_BITS).to_bytes(16, "big")
