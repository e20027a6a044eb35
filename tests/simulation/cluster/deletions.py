"""Deletions in the simulation: messages deleted for receivers, which get them once the deletion is on disk.

Owns: which messages are deleted and not yet delivered, and which of them a failure may have lost: these are received
once or never. All other messages must be received.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tests.simulation.broker.payloads import read_record_fields
from tests.support.delivery_checker.messages import State
from tests.support.delivery_checker.problems import Violation
from twinbus.broker.store_keys import ACTIVE, KIND_BYTES, PREFIX_BYTES, Area, sequence_of_key
from twinbus.store.change_batch import ChangeBatch
from twinbus.store.memory import MemoryDisk, MemoryStore
from twinbus.store.protocol import Table

if TYPE_CHECKING:
    from tests.simulation.cluster.checker import ClusterChecker
    from tests.simulation.cluster.message_copies import Message
    from twinbus.store.memory import PostCall
    from twinbus.store.protocol import Batch, OnResult, StoreError

_IN_MAIN = bytes((Area.MAIN,)) + ACTIVE
_AREA = slice(PREFIX_BYTES - 1, PREFIX_BYTES + KIND_BYTES)


class _PendingDeletion(NamedTuple):
    message: Message
    disk: MemoryDisk
    key: bytes

    @property
    def is_on_disk(self) -> bool:
        return self.key in self.disk.synced[Table.LOG].values


class Deletions:
    """Messages deleted for receivers that have not got them, by sequence number."""

    def __init__(self, checker: ClusterChecker) -> None:
        self.has_receivers = False
        """Whether a receiver in receive-and-delete mode was ever attached."""
        self._checker = checker
        self._pending: dict[int, _PendingDeletion] = {}

    def begin(self, batch: ChangeBatch, disk: MemoryDisk) -> None:
        """Record the deletions in a batch that is committed, or that was lost before its commit."""
        rows = _rows(batch)
        kept = {read_record_fields(record)[0] for record in rows.values() if record is not None}
        for key, record in rows.items():
            if record is None and key[_AREA] == _IN_MAIN:
                identity, _ = read_record_fields(disk.visible[Table.LOG].values[key])
                if identity not in kept:  # otherwise the message is dead-lettered or deferred
                    self._delete(_PendingDeletion(self._checker.messages[identity], disk, key))

    def _delete(self, deletion: _PendingDeletion) -> None:
        sequence, message = sequence_of_key(deletion.key), deletion.message
        copy = message.copies.get(sequence)
        if copy is not None and State.COMPLETED in copy.possible_states:
            return  # its receiver has completed it
        if not self.has_receivers:
            raise Violation(f"{message!r} is deleted, and nobody asked for that")
        message.was_deleted = True
        self._pending[sequence] = deletion

    def end(self, batch: ChangeBatch) -> None:
        """Record that a batch is on disk: refused messages in it are stored again."""
        for key, record in _rows(batch).items():
            if (
                record is not None
                and key[_AREA] == _IN_MAIN
                and self._pending.pop(sequence_of_key(key), None) is not None
            ):
                self._checker.messages[read_record_fields(record)[0]].lost.discard(sequence_of_key(key))

    def deliver(self, sequence: int) -> None:
        """Record that a receiver has got a message."""
        self._pending.pop(sequence, None)

    def mark_possible_losses(self) -> None:
        """Mark pending deletions as possibly lost: a process was killed or stalled before it delivered the messages."""
        for sequence, deletion in self._pending.items():
            deletion.message.lost.add(sequence)

    def mark_overtaken(self, session: str) -> None:
        """Allow pending deletions of a session to be delivered, or to come back, after later messages.

        The lock of the receiver for which they were deleted has expired, while its process was silent or they were
        delayed between processes. The next receiver of the session does not wait for them.
        """
        for deletion in self._pending.values():
            if deletion.message.key == session:
                deletion.message.was_overtaken = True

    def lose(self, disk: MemoryDisk) -> None:
        """Record the failure of a store: deleted messages that are not on its disk any more are lost."""
        for sequence in [sequence for sequence, deletion in self._pending.items() if deletion.disk is disk]:
            deletion = self._pending.pop(sequence)
            if deletion.is_on_disk:
                deletion.message.lost.discard(sequence)
            else:
                deletion.message.lost.add(sequence)


class WatchedStore(MemoryStore):
    """A store that reports which messages are deleted and restored."""

    def __init__(self, disk: MemoryDisk, deletions: Deletions, *, name: str, post_call: PostCall) -> None:
        super().__init__(disk, name=name, post_call=post_call)
        self._deletions = deletions
        self._next_batch: ChangeBatch
        """Batch of the next commit."""

    def batch(self) -> ChangeBatch:
        self._next_batch = super().batch()
        return self._next_batch

    def commit(self, batch: Batch, on_done: OnResult[None]) -> None:
        assert isinstance(batch, ChangeBatch)
        deletions = self._deletions
        deletions.begin(batch, self.disk)

        def on_committed(error: StoreError | None) -> None:
            if error is None:
                deletions.end(batch)
            on_done(error)

        super().commit(batch, on_committed)

    def lose(self) -> None:
        """Record that the store or its process failed. The batch that was not committed may contain deletions, too."""
        self._deletions.begin(self._next_batch, self.disk)
        self._deletions.lose(self.disk)


def _rows(batch: ChangeBatch) -> dict[bytes, bytes | None]:
    """Return the records that a batch writes, and None for those that it deletes."""
    return {key: value for key, value, table in batch.changes if table is Table.LOG and not isinstance(value, tuple)}
