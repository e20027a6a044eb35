"""The part of a transaction that is carried out in this process: on one part of an entity.

Owns: the locks on the messages that are to be settled, and the records of scheduled messages, until the transaction is
committed or rolled back. Nothing is written before the commit; then all of it is one batch.
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
    """Messages of one fragment that are to be settled in one way."""

    def __init__(
        self,
        fragment: Fragment,
        locks: list[Lock],
        disposition: Disposition,
        properties: Mapping[str, object],
        on_settled: Callable[[bool], None],
    ) -> None:
        """`properties` are changed in them, or say why they are dead-lettered; `told` hears whether that was done."""
        self.fragment = fragment
        self.incarnation = fragment.incarnation
        self.locks = locks
        self.disposition = disposition
        self.properties = properties
        self.on_settled = on_settled
        self.records: dict[int, bytes] = {}
        """By sequence numbers; of those whose records have to be known."""


class PendingSchedule(NamedTuple):
    """Messages for later, and the numbers that they get."""

    incarnation: int
    """Of the fragment in which the numbers are reserved."""
    sequence_numbers: list[int]
    records: list[bytes]


class LocalTransaction(TransactionPort):
    """What one client wants done together on one part."""

    def __init__(self, part: LocalPart, intake: MessageIntake) -> None:
        """Nothing yet."""
        self._part = part
        self._intake = intake
        self._sends: list[tuple[bytes, int, str | None]] = []
        """Payloads, each with its message format, and where it goes if that is not the entity itself."""
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
        """Settle locked messages at the commit. Return the locks that are lost."""
        local = fragment.local
        locks, lost = local.settlement.reserve_locks(lock_numbers)
        if locks:
            self._settlements.append(PendingSettlement(local, locks, disposition, properties or {}, on_settled))
        return lost

    def schedule(self, records: list[bytes]) -> list[int]:
        """Store scheduled messages at the commit. Return the sequence numbers that they will have."""
        main = self._part.main
        main.check_loaded()
        now_ms, numbers = main.clock.wall_ms(), main.schedule.reserve_sequences(len(records))
        later = [as_scheduled(record, now_ms) for record in records]
        self._scheduled.append(PendingSchedule(main.incarnation, numbers, later))
        return numbers

    def roll_back(self) -> None:
        """Do nothing of it: messages that were to be settled are locked as before."""
        rolled_back, self._settlements = self._settlements, []
        for settled in rolled_back:
            if settled.incarnation == settled.fragment.incarnation:
                settled.fragment.settlement.restore_locks(settled.locks)
                settled.on_settled(False)  # noqa: FBT003

    def commit(self, sends: list[tuple[bytes, int, str | None]], on_done: OnDone = ignore) -> None:
        """Do all of it; `answer` is called when it is on disk, or with the reason why nothing of it was done."""
        self._sends = sends
        try:
            self._part.main.check_loaded()  # the entity may have been deleted
        except ServiceBusError as error:
            self._fail(on_done, error)
        else:
            self._read_records(list(self._settlements), on_done)

    def _read_records(self, remaining: list[PendingSettlement], on_done: OnDone) -> None:
        """Read the messages that are to be changed; then nothing is left that takes time."""
        while remaining and remaining[0].disposition is Disposition.COMPLETE:
            remaining.pop(0)
        if not remaining:
            self._apply(on_done)
            return
        settled = remaining.pop(0)
        fragment, locks = settled.fragment, settled.locks

        def visit(place: int, record: bytes | None) -> None:
            if record is not None:
                settled.records[locks[place].sequence] = record

        def read(error: ServiceBusError | None) -> None:
            if error is not None:
                self._fail(on_done, error)
            else:
                self._read_records(remaining, on_done)

        holdings = fragment.message_table
        places = [holdings.deferred_prefix if lock.is_deferred else holdings.active_prefix for lock in locks]
        wanted = [place + pack_sequence(lock.sequence) for place, lock in zip(places, locks, strict=True)]
        look_up_records(fragment, wanted, visit, read)

    def _apply(self, on_done: OnDone) -> None:
        try:
            changes = [self._prepare_settlement(settled) for settled in self._settlements]
            parcels = self._make_batches()
            direct = parcels.pop(None, None)
            changes += self._prepare_transfers(parcels)
            changes += self._prepare_scheduled()
        except ServiceBusError as error:
            self._fail(on_done, error)
            return

        def settle() -> None:
            for change in changes:
                change()

        def done(error: ServiceBusError | None) -> None:
            if error is None:
                for settled in self._settlements:
                    settled.on_settled(True)  # noqa: FBT003
            on_done(error)

        if direct is not None:
            self._send(direct, settle, done)
        else:
            settle()
            self._part.main.commit_log.add_without_participant(done)

    def _send(self, batch: IncomingBatch, settle: Callable[[], None], on_done: OnDone) -> None:
        """All that is sent is stored in one batch, and so is all that is done beside it."""
        is_stored = False

        def beside() -> None:
            nonlocal is_stored
            is_stored = True
            settle()

        def done(error: ServiceBusError | None) -> None:
            if error is not None and not is_stored:
                self._fail(on_done, error)
            else:
                on_done(error)

        try:
            self._part.send(batch, done, on_batched=beside)
        except ServiceBusError as error:
            self._fail(on_done, error)

    def _fail(self, on_done: OnDone, error: ServiceBusError) -> None:
        self.roll_back()
        on_done(error)

    def _make_batches(self) -> dict[str | None, IncomingBatch]:
        """What is sent, by where it goes, as it is now: its time begins."""
        parcels: dict[str | None, IncomingBatch] = {}
        for payload, message_format, destination in self._sends:
            now_ms = self._part.main.clock.wall_ms()
            parcel = parcels.setdefault(destination, IncomingBatch())
            self._intake.add_to(parcel, payload, message_format, now_ms, validation_policy_for(self._part, destination))
        return parcels

    def _prepare_transfers(self, batches: dict[str | None, IncomingBatch]) -> list[Callable[[], None]]:
        """What sends messages on to other entities at once. Raises where it cannot be done."""
        changes: list[Callable[[], None]] = []
        for destination, parcel in batches.items():
            assert destination is not None
            self._part.check_can_store(sum([len(record) for record in parcel.records]))
            changes.append(partial(self._part.send_via, parcel.records, destination, ignore))
        return changes

    def _prepare_scheduled(self) -> list[Callable[[], None]]:
        """What stores messages for later at once. Raises where it cannot be done."""
        if not self._scheduled:
            return []
        part, fragment = self._part, self._part.main
        if any(scheduled.incarnation != fragment.incarnation for scheduled in self._scheduled):
            raise StoreUnavailable("the store failed before the transaction was committed; its numbers are void")
        fragment.commit_log.check_accepts_sends()
        part.entity.check_send_enabled()
        part.check_quota(sum([len(record) for scheduled in self._scheduled for record in scheduled.records]))
        return [partial(fragment.schedule.put, numbers, records) for _, numbers, records in self._scheduled]

    def _prepare_settlement(self, settlement: PendingSettlement) -> Callable[[], None]:
        """What settles messages at once. Raises where it cannot be done."""
        fragment = settlement.fragment
        if settlement.incarnation != fragment.incarnation:
            raise StoreUnavailable("the store failed before the transaction was committed; its locks are void")
        for lock in settlement.locks:
            if lock.session_id is not None and lock.session_lock is not None and lock.session_lock.has_ended:
                raise session_lock_lost_error(lock.session_id)
        return fragment.settlement.prepare(
            settlement.disposition, settlement.locks, settlement.records, settlement.properties
        )


def validation_policy_for(part: EntityPart, destination: str | None) -> ValidationPolicy:
    """What is sent on is not asked for what the entity on its way wants of its own messages."""
    return part.validation_policy if destination is None else ValidationPolicy()
