"""A transaction: sends and settlements on one entity that are applied together, or not at all.

Owns: the sends of a transaction until its discharge, its binding to a part, and its size limit. Locks of messages to be
settled are held by the part's transaction (`local_transaction`): until the discharge they do not expire, and nothing
else settles these messages. Nothing is written before the commit, which writes all changes in one batch. Sent messages
get their sequence numbers and enqueued times on commit; scheduled messages get their sequence numbers at once.

The first operation binds a transaction to one part of an entity, because only a batch of one store is atomic.
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
    """The operations of one client that are applied together."""

    def __init__(self, intake: MessageIntake) -> None:
        """Create a transaction without operations."""
        self.part: EntityPart | None = None
        """The part that the transaction is bound to, or None before the first operation."""
        self.partition_key: bytes | None = None
        """The common key of all messages sent in the transaction to a partitioned entity."""
        self.failure: ServiceBusError | None = None
        """The error that keeps the transaction from being committed, or None."""
        self.size = 0
        """The bytes of sends and scheduled messages that are held until the discharge."""
        self._intake = intake
        self._sends: list[tuple[bytes, int, str | None]] = []
        """For each send: payload, message format and, if the send is to another entity, destination."""
        self._operation_count = 0
        self._has_ended = False
        self._part_transaction: TransactionPort | None = None
        """The transaction at the owner of the part."""

    # --- operations ---------------------------------------------------------------------------------------------------

    def send_to(
        self, target: Queue | Topic, payload: bytes, message_format: int, destination: str | None = None
    ) -> None:
        """Send a message or a batch to the part that its partition key selects. See `send`."""
        part = target.parts[0]
        if target.is_partitioned:
            part = self.part_for(target, self._partition_keys_of(target, payload, message_format, destination))
        self.send(part, payload, message_format, destination)

    def _partition_keys_of(
        self, target: Queue | Topic, payload: bytes, message_format: int, destination: str | None
    ) -> list[bytes | None]:
        """Return the partition keys of messages, or the via-partition keys if the messages go on to `destination`."""
        batch = IncomingBatch()
        try:
            self._intake.add_to(
                batch, payload, message_format, target.parts[0].main.clock.wall_ms(), target.validation_policy
            )
        except NotAllowed as error:  # in a transaction, Service Bus reports an invalid operation
            refusal = InvalidOperation(f"in a transaction: {error}")
            self.fail(refusal)
            raise refusal from None
        except ServiceBusError as error:
            self.fail(error)
            raise
        if destination is not None:
            return [via_partition_key_of(record) for record in batch.records]
        return batch.partition_keys + batch.ping_partition_keys

    def send(self, part: EntityPart, payload: bytes, message_format: int, destination: str | None = None) -> None:
        """Send a message or a batch to the part, or via the part to the entity `destination`.

        An invalid send raises its error now, and fails the transaction.
        """
        self._begin_operation(part)
        try:
            part.entity.check_send_enabled()
            part.main.check_accepts_sends()
            batch = IncomingBatch()
            policy = validation_policy_for(part, destination)
            self._intake.add_to(batch, payload, message_format, part.main.clock.wall_ms(), policy)
            self._count_operations(max(1, len(batch)))
        except ServiceBusError as error:
            self.fail(error)
            raise
        self._sends.append((payload, message_format, destination))
        self.size += len(payload)

    def schedule(self, part: EntityPart, records: list[bytes]) -> list[int]:
        """Schedule messages. Return the sequence numbers by which the messages can be cancelled after the commit.

        An invalid message raises its error now, and fails the transaction.
        """
        part_transaction = self._begin_operation(part)
        try:
            # A duplicate would be found only on commit, after its sequence number was returned.
            if part.validation_policy.detects_duplicates:
                raise InvalidOperation(
                    f"'{part.entity.path}' detects duplicates: messages can be scheduled there only outside of "
                    "transactions"
                )
            part.entity.check_send_enabled()
            part.main.check_accepts_sends()
            part.main.check_loaded()
            self._count_operations(len(records))
        except ServiceBusError as error:
            self.fail(error)
            raise
        self.size += sum([len(record) for record in records])
        return part_transaction.schedule(records)

    def part_for(self, target: Queue | Topic, partition_keys: Iterable[bytes | None]) -> EntityPart:
        """Return the part of `target` that stores messages with these partition keys.

        If `target` is partitioned, all messages of a transaction must have the same key, because only the changes in
        one store can be applied atomically. A message without a key or with a different key fails the transaction, and
        this method raises InvalidOperation.
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
                f"'{path}' is partitioned: a message sent to it in a transaction must have a session id or a "
                "partition key, or, if duplicates are detected, a message id"
            )
        if self.partition_key is None or self.partition_key == partition_key:
            return None
        return InvalidOperation(
            f"all messages of a transaction on the partitioned '{path}' must have the same session id or partition "
            f"key; this one has {partition_key.decode(errors='replace')!r:.80}, and the others have "
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
        """Settle locked messages on commit. Return the numbers of lost locks.

        `on_settled` is called with True after the commit, or with False after a rollback, which keeps the locks.
        """
        part_transaction = self._begin_operation(part)
        self._count_operations(len(lock_numbers))
        try:
            return part_transaction.settle(fragment, lock_numbers, disposition, properties, on_settled or ignore)
        except ServiceBusError as error:
            self.fail(error)
            raise

    def bind(self, part: EntityPart) -> int:
        """Bind the transaction to a part. Return the transaction's number at the part's owner.

        The number is 0 if the owner is this process.
        """
        return self._begin_operation(part).number

    def fail(self, error: ServiceBusError) -> None:
        """Mark the transaction as failed, so that it cannot be committed."""
        self.failure = self.failure or error

    def _begin_operation(self, part: EntityPart) -> TransactionPort:
        if self._has_ended:
            raise TransactionRolledBack("the transaction has ended: begin a new one")
        if self.part is None:
            self.part = part
            self._part_transaction = part.begin_transaction(self._intake)
        elif self.part is not part:
            hint = f"'{part.entity.path}' is another entity. Send via the first one, or use"
            if part.entity is self.part.entity:
                hint = "this operation is on another fragment of it. Use the same key, or"
            error = InvalidOperation(
                f"the transaction is bound to '{self.part.entity.path}', the first entity used in it; {hint} "
                "two transactions."
            )
            self.fail(error)
            raise error
        assert self._part_transaction is not None
        return self._part_transaction

    def _count_operations(self, count: int) -> None:
        self._operation_count += count
        if self._operation_count > MAX_OPERATIONS:
            error = TransactionTooLarge(
                f"a transaction can have at most {MAX_OPERATIONS} messages: use several transactions"
            )
            self.fail(error)
            raise error

    # --- discharge ----------------------------------------------------------------------------------------------------

    def roll_back(self) -> None:
        """Discard all operations; messages that were to be settled remain locked."""
        self._has_ended = True
        if self._part_transaction is not None:
            self._part_transaction.roll_back()

    def commit(self, on_done: OnDone) -> None:
        """Apply all operations; `on_done` is called when they are on disk, or with the error if none was applied.

        If an earlier operation failed the transaction, roll it back; `on_done` gets TransactionRolledBack.
        """
        if self._has_ended or self.failure is not None:
            text = f"the transaction was rolled back: {self.failure}" if self.failure else "the transaction has ended"
            self.roll_back()
            on_done(TransactionRolledBack(text))
            return
        self._has_ended = True
        if self._part_transaction is None:
            on_done(None)
        else:
            self._part_transaction.commit(self._sends, on_done)
