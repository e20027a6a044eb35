"""Queues: what is sent to a queue is received from it.

Owns: a queue's description. Which part a message goes to is decided by `partitioned`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.partitioned import sending
from twinbus.broker.partitioned.ordering import SendOrder
from twinbus.broker.partitioned.sending import Spread
from twinbus.broker.ports.incoming import Parcel, Terms
from twinbus.broker.receivable import Receivable
from twinbus.broker.record import annotation_pairs_of, take_apart
from twinbus.model.annotations import VIA_PARTITION_KEY
from twinbus.model.path import SubQueue

if TYPE_CHECKING:
    from twinbus.broker.ports.callbacks import Answered
    from twinbus.model.errors import ServiceBusError
    from twinbus.model.limits import NamespaceLimits
    from twinbus.model.queue import QueueDescription


class Queue(Receivable):
    """One queue of a namespace."""

    def __init__(
        self,
        entity_id: int,
        path: str,
        description: QueueDescription,
        *,
        start: int,
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
        self.spread = Spread(self.parts, start)
        self.order = SendOrder(path)

    def forwards_to(self, sub_queue: SubQueue) -> str | None:
        """Return the path that messages are forwarded to, or None."""
        return forwarding_target(self.description.forward_to, self.description.forward_dead_lettered_to, sub_queue)

    def describe(self, description: QueueDescription, limits: NamespaceLimits) -> None:
        """Change the description."""
        self.description = description
        self.order.max_bytes = limits.max_pending_bytes
        self.terms = Terms(
            ttl_ms=description.default_time_to_live_ms,
            requires_session=description.requires_session,
            detects_duplicates=description.requires_duplicate_detection,
            is_partitioned=self.is_partitioned,
        )
        for part in self.parts:
            part.describe(limits)
        self.set_status(description.status)

    def send(self, parcel: Parcel, answer: Answered, numbers: list[int] | None = None) -> None:
        """Store messages; `answer` is called when they are on disk. As `Part.send`."""
        if self.is_partitioned:
            sending.send(self, parcel, answer, [] if numbers is None else numbers)
        else:
            self.parts[0].send(parcel, answer, numbers)

    def send_on(self, records: list[bytes], destination: str, answer: Answered) -> None:
        """Store messages that go on to another entity, in the parts that their keys for this queue lead to."""
        if not self.is_partitioned:
            self.parts[0].send_on(records, destination, answer)
            return
        parcel = Parcel()
        parcel.records = records
        parcel.keys = [via_key_of(record) for record in records]
        sending.send_on(self, parcel, destination, answer)

    def refusal_of(self, number: int, error: ServiceBusError) -> ServiceBusError:
        """Return the error for a sender whose key leads to a part that refused a message."""
        return sending.of_fragment(self, number, error)

    def take_arrivals(self, source: bytes, items: list[tuple[int, bytes]], answer: Answered) -> None:
        """Store messages that another entity forwards. As `Part.take_arrivals`."""
        sending.take_arrivals(self, source, items, answer)


def via_key_of(record: bytes) -> bytes | None:
    """Return the key of a message for the queue that it is sent via."""
    pairs = annotation_pairs_of(take_apart(record))
    found = next((value for name, value, _ in pairs if name == VIA_PARTITION_KEY), None)
    return found.encode() if isinstance(found, str) else None


def forwarding_target(messages: str | None, dead_letters: str | None, sub_queue: SubQueue) -> str | None:
    """Return where the messages of an entity, or of one of its dead-letter queues, are forwarded to; None: nowhere."""
    if sub_queue is SubQueue.MAIN:
        return messages
    return dead_letters if sub_queue is SubQueue.DEAD_LETTER else None
