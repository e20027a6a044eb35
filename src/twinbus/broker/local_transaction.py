"""The part of a transaction that is carried out in this process: on one part of an entity.

Owns: the locks on the messages that are to be settled, and the records of scheduled messages, until the transaction is
committed or rolled back. Nothing is written before the commit; then all of it is one batch.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from twinbus.broker.keys import pack_sequence
from twinbus.broker.lookup import look_up
from twinbus.broker.ports.fragment import TransactionPort
from twinbus.broker.ports.incoming import Parcel, Terms
from twinbus.broker.ports.settlement import How, session_lock_lost
from twinbus.broker.schedule import for_later
from twinbus.model.callbacks import ignore
from twinbus.model.errors import ServiceBusError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twinbus.broker.fragment import Fragment
    from twinbus.broker.intake import Intake
    from twinbus.broker.locks import Lock
    from twinbus.broker.part import Part, StoredPart
    from twinbus.broker.ports.callbacks import Answered
    from twinbus.broker.ports.fragment import FragmentPort


class Settled:
    """Messages of one fragment that are to be settled in one way."""

    def __init__(
        self,
        fragment: Fragment,
        locks: list[Lock],
        how: How,
        properties: Mapping[str, object],
        told: Callable[[bool], None],
    ) -> None:
        """`properties` are changed in them, or say why they are dead-lettered; `told` hears whether that was done."""
        self.fragment = fragment
        self.life = fragment.life
        self.locks = locks
        self.how = how
        self.properties = properties
        self.told = told
        self.records: dict[int, bytes] = {}
        """By sequence numbers; of those whose records have to be known."""


class Scheduled(NamedTuple):
    """Messages for later, and the numbers that they get."""

    life: int
    """Of the fragment in which the numbers are reserved."""
    numbers: list[int]
    records: list[bytes]


class LocalTransaction(TransactionPort):
    """What one client wants done together on one part."""

    def __init__(self, part: StoredPart, intake: Intake) -> None:
        """Nothing yet."""
        self._part = part
        self._intake = intake
        self._sent: list[tuple[bytes, int, str | None]] = []
        """Payloads, each with its message format, and where it goes if that is not the entity itself."""
        self._scheduled: list[Scheduled] = []
        self._settled: list[Settled] = []

    def settle(
        self,
        fragment: FragmentPort,
        numbers: list[int],
        how: How,
        properties: Mapping[str, object] | None,
        told: Callable[[bool], None],
    ) -> list[int]:
        """Settle locked messages at the commit. Return the locks that are lost."""
        local = fragment.local
        locks, lost = local.settlement.set_apart(numbers)
        if locks:
            self._settled.append(Settled(local, locks, how, properties or {}, told))
        return lost

    def schedule(self, records: list[bytes]) -> list[int]:
        """Store scheduled messages at the commit. Return the sequence numbers that they will have."""
        main = self._part.main
        main.check_loaded()
        now_ms, numbers = main.clock.wall_ms(), main.schedule.reserve(len(records))
        later = [for_later(record, now_ms) for record in records]
        self._scheduled.append(Scheduled(main.life, numbers, later))
        return numbers

    def roll_back(self) -> None:
        """Do nothing of it: messages that were to be settled are locked as before."""
        rolled_back, self._settled = self._settled, []
        for settled in rolled_back:
            if settled.life == settled.fragment.life:
                settled.fragment.settlement.put_back(settled.locks)
                settled.told(False)  # noqa: FBT003

    def commit(self, sent: list[tuple[bytes, int, str | None]], answer: Answered = ignore) -> None:
        """Do all of it; `answer` is called when it is on disk, or with the reason why nothing of it was done."""
        self._sent = sent
        try:
            self._part.main.check_loaded()  # the entity may have been deleted
        except ServiceBusError as error:
            self._refuse(answer, error)
        else:
            self._read(list(self._settled), answer)

    def _read(self, left: list[Settled], answer: Answered) -> None:
        """Read the messages that are to be changed; then nothing is left that takes time."""
        while left and left[0].how is How.COMPLETE:
            left.pop(0)
        if not left:
            self._do_all(answer)
            return
        settled = left.pop(0)
        fragment, locks = settled.fragment, settled.locks

        def visit(place: int, record: bytes | None) -> None:
            if record is not None:
                settled.records[locks[place].sequence] = record

        def read(error: ServiceBusError | None) -> None:
            if error is not None:
                self._refuse(answer, error)
            else:
                self._read(left, answer)

        holdings = fragment.holdings
        places = [holdings.deferred if lock.is_deferred else holdings.active for lock in locks]
        wanted = [place + pack_sequence(lock.sequence) for place, lock in zip(places, locks, strict=True)]
        look_up(fragment, wanted, visit, read)

    def _do_all(self, answer: Answered) -> None:
        try:
            changes = [self._prepared(settled) for settled in self._settled]
            parcels = self._make_parcels()
            direct = parcels.pop(None, None)
            changes += self._prepare_transfers(parcels)
            changes += self._prepare_scheduled()
        except ServiceBusError as error:
            self._refuse(answer, error)
            return

        def settle() -> None:
            for change in changes:
                change()

        def done(error: ServiceBusError | None) -> None:
            if error is None:
                for settled in self._settled:
                    settled.told(True)  # noqa: FBT003
            answer(error)

        if direct is not None:
            self._send(direct, settle, done)
        else:
            settle()
            self._part.main.journal.add_loose(done)

    def _send(self, parcel: Parcel, settle: Callable[[], None], answer: Answered) -> None:
        """All that is sent is stored in one batch, and so is all that is done beside it."""
        is_stored = False

        def beside() -> None:
            nonlocal is_stored
            is_stored = True
            settle()

        def done(error: ServiceBusError | None) -> None:
            if error is not None and not is_stored:
                self._refuse(answer, error)
            else:
                answer(error)

        try:
            self._part.send(parcel, done, beside=beside)
        except ServiceBusError as error:
            self._refuse(answer, error)

    def _refuse(self, answer: Answered, error: ServiceBusError) -> None:
        self.roll_back()
        answer(error)

    def _make_parcels(self) -> dict[str | None, Parcel]:
        """What is sent, by where it goes, as it is now: its time begins."""
        parcels: dict[str | None, Parcel] = {}
        for payload, message_format, destination in self._sent:
            now_ms = self._part.main.clock.wall_ms()
            parcel = parcels.setdefault(destination, Parcel())
            self._intake.add_to(parcel, payload, message_format, now_ms, terms_of(self._part, destination))
        return parcels

    def _prepare_transfers(self, parcels: dict[str | None, Parcel]) -> list[Callable[[], None]]:
        """What sends messages on to other entities at once. Raises where it cannot be done."""
        changes: list[Callable[[], None]] = []
        for destination, parcel in parcels.items():
            assert destination is not None
            self._part.check_takes(sum([len(record) for record in parcel.records]))
            changes.append(partial(self._part.send_on, parcel.records, destination, ignore))
        return changes

    def _prepare_scheduled(self) -> list[Callable[[], None]]:
        """What stores messages for later at once. Raises where it cannot be done."""
        if not self._scheduled:
            return []
        part, fragment = self._part, self._part.main
        if any(scheduled.life != fragment.life for scheduled in self._scheduled):
            raise StoreUnavailable("the store failed before the transaction was committed; its numbers are void")
        fragment.journal.check_takes_sends()
        part.entity.check_sends()
        part.check_room(sum([len(record) for scheduled in self._scheduled for record in scheduled.records]))
        return [partial(fragment.schedule.put, numbers, records) for _, numbers, records in self._scheduled]

    def _prepared(self, settled: Settled) -> Callable[[], None]:
        """What settles messages at once. Raises where it cannot be done."""
        fragment = settled.fragment
        if settled.life != fragment.life:
            raise StoreUnavailable("the store failed before the transaction was committed; its locks are void")
        for lock in settled.locks:
            if lock.session is not None and lock.hold is not None and lock.hold.is_over:
                raise session_lock_lost(lock.session)
        return fragment.settlement.prepare(settled.how, settled.locks, settled.records, settled.properties)


def terms_of(target: Part, destination: str | None) -> Terms:
    """What is sent on is not asked for what the entity on its way wants of its own messages."""
    return target.terms if destination is None else Terms()
