"""Messages to be deleted in bulk, and what became of that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from twinbus.broker.record import enqueued_time_of, session_id_of
from twinbus.model.errors import ServiceBusError

READ_BATCH_SIZE: Final = 100
"""Records that are read at once: of the largest, they are 25 MB. Dead letters that are resubmitted together are read
together, so there can be no more of them."""
UNLIMITED: Final = 2**63


class RemovalCriteria:
    """Which messages are to go."""

    __slots__ = ("enqueued_before_ms", "max_count", "max_sequence", "session_id")

    def __init__(
        self,
        *,
        max_count: int = UNLIMITED,
        max_sequence: int = UNLIMITED,
        enqueued_before_ms: int = UNLIMITED,
        session_id: bytes | None = None,
    ) -> None:
        """So many at most, up to this sequence number, enqueued before this time, of this session."""
        self.max_count = max_count
        self.max_sequence = max_sequence
        self.enqueued_before_ms = enqueued_before_ms
        self.session_id = session_id

    def matches(self, record: bytes) -> bool:
        """This message is to go."""
        if self.session_id is not None and session_id_of(record) != self.session_id:
            return False
        return enqueued_time_of(record) < self.enqueued_before_ms


class RemovalResult:
    """What became of it."""

    __slots__ = ("removed_count", "skipped_count")

    def __init__(self) -> None:
        """Nothing yet."""
        self.removed_count = 0
        self.skipped_count = 0
        """Those that someone has."""


OnRemoved: TypeAlias = Callable[[RemovalResult | ServiceBusError], None]
