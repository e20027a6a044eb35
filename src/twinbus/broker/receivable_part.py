"""Parts of queues and subscriptions whose stores belong to this process.

Owns: a part's areas: its messages, its dead letters and, made when first needed, messages on their way to other
entities (transfers) and messages that could not be forwarded; and which of them are forwarded where.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.entity import NO_SENDING
from twinbus.broker.forwarding import Forwarder, addressed
from twinbus.broker.fragment import Policy
from twinbus.broker.holdings import Marks
from twinbus.broker.keys import MARKS, Area
from twinbus.broker.part import StoredPart
from twinbus.broker.ports.settlement import reasons
from twinbus.broker.record import NEVER_MS, expires_ms, make_record, session_in, with_properties, with_ttl
from twinbus.broker.resubmission import Resubmission
from twinbus.model.description import FOREVER_MS
from twinbus.model.errors import NotAllowed, StoreUnavailable
from twinbus.model.path import SubQueue
from twinbus.model.queue import QueueRuntime
from twinbus.store.protocol import StoreError, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.entity import Entity
    from twinbus.broker.fan_out import Rule, TopicFragment
    from twinbus.broker.fragment import Fragment
    from twinbus.broker.intake import Intake
    from twinbus.broker.ports.callbacks import Answered
    from twinbus.broker.ports.fragment import FragmentPort
    from twinbus.broker.queue import Queue
    from twinbus.broker.record import Parts
    from twinbus.broker.subscription import Subscription
    from twinbus.broker.topic import Topic
    from twinbus.model.errors import ServiceBusError
    from twinbus.model.limits import NamespaceLimits
    from twinbus.model.queue import QueueDescription
    from twinbus.model.topic import SubscriptionDescription, TopicDescription


class Areas:
    """The areas of a part, and how it gets more."""

    def __init__(
        self,
        main: Fragment,
        dead_letters: Fragment,
        make: Callable[[Area], Fragment],
        find: Callable[[str], Queue | Topic],
        prefix: Callable[[Area], bytes],
        forwarded: Callable[[str, int], None],
    ) -> None:
        """`make` makes one more area, `prefix` returns the prefix of an area's keys.

        `find` returns the queue or topic of a path (EntityNotFound, NotAllowed); `forwarded` counts messages of an
        entity that have arrived at another one.
        """
        self.main = main
        self.dead_letters = dead_letters
        self.make = make
        self.find = find
        self.prefix = prefix
        self.forwarded = forwarded


class ReceivablePart(StoredPart):
    """A part of a queue or a subscription."""

    def __init__(self, entity: Entity, areas: Areas) -> None:
        """Made by the namespace."""
        super().__init__(entity, areas.main.number)
        self._main = areas.main
        self.dead_letters = areas.dead_letters
        self.transfer_dead_letters: Fragment | None = None
        """Messages that could not be forwarded; made when first needed."""
        self.transfers: Fragment | None = None
        """Messages that are sent via the entity to others, until they have arrived; made when first needed."""
        self._areas = areas
        self._resubmission = Resubmission(self)
        self._main.check_room = self.dead_letters.check_room = self.check_room

    @property
    def main(self) -> Fragment:
        """Its messages."""
        return self._main

    @property
    def fragments(self) -> list[FragmentPort]:
        """All its areas."""
        return [*self._stored()]

    def _stored(self) -> list[Fragment]:
        rare = (self.transfers, self.transfer_dead_letters)
        return [self._main, self.dead_letters, *[fragment for fragment in rare if fragment is not None]]

    def fragment_of(self, sub_queue: SubQueue) -> Fragment:
        """Return the area that receivers take messages from."""
        if sub_queue is SubQueue.MAIN:
            return self._main
        if sub_queue is SubQueue.DEAD_LETTER:
            return self.dead_letters
        return self.open_transfer_dead_letters()

    def open_transfer_dead_letters(self) -> Fragment:
        """Return the area of messages that could not be forwarded."""
        if self.transfer_dead_letters is None:
            self.transfer_dead_letters = self._make(Area.TRANSFER_DEAD_LETTER)
            self.transfer_dead_letters.policy = self.dead_letters.policy
        return self.transfer_dead_letters

    def open_transfers(self) -> Fragment:
        """Return the area of messages that are sent via the entity to others."""
        if self.transfers is None:
            self.transfers = transfers = self._make(Area.TRANSFER)
            failed = self.open_transfer_dead_letters()
            transfers.forwarder = forwarder = Forwarder(transfers, None, self._areas.find, failed, self._forwarded)
            forwarder.start()
        return self.transfers

    def _make(self, area: Area) -> Fragment:
        fragment = self._areas.make(area)
        fragment.check_room = self.check_room
        fragment.is_held_back = self.entity.outage is not None
        return fragment

    def held_bytes(self) -> int:
        """Return the size of its messages, dead letters, session states and transfers."""
        held = self._main.holdings.size + self.dead_letters.holdings.size
        if self.transfers is not None:
            held += self.transfers.holdings.size
        if self.transfer_dead_letters is not None:
            held += self.transfer_dead_letters.holdings.size
        return held

    def resubmit(
        self,
        sequences: list[int],
        edited: bytes | None,
        intake: Intake,
        done: Callable[[list[int] | ServiceBusError], None],
    ) -> None:
        """Make dead letters active again."""
        self._resubmission.resubmit(sequences, edited, intake, done)

    # --- forwarding ---------------------------------------------------------------------------------------------------

    def forward(self, target: str | None, dead_letters_target: str | None) -> None:
        """Forward messages and dead letters to these entities from now on; None: keep them."""
        self._forward(self._main, target, None)
        self._forward(self.dead_letters, dead_letters_target, self.entity.path)

    def _forward(self, fragment: Fragment, target: str | None, dead_source: str | None) -> None:
        before = fragment.forwarder
        if before is not None and before.is_gone:  # the entity was disabled for a while
            before = fragment.forwarder = None
        if before is not None and before.target == target:
            return
        if before is not None:
            before.stop()
            fragment.forwarder = None
        if target is None:
            fragment.end_forwarding()
        else:
            path = self.entity.path
            fragment.line.close(NotAllowed(f"messages of '{path}' are forwarded to '{target}' from now on"))
            fragment.begin_forwarding()
            failed = self.open_transfer_dead_letters()
            fragment.forwarder = forwarder = Forwarder(
                fragment, target, self._areas.find, failed, self._forwarded, dead_source
            )
            forwarder.start()

    def _forwarded(self, count: int) -> None:
        self._areas.forwarded(self.entity.path, count)

    # --- loading and counting -----------------------------------------------------------------------------------------

    def load(self, done: Callable[[ServiceBusError | None], None]) -> None:
        """Read what it holds from the store."""
        rare = {Area.TRANSFER: self.open_transfers, Area.TRANSFER_DEAD_LETTER: self.open_transfer_dead_letters}

        def looked(values: list[bytes | None] | StoreError) -> None:
            if isinstance(values, StoreError):
                done(StoreUnavailable(str(values)))
                return
            for value, open_it in zip(values, rare.values(), strict=True):
                if value is not None:
                    open_it()
            self._load_each(self._stored(), done)

        self._main.journal.get([self._areas.prefix(area) + MARKS for area in rare], looked, Table.INDEX)

    def _load_each(self, fragments: list[Fragment], done: Callable[[ServiceBusError | None], None]) -> None:
        if not fragments:
            done(None)
            return
        fragments[0].load(lambda error: done(error) if error is not None else self._load_each(fragments[1:], done))

    def runtime(self) -> QueueRuntime:
        """Return what it holds now."""
        main, dead = self._main.holdings.shown, self.dead_letters.holdings.shown
        failed = self.transfer_dead_letters.holdings.shown if self.transfer_dead_letters is not None else Marks()
        transferred = self.transfers.holdings.shown if self.transfers is not None else Marks()
        is_forwarding = self._main.forwarder is not None
        return QueueRuntime(
            active_count=0 if is_forwarding else main.active_count,
            transfer_count=transferred.active_count + (main.active_count if is_forwarding else 0),
            transfer_dead_letter_count=failed.active_count,
            deferred_count=main.deferred_count + dead.deferred_count,
            scheduled_count=main.scheduled_count,
            dead_letter_count=dead.active_count,
            size_bytes=main.size + dead.size + failed.size + transferred.size,
            created_ms=0,
            updated_ms=0,
            accessed_ms=0,
            is_available=self._main.is_available,
        )


class QueuePart(ReceivablePart):
    """A part of a queue."""

    def __init__(self, queue: Queue, areas: Areas) -> None:
        """Made by the namespace."""
        self._queue = queue
        super().__init__(queue, areas)

    @property
    def max_size_mb(self) -> int:
        """The size of the queue, as it is described."""
        return self._queue.description.max_size_mb

    def send_on(self, records: list[bytes], destination: str, answer: Answered) -> None:
        """Store messages that go on to another entity."""
        self.entity.check_sends()
        self.check_room(sum([len(record) for record in records]))
        self.open_transfers().enqueue([addressed(record, destination) for record in records], answer)

    def describe(self, limits: NamespaceLimits) -> None:
        """Adopt the queue's description; existing locks keep their time."""
        description = self._queue.description
        window_ms = description.duplicate_window_ms
        self.main.policy, self.dead_letters.policy = policies(description, limits, duplicate_window_ms=window_ms)
        self.forward(description.forward_to, description.forward_dead_lettered_to)


