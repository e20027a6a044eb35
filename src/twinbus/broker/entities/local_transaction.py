"""The operations of a transaction on one part of an entity in this process.

Owns: the locks of messages to be settled, and the records of scheduled messages, until the transaction is committed or
rolled back. Nothing is written before the commit, which writes all changes in one batch.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from twinbus.broker.fragment.record_lookup import look_up_records
from twinbus.broker.fragment.schedule import as_scheduled
from twinbus.broker.ports.fragment import TransactionPort
from twinbus.broker.ports.incoming_batch import IncomingBatch, ValidationPolicy
from twinbus.broker.ports.settlement import Disposition, session_lock_lost_error
from twinbus.broker.store_keys import pack_sequence
from twinbus.model.callbacks import ignore
from twinbus.model.errors import ServiceBusError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twinbus.broker.entities.part import EntityPart, LocalPart
    from twinbus.broker.fragment.fragment import Fragment
    from twinbus.broker.fragment.locks import Lock
    from twinbus.broker.intake.message_intake import MessageIntake
    from twinbus.broker.ports.callbacks import OnDone
    from twinbus.broker.ports.fragment import FragmentPort


class PendingSettlement:
    """Messages of one fragment that the transaction settles with the same disposition."""

    def __init__(
        self,
        fragment: Fragment,
        locks: list[Lock],
        disposition: Disposition,
        properties: Mapping[str, object],
        on_settled: Callable[[bool], None],
    ) -> None:
        """Create a pending settlement; `properties` are set on the messages when they are settled.

        `on_settled` is called with True after the commit, or with False after a rollback.
        """
        self.fragment = fragment
        self.incarnation = fragment.incarnation
        self.locks = locks
        self.disposition = disposition
        self.properties = properties
        self.on_settled = on_settled
        self.records: dict[int, bytes] = {}
        """The records of the messages by sequence number; empty if the disposition does not need them."""


class PendingSchedule(NamedTuple):
    """Scheduled messages with their reserved sequence numbers."""

    incarnation: int
    """The incarnation of the fragment that reserved the sequence numbers."""
    sequence_numbers: list[int]
    records: list[bytes]


class LocalTransaction(TransactionPort):
    """The operations of one transaction on one part."""

    def __init__(self, part: LocalPart, intake: MessageIntake) -> None:
        """Create a transaction without operations."""
        self._part = part
        self._intake = intake
        self._sends: list[tuple[bytes, int, str | None]] = []
        """For each send: payload, message format and, if the send is to another entity, destination."""
        self._scheduled: list[PendingSchedule] = []
        self._settlements: list[PendingSettlement] = []

    def settle(
        self,
        fragment: FragmentPort,
        lock_numbers: list[int],
        disposition: Disposition,
        properties: Mapping[str, object] | None,
        on_settled: Callable[[bool], None],
    ) -> list[int]:
        """Settle locked messages on commit. Return the numbers of lost locks."""
        local_fragment = fragment.local
        locks, lost = local_fragment.settlement.reserve_locks(lock_numbers)
        if locks:
            self._settlements.append(
                PendingSettlement(local_fragment, locks, disposition, properties or {}, on_settled)
            )
        return lost

    def schedule(self, records: list[bytes]) -> list[int]:
        """Store scheduled messages on commit. Return their reserved sequence numbers."""
        main = self._part.main
        main.check_loaded()
        now_ms, numbers = main.clock.wall_ms(), main.schedule.reserve_sequences(len(records))
        scheduled = [as_scheduled(record, now_ms) for record in records]
        self._scheduled.append(PendingSchedule(main.incarnation, numbers, scheduled))
        return numbers

    def roll_back(self) -> None:
        """Discard all operations; messages that were to be settled remain locked."""
        rolled_back, self._settlements = self._settlements, []
        for settlement in rolled_back:
            if settlement.incarnation == settlement.fragment.incarnation:
                settlement.fragment.settlement.restore_locks(settlement.locks)
                settlement.on_settled(False)  # noqa: FBT003

    def commit(self, sends: list[tuple[bytes, int, str | None]], on_done: OnDone = ignore) -> None:
        """Send the messages in `sends`, and apply all operations.

        `on_done` is called when all changes are on disk, or with an error if nothing was applied.
        """
        self._sends = sends
        try:
            self._part.main.check_loaded()  # raises if the entity was deleted
        except ServiceBusError as error:
            self._fail(on_done, error)
        else:
            self._read_records(list(self._settlements), on_done)

    def _read_records(self, remaining: list[PendingSettlement], on_done: OnDone) -> None:
        """Read the records that settlements need, one settlement after another, then apply the transaction."""
        while remaining and remaining[0].disposition is Disposition.COMPLETE:
            remaining.pop(0)
        if not remaining:
            self._apply(on_done)
            return
        settlement = remaining.pop(0)
        fragment, locks = settlement.fragment, settlement.locks

        def visit(index: int, record: bytes | None) -> None:
            if record is not None:
                settlement.records[locks[index].sequence] = record

        def on_read(error: ServiceBusError | None) -> None:
            if error is not None:
                self._fail(on_done, error)
            else:
                self._read_records(remaining, on_done)

        message_table = fragment.message_table
        prefixes = [
            message_table.deferred_prefix if lock.is_deferred else message_table.active_prefix for lock in locks
        ]
        keys = [prefix + pack_sequence(lock.sequence) for prefix, lock in zip(prefixes, locks, strict=True)]
        look_up_records(fragment, keys, visit, on_read)

    def _apply(self, on_done: OnDone) -> None:
        try:
            changes = [self._prepare_settlement(settlement) for settlement in self._settlements]
            batches = self._make_batches()
            own_batch = batches.pop(None, None)
            changes += self._prepare_transfers(batches)
            changes += self._prepare_scheduled()
        except ServiceBusError as error:
            self._fail(on_done, error)
            return

        def settle() -> None:
            for change in changes:
                change()

        def done(error: ServiceBusError | None) -> None:
            if error is None:
                for settlement in self._settlements:
                    settlement.on_settled(True)  # noqa: FBT003
            on_done(error)

        if own_batch is not None:
            self._send(own_batch, settle, done)
        else:
            settle()
            self._part.main.commit_log.add_without_participant(done)

    def _send(self, batch: IncomingBatch, settle: Callable[[], None], on_done: OnDone) -> None:
        """Send messages, and run `settle` when they are put into a batch, so that all changes are in the same batch."""
        is_stored = False

        def on_batched() -> None:
            nonlocal is_stored
            is_stored = True
            settle()

        def done(error: ServiceBusError | None) -> None:
            if error is not None and not is_stored:
                self._fail(on_done, error)
            else:
                on_done(error)

        try:
            self._part.send(batch, done, on_batched=on_batched)
        except ServiceBusError as error:
            self._fail(on_done, error)

    def _fail(self, on_done: OnDone, error: ServiceBusError) -> None:
        self.roll_back()
        on_done(error)

    def _make_batches(self) -> dict[str | None, IncomingBatch]:
        """Return the sent messages by destination, with the current time as the enqueued time."""
        batches: dict[str | None, IncomingBatch] = {}
        for payload, message_format, destination in self._sends:
            now_ms = self._part.main.clock.wall_ms()
            batch = batches.setdefault(destination, IncomingBatch())
            self._intake.add_to(batch, payload, message_format, now_ms, validation_policy_for(self._part, destination))
        return batches

    def _prepare_transfers(self, batches: dict[str | None, IncomingBatch]) -> list[Callable[[], None]]:
        """Return the calls that store messages for other entities. Raises if a message cannot be stored."""
        changes: list[Callable[[], None]] = []
        for destination, batch in batches.items():
            assert destination is not None
            self._part.check_can_store(sum([len(record) for record in batch.records]))
            changes.append(partial(self._part.send_via, batch.records, destination, ignore))
        return changes

    def _prepare_scheduled(self) -> list[Callable[[], None]]:
        """Return the calls that store scheduled messages. Raises if a message cannot be stored."""
        if not self._scheduled:
            return []
        part, fragment = self._part, self._part.main
        if any(scheduled.incarnation != fragment.incarnation for scheduled in self._scheduled):
            raise StoreUnavailable("the store failed before the commit: the reserved sequence numbers are lost")
        fragment.commit_log.check_accepts_sends()
        part.entity.check_send_enabled()
        part.check_quota(sum([len(record) for scheduled in self._scheduled for record in scheduled.records]))
        return [partial(fragment.schedule.put, numbers, records) for _, numbers, records in self._scheduled]

    def _prepare_settlement(self, settlement: PendingSettlement) -> Callable[[], None]:
        """Return the call that settles the messages of a pending settlement. Raises if a lock was lost."""
        fragment = settlement.fragment
        if settlement.incarnation != fragment.incarnation:
            raise StoreUnavailable("the store failed before the commit: the locks of the transaction are lost")
        for lock in settlement.locks:
            if lock.session_id is not None and lock.session_lock is not None and lock.session_lock.has_ended:
                raise session_lock_lost_error(lock.session_id)
        return fragment.settlement.prepare(
            settlement.disposition, settlement.locks, settlement.records, settlement.properties
        )


def validation_policy_for(part: EntityPart, destination: str | None) -> ValidationPolicy:
    """Return the validation policy for a send; a message sent via the part to another entity has no restrictions."""
    return part.validation_policy if destination is None else ValidationPolicy()
