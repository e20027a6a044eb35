"""A namespace: its entities by path, over some stores.

Owns: which entities there are, and where each lies. What an entity is called and described as is kept elsewhere (in the
catalogue); this is told of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.burial import bury
from twinbus.broker.clock import Times
from twinbus.broker.fan_out import TopicFragment
from twinbus.broker.fragment import Fragment
from twinbus.broker.intake import Intake
from twinbus.broker.journal import Journal
from twinbus.broker.keys import Area, area_prefix
from twinbus.broker.kinds import AnyEntity, AnyQueue, AnySource, AnySubscription, AnyTopic, Sendable
from twinbus.broker.locks import TokenSource
from twinbus.broker.outage import Outages
from twinbus.broker.partitioned.queue import PartitionedQueue
from twinbus.broker.partitioned.topic import PartitionedSubscription, PartitionedTopic
from twinbus.broker.queue import Queue
from twinbus.broker.reads import Reads
from twinbus.broker.receivable import policies
from twinbus.broker.remote.calls import SUB_QUEUES
from twinbus.broker.remote.fragment import RemoteFragment
from twinbus.broker.remote.journal import RemoteJournal
from twinbus.broker.remote.part import RemoteQueue, RemoteSubscription, RemoteTopic
from twinbus.broker.subscription import Subscription
from twinbus.broker.topic import Topic, topic_policy
from twinbus.broker.work import UNITS, WorkBudget
from twinbus.model.errors import EntityDeleted, EntityNotFound, NotAllowed
from twinbus.model.limits import NamespaceLimits
from twinbus.model.path import SubQueue, key_of, split_subscription

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from twinbus.broker.bodies import Bodies
    from twinbus.broker.clock import Clock
    from twinbus.broker.journal import Answered
    from twinbus.broker.remote.owner import Owner
    from twinbus.model.queue import QueueDescription
    from twinbus.model.topic import SubscriptionDescription, TopicDescription
    from twinbus.store.protocol import Store

_ID_BITS = 128
_START_BITS = 16
_SUB_QUEUES = {
    Area.MAIN: SubQueue.MAIN,
    Area.DEAD_LETTER: SubQueue.DEAD_LETTER,
    Area.TRANSFER_DEAD_LETTER: SubQueue.TRANSFER_DEAD_LETTER,
}
"""Those of an entity's areas that messages are received from."""


class _Rooms:
    """What an entity is made of, and how it gets more."""

    def __init__(
        self,
        main: Fragment,
        dead_letters: Fragment,
        make: Callable[[Area], Fragment],
        find: Callable[[str], Sendable],
        prefix: Callable[[Area], bytes],
        forwarded: Callable[[str, int], None],
    ) -> None:
        self.main = main
        self.dead_letters = dead_letters
        self.make = make
        self.find = find
        self.prefix = prefix
        self.forwarded = forwarded