class SubscriptionPart(ReceivablePart):
    """A part of a subscription, beside the topic's part of the same number, in the same store."""

    def __init__(self, subscription: Subscription, topic: TopicPart, areas: Areas) -> None:
        """Made by the namespace."""
        self.subscription = subscription
        self.topic = topic
        super().__init__(subscription, areas)

    def check_room(self, size: int) -> None:
        """Raise QuotaExceeded if `size` bytes more do not fit into the topic."""
        self.topic.check_room(size)
        self.topic.main.note_growth(size)

    @property
    def takes_copies(self) -> bool:
        """Whether it gets published messages."""
        return self.entity.status not in NO_SENDING

    def describe(self, limits: NamespaceLimits) -> None:
        """Adopt the subscription's description; existing locks keep their time."""
        description = self.subscription.description
        self.main.policy, self.dead_letters.policy = policies(description, limits)
        self.forward(description.forward_to, description.forward_dead_lettered_to)

    def put_rule(self, name: str, rule: Rule) -> None:
        """Get copies of messages that a rule matches; it replaces a rule of the same name."""
        self.topic.main.put_rule(self, name, rule)

    def remove_rule(self, name: str) -> None:
        """Remove a rule."""
        self.topic.main.remove_rule(self, name)

    def leave_topic(self) -> None:
        """Get no more copies."""
        self.topic.main.remove_subscription(self)

    def adopt(self, parts: Parts) -> Parts | None:
        """Return the subscription's copy of a message of the topic; None if it lacks a session id and must have one."""
        session = None
        if self.terms.requires_session:
            session = session_in(parts.bare)
            if session is None:
                return None
        envelope = parts.envelope
        if self.terms.ttl_ms < FOREVER_MS:
            envelope = with_ttl(envelope, self.terms.ttl_ms)
        return parts._replace(
            envelope=envelope, session=session, alarm_ms=expires_ms(envelope, parts.enqueued_ms), state=0
        )

    def bury(self, parts: Parts, reason: str, description: str) -> None:
        """Dead-letter a message that the subscription cannot hold, in the batch of this turn."""
        bare = with_properties(parts.bare, reasons(reason, description))
        self.dead_letters.take_in(
            make_record(parts._replace(bare=bare, alarm_ms=NEVER_MS, session=None, state=0, shared=0))
        )


