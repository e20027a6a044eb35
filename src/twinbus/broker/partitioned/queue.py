"""A partitioned queue.

Owns: its description. Each part is a queue with the size that the description says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.intake import VIA_PARTITION_KEY, Parcel, Terms
from twinbus.broker.partitioned import arriving, sending
from twinbus.broker.partitioned.ordering import SendOrder
from twinbus.broker.partitioned.receivable import PartitionedReceivable
from twinbus.broker.partitioned.spread import Spread
from twinbus.broker.queue import Queue
from twinbus.broker.record import annotation_pairs_of, take_apart

if TYPE_CHECKING:
    from twinbus.broker.journal import Answered
    from twinbus.model.limits import NamespaceLimits
    from twinbus.model.queue import QueueDescription


class PartitionedQueue(PartitionedReceivable[Queue]):
    """One partitioned queue of a namespace."""

    def __init__(
        self,
        entity_id: int,
        path: str,
        description: QueueDescription,
        parts: list[Queue],
        *,
        start: int,
        created_ms: int,
        updated_ms: int,
    ) -> None:
        """Made by the namespace; messages without a key are spread from part `start` on."""
        super().__init__(entity_id, path, description.status, parts, created_ms=created_ms, updated_ms=updated_ms)
        self.description = description
        self.spread = Spread(parts, start)
        self.order = SendOrder(path)
        self.terms = Terms()

    def describe(self, description: QueueDescription, limits: NamespaceLimits) -> None:
        """It is to be like this from now on."""
        self.description = description
        self.order.max_bytes = limits.max_pending_bytes
        self.terms = Terms(
            ttl_ms=description.default_time_to_live_ms,
            requires_session=description.requires_session,
            detects_duplicates=description.requires_duplicate_detection,
            is_partitioned=True,
        )
        for part in self.parts:
            part.describe(description, limits)
        self.set_status(description.status)

    def send(self, parcel: Parcel, answer: Answered, numbers: list[int] | None = None) -> None:
        """Store messages; `answer` hears when they are on disk. As `sending.send`."""
        self.check_sends()
        sending.send(self, parcel, answer, [] if numbers is None else numbers)

    def send_on(self, records: list[bytes], destination: str, answer: Answered) -> None:
        """Store messages that go from here to another entity, in the parts that their keys for this one lead to."""
        self.check_sends()
        parcel = Parcel()
        parcel.records = records
        parcel.keys = [via_key_of(record) for record in records]
        sending.send_on(self, parcel, destination, answer)

    def take_arrivals(self, source: bytes, items: list[tuple[int, bytes]], answer: Answered) -> None:
        """Messages that another entity forwards here. As `Queue.take_arrivals`."""
        arriving.take(self, source, items, answer)


def via_key_of(record: bytes) -> bytes | None:
    """What says to which fragment of the queue that it is sent via a message goes."""
    pairs = annotation_pairs_of(take_apart(record))
    found = next((value for name, value, _ in pairs if name == VIA_PARTITION_KEY), None)
    return found.encode() if isinstance(found, str) else None
