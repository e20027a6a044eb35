"""Incoming messages that are stored together, and the policy by which an entity validates them.

    batch = IncomingBatch()
    namespace.intake.add_to(batch, payload, message_format, now_ms, queue.validation_policy)
    queue.send(batch, on_done)

The intake validates each message by the entity's policy, and encodes the message as a record.
"""

from __future__ import annotations

from twinbus.broker.message_record import mark_possible_duplicate
from twinbus.model.description import FOREVER_MS


class ValidationPolicy:
    """Requirements of an entity for each incoming message, derived from its description."""

    __slots__ = ("detects_duplicates", "is_partitioned", "is_unrestricted", "max_ttl_ms", "requires_session")

    def __init__(
        self,
        *,
        max_ttl_ms: int = FOREVER_MS,
        requires_session: bool = False,
        detects_duplicates: bool = False,
        is_partitioned: bool = False,
    ) -> None:
        """Create a policy; `max_ttl_ms` limits the time to live.

        If `is_partitioned`, batches have the partition key of each message.
        """
        self.max_ttl_ms = max_ttl_ms
        self.requires_session = requires_session
        self.detects_duplicates = detects_duplicates
        self.is_partitioned = is_partitioned
        self.is_unrestricted = max_ttl_ms >= FOREVER_MS and not requires_session and not detects_duplicates


class IncomingBatch:
    """Records of messages, and pings, that are sent together."""

    __slots__ = ("duplicate_ids", "partition_keys", "ping_count", "ping_partition_keys", "records")

    def __init__(self) -> None:
        """Create an empty batch."""
        self.records: list[bytes] = []
        self.duplicate_ids: list[bytes] = []
        """Identity of each message for duplicate detection; empty if the entity does not detect duplicates."""
        self.partition_keys: list[bytes | None] = []
        """Partition key of each message; empty if the entity is not partitioned."""
        self.ping_partition_keys: list[bytes | None] = []
        """Partition key of each ping."""
        self.ping_count = 0
        """Number of pings: messages that only ask whether the entity is available."""

    def __len__(self) -> int:
        return len(self.records) + self.ping_count

    def extend(self, other: IncomingBatch) -> None:
        """Add the messages and pings of another batch."""
        self.records += other.records
        self.duplicate_ids += other.duplicate_ids
        self.partition_keys += other.partition_keys
        self.ping_partition_keys += other.ping_partition_keys
        self.ping_count += other.ping_count

    def split_after(self, count: int) -> IncomingBatch:
        """Remove and return all records after the first `count`, and all duplicate ids, partition keys and pings.

        The caller has already removed the keys of the first `count` messages.
        """
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
