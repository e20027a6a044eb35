"""Deletions in the simulation: messages that are deleted for receivers, which get them once that is on disk.

Owns: which messages are on their way so, and which of them a failure has cost: those are received once, or never. All
other messages must be received.
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
        """Somebody has come who receives and deletes."""
        self._checker = checker
        self._pending: dict[int, _PendingDeletion] = {}

    def begin(self, batch: ChangeBatch, disk: MemoryDisk) -> None:
        """A batch is given to a store, or would have been."""
        rows = _rows(batch)
        kept = {read_record_fields(record)[0] for record in rows.values() if record is not None}
        for key, record in rows.items():
            if record is None and key[_AREA] == _IN_MAIN:
                identity, _ = read_record_fields(disk.visible[Table.LOG].values[key])
                if identity not in kept:  # else it becomes a dead letter, or is deferred
                    self._delete(_PendingDeletion(self._checker.messages[identity], disk, key))

    def _delete(self, deletion: _PendingDeletion) -> None:
        sequence, message = sequence_of_key(deletion.key), deletion.message
        copy = message.copies.get(sequence)
        if copy is not None and State.COMPLETED in copy.possible_states:
            return  # its receiver has asked for that
        if not self.has_receivers:
            raise Violation(f"{message!r} is deleted, and nobody asked for that")
        message.was_deleted = True
        self._pending[sequence] = deletion

    def end(self, batch: ChangeBatch) -> None:
        """... and is on disk: messages that nobody took are there again."""
        for key, record in _rows(batch).items():
            if (
                record is not None
                and key[_AREA] == _IN_MAIN
                and self._pending.pop(sequence_of_key(key), None) is not None
            ):
                self._checker.messages[read_record_fields(record)[0]].lost.discard(sequence_of_key(key))

    def deliver(self, sequence: int) -> None:
        """A receiver has got a message."""
        self._pending.pop(sequence, None)

    def mark_possible_losses(self) -> None:
        """A process died, or was late: it may have been the one that was to deliver the messages, or to take them."""
        for sequence, place in self._pending.items():
            place.message.lost.add(sequence)

    def lose(self, disk: MemoryDisk) -> None:
        """A store failed: what its disk does not hold any more nobody brings back."""
        for sequence in [sequence for sequence, place in self._pending.items() if place.disk is disk]:
            place = self._pending.pop(sequence)
            if place.is_on_disk:
                place.message.lost.discard(sequence)
            else:
                place.message.lost.add(sequence)


class WatchedStore(MemoryStore):
    """A store that says which messages are deleted, and which come back."""

    def __init__(self, disk: MemoryDisk, deletions: Deletions, *, name: str, post_call: PostCall) -> None:
        super().__init__(disk, name=name, post_call=post_call)
        self._deletions = deletions
        self._gathered: ChangeBatch
        """The batch that will be given next."""

    def batch(self) -> ChangeBatch:
        self._gathered = super().batch()
        return self._gathered

    def commit(self, batch: Batch, on_done: OnResult[None]) -> None:
        assert isinstance(batch, ChangeBatch)
        deletions = self._deletions
        deletions.begin(batch, self.disk)

        def told(error: StoreError | None) -> None:
            if error is None:
                deletions.end(batch)
            on_done(error)

        super().commit(batch, told)

    def lose(self) -> None:
        """It failed, or its process died. Messages may have been taken for receivers in a batch that was not given."""
        self._deletions.begin(self._gathered, self.disk)
        self._deletions.lose(self.disk)


def _rows(batch: ChangeBatch) -> dict[bytes, bytes | None]:
    """The records that a batch writes, and None for those that it deletes."""
    return {key: value for key, value, table in batch.changes if table is Table.LOG and not isinstance(value, tuple)}
