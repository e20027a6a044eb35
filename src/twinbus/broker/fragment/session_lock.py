"""A hold: one session that one receiver has, with the messages of it that are next.

Owns: which messages of the session can be handed out, from where to read on, and until when the receiver has it.
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
"""Messages of one session in memory: there may be thousands of sessions."""
READ_AHEAD_BYTES: Final = 1_048_576


class LocalSessionLock(SessionLock):
    """A session, locked."""

    def __init__(
        self, session_id: bytes, consumer: Consumer, on_accepted: Callable[[SessionLock], None], next_read: int
    ) -> None:
        """Made by `Sessions`; `granted` is called when the receiver has it."""
        super().__init__(session_id, consumer)
        self.on_accepted = on_accepted
        self.next_read = next_read
        self.ready: deque[tuple[int, bytes]] = deque()
        self.ready_bytes = 0
        self.is_caught_up = False
        """All that the session has is in `ready`, or out."""
        self.is_reading = False
        self.has_unread_arrivals = False
        """Messages came while it was reading."""
        self.return_count = 0
        """Messages that came back before they were read: what is being read may be older."""
        self.is_accepted = False
        """The receiver knows that it has it."""
        self.lock_numbers: set[int] = set()
        """Of the locks on its messages."""
        self.deadline_s = 0.0
        """`until_ms` is the same on the wall clock, as the receiver is told it."""
        self.pending_deliveries = 0
        """Messages that are being deleted, to be delivered then."""
        self.expiry_timer: Timer | None = None
        """Looks whether its time is over."""
        self.on_drained: Callable[[], None] | None = None

    @property
    def is_empty(self) -> bool:
        """There is nothing in it that nobody has, as far as is known."""
        return self.is_caught_up and not self.ready

    @property
    def needs_read(self) -> bool:
        """It is time to read on."""
        return (
            not self.is_caught_up
            and not self.is_reading
            and not self.has_ended
            and len(self.ready) < READ_AHEAD_MESSAGES // 2
            and self.ready_bytes < READ_AHEAD_BYTES // 2
        )

    def append(self, sequence: int, record: bytes) -> None:
        """A message of the session was just stored."""
        if self.is_caught_up and len(self.ready) < READ_AHEAD_MESSAGES and self.ready_bytes < READ_AHEAD_BYTES:
            self.ready.append((sequence, record))
            self.ready_bytes += len(record)
            self.next_read = sequence + 1
        else:
            self.is_caught_up = False
            self.has_unread_arrivals = True

    def requeue(self, sequence: int, record: bytes) -> None:
        """A message that was out is there again, at its place."""
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
        """Hand out the next `count`."""
        taken = [self.ready.popleft() for _ in range(count)]
        self.ready_bytes -= sum([len(record) for _, record in taken])
        return taken

    def withdraw(self, sequences: set[int]) -> None:
        """These are not handed out."""
        kept = [item for item in self.ready if item[0] not in sequences]
        if len(kept) < len(self.ready):
            self.ready = deque(kept)
            self.ready_bytes = sum([len(record) for _, record in kept])

    def reset(self, low_watermark: int) -> None:
        """What is known of messages is void."""
        self.ready.clear()
        self.lock_numbers.clear()
        self.ready_bytes = self.pending_deliveries = 0
        self.next_read = low_watermark
        self.is_caught_up = self.is_reading = False

    def fill(self, messages: list[tuple[int, bytes]], next_read: int, *, is_last: bool) -> None:
        """What was read, up to `reached`; all that there is, if `is_last`."""
        self.is_reading = False
        self.ready.extend(messages)
        self.ready_bytes += sum([len(record) for _, record in messages])
        self.next_read = next_read
        self.is_caught_up = is_last and not self.has_unread_arrivals
