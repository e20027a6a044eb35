"""Parts of queues and subscriptions whose stores belong to this process.

Owns: a part's areas: its messages, its dead letters and, made when first needed, messages on their way to other
entities (transfers) and messages that could not be forwarded; and which of them are forwarded where.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.entities.entity import SEND_DISABLED_STATUSES
from twinbus.broker.entities.part import LocalPart
from twinbus.broker.entities.resubmission import Resubmission
from twinbus.broker.fragment.forwarding import Forwarder, with_destination
from twinbus.broker.fragment.fragment import FragmentPolicy
from twinbus.broker.fragment.message_table import MessageCounters
from twinbus.broker.message_record import NEVER_MS, expiry_time, make_record, session_id_in, with_properties, with_ttl
from twinbus.broker.ports.settlement import dead_letter_properties
from twinbus.broker.store_keys import COUNTERS, Area
from twinbus.model.description import FOREVER_MS
from twinbus.model.errors import NotAllowed, StoreUnavailable
from twinbus.model.path import SubQueue
from twinbus.model.queue import QueueRuntime
from twinbus.store.protocol import StoreError, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.entities.entity import Entity
    from twinbus.broker.entities.fan_out import Rule, TopicFragment
    from twinbus.broker.entities.queue import Queue
    from twinbus.broker.entities.subscription import Subscription
    from twinbus.broker.entities.topic import Topic
    from twinbus.broker.fragment.fragment import Fragment
    from twinbus.broker.intake.message_intake import MessageIntake
    from twinbus.broker.message_record import RecordFields
    from twinbus.broker.ports.callbacks import OnDone
    from twinbus.broker.ports.fragment import FragmentPort
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
        make_area: Callable[[Area], Fragment],
        find_destination: Callable[[str], Queue | Topic],
        key_prefix_of: Callable[[Area], bytes],
        on_forwarded: Callable[[str, int], None],
    ) -> None:
        """`make` makes one more area, `prefix` returns the prefix of an area's keys.

        `find` returns the queue or topic of a path (EntityNotFound, NotAllowed); `forwarded` counts messages of an
        entity that have arrived at another one.
        """
        self.main = main
        self.dead_letters = dead_letters
        self.make_area = make_area
        self.find_destination = find_destination
        self.key_prefix_of = key_prefix_of
        self.on_forwarded = on_forwarded


class ReceivablePart(LocalPart):
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
        self._main.check_quota = self.dead_letters.check_quota = self.check_quota

    @property
    def main(self) -> Fragment:
        """Its messages."""
        return self._main

    @property
    def fragments(self) -> list[FragmentPort]:
        """All its areas."""
        return [*self._local_fragments()]

    def _local_fragments(self) -> list[Fragment]:
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
            self.transfer_dead_letters = self._make_area(Area.TRANSFER_DEAD_LETTER)
            self.transfer_dead_letters.policy = self.dead_letters.policy
        return self.transfer_dead_letters

    def open_transfers(self) -> Fragment:
        """Return the area of messages that are sent via the entity to others."""
        if self.transfers is None:
            self.transfers = transfers = self._make_area(Area.TRANSFER)
            failed = self.open_transfer_dead_letters()
            transfers.forwarder = forwarder = Forwarder(
                transfers, None, self._areas.find_destination, failed, self._on_forwarded
            )
            forwarder.start()
        return self.transfers

    def _make_area(self, area: Area) -> Fragment:
        fragment = self._areas.make_area(area)
        fragment.check_quota = self.check_quota
        fragment.is_suspended = self.entity.outage is not None
        return fragment

    def stored_bytes(self) -> int:
        """Return the size of its messages, dead letters, session states and transfers."""
        held = self._main.message_table.size + self.dead_letters.message_table.size
        if self.transfers is not None:
            held += self.transfers.message_table.size
        if self.transfer_dead_letters is not None:
            held += self.transfer_dead_letters.message_table.size
        return held

    def resubmit(
        self,
        sequences: list[int],
        edited: bytes | None,
        intake: MessageIntake,
        on_result: Callable[[list[int] | ServiceBusError], None],
    ) -> None:
        """Make dead letters active again."""
        self._resubmission.resubmit(sequences, edited, intake, on_result)

    # --- forwarding ---------------------------------------------------------------------------------------------------

    def set_forwarding(self, target: str | None, dead_letters_target: str | None) -> None:
        """Forward messages and dead letters to these entities from now on; None: keep them."""
        self._set_forwarding(self._main, target, None)
        self._set_forwarding(self.dead_letters, dead_letters_target, self.entity.path)

    def _set_forwarding(self, fragment: Fragment, target: str | None, dead_letter_source: str | None) -> None:
        before = fragment.forwarder
        if before is not None and before.is_closed:  # the entity was disabled for a while
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
            fragment.dispatcher.close(NotAllowed(f"messages of '{path}' are forwarded to '{target}' from now on"))
            fragment.begin_forwarding()
            failed = self.open_transfer_dead_letters()
            fragment.forwarder = forwarder = Forwarder(
                fragment, target, self._areas.find_destination, failed, self._on_forwarded, dead_letter_source
            )
            forwarder.start()

    def _on_forwarded(self, count: int) -> None:
        self._areas.on_forwarded(self.entity.path, count)

    # --- loading and counting -----------------------------------------------------------------------------------------

    def load(self, on_done: Callable[[ServiceBusError | None], None]) -> None:
        """Read what it holds from the store."""
        rare = {Area.TRANSFER: self.open_transfers, Area.TRANSFER_DEAD_LETTER: self.open_transfer_dead_letters}

        def looked(values: list[bytes | None] | StoreError) -> None:
            if isinstance(values, StoreError):
                on_done(StoreUnavailable(str(values)))
                return
            for value, open_it in zip(values, rare.values(), strict=True):
                if value is not None:
                    open_it()
            self._load_each(self._local_fragments(), on_done)

        self._main.commit_log.get([self._areas.key_prefix_of(area) + COUNTERS for area in rare], looked, Table.INDEX)

    def _load_each(self, fragments: list[Fragment], on_done: Callable[[ServiceBusError | None], None]) -> None:
        if not fragments:
            on_done(None)
            return
        fragments[0].load(
            lambda error: on_done(error) if error is not None else self._load_each(fragments[1:], on_done)
        )

    def runtime(self) -> QueueRuntime:
        """Return what it holds now."""
        main, dead = self._main.message_table.committed, self.dead_letters.message_table.committed
        failed = (
            self.transfer_dead_letters.message_table.committed
            if self.transfer_dead_letters is not None
            else MessageCounters()
        )
        transferred = self.transfers.message_table.committed if self.transfers is not None else MessageCounters()
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

    def send_via(self, records: list[bytes], destination: str, on_done: OnDone) -> None:
        """Store messages that go on to another entity."""
        self.entity.check_send_enabled()
        self.check_quota(sum([len(record) for record in records]))
        self.open_transfers().enqueue([with_destination(record, destination) for record in records], on_done)

    def apply_description(self, limits: NamespaceLimits) -> None:
        """Adopt the queue's description; existing locks keep their time."""
        description = self._queue.description
        window_ms = description.duplicate_window_ms
        self.main.policy, self.dead_letters.policy = fragment_policies(
            description, limits, duplicate_window_ms=window_ms
        )
        self.set_forwarding(description.forward_to, description.forward_dead_lettered_to)