def policies(
    description: QueueDescription | SubscriptionDescription, limits: NamespaceLimits, *, duplicate_window_ms: int = 0
) -> tuple[Policy, Policy]:
    """Return the policies of a part's messages and of its dead letters: nothing is dead-lettered twice."""

    def policy(most: int | None, *, expired: bool) -> Policy:
        return Policy(
            lock_duration_ms=description.lock_duration_ms,
            max_delivery_count=most,
            max_locks=limits.max_locks,
            dead_letters_expired=expired,
            duplicate_window_ms=duplicate_window_ms,
            max_properties_bytes=limits.max_properties_bytes,
        )

    main = policy(description.max_delivery_count, expired=description.dead_lettering_on_expiration)
    return main, policy(None, expired=False)


class TopicPart(StoredPart):
    """A part of a topic. Its messages are copied into the subscriptions' parts of the same number."""

    def __init__(self, topic: Topic, main: TopicFragment) -> None:
        """Made by the namespace."""
        super().__init__(topic, main.number)
        self._topic = topic
        self._main = main
        main.check_room = self.check_room

    @property
    def main(self) -> TopicFragment:
        """Its scheduled messages, and the way of all others to the subscriptions."""
        return self._main

    @property
    def is_in_use(self) -> bool:
        """Whether a receiver or browser is attached to one of its subscriptions."""
        return any(part.is_in_use for part in self._main.subscriptions.values())

    @property
    def max_size_mb(self) -> int:
        """The size of the topic, as it is described."""
        return self._topic.description.max_size_mb

    def held_bytes(self) -> int:
        """Return the size of what it and its subscriptions hold together."""
        return self._main.held_bytes()

    def describe(self, limits: NamespaceLimits) -> None:
        """Adopt the topic's description."""
        self._main.policy = topic_policy(self._topic.description, limits)

    def load(self, done: Callable[[ServiceBusError | None], None]) -> None:
        """Read what it holds from the store."""
        self._main.load(done)

    def runtime(self) -> QueueRuntime:
        """Return what it holds now."""
        return QueueRuntime(
            active_count=0,
            dead_letter_count=0,
            scheduled_count=self._main.holdings.shown.scheduled_count,
            size_bytes=self.held_bytes(),
            created_ms=0,
            updated_ms=0,
            accessed_ms=0,
            is_available=self._main.is_available,
        )


def topic_policy(description: TopicDescription, limits: NamespaceLimits) -> Policy:
    """Return the policy of a topic's fragments: they keep scheduled messages, and the ids of all."""
    return Policy(
        lock_duration_ms=0,
        max_delivery_count=None,
        max_locks=0,
        duplicate_window_ms=description.duplicate_window_ms,
        max_properties_bytes=limits.max_properties_bytes,
    )
