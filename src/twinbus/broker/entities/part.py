"""Parts of entities: one for each fragment.

A part of a queue or subscription consists of several areas, each of them a `Fragment` object with its own sequence
numbers, counters and order: the messages, the dead letters and, if needed, messages on their way to other entities.

Owns: the interface of a part (`EntityPart`), and how a part in a store of this process accepts messages (`LocalPart`):
its quota and its duplicate detection. The package `intake` validates messages beforehand; the fragment orders and
delivers messages.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from twinbus.broker.entities.local_transaction import LocalTransaction
from twinbus.broker.entities.quota import check_quota
from twinbus.broker.ports.fragment import LOCAL_OWNER
from twinbus.model.description import fragment_size_mb

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.entities.entity import Entity
    from twinbus.broker.entities.fan_out import Rule
    from twinbus.broker.fragment.fragment import Fragment
    from twinbus.broker.intake.message_intake import MessageIntake
    from twinbus.broker.ports.callbacks import OnDone
    from twinbus.broker.ports.fragment import FragmentPort, OwnerPort, TransactionPort
    from twinbus.broker.ports.incoming_batch import IncomingBatch, ValidationPolicy
    from twinbus.broker.ports.inspection import PartInspection
    from twinbus.model.errors import ServiceBusError
    from twinbus.model.limits import NamespaceLimits
    from twinbus.model.path import SubQueue
    from twinbus.model.queue import QueueRuntime

MEGABYTE: Final = 1_048_576


class EntityPart:
    """One fragment of an entity, in this process or in another one."""

    def __init__(self, entity: Entity, number: int) -> None:
        """Create a part with the given fragment number; called by a `PartFactory`."""
        self.entity = entity
        self.number = number
        self.store = 0
        """The number of the part's store; set by the namespace."""

    @property
    def main(self) -> FragmentPort:
        """The fragment for the entity's own messages; a topic's fragment holds only scheduled messages."""
        raise NotImplementedError

    @property
    def fragments(self) -> list[FragmentPort]:
        """All existing areas of the part."""
        return [self.main]

    @property
    def owner(self) -> OwnerPort:
        """The process that owns the store of the part."""
        return LOCAL_OWNER

    @property
    def validation_policy(self) -> ValidationPolicy:
        """The validation policy of the entity."""
        return self.entity.validation_policy

    @property
    def is_in_use(self) -> bool:
        """Whether a receiver or browser is attached to an area of the part."""
        return any(fragment.is_in_use for fragment in self.fragments)

    def fragment_of(self, sub_queue: SubQueue) -> FragmentPort:  # noqa: ARG002
        """Return the area of a sub-queue."""
        return self.main

    def send(
        self,
        batch: IncomingBatch,
        on_done: OnDone,
        sequence_numbers: list[int] | None = None,
        on_batched: Callable[[], None] | None = None,
    ) -> None:
        """Store messages, all or none; `on_done` is called when they are on disk.

        The sequence numbers are added to `sequence_numbers` before `on_done` is called; the number of a duplicate,
        which is not stored, is 0. `on_batched` is called when the messages are put into a batch, and may put changes
        into the same batch. Raises QuotaExceeded or StoreUnavailable.
        """
        raise NotImplementedError

    def send_via(self, records: list[bytes], destination: str, on_done: OnDone) -> None:
        """Store messages as transfers to the entity `destination`, all or none.

        Raises QuotaExceeded or StoreUnavailable.
        """
        raise NotImplementedError

    def accept_forwarded(
        self, source_prefix: bytes, numbered_records: list[tuple[int, bytes]], on_done: OnDone
    ) -> None:
        """Store messages forwarded from the key prefix `source_prefix`, like `ForwardingInbox.accept`."""
        raise NotImplementedError

    def check_can_store(self, size: int) -> None:
        """Raise the error that a send of `size` bytes would raise, as far as this process can tell."""
        raise NotImplementedError

    def resubmit(
        self,
        sequences: list[int],
        edited: bytes | None,
        intake: MessageIntake,
        on_result: Callable[[list[int] | ServiceBusError], None],
    ) -> None:
        """Make dead letters active again, like `Resubmission.resubmit`."""
        raise NotImplementedError

    def move(
        self,
        sub_queue: SubQueue,
        sequences: list[int],
        destination: str,
        intake: MessageIntake,
        on_done: OnDone,
    ) -> None:
        """Move messages of a sub-queue to another entity, like `Resubmission.move`."""
        raise NotImplementedError

    def begin_transaction(self, intake: MessageIntake) -> TransactionPort:
        """Begin a transaction on the part; the part's owner carries it out."""
        raise NotImplementedError

    def runtime(self) -> QueueRuntime:
        """Return the message counts and sizes of the part."""
        raise NotImplementedError

    def inspect(self) -> PartInspection | None:
        """Return the inspection of the part; None if another process owns the part."""
        return None

    def apply_description(self, limits: NamespaceLimits) -> None:
        """Apply the changed description of the entity."""

    def put_rule(self, rule_name: str, rule: Rule) -> None:
        """Add or replace a rule, if this is a part of a subscription."""

    def remove_rule(self, rule_name: str) -> None:
        """Remove a rule, if this is a part of a subscription."""

    def detach_from_topic(self) -> None:
        """Stop getting copies of published messages: the subscription was deleted."""

    def load(self, on_done: Callable[[ServiceBusError | None], None]) -> None:
        """Load the state of the part from its store."""
        raise NotImplementedError

    def resume(self) -> None:
        """Begin to dispatch and forward messages; called when all entities are loaded."""
        for fragment in self.fragments:
            fragment.resume()

    def close(self, error: ServiceBusError) -> None:
        """Detach all receivers: the entity was deleted."""
        for fragment in self.fragments:
            fragment.close(error)