class SubscriptionPart(ReceivablePart):
    """A part of a subscription, beside the topic's part of the same number, in the same store."""

    def __init__(self, subscription: Subscription, topic_part: TopicPart, areas: Areas) -> None:
        """Made by the namespace."""
        self.subscription = subscription
        self.topic_part = topic_part
        super().__init__(subscription, areas)

    def check_quota(self, size: int) -> None:
        """Raise QuotaExceeded if `size` bytes more do not fit into the topic."""
        self.topic_part.check_quota(size)
        self.topic_part.main.add_stored_bytes(size)

    @property
    def accepts_copies(self) -> bool:
        """Whether it gets published messages."""
        return self.entity.status not in SEND_DISABLED_STATUSES

    def apply_description(self, limits: NamespaceLimits) -> None:
        """Adopt the subscription's description; existing locks keep their time."""
        description = self.subscription.description
        self.main.policy, self.dead_letters.policy = fragment_policies(description, limits)
        self.set_forwarding(description.forward_to, description.forward_dead_lettered_to)

    def put_rule(self, rule_name: str, rule: Rule) -> None:
        """Get copies of messages that a rule matches; it replaces a rule of the same name."""
        self.topic_part.main.put_rule(self, rule_name, rule)

    def remove_rule(self, rule_name: str) -> None:
        """Remove a rule."""
        self.topic_part.main.remove_rule(self, rule_name)

    def detach_from_topic(self) -> None:
        """Get no more copies."""
        self.topic_part.main.remove_subscription(self)

    def make_copy(self, fields: RecordFields) -> RecordFields | None:
        """Return the subscription's copy of a message of the topic; None if it lacks a session id and must have one."""
        session = None
        if self.validation_policy.requires_session:
            session = session_id_in(fields.bare_message)
            if session is None:
                return None
        envelope = fields.header
        if self.validation_policy.max_ttl_ms < FOREVER_MS:
            envelope = with_ttl(envelope, self.validation_policy.max_ttl_ms)
        return fields._replace(
            header=envelope, session_id=session, due_ms=expiry_time(envelope, fields.enqueued_ms), state=0
        )

    def dead_letter_copy(self, fields: RecordFields, reason: str, description: str) -> None:
        """Dead-letter a message that the subscription cannot hold, in the batch of this turn."""
        bare = with_properties(fields.bare_message, dead_letter_properties(reason, description))
        self.dead_letters.store_moved(
            make_record(fields._replace(bare_message=bare, due_ms=NEVER_MS, session_id=None, state=0, shared_body=0))
        )


