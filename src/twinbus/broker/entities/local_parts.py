"""Parts of queues, topics and subscriptions in the stores of this process.

Owns: the areas of a part, and the forwarding of each area. The areas for active messages and dead letters always exist;
the areas for transfers (messages on their way to other entities) and for transfer dead letters (messages that could not
be forwarded) are created when first needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.entities.entity import SEND_DISABLED_STATUSES
from twinbus.broker.entities.part import LocalPart
from twinbus.broker.entities.part_inspection import ReceivableInspection, TopicInspection
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
    from twinbus.broker.ports.inspection import PartInspection
    from twinbus.model.errors import ServiceBusError
    from twinbus.model.limits import NamespaceLimits
    from twinbus.model.queue import QueueDescription
    from twinbus.model.topic import SubscriptionDescription, TopicDescription


class Areas:
    """The areas of a part, and the functions that the part needs to create and forward areas."""

    def __init__(
        self,
        main: Fragment,
        dead_letters: Fragment,
        make_area: Callable[[Area], Fragment],
        find_destination: Callable[[str], Queue | Topic],
        key_prefix_of: Callable[[Area], bytes],
        on_forwarded: Callable[[str, int], None],
    ) -> None:
        """Store the areas and functions.

        `make_area` creates an area, `key_prefix_of` returns the key prefix of an area, and `find_destination` returns
        the queue or topic at a path, or raises EntityNotFound or NotAllowed. `on_forwarded` is called with the path of
        an entity and the number of messages that arrived at their destination.
        """
        self.main = main
        self.dead_letters = dead_letters
        self.make_area = make_area
        self.find_destination = find_destination
        self.key_prefix_of = key_prefix_of
        self.on_forwarded = on_forwarded


class ReceivablePart(LocalPart):
    """A part of a queue or subscription in this process."""

    def __init__(self, entity: Entity, areas: Areas) -> None:
        """Create a part from its areas; called by `LocalPartFactory`."""
        super().__init__(entity, areas.main.number)
        self._main = areas.main
        self.dead_letters = areas.dead_letters
        self.transfer_dead_letters: Fragment | None = None
        """The area for messages that could not be forwarded; created when first needed."""
        self.transfers: Fragment | None = None
        """The area for messages sent via the entity to other entities; created when first needed."""
        self._areas = areas
        self._resubmission = Resubmission(self)
        self._main.check_quota = self.dead_letters.check_quota = self.check_quota

    @property
    def main(self) -> Fragment:
        """The area for the entity's own messages: active, scheduled and deferred."""
        return self._main

    @property
    def fragments(self) -> list[FragmentPort]:
        """All existing areas of the part."""
        return [*self._local_fragments()]

    def _local_fragments(self) -> list[Fragment]:
        optional = (self.transfers, self.transfer_dead_letters)
        return [self._main, self.dead_letters, *[fragment for fragment in optional if fragment is not None]]

    def fragment_of(self, sub_queue: SubQueue) -> Fragment:
        """Return the area of a sub-queue."""
        if sub_queue is SubQueue.MAIN:
            return self._main
        if sub_queue is SubQueue.DEAD_LETTER:
            return self.dead_letters
        return self.open_transfer_dead_letters()

    def open_transfer_dead_letters(self) -> Fragment:
        """Return the area for messages that could not be forwarded, creating it if needed."""
        if self.transfer_dead_letters is None:
            self.transfer_dead_letters = self._make_area(Area.TRANSFER_DEAD_LETTER)
            self.transfer_dead_letters.policy = self.dead_letters.policy
        return self.transfer_dead_letters

    def open_transfers(self) -> Fragment:
        """Return the area for messages sent via the entity to other entities, creating it if needed."""
        if self.transfers is None:
            self.transfers = transfers = self._make_area(Area.TRANSFER)
            transfer_dead_letters = self.open_transfer_dead_letters()
            transfers.forwarder = forwarder = Forwarder(
                transfers, None, self._areas.find_destination, transfer_dead_letters, self._on_forwarded
            )
            forwarder.start()
        return self.transfers

    def _make_area(self, area: Area) -> Fragment:
        fragment = self._areas.make_area(area)
        fragment.check_quota = self.check_quota
        fragment.is_suspended = self.entity.outage is not None
        return fragment

    def stored_bytes(self) -> int:
        """Return the size of messages, dead letters, session states and transfers in bytes."""
        size = self._main.message_table.size + self.dead_letters.message_table.size
        if self.transfers is not None:
            size += self.transfers.message_table.size
        if self.transfer_dead_letters is not None:
            size += self.transfer_dead_letters.message_table.size
        return size

    def resubmit(
        self,
        sequences: list[int],
        edited: bytes | None,
        intake: MessageIntake,
        on_result: Callable[[list[int] | ServiceBusError], None],
    ) -> None:
        """Make dead letters active again, like `Resubmission.resubmit`."""
        self._resubmission.resubmit(sequences, edited, intake, on_result)

    def move(
        self,
        sub_queue: SubQueue,
        sequences: list[int],
        destination: str,
        intake: MessageIntake,
        on_done: OnDone,
    ) -> None:
        """Move messages of a sub-queue to another entity, like `Resubmission.move`."""
        self._resubmission.move(self.fragment_of(sub_queue), sequences, destination, intake, on_done)

    # --- forwarding ---------------------------------------------------------------------------------------------------

    def set_forwarding(self, target: str | None, dead_letters_target: str | None) -> None:
        """Forward messages and dead letters to these entities from now on, or keep them (None)."""
        self._set_forwarding(self._main, target, None)
        self._set_forwarding(self.dead_letters, dead_letters_target, self.entity.path)

    def _set_forwarding(self, fragment: Fragment, target: str | None, dead_letter_source: str | None) -> None:
        previous = fragment.forwarder
        if previous is not None and previous.is_closed:  # forwarding stopped when the entity was disabled
            previous = fragment.forwarder = None
        if previous is not None and previous.target == target:
            return
        if previous is not None:
            previous.stop()
            fragment.forwarder = None
        if target is None:
            fragment.end_forwarding()
        else:
            path = self.entity.path
            fragment.dispatcher.close(NotAllowed(f"messages of '{path}' are forwarded to '{target}' from now on"))
            fragment.begin_forwarding()
            transfer_dead_letters = self.open_transfer_dead_letters()
            fragment.forwarder = forwarder = Forwarder(
                fragment,
                target,
                self._areas.find_destination,
                transfer_dead_letters,
                self._on_forwarded,
                dead_letter_source,
            )
            forwarder.start()

    def _on_forwarded(self, count: int) -> None:
        self._areas.on_forwarded(self.entity.path, count)

    # --- loading and counting -----------------------------------------------------------------------------------------

    def inspect(self) -> PartInspection:
        """Return the inspection of the part."""
        return ReceivableInspection(self)

    def load(self, on_done: Callable[[ServiceBusError | None], None]) -> None:
        """Load the state of all areas from the store."""
        optional_areas = {
            Area.TRANSFER: self.open_transfers,
            Area.TRANSFER_DEAD_LETTER: self.open_transfer_dead_letters,
        }

        def on_counters(values: list[bytes | None] | StoreError) -> None:
            if isinstance(values, StoreError):
                on_done(StoreUnavailable(str(values)))
                return
            for value, open_area in zip(values, optional_areas.values(), strict=True):
                if value is not None:
                    open_area()
            self._load_each(self._local_fragments(), on_done)

        self._main.commit_log.get(
            [self._areas.key_prefix_of(area) + COUNTERS for area in optional_areas], on_counters, Table.INDEX
        )

    def _load_each(self, fragments: list[Fragment], on_done: Callable[[ServiceBusError | None], None]) -> None:
        if not fragments:
            on_done(None)
            return
        fragments[0].load(
            lambda error: on_done(error) if error is not None else self._load_each(fragments[1:], on_done)
        )

    def runtime(self) -> QueueRuntime:
        """Return the message counts and sizes of the part; its times are 0."""
        main, dead_letters = self._main.message_table.committed, self.dead_letters.message_table.committed
        transfer_dead_letters = (
            self.transfer_dead_letters.message_table.committed
            if self.transfer_dead_letters is not None
            else MessageCounters()
        )
        transfers = self.transfers.message_table.committed if self.transfers is not None else MessageCounters()
        is_forwarding = self._main.forwarder is not None
        return QueueRuntime(
            active_count=0 if is_forwarding else main.active_count,
            transfer_count=transfers.active_count + (main.active_count if is_forwarding else 0),
            transfer_dead_letter_count=transfer_dead_letters.active_count,
            deferred_count=main.deferred_count + dead_letters.deferred_count,
            scheduled_count=main.scheduled_count,
            dead_letter_count=dead_letters.active_count,
            size_bytes=main.size + dead_letters.size + transfer_dead_letters.size + transfers.size,
            created_ms=0,
            updated_ms=0,
            accessed_ms=0,
            is_available=self._main.is_available,
        )


