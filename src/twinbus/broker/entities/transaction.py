"""A transaction: sends and settlements on one entity that are done together, or not at all.

Owns: what was asked for until it is discharged, and the locks on the messages that are to be settled: meanwhile nobody
else settles them, and they do not expire. Nothing is written before the discharge; then all of it is one batch. What is
sent gets its sequence number and its time only there; but messages for later are told their numbers before.

A transaction is bound to one entity by its first operation, since a batch of one store is the only atomic thing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.broker.entities.local_transaction import validation_policy_for
from twinbus.broker.entities.queue import via_partition_key_of
from twinbus.broker.ports.incoming_batch import IncomingBatch
from twinbus.model.callbacks import ignore
from twinbus.model.errors import (
    InvalidOperation,
    NotAllowed,
    ServiceBusError,
    TransactionRolledBack,
    TransactionTooLarge,
)
from twinbus.model.partition_key import fragment_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from twinbus.broker.entities.part import EntityPart
    from twinbus.broker.entities.queue import Queue
    from twinbus.broker.entities.topic import Topic
    from twinbus.broker.intake.message_intake import MessageIntake
    from twinbus.broker.ports.callbacks import OnDone
    from twinbus.broker.ports.fragment import FragmentPort, TransactionPort
    from twinbus.broker.ports.settlement import Disposition


MAX_OPERATIONS: Final = 100


class Transaction:
    """What one client wants done together."""

    def __init__(self, intake: MessageIntake) -> None:
        """Nothing yet."""
        self.part: EntityPart | None = None
        """What it is bound to."""
        self.partition_key: bytes | None = None
        """Of the messages that are sent in it to a partitioned entity: they all have the same."""
        self.failure: ServiceBusError | None = None
        """Why it cannot be committed any more."""
        self.size = 0
        """Bytes that are to be sent, and are kept until then."""
        self._intake = intake
        self._sends: list[tuple[bytes, int, str | None]] = []
        """Payloads, each with its message format, and where it goes if that is not the entity itself."""
        self._operation_count = 0
        self._has_ended = False
        self._part_transaction: TransactionPort | None = None
        """What the owner of the part carries out."""

    # --- what is asked for --------------------------------------------------------------------------------------------

    def send_to(
        self, target: Queue | Topic, payload: bytes, message_format: int, destination: str | None = None
    ) -> None:
        """Send a message, or a batch of them, to the part that its key leads to. As `send`."""
        part = target.parts[0]
        if target.is_partitioned:
            part = self.part_for(target, self._partition_keys_of(target, payload, message_format, destination))
        self.send(part, payload, message_format, destination)

    def _partition_keys_of(
        self, target: Queue | Topic, payload: bytes, message_format: int, destination: str | None
    ) -> list[bytes | None]:
        """Return the keys of messages; of messages that go on to another entity, those for the entity on their way."""
        parcel = IncomingBatch()
        try:
            self._intake.add_to(
                parcel, payload, message_format, target.parts[0].main.clock.wall_ms(), target.validation_policy
            )
        except NotAllowed as error:  # Service Bus calls it an invalid operation in a transaction
            refusal = InvalidOperation(f"in a transaction: {error}")
            self.fail(refusal)
            raise refusal from None
        except ServiceBusError as error:
            self.fail(error)
            raise
        if destination is not None:
            return [via_partition_key_of(record) for record in parcel.records]
        return parcel.partition_keys + parcel.ping_partition_keys

    def send(self, part: EntityPart, payload: bytes, message_format: int, destination: str | None = None) -> None:
        """Send a message, or a batch of them, on to `destination` if that is another entity.

        Whatever is wrong with it is raised now, and fails the transaction.
        """
        self._begin_operation(part)
        try:
            part.entity.check_send_enabled()
            part.main.check_accepts_sends()
            parcel = IncomingBatch()
            terms = validation_policy_for(part, destination)
            self._intake.add_to(parcel, payload, message_format, part.main.clock.wall_ms(), terms)
            self._count_operations(max(1, len(parcel)))
        except ServiceBusError as error:
            self.fail(error)
            raise
        self._sends.append((payload, message_format, destination))
        self.size += len(payload)

    def schedule(self, part: EntityPart, records: list[bytes]) -> list[int]:
        """Store messages for later. Returns the sequence numbers by which they can be cancelled once it is committed.

        Whatever is wrong with it is raised now, and fails the transaction.
        """
        work = self._begin_operation(part)
        try:
            if (
                part.validation_policy.detects_duplicates
            ):  # one would be found at the discharge, when its number is told
                raise InvalidOperation(
                    f"'{part.entity.path}' detects duplicates: messages are scheduled there outside of transactions "
                    "only"
                )
            part.entity.check_send_enabled()
            part.main.check_accepts_sends()
            part.main.check_loaded()
            self._count_operations(len(records))
        except ServiceBusError as error:
            self.fail(error)
            raise
        self.size += sum([len(record) for record in records])
        return work.schedule(records)

    def part_for(self, target: Queue | Topic, partition_keys: Iterable[bytes | None]) -> EntityPart:
        """Return the part that messages of these keys go to. InvalidOperation, which fails the transaction.

        A batch of one store is the only atomic thing: the first key binds the transaction to a fragment of a
        partitioned entity, and all other messages must have the same key.
        """
        if not target.is_partitioned:
            return target.parts[0]
        for key in partition_keys:
            error = self._key_error(target.path, key)
            if error is not None:
                self.fail(error)
                raise error
            self.partition_key = key
        assert self.partition_key is not None
        return target.parts[fragment_of(self.partition_key)]

    def _key_error(self, path: str, partition_key: bytes | None) -> InvalidOperation | None:
        if partition_key is None:
            return InvalidOperation(
                f"'{path}' is partitioned: a message that is sent to it in a transaction has a session id or a "
                "partition key, or, where duplicates are detected, a message id"
            )
        if self.partition_key is None or self.partition_key == partition_key:
            return None
        return InvalidOperation(
            f"all messages of a transaction on '{path}', which is partitioned, have the same session id or partition "
            f"key; this one has {partition_key.decode(errors='replace')!r:.80}, and others "
            f"{self.partition_key.decode(errors='replace')!r:.80}"
        )

    def settle(
        self,
        part: EntityPart,
        fragment: FragmentPort,
        lock_numbers: list[int],
        disposition: Disposition,
        properties: Mapping[str, object] | None = None,
        on_settled: Callable[[bool], None] | None = None,
    ) -> list[int]:
        """Settle messages that are locked. Returns those whose lock is lost, which fails the transaction.

        `told` hears in the end whether they are settled, or locked as before.
        """
        work = self._begin_operation(part)
        self._count_operations(len(lock_numbers))
        try:
            return work.settle(fragment, lock_numbers, disposition, properties, on_settled or ignore)
        except ServiceBusError as error:
            self.fail(error)
            raise

    def bind(self, part: EntityPart) -> int:
        """Bind it to a part. Return the number by which the part's owner knows it; 0 if that is this process."""
        return self._begin_operation(part).number

    def fail(self, error: ServiceBusError) -> None:
        """It cannot be committed any more."""
        self.failure = self.failure or error

    def _begin_operation(self, part: EntityPart) -> TransactionPort:
        if self._has_ended:
            raise TransactionRolledBack("the transaction is over")
        if self.part is None:
            self.part = part
            self._part_transaction = part.begin_transaction(self._intake)
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
        assert self._part_transaction is not None
        return self._part_transaction

    def _count_operations(self, count: int) -> None:
        self._operation_count += count
        if self._operation_count > MAX_OPERATIONS:
            error = TransactionTooLarge(f"a transaction can have {MAX_OPERATIONS} messages, and this one has more")
            self.fail(error)
            raise error

    # --- the end ------------------------------------------------------------------------------------------------------

    def roll_back(self) -> None:
        """Do nothing of it: messages that were to be settled are locked as before."""
        self._has_ended = True
        if self._part_transaction is not None:
            self._part_transaction.roll_back()

    def commit(self, on_done: OnDone) -> None:
        """Do all of it; `answer` is called when it is on disk, or with the reason why nothing of it was done."""
        if self._has_ended or self.failure is not None:
            text = f"the transaction was rolled back: {self.failure}" if self.failure else "the transaction is over"
            self.roll_back()
            on_done(TransactionRolledBack(text))
            return
        self._has_ended = True
        if self._part_transaction is None:
            on_done(None)
        else:
            self._part_transaction.commit(self._sends, on_done)