class Namespace:
    """The entities of one broker."""

    def __init__(
        self,
        *,
        clock: Clock,
        random: Random,
        defer: Callable[[Callable[[], None]], object],
        on_failed: Callable[[Journal], None],
        limits: NamespaceLimits | None = None,
        store_timeout_s: float = 10.0,
        work_units: int = UNITS,
    ) -> None:
        """`defer` makes a call at the end of a turn; `on_failed` opens the store of a journal anew.

        `work_units` is how much of the rules of topics is evaluated in one turn (`work`).
        """
        self.limits = limits or NamespaceLimits()
        self.clock = clock
        self._times = Times(clock)
        self.timers = self._times.timers
        self.journals: list[Journal] = []
        self.entities: dict[str, AnyEntity] = {}
        """By the keys of their paths."""
        self.on_forwarded: Callable[[str, int], None] = lambda _path, _count: None
        """Hears how many messages of an entity were forwarded, by itself."""
        self.reads = Reads()
        """Of the browsers in this process."""
        self.on_described: Callable[[str], None] = lambda _key: None
        """Called with the key of an entity's path after the entity was added, described anew or removed."""
        self.outages = Outages(clock, self.timers, self.entities)
        self.intake = Intake(self.limits, lambda: f"{random.getrandbits(_ID_BITS):032x}")
        self._random = random
        self._tokens = TokenSource(random)
        self._defer = defer
        self._work = WorkBudget(defer, work_units)
        self._on_failed = on_failed
        self._store_timeout_s = store_timeout_s

    def add_store(self, store: Store) -> Journal:
        """Stores are known by the order in which they are added."""
        journal = Journal(
            store,
            clock=self.clock,
            timers=self.timers,
            defer=self._defer,
            timeout_s=self._store_timeout_s,
            max_pending_bytes=self.limits.max_pending_bytes,
            on_failed=self._on_failed,
        )
        self.journals.append(journal)
        return journal

    def add_remote_store(self, name: str, owner: Owner) -> Journal:
        """A store that another process has, at its place among all: fragments in it are asked for there."""
        journal = RemoteJournal(
            name,
            len(self.journals),
            owner,
            clock=self.clock,
            timers=self.timers,
            max_pending_bytes=self.limits.max_pending_bytes,
        )
        self.journals.append(journal)
        return journal

    # --- finding ------------------------------------------------------------------------------------------------------

    def find(self, path: str) -> AnyEntity:
        """The entity of that path, in any spelling. EntityNotFound."""
        entity = self.entities.get(key_of(path))
        if entity is None:
            raise EntityNotFound(path)
        return entity

    def find_sendable(self, path: str) -> Sendable:
        """What messages can be sent to. EntityNotFound, NotAllowed."""
        entity = self.find(path)
        if isinstance(entity, AnySubscription):
            raise NotAllowed(f"nothing can be sent to '{entity.path}': a subscription is filled by its topic")
        return entity

    def find_receivable(self, path: str) -> AnySource:
        """What messages can be received from. EntityNotFound, NotAllowed."""
        entity = self.find(path)
        if isinstance(entity, AnyTopic):
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
        store: int,
        *,
        created_ms: int,
        updated_ms: int,
    ) -> Queue:
        """A queue that was just created; one that may hold messages is loaded (`load`) before it is used."""
        queue = self._make_queue(entity_id, 0, path, description, store, created_ms=created_ms, updated_ms=updated_ms)
        queue.describe(description, self.limits)
        self._add(queue)
        return queue

    def add_partitioned_queue(
        self,
        entity_id: int,
        path: str,
        description: QueueDescription,
        stores: Sequence[int],
        *,
        created_ms: int,
        updated_ms: int,
    ) -> PartitionedQueue:
        """A queue whose fragments lie in these stores, as `add_queue`."""
        times = {"created_ms": created_ms, "updated_ms": updated_ms}
        parts = [
            self._make_queue(entity_id, number, path, description, store, **times)
            for number, store in enumerate(stores)
        ]
        queue = PartitionedQueue(entity_id, path, description, parts, start=self._any_start(), **times)
        queue.describe(description, self.limits)
        self._add(queue)
        return queue

    def _make_queue(
        self,
        entity_id: int,
        number: int,
        path: str,
        description: QueueDescription,
        store: int,
        *,
        created_ms: int,
        updated_ms: int,
    ) -> Queue:
        """A queue, or a part of one."""
        rooms = self._make_rooms(entity_id, number, store, description)
        kind = RemoteQueue if self._is_remote(store) else Queue
        return kind(entity_id, path, description, rooms, created_ms=created_ms, updated_ms=updated_ms)

    def _is_remote(self, store: int) -> bool:
        return isinstance(self.journals[store], RemoteJournal)

    def update_queue(self, path: str, description: QueueDescription, *, updated_ms: int) -> AnyQueue:
        """A queue is described anew; locks that are out keep the time they have."""
        queue = self.find(path)
        assert isinstance(queue, AnyQueue)
        queue.updated_ms = updated_ms
        queue.describe(description, self.limits)
        self.on_described(key_of(path))
        return queue

    # --- topics and subscriptions -------------------------------------------------------------------------------------

    def add_topic(
        self,
        entity_id: int,
        path: str,
        description: TopicDescription,
        store: int,
        *,
        created_ms: int,
        updated_ms: int,
    ) -> Topic:
        """A topic that was just created, without subscriptions."""
        topic = self._make_topic(entity_id, 0, path, description, store, created_ms=created_ms, updated_ms=updated_ms)
        topic.describe(description, self.limits)
        self._add(topic)
        return topic

    def add_partitioned_topic(
        self,
        entity_id: int,
        path: str,
        description: TopicDescription,
        stores: Sequence[int],
        *,
        created_ms: int,
        updated_ms: int,
    ) -> PartitionedTopic:
        """A topic whose fragments lie in these stores, as `add_topic`."""
        times = {"created_ms": created_ms, "updated_ms": updated_ms}
        parts = [
            self._make_topic(entity_id, number, path, description, store, **times)
            for number, store in enumerate(stores)
        ]
        topic = PartitionedTopic(entity_id, path, description, parts, start=self._any_start(), **times)
        topic.describe(description, self.limits)
        self._add(topic)
        return topic

    def _make_topic(
        self,
        entity_id: int,
        number: int,
        path: str,
        description: TopicDescription,
        store: int,
        *,
        created_ms: int,
        updated_ms: int,
    ) -> Topic:
        """A topic, or a part of one."""
        main = self._make_topic_fragment(entity_id, number, store, description)
        kind = RemoteTopic if self._is_remote(store) else Topic
        return kind(entity_id, path, description, main, created_ms=created_ms, updated_ms=updated_ms)

    def update_topic(self, path: str, description: TopicDescription, *, updated_ms: int) -> AnyTopic:
        """A topic is described anew."""
        topic = self.find(path)
        assert isinstance(topic, AnyTopic)
        topic.updated_ms = updated_ms
        topic.describe(description, self.limits)
        self.on_described(key_of(path))
        return topic

    def add_subscription(
        self, entity_id: int, path: str, description: SubscriptionDescription, *, created_ms: int, updated_ms: int
    ) -> Subscription:
        """A subscription that was just created, without rules: it gets nothing before it has one.

        It lies where its topic does, so that a fan-out is one batch.
        """
        topic = self.find(split_subscription(path)[0])
        assert isinstance(topic, Topic)
        times = {"created_ms": created_ms, "updated_ms": updated_ms}
        subscription = self._make_subscription(entity_id, path, description, topic, **times)
        subscription.describe(description, self.limits)
        self._add(subscription)
        return subscription

    def add_partitioned_subscription(
        self, entity_id: int, path: str, description: SubscriptionDescription, *, created_ms: int, updated_ms: int
    ) -> PartitionedSubscription:
        """A subscription of a partitioned topic, as `add_subscription`: it lies where that does, part by part."""
        topic_path, name = split_subscription(path)
        topic = self.find(topic_path)
        assert isinstance(topic, PartitionedTopic)
        times = {"created_ms": created_ms, "updated_ms": updated_ms}
        parts = [self._make_subscription(entity_id, path, description, part, **times) for part in topic.parts]
        subscription = PartitionedSubscription(entity_id, path, description, topic, parts, **times)
        topic.subscriptions[key_of(name)] = subscription
        subscription.describe(description, self.limits)
        self._add(subscription)
        return subscription

    def update_subscription(
        self, path: str, description: SubscriptionDescription, *, updated_ms: int
    ) -> AnySubscription:
        """A subscription is described anew."""
        subscription = self.find(path)
        assert isinstance(subscription, AnySubscription)
        subscription.updated_ms = updated_ms
        subscription.describe(description, self.limits)
        self.on_described(key_of(path))
        return subscription

    def _make_subscription(
        self,
        entity_id: int,
        path: str,
        description: SubscriptionDescription,
        topic: Topic,
        *,
        created_ms: int,
        updated_ms: int,
    ) -> Subscription:
        store = self.journals.index(topic.main.journal)
        rooms = self._make_rooms(entity_id, topic.main.number, store, description, topic.main.bodies)
        kind = RemoteSubscription if self._is_remote(store) else Subscription
        subscription = kind(entity_id, path, description, topic, rooms, created_ms=created_ms, updated_ms=updated_ms)
        topic.subscriptions[key_of(split_subscription(path)[1])] = subscription
        return subscription

    # --- all of them --------------------------------------------------------------------------------------------------

    def remove(self, path: str) -> None:
        """An entity was deleted, a topic with its subscriptions: who uses it is told, and it is not found any more."""
        key = key_of(path)
        entity = self.entities.pop(key)
        error = EntityDeleted(f"The messaging entity '{entity.path}' could not be found: it was deleted.")
        if isinstance(entity, AnyTopic):
            for subscription in list(entity.subscriptions.values()):
                self.remove(subscription.path)
        elif isinstance(entity, AnySubscription):
            entity.leave_topic()
        entity.close(error)
        self.on_described(key)

    def _add(self, entity: AnyEntity) -> None:
        entity.used_s = self.clock.monotonic_s()
        key = key_of(entity.path)
        self.entities[key] = entity
        self.outages.strike(entity)
        self.on_described(key)

    def _make_rooms(
        self,
        entity_id: int,
        number: int,
        store: int,
        description: QueueDescription | SubscriptionDescription,
        bodies: Bodies | None = None,
    ) -> _Rooms:
        """What one fragment of an entity is made of."""
        journal = self.journals[store]
        if isinstance(journal, RemoteJournal):
            return self._make_remote_rooms(entity_id, number, journal, description)
        main_policy, dead_letter_policy = policies(description, self.limits)

        def prefix(area: Area) -> bytes:
            return area_prefix(entity_id, number, area)

        def make(area: Area) -> Fragment:
            return Fragment(prefix(area), journal, dead_letter_policy, times=self._times, tokens=self._tokens)

        dead_letters = make(Area.DEAD_LETTER)
        main = Fragment(
            prefix(Area.MAIN),
            journal,
            main_policy,
            times=self._times,
            tokens=self._tokens,
            dead_letters=dead_letters,
            has_sessions=description.requires_session,
            bodies=bodies,
        )
        return _Rooms(main, dead_letters, make, self.find_sendable, prefix, self._forwarded)

    def _forwarded(self, path: str, count: int) -> None:
        self.on_forwarded(path, count)

    def _make_remote_rooms(
        self,
        entity_id: int,
        number: int,
        journal: RemoteJournal,
        description: QueueDescription | SubscriptionDescription,
    ) -> _Rooms:
        """... that another process has."""
        main_policy, dead_letter_policy = policies(description, self.limits)

        def prefix(area: Area) -> bytes:
            return area_prefix(entity_id, number, area)

        def make(area: Area) -> Fragment:
            return RemoteFragment(
                prefix(area),
                journal,
                main_policy if area is Area.MAIN else dead_letter_policy,
                times=self._times,
                tokens=self._tokens,
                place=(entity_id, number, SUB_QUEUES.index(_SUB_QUEUES[area])),
                has_sessions=area is Area.MAIN and description.requires_session,
            )

        return _Rooms(make(Area.MAIN), make(Area.DEAD_LETTER), make, self.find_sendable, prefix, self._forwarded)

    def _make_topic_fragment(
        self, entity_id: int, number: int, store: int, description: TopicDescription
    ) -> TopicFragment:
        return TopicFragment(
            area_prefix(entity_id, number, Area.MAIN),
            self.journals[store],
            topic_policy(description, self.limits),
            times=self._times,
            tokens=self._tokens,
            limits=self.limits,
            work=self._work,
        )

    def bury(self, entity_id: int, store: int, answer: Answered, topic_id: int | None = None) -> None:
        """Remove all records of a deleted entity from a store; `topic_id` is that of a subscription's topic."""
        topics = [entity for entity in self.entities.values() if isinstance(entity, AnyTopic)]
        topic = next((topic for topic in topics if topic.entity_id == topic_id), None)
        parts = topic.parts if isinstance(topic, PartitionedTopic) else [topic] if topic is not None else []
        journal = self.journals[store]
        bodies = [(part.main.number, part.main.bodies) for part in parts if part.main.journal is journal]
        bury(journal, entity_id, bodies, answer)

    def _any_start(self) -> int:
        """Where messages without a key begin to be spread: at another part for each entity, at each start."""
        return self._random.getrandbits(_START_BITS)

    def make_token(self) -> bytes:
        """Sixteen bytes that nobody can guess."""
        return self._random.getrandbits(_ID_BITS).to_bytes(16, "big")
