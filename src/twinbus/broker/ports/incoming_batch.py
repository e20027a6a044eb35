"""Messages on their way into the broker: what came in together, and what an entity demands of it.

parcel = Parcel()
namespace.intake.add_to(parcel, payload, message_format, now_ms, queue.terms)
queue.send(parcel, answer)
"""

from __future__ import annotations

from twinbus.broker.message_record import mark_possible_duplicate
from twinbus.model.description import FOREVER_MS


class ValidationPolicy:
    """What a queue wants of each message, as its description says."""

    __slots__ = ("detects_duplicates", "is_partitioned", "is_unrestricted", "max_ttl_ms", "requires_session")

    def __init__(
        self,
        *,
        max_ttl_ms: int = FOREVER_MS,
        requires_session: bool = False,
        detects_duplicates: bool = False,
        is_partitioned: bool = False,
    ) -> None:
        """`ttl_ms` is how long a message lives at most; `is_partitioned` if its key says where it goes."""
        self.max_ttl_ms = max_ttl_ms
        self.requires_session = requires_session
        self.detects_duplicates = detects_duplicates
        self.is_partitioned = is_partitioned
        self.is_unrestricted = max_ttl_ms >= FOREVER_MS and not requires_session and not detects_duplicates


class IncomingBatch:
    """What came in together."""

    __slots__ = ("duplicate_ids", "partition_keys", "ping_count", "ping_partition_keys", "records")

    def __init__(self) -> None:
        """Nothing yet."""
        self.records: list[bytes] = []
        self.duplicate_ids: list[bytes] = []
        """What each message is known by, where duplicates are detected."""
        self.partition_keys: list[bytes | None] = []
        """Where the queue is partitioned: what says to which fragment each message goes."""
        self.ping_partition_keys: list[bytes | None] = []
        """... and each ping."""
        self.ping_count = 0
        """Messages that only ask whether the queue is there."""

    def __len__(self) -> int:
        return len(self.records) + self.ping_count

    def extend(self, other: IncomingBatch) -> None:
        """All that another has as well."""
        self.records += other.records
        self.duplicate_ids += other.duplicate_ids
        self.partition_keys += other.partition_keys
        self.ping_partition_keys += other.ping_partition_keys
        self.ping_count += other.ping_count

    def split_after(self, count: int) -> IncomingBatch:
        """What came after the first `count` messages, of which the keys are known already; these are left."""
        rest = IncomingBatch()
        rest.records, self.records[count:] = self.records[count:], []
        rest.duplicate_ids, rest.partition_keys, rest.ping_partition_keys, rest.ping_count = (
            self.duplicate_ids[:],
            self.partition_keys[:],
            self.ping_partition_keys[:],
            self.ping_count,
        )
        self.duplicate_ids.clear()
        self.partition_keys.clear()
        self.ping_partition_keys.clear()
        self.ping_count = 0
        return rest

    def mark_possible_duplicates(self) -> None:
        """Mark all messages as possible duplicates: an earlier attempt may have stored them."""
        self.records = [mark_possible_duplicate(record) for record in self.records]
