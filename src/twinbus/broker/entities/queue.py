"""Queues: what is sent to a queue is received from it.

Owns: a queue's description. Which part a message goes to is decided by `partitioned`.
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
        first_fragment: int,
        created_ms: int,
        updated_ms: int,
    ) -> None:
        """Made by the namespace; messages without a key are spread from part `start` on."""
        super().__init__(
            entity_id,
            path,
            description.status,
            is_partitioned=description.enable_partitioning,
            created_ms=created_ms,
            updated_ms=updated_ms,
        )
        self.description = description
        self.partitioner = Partitioner(self.parts, first_fragment)
        self.send_order = SendOrder(path)

    def forward_target(self, sub_queue: SubQueue) -> str | None:
        """Return the path that messages are forwarded to, or None."""
        return forwarding_target(self.description.forward_to, self.description.forward_dead_lettered_to, sub_queue)

    def apply_description(self, description: QueueDescription, limits: NamespaceLimits) -> None:
        """Change the description."""
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
        """Store messages; `answer` is called when they are on disk. As `Part.send`."""
        if self.is_partitioned:
            partitioner.send(self, batch, on_done, [] if sequence_numbers is None else sequence_numbers)
        else:
            self.parts[0].send(batch, on_done, sequence_numbers)

    def send_via(self, records: list[bytes], destination: str, on_done: OnDone) -> None:
        """Store messages that go on to another entity, in the parts that their keys for this queue lead to."""
        if not self.is_partitioned:
            self.parts[0].send_via(records, destination, on_done)
            return
        parcel = IncomingBatch()
        parcel.records = records
        parcel.partition_keys = [via_partition_key_of(record) for record in records]
        partitioner.send_via(self, parcel, destination, on_done)

    def fragment_error(self, fragment_number: int, error: ServiceBusError) -> ServiceBusError:
        """Return the error for a sender whose key leads to a part that refused a message."""
        return partitioner.fragment_error(self, fragment_number, error)

    def accept_forwarded(
        self, source_prefix: bytes, numbered_records: list[tuple[int, bytes]], on_done: OnDone
    ) -> None:
        """Store messages that another entity forwards. As `Part.take_arrivals`."""
        partitioner.accept_forwarded(self, source_prefix, numbered_records, on_done)


def via_partition_key_of(record: bytes) -> bytes | None:
    """Return the key of a message for the queue that it is sent via."""
    pairs = annotation_pairs_of(parse_record(record))
    found = next((value for name, value, _ in pairs if name == VIA_PARTITION_KEY), None)
    return found.encode() if isinstance(found, str) else None


def forwarding_target(forward_to: str | None, forward_dead_lettered_to: str | None, sub_queue: SubQueue) -> str | None:
    """Return where the messages of an entity, or of one of its dead-letter queues, are forwarded to; None: nowhere."""
    if sub_queue is SubQueue.MAIN:
        return forward_to
    return forward_dead_lettered_to if sub_queue is SubQueue.DEAD_LETTER else None