def fragment_policies(
    description: QueueDescription | SubscriptionDescription, limits: NamespaceLimits, *, duplicate_window_ms: int = 0
) -> tuple[FragmentPolicy, FragmentPolicy]:
    """Return the policies of a part's messages and of its dead letters: nothing is dead-lettered twice."""

    def policy(most: int | None, *, expired: bool) -> FragmentPolicy:
        return FragmentPolicy(
            lock_duration_ms=description.lock_duration_ms,
            max_delivery_count=most,
            max_locks=limits.max_locks,
            dead_letters_expired=expired,
            duplicate_window_ms=duplicate_window_ms,
            max_properties_bytes=limits.max_properties_bytes,
        )

    main = policy(description.max_delivery_count, expired=description.dead_lettering_on_expiration)
    return main, policy(None, expired=False)


class TopicPart(LocalPart):
    """A part of a topic. Its messages are copied into the subscriptions' parts of the same number."""

    def __init__(self, topic: Topic, main: TopicFragment) -> None:
        """Made by the namespace."""
        super().__init__(topic, main.number)
        self._topic = topic
        self._main = main
        main.check_quota = self.check_quota

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

    def stored_bytes(self) -> int:
        """Return the size of what it and its subscriptions hold together."""
        return self._main.stored_bytes()

    def apply_description(self, limits: NamespaceLimits) -> None:
        """Adopt the topic's description."""
        self._main.policy = topic_policy(self._topic.description, limits)

    def load(self, on_done: Callable[[ServiceBusError | None], None]) -> None:
        """Read what it holds from the store."""
        self._main.load(on_done)

    def runtime(self) -> QueueRuntime:
        """Return what it holds now."""
        return QueueRuntime(
            active_count=0,
            dead_letter_count=0,
            scheduled_count=self._main.message_table.committed.scheduled_count,
            size_bytes=self.stored_bytes(),
            created_ms=0,
            updated_ms=0,
            accessed_ms=0,
            is_available=self._main.is_available,
        )


def topic_policy(description: TopicDescription, limits: NamespaceLimits) -> FragmentPolicy:
    """Return the policy of a topic's fragments: they keep scheduled messages, and the ids of all."""
    return FragmentPolicy(
        lock_duration_ms=0,
        max_delivery_count=None,
        max_locks=0,
        duplicate_window_ms=description.duplicate_window_ms,
        max_properties_bytes=limits.max_properties_bytes,
    )