class QueuePart(ReceivablePart):
    """A part of a queue in this process."""

    def __init__(self, queue: Queue, areas: Areas) -> None:
        """Create a part from its areas; called by `LocalPartFactory`."""
        self._queue = queue
        super().__init__(queue, areas)

    @property
    def max_size_mb(self) -> int:
        """The maximum size in the description of the queue."""
        return self._queue.description.max_size_mb

    def send_via(self, records: list[bytes], destination: str, on_done: OnDone) -> None:
        """Store messages as transfers to the entity `destination`."""
        self.entity.check_send_enabled()
        self.check_quota(sum([len(record) for record in records]))
        self.open_transfers().enqueue([with_destination(record, destination) for record in records], on_done)

    def apply_description(self, limits: NamespaceLimits) -> None:
        """Apply the queue's description; existing locks keep their expiry."""
        description = self._queue.description
        window_ms = description.duplicate_window_ms
        self.main.policy, self.dead_letters.policy = fragment_policies(
            description, limits, duplicate_window_ms=window_ms
        )
        self.set_forwarding(description.forward_to, description.forward_dead_lettered_to)


class SubscriptionPart(ReceivablePart):
    """A part of a subscription, in the same store as the topic's part of the same number."""

    def __init__(self, subscription: Subscription, topic_part: TopicPart, areas: Areas) -> None:
        """Create a part from its areas; called by `LocalPartFactory`."""
        self.subscription = subscription
        self.topic_part = topic_part
        super().__init__(subscription, areas)

    def check_quota(self, size: int) -> None:
        """Raise QuotaExceeded if `size` more bytes do not fit into the topic; otherwise add them to its size."""
        self.topic_part.check_quota(size)
        self.topic_part.main.add_stored_bytes(size)

    @property
    def accepts_copies(self) -> bool:
        """Whether the status of the subscription lets it get published messages."""
        return self.entity.status not in SEND_DISABLED_STATUSES

    def apply_description(self, limits: NamespaceLimits) -> None:
        """Apply the subscription's description; existing locks keep their expiry."""
        description = self.subscription.description
        self.main.policy, self.dead_letters.policy = fragment_policies(description, limits)
        self.set_forwarding(description.forward_to, description.forward_dead_lettered_to)

    def put_rule(self, rule_name: str, rule: Rule) -> None:
        """Add a rule, replacing a rule of the same name."""
        self.topic_part.main.put_rule(self, rule_name, rule)

    def remove_rule(self, rule_name: str) -> None:
        """Remove a rule."""
        self.topic_part.main.remove_rule(self, rule_name)

    def detach_from_topic(self) -> None:
        """Stop getting copies of published messages."""
        self.topic_part.main.remove_subscription(self)

    def make_copy(self, fields: RecordFields) -> RecordFields | None:
        """Return the subscription's copy of a message; None if the message lacks a required session id."""
        session = None
        if self.validation_policy.requires_session:
            session = session_id_in(fields.bare_message)
            if session is None:
                return None
        header = fields.header
        if self.validation_policy.max_ttl_ms < FOREVER_MS:
            header = with_ttl(header, self.validation_policy.max_ttl_ms)
        return fields._replace(
            header=header, session_id=session, due_ms=expiry_time(header, fields.enqueued_ms), state=0
        )

    def dead_letter_copy(self, fields: RecordFields, reason: str, description: str) -> None:
        """Dead-letter a message that the subscription cannot accept, in the batch of this turn."""
        bare_message = with_properties(fields.bare_message, dead_letter_properties(reason, description))
        self.dead_letters.store_moved(
            make_record(
                fields._replace(bare_message=bare_message, due_ms=NEVER_MS, session_id=None, state=0, shared_body=0)
            )
        )


