"""Messages on their way into the broker: what came in together, and what an entity demands of it.

parcel = Parcel()
namespace.intake.add_to(parcel, payload, message_format, now_ms, queue.terms)
queue.send(parcel, answer)
"""

from __future__ import annotations

from twinbus.broker.record import mark_record
from twinbus.model.description import FOREVER_MS


class Terms:
    """What a queue wants of each message, as its description says."""

    __slots__ = ("detects_duplicates", "is_partitioned", "is_plain", "requires_session", "ttl_ms")

    def __init__(
        self,
        *,
        ttl_ms: int = FOREVER_MS,
        requires_session: bool = False,
        detects_duplicates: bool = False,
        is_partitioned: bool = False,
    ) -> None:
        """`ttl_ms` is how long a message lives at most; `is_partitioned` if its key says where it goes."""
        self.ttl_ms = ttl_ms
        self.requires_session = requires_session
        self.detects_duplicates = detects_duplicates
        self.is_partitioned = is_partitioned
        self.is_plain = ttl_ms >= FOREVER_MS and not requires_session and not detects_duplicates


class Parcel:
    """What came in together."""

    __slots__ = ("ids", "keys", "ping_keys", "pings", "records")

    def __init__(self) -> None:
        """Nothing yet."""
        self.records: list[bytes] = []
        self.ids: list[bytes] = []
        """What each message is known by, where duplicates are detected."""
        self.keys: list[bytes | None] = []
        """Where the queue is partitioned: what says to which fragment each message goes."""
        self.ping_keys: list[bytes | None] = []
        """... and each ping."""
        self.pings = 0
        """Messages that only ask whether the queue is there."""

    def __len__(self) -> int:
        return len(self.records) + self.pings

    def take(self, other: Parcel) -> None:
        """All that another has as well."""
        self.records += other.records
        self.ids += other.ids
        self.keys += other.keys
        self.ping_keys += other.ping_keys
        self.pings += other.pings

    def split(self, count: int) -> Parcel:
        """What came after the first `count` messages, of which the keys are known already; these are left."""
        rest = Parcel()
        rest.records, self.records[count:] = self.records[count:], []
        rest.ids, rest.keys, rest.ping_keys, rest.pings = self.ids[:], self.keys[:], self.ping_keys[:], self.pings
        self.ids.clear()
        self.keys.clear()
        self.ping_keys.clear()
        self.pings = 0
        return rest

    def mark(self) -> None:
        """Mark all messages as possible duplicates: an earlier attempt may have stored them."""
        self.records = [mark_record(record) for record in self.records]
