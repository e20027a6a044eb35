"""Queues: entities that messages are sent to and received from.

Owns: a queue's description. `intake.partitioner` chooses the part for each message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.entities.entity import ReceivableEntity
from twinbus.broker.intake import partitioner
from twinbus.broker.intake.partitioner import Partitioner
from twinbus.broker.intake.send_order import SendOrder
from twinbus.broker.message_record import annotation_pairs_of, parse_record
from twinbus.broker.ports.incoming_batch import IncomingBatch, ValidationPolicy
from twinbus.model.annotations import VIA_PARTITION_KEY
from twinbus.model.path import SubQueue

if TYPE_CHECKING:
    from twinbus.broker.ports.callbacks import OnDone
    from twinbus.model.errors import ServiceBusError
    from twinbus.model.limits import NamespaceLimits
    from twinbus.model.queue import QueueDescription


class Queue(ReceivableEntity):
    """One queue of a namespace."""

    def __init__(
        self,
        entity_id: int,
        path: str,
        description: QueueDescription,
        *,
        round_robin_start: int,
        created_ms: int,
        updated_ms: int,
    ) -> None:
        """Create a queue without parts; its first message without a key goes to part `round_robin_start`."""
        super().__init__(
            entity_id,
            path,
            description.status,
            is_partitioned=description.enable_partitioning,
            created_ms=created_ms,
            updated_ms=updated_ms,
        )
        self.description = description
        self.partitioner = Partitioner(self.parts, round_robin_start)
        self.send_order = SendOrder(path)

    def forward_target(self, sub_queue: SubQueue) -> str | None:
        """Return the path that messages in a sub-queue are forwarded to, or None."""
        return forwarding_target(self.description.forward_to, self.description.forward_dead_lettered_to, sub_queue)

    def apply_description(self, description: QueueDescription, limits: NamespaceLimits) -> None:
        """Apply a new description to the queue and its parts."""
        self.description = description
        self.send_order.max_bytes = limits.max_pending_bytes
        self.validation_policy = ValidationPolicy(
            max_ttl_ms=description.default_time_to_live_ms,
            requires_session=description.requires_session,
            detects_duplicates=description.requires_duplicate_detection,
            is_partitioned=self.is_partitioned,
        )
        for part in self.parts:
            part.apply_description(limits)
        self.set_status(description.status)

    def send(self, batch: IncomingBatch, on_done: OnDone, sequence_numbers: list[int] | None = None) -> None:
        """Store messages; `on_done` is called when they are on disk. See `EntityPart.send`."""
        if self.is_partitioned:
            partitioner.send(self, batch, on_done, [] if sequence_numbers is None else sequence_numbers)
        else:
            self.parts[0].send(batch, on_done, sequence_numbers)

    def send_via(self, records: list[bytes], destination: str, on_done: OnDone) -> None:
        """Store messages as transfers to the entity `destination`, in parts chosen by their via-partition keys."""
        if not self.is_partitioned:
            self.parts[0].send_via(records, destination, on_done)
            return
        batch = IncomingBatch()
        batch.records = records
        batch.partition_keys = [via_partition_key_of(record) for record in records]
        partitioner.send_via(self, batch, destination, on_done)

    def fragment_error(self, fragment_number: int, error: ServiceBusError) -> ServiceBusError:
        """Return the error for the sender of a message that a part refused."""
        return partitioner.fragment_error(self, fragment_number, error)

    def accept_forwarded(
        self, source_prefix: bytes, numbered_records: list[tuple[int, bytes]], on_done: OnDone
    ) -> None:
        """Store messages that another entity forwards. See `EntityPart.accept_forwarded`."""
        partitioner.accept_forwarded(self, source_prefix, numbered_records, on_done)


def via_partition_key_of(record: bytes) -> bytes | None:
    """Return the via-partition key of a message, which selects a part of the queue that the message is sent via.

    Return None if the message has no such key.
    """
    pairs = annotation_pairs_of(parse_record(record))
    key = next((value for name, value, _ in pairs if name == VIA_PARTITION_KEY), None)
    return key.encode() if isinstance(key, str) else None


def forwarding_target(forward_to: str | None, forward_dead_lettered_to: str | None, sub_queue: SubQueue) -> str | None:
    """Return the path that messages in a sub-queue are forwarded to, or None."""
    if sub_queue is SubQueue.MAIN:
        return forward_to
    return forward_dead_lettered_to if sub_queue is SubQueue.DEAD_LETTER else None