def fragment_policies(
    description: QueueDescription | SubscriptionDescription, limits: NamespaceLimits, *, duplicate_window_ms: int = 0
) -> tuple[FragmentPolicy, FragmentPolicy]:
    """Return the policies for a part's messages and for its dead letters, which are never dead-lettered again."""

    def policy(max_delivery_count: int | None, *, dead_letters_expired: bool) -> FragmentPolicy:
        return FragmentPolicy(
            lock_duration_ms=description.lock_duration_ms,
            max_delivery_count=max_delivery_count,
            max_locks=limits.max_locks,
            dead_letters_expired=dead_letters_expired,
            duplicate_window_ms=duplicate_window_ms,
            max_properties_bytes=limits.max_properties_bytes,
        )

    main = policy(description.max_delivery_count, dead_letters_expired=description.dead_lettering_on_expiration)
    return main, policy(None, dead_letters_expired=False)


class TopicPart(LocalPart):
    """A part of a topic in this process; its messages are copied into the subscriptions' parts of the same number."""

    def __init__(self, topic: Topic, main: TopicFragment) -> None:
        """Create a part from its fragment; called by `LocalPartFactory`."""
        super().__init__(topic, main.number)
        self._topic = topic
        self._main = main
        main.check_quota = self.check_quota

    @property
    def main(self) -> TopicFragment:
        """The fragment that holds scheduled messages and copies all other messages into the subscriptions."""
        return self._main

    @property
    def is_in_use(self) -> bool:
        """Whether a receiver or browser is attached to a subscription in this part."""
        return any(part.is_in_use for part in self._main.subscriptions.values())

    @property
    def max_size_mb(self) -> int:
        """The maximum size in the description of the topic."""
        return self._topic.description.max_size_mb

    def stored_bytes(self) -> int:
        """Return the size of the topic and its subscriptions in this part."""
        return self._main.stored_bytes()

    def apply_description(self, limits: NamespaceLimits) -> None:
        """Apply the topic's description."""
        self._main.policy = topic_policy(self._topic.description, limits)

    def load(self, on_done: Callable[[ServiceBusError | None], None]) -> None:
        """Load the state of the topic's fragment from the store."""
        self._main.load(on_done)

    def inspect(self) -> PartInspection:
        """Return the inspection of the part."""
        return TopicInspection(self)

    def runtime(self) -> QueueRuntime:
        """Return the message counts and size of the part; its times are 0."""
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
    """Return the policy for a topic's fragments, which hold scheduled messages and ids for duplicate detection."""
    return FragmentPolicy(
        lock_duration_ms=0,
        max_delivery_count=None,
        max_locks=0,
        duplicate_window_ms=description.duplicate_window_ms,
        max_properties_bytes=limits.max_properties_bytes,
    )
