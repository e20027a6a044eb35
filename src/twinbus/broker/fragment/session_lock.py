"""A session lock: one session held by one receiver, with the next messages of the session.

Owns: the available messages of the session in memory, the position to read from next, and the deadline of the lock.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from typing import TYPE_CHECKING, Final

from twinbus.broker.ports.fragment import SessionLock

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.clock import Timer
    from twinbus.broker.ports.consumer import Consumer

READ_AHEAD_MESSAGES: Final = 200
"""The maximum number of messages from a session in memory; there may be thousands of sessions."""
READ_AHEAD_BYTES: Final = 1_048_576


class LocalSessionLock(SessionLock):
    """The lock of a session in this process."""

    def __init__(
        self, session_id: bytes, consumer: Consumer, on_accepted: Callable[[SessionLock], None], next_read: int
    ) -> None:
        """Create a tentative lock; `on_accepted` is called when the receiver gets the session."""
        super().__init__(session_id, consumer)
        self.on_accepted = on_accepted
        self.next_read = next_read
        self.ready: deque[tuple[int, bytes]] = deque()
        self.ready_bytes = 0
        self.is_caught_up = False
        """Whether all messages of the session are in `ready` or in flight."""
        self.is_reading = False
        self.has_unread_arrivals = False
        """Whether messages arrived during a read that may have missed them."""
        self.return_count = 0
        """The number of requeued messages that a running read may have missed."""
        self.is_accepted = False
        """Whether the receiver was notified that it holds the session."""
        self.lock_numbers: set[int] = set()
        """The numbers of the locks of the session's messages."""
        self.deadline_s = 0.0
        """The expiry of the lock on the monotonic clock; `locked_until_ms` is the same time on the wall clock."""
        self.pending_deliveries = 0
        """The number of messages that are delivered when their deletion is on disk."""
        self.expiry_timer: Timer | None = None
        """The timer that checks for expiry."""
        self.on_drained: Callable[[], None] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the session has no available messages."""
        return self.is_caught_up and not self.ready

    @property
    def needs_read(self) -> bool:
        """Whether the next messages should be read from the store."""
        return (
            not self.is_caught_up
            and not self.is_reading
            and not self.has_ended
            and len(self.ready) < READ_AHEAD_MESSAGES // 2
            and self.ready_bytes < READ_AHEAD_BYTES // 2
        )

    def append(self, sequence: int, record: bytes) -> None:
        """Add a new message to the session, if all earlier messages are in memory and there is room."""
        if self.is_caught_up and len(self.ready) < READ_AHEAD_MESSAGES and self.ready_bytes < READ_AHEAD_BYTES:
            self.ready.append((sequence, record))
            self.ready_bytes += len(record)
            self.next_read = sequence + 1
        else:
            self.is_caught_up = False
            self.has_unread_arrivals = True

    def requeue(self, sequence: int, record: bytes) -> None:
        """Insert a message that was in flight, at its position in the order of sequence numbers."""
        if sequence >= self.next_read:
            self.is_caught_up = False
            self.return_count += 1
            return
        self.ready_bytes += len(record)
        insort(self.ready, (sequence, record))
        while len(self.ready) > 1 and (
            len(self.ready) > 2 * READ_AHEAD_MESSAGES or self.ready_bytes > 2 * READ_AHEAD_BYTES
        ):
            self.next_read, record = self.ready.pop()
            self.ready_bytes -= len(record)
            self.is_caught_up = False

    def take(self, count: int) -> list[tuple[int, bytes]]:
        """Remove and return the next `count` messages."""
        taken = [self.ready.popleft() for _ in range(count)]
        self.ready_bytes -= sum([len(record) for _, record in taken])
        return taken

    def withdraw(self, sequences: set[int]) -> None:
        """Remove messages from memory that another operation has taken."""
        kept = [message for message in self.ready if message[0] not in sequences]
        if len(kept) < len(self.ready):
            self.ready = deque(kept)
            self.ready_bytes = sum([len(record) for _, record in kept])

    def reset(self, low_watermark: int) -> None:
        """Discard messages in memory, and read them again from `low_watermark` on."""
        self.ready.clear()
        self.lock_numbers.clear()
        self.ready_bytes = self.pending_deliveries = 0
        self.next_read = low_watermark
        self.is_caught_up = self.is_reading = False

    def fill(self, messages: list[tuple[int, bytes]], next_read: int, *, is_last: bool) -> None:
        """Add messages that were read up to `next_read`; if `is_last`, the session has no more messages."""
        self.is_reading = False
        self.ready.extend(messages)
        self.ready_bytes += sum([len(record) for _, record in messages])
        self.next_read = next_read
        self.is_caught_up = is_last and not self.has_unread_arrivals
