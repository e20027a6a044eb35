"""A transaction: sends and settlements on one entity that are done together, or not at all.

Owns: what was asked for until it is discharged, and the locks on the messages that are to be settled: meanwhile nobody
else settles them, and they do not expire. Nothing is written before the discharge; then all of it is one batch. What is
sent gets its sequence number and its time only there; but messages for later are told their numbers before.

A transaction is bound to one entity by its first operation, since a batch of one store is the only atomic thing.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from twinbus.broker.intake import Parcel, Terms
from twinbus.broker.keys import pack_sequence
from twinbus.broker.lookup import look_up
from twinbus.broker.part import StoredPart
from twinbus.broker.remote.part import RemotePart
from twinbus.broker.remote.transaction import RemoteTransaction
from twinbus.broker.schedule import for_later
from twinbus.broker.sessions import session_lock_lost
from twinbus.broker.settlement import How
from twinbus.model.errors import (
    InvalidOperation,
    ServiceBusError,
    StoreUnavailable,
    TransactionRolledBack,
    TransactionTooLarge,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twinbus.broker.fragment import Fragment
    from twinbus.broker.intake import Intake
    from twinbus.broker.journal import Answered
    from twinbus.broker.locks import Lock
    from twinbus.broker.part import Part

MAX_OPERATIONS: Final = 100


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


class Transaction:
    """What one client wants done together."""

    def __init__(self, intake: Intake) -> None:
        """Nothing yet."""
        self.part: Part | None = None
        """What it is bound to."""
        self.key: bytes | None = None
        """Of the messages that are sent in it to a partitioned entity: they all have the same."""
        self.failure: ServiceBusError | None = None
        """Why it cannot be committed any more."""
        self.size = 0
        """Bytes that are to be sent, and are kept until then."""
        self._intake = intake
        self._sent: list[tuple[bytes, int, str | None]] = []
        """Payloads, each with its message format, and where it goes if that is not the entity itself."""
        self._scheduled: list[Scheduled] = []
        self._settled: list[Settled] = []
        self._count = 0
        self._is_over = False
        self.remote: RemoteTransaction | None = None
        """Its way to the process that has what it is bound to, if that is another one."""

    # --- what is asked for --------------------------------------------------------------------------------------------

    def send(self, target: Part, payload: bytes, message_format: int, destination: str | None = None) -> None:
        """Send a message, or a batch of them, on to `destination` if that is another entity.

        Whatever is wrong with it is raised now, and fails the transaction.
        """
        self._doing(target)
        try:
            target.entity.check_sends()
            target.main.journal.check_takes_sends()
            parcel = Parcel()
            terms = _terms_of(target, destination)
            self._intake.add_to(parcel, payload, message_format, target.main.clock.wall_ms(), terms)
            self._add(max(1, len(parcel)))
        except ServiceBusError as error:
            self.fail(error)
            raise
        self._sent.append((payload, message_format, destination))
        self.size += len(payload)

    def schedule(self, target: Part, records: list[bytes]) -> list[int]:
        """Store messages for later. Returns the sequence numbers by which they can be cancelled once it is committed.

        Whatever is wrong with it is raised now, and fails the transaction.
        """
        self._doing(target)
        try:
            if target.terms.detects_duplicates:  # one would be found at the discharge, when its number is told
                raise InvalidOperation(
                    f"'{target.entity.path}' detects duplicates: messages are scheduled there outside of transactions "
                    "only"
                )
            target.entity.check_sends()
            target.main.journal.check_takes_sends()
            target.main.check_loaded()
            self._add(len(records))
        except ServiceBusError as error:
            self.fail(error)
            raise
        now_ms, numbers = target.main.clock.wall_ms(), target.main.schedule.reserve(len(records))
        later = [for_later(record, now_ms) for record in records]
        self.size += sum([len(record) for record in later])
        self._scheduled.append(Scheduled(target.main.life, numbers, later))
        return numbers

    def settle(
        self,
        part: Part,
        fragment: Fragment,
        numbers: list[int],
        how: How,
        properties: Mapping[str, object] | None = None,
        told: Callable[[bool], None] | None = None,
    ) -> list[int]:
        """Settle messages that are locked. Returns those whose lock is lost, which fails the transaction.

        `told` hears in the end whether they are settled, or locked as before.
        """
        self._doing(part)
        self._add(len(numbers))
        if self.remote is not None:
            self.remote.settle(fragment, numbers, how, properties, told or _nobody)
            return []
        try:
            locks, lost = fragment.settlement.set_apart(numbers)
        except ServiceBusError as error:
            self.fail(error)
            raise
        if locks:
            self._settled.append(Settled(fragment, locks, how, properties or {}, told or _nobody))
        return lost

    def bind(self, target: Part) -> RemoteTransaction | None:
        """Bind it to a part. If another process has that, returns what asks for operations there."""
        self._doing(target)
        return self.remote

    def fail(self, error: ServiceBusError) -> None:
        """It cannot be committed any more."""
        self.failure = self.failure or error

    def _doing(self, part: Part) -> None:
        if self._is_over:
            raise TransactionRolledBack("the transaction is over")
        if self.part is None:
            self.part = part
            self.remote = RemoteTransaction(part) if isinstance(part, RemotePart) else None
        elif self.part is not part:
            what = f"'{part.entity.path}' is another entity. Send via the first one, or use"
            if part.entity is self.part.entity:
                what = "this is of another fragment of it. Use the same key, or"
            error = InvalidOperation(
                f"the transaction is bound to '{self.part.entity.path}', which was used first in it; {what} "
                "two transactions."
            )
            self.fail(error)
            raise error

    def _add(self, count: int) -> None:
        self._count += count
        if self._count > MAX_OPERATIONS:
            error = TransactionTooLarge(f"a transaction can have {MAX_OPERATIONS} messages, and this one has more")
            self.fail(error)
            raise error

    # --- the end ------------------------------------------------------------------------------------------------------

    def roll_back(self) -> None:
        """Nothing of it is done; messages that were to be settled are locked as before."""
        self._is_over = True
        if self.remote is not None:
            self.remote.roll_back()
        rolled_back, self._settled = self._settled, []
        for settled in rolled_back:
            if settled.life == settled.fragment.life:
                settled.fragment.settlement.put_back(settled.locks)
                settled.told(False)  # noqa: FBT003

    def commit(self, answer: Answered) -> None:
        """Do all of it; `answer` hears when it is on disk, or why nothing of it was done."""
        if self._is_over or self.failure is not None:
            text = f"the transaction was rolled back: {self.failure}" if self.failure else "the transaction is over"
            self.roll_back()
            answer(TransactionRolledBack(text))
            return
        self._is_over = True
        if self.remote is not None:
            self._commit_there(self.remote, answer)
            return
        try:
            if self.part is not None:
                self.part.main.check_loaded()  # it may have been deleted
        except ServiceBusError as error:
            self._refuse(answer, error)
        else:
            self._read(list(self._settled), answer)

    def _commit_there(self, remote: RemoteTransaction, answer: Answered) -> None:
        """What is sent is refused here already, as what is not in a transaction would be."""
        try:
            if self._sent and self.part is not None:
                self.part.entity.check_sends()
        except ServiceBusError as error:
            self._refuse(answer, error)
        else:
            remote.commit(self._sent, answer)

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
        elif self.part is not None:
            settle()
            self.part.main.journal.add_loose(done)
        else:
            answer(None)

    def _send(self, parcel: Parcel, settle: Callable[[], None], answer: Answered) -> None:
        """All that is sent is stored in one batch, and so is all that is done beside it."""
        target = self.part
        assert target is not None
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
            target.send(parcel, done, beside=beside)
        except ServiceBusError as error:
            self._refuse(answer, error)

    def _refuse(self, answer: Answered, error: ServiceBusError) -> None:
        self.roll_back()
        answer(error)

    def _make_parcels(self) -> dict[str | None, Parcel]:
        """What is sent, by where it goes, as it is now: its time begins."""
        parcels: dict[str | None, Parcel] = {}
        for payload, message_format, destination in self._sent:
            target = self.part
            assert target is not None
            now_ms = target.main.clock.wall_ms()
            parcel = parcels.setdefault(destination, Parcel())
            self._intake.add_to(parcel, payload, message_format, now_ms, _terms_of(target, destination))
        return parcels

    def _prepare_transfers(self, parcels: dict[str | None, Parcel]) -> list[Callable[[], None]]:
        """What sends messages on to other entities at once. Raises where it cannot be done."""
        changes: list[Callable[[], None]] = []
        for destination, parcel in parcels.items():
            part = self.part
            assert part is not None
            assert destination is not None
            part.check_takes(sum([len(record) for record in parcel.records]))
            changes.append(partial(part.send_on, parcel.records, destination, _answered))
        return changes

    def _prepare_scheduled(self) -> list[Callable[[], None]]:
        """What stores messages for later at once. Raises where it cannot be done."""
        target = self.part
        if not self._scheduled:
            return []
        assert isinstance(target, StoredPart)
        fragment = target.main
        if any(scheduled.life != fragment.life for scheduled in self._scheduled):
            raise StoreUnavailable("the store failed before the transaction was committed; its numbers are void")
        fragment.journal.check_takes_sends()
        target.entity.check_sends()
        target.check_room(sum([len(record) for scheduled in self._scheduled for record in scheduled.records]))
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


def _terms_of(target: Part, destination: str | None) -> Terms:
    """What is sent on is not asked for what the entity on its way wants of its own messages."""
    return target.terms if destination is None else Terms()


def _answered(_error: ServiceBusError | None) -> None:
    """Who waits is told by the answer to the whole."""


def _nobody(_is_done: bool) -> None:  # noqa: FBT001
    """Nobody waits for this."""