class LocalPart(EntityPart):
    """A part in a store of this process."""

    @property
    def main(self) -> Fragment:
        """The fragment for the entity's own messages."""
        raise NotImplementedError

    def begin_transaction(self, intake: MessageIntake) -> TransactionPort:
        """Begin a transaction on the part."""
        return LocalTransaction(self, intake)

    def send(
        self,
        batch: IncomingBatch,
        on_done: OnDone,
        sequence_numbers: list[int] | None = None,
        on_batched: Callable[[], None] | None = None,
    ) -> None:
        """Store messages; a batch that contains only pings writes nothing."""
        self.entity.check_send_enabled()
        records, fragment = batch.records, self.main
        if not records:
            fragment.ping(on_done)
            return
        self.check_quota(sum([len(record) for record in records]))
        # Messages that are forwarded to their own entity have no duplicate ids.
        if self.entity.validation_policy.detects_duplicates and batch.duplicate_ids:
            fragment.duplicate_detection.enqueue(
                records, batch.duplicate_ids, [] if sequence_numbers is None else sequence_numbers, on_done, on_batched
            )
            return
        if fragment.is_publishing:
            fragment.commit_log.check_accepts_sends()
            fragment.check_loaded()
            size = sum([len(record) for record in records])
            fragment.run_in_order(
                partial(_enqueue, fragment, records, on_done, sequence_numbers, on_batched), on_done, size
            )
            return
        _enqueue(fragment, records, on_done, sequence_numbers, on_batched)

    def accept_forwarded(
        self, source_prefix: bytes, numbered_records: list[tuple[int, bytes]], on_done: OnDone
    ) -> None:
        """Store messages that another entity forwards, each only once."""
        self.main.forwarding_inbox.accept(source_prefix, numbered_records, self, on_done)

    def check_can_store(self, size: int) -> None:
        """Raise the error that a send of `size` bytes would raise."""
        self.entity.check_send_enabled()
        self.main.commit_log.check_accepts_sends()
        self.main.check_loaded()
        self.check_quota(size)

    def stored_bytes(self) -> int:
        """Return the size of all messages and session states in bytes."""
        raise NotImplementedError

    @property
    def max_size_mb(self) -> int:
        """The maximum size in the description of the entity."""
        raise NotImplementedError

    def check_quota(self, size: int) -> None:
        """Raise QuotaExceeded if `size` more bytes do not fit."""
        check_quota(self.entity.path, self.stored_bytes(), size, fragment_size_mb(self.max_size_mb) * MEGABYTE)


def _enqueue(
    fragment: Fragment,
    records: list[bytes],
    on_done: OnDone,
    sequence_numbers: list[int] | None,
    on_batched: Callable[[], None] | None,
) -> None:
    first = fragment.enqueue(records, on_done, on_batched)
    if sequence_numbers is not None:
        sequence_numbers.extend(range(first, first + len(records)))
