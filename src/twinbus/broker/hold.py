"""A hold: one session that one receiver has, with the messages of it that are next.

Owns: which messages of the session can be handed out, from where to read on, and until when the receiver has it.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from typing import TYPE_CHECKING, Final

from twinbus.broker.ports.fragment import Hold

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.clock import Timer
    from twinbus.broker.ports.consumer import Consumer

READ_AHEAD: Final = 200
"""Messages of one session in memory: there may be thousands of sessions."""
READ_AHEAD_BYTES: Final = 1_048_576


class LocalHold(Hold):
    """A session, locked."""

    def __init__(self, session: bytes, consumer: Consumer, granted: Callable[[Hold], None], next_read: int) -> None:
        """Made by `Sessions`; `granted` is called when the receiver has it."""
        super().__init__(session, consumer)
        self.granted = granted
        self.next_read = next_read
        self.ready: deque[tuple[int, bytes]] = deque()
        self.bytes = 0
        self.is_caught_up = False
        """All that the session has is in `ready`, or out."""
        self.is_reading = False
        self.has_missed = False
        """Messages came while it was reading."""
        self.returns = 0
        """Messages that came back before they were read: what is being read may be older."""
        self.is_open = False
        """The receiver knows that it has it."""
        self.numbers: set[int] = set()
        """Of the locks on its messages."""
        self.deadline_s = 0.0
        """`until_ms` is the same on the wall clock, as the receiver is told it."""
        self.handing = 0
        """Messages that are being deleted, to be delivered then."""
        self.timer: Timer | None = None
        """Looks whether its time is over."""
        self.drained: Callable[[], None] | None = None

    @property
    def is_empty(self) -> bool:
        """There is nothing in it that nobody has, as far as is known."""
        return self.is_caught_up and not self.ready

    @property
    def wants_more(self) -> bool:
        """It is time to read on."""
        return (
            not self.is_caught_up
            and not self.is_reading
            and not self.is_over
            and len(self.ready) < READ_AHEAD // 2
            and self.bytes < READ_AHEAD_BYTES // 2
        )

    def extend(self, sequence: int, record: bytes) -> None:
        """A message of the session was just stored."""
        if self.is_caught_up and len(self.ready) < READ_AHEAD and self.bytes < READ_AHEAD_BYTES:
            self.ready.append((sequence, record))
            self.bytes += len(record)
            self.next_read = sequence + 1
        else:
            self.is_caught_up = False
            self.has_missed = True

    def put_back(self, sequence: int, record: bytes) -> None:
        """A message that was out is there again, at its place."""
        if sequence >= self.next_read:
            self.is_caught_up = False
            self.returns += 1
            return
        self.bytes += len(record)
        insort(self.ready, (sequence, record))
        while len(self.ready) > 1 and (len(self.ready) > 2 * READ_AHEAD or self.bytes > 2 * READ_AHEAD_BYTES):
            self.next_read, record = self.ready.pop()
            self.bytes -= len(record)
            self.is_caught_up = False

    def take(self, count: int) -> list[tuple[int, bytes]]:
        """Hand out the next `count`."""
        taken = [self.ready.popleft() for _ in range(count)]
        self.bytes -= sum([len(record) for _, record in taken])
        return taken

    def take_away(self, sequences: set[int]) -> None:
        """These are not handed out."""
        kept = [item for item in self.ready if item[0] not in sequences]
        if len(kept) < len(self.ready):
            self.ready = deque(kept)
            self.bytes = sum([len(record) for _, record in kept])

    def restart(self, low: int) -> None:
        """What is known of messages is void."""
        self.ready.clear()
        self.numbers.clear()
        self.bytes = self.handing = 0
        self.next_read = low
        self.is_caught_up = self.is_reading = False

    def fill(self, items: list[tuple[int, bytes]], reached: int, *, is_last: bool) -> None:
        """What was read, up to `reached`; all that there is, if `is_last`."""
        self.is_reading = False
        self.ready.extend(items)
        self.bytes += sum([len(record) for _, record in items])
        self.next_read = reached
        self.is_caught_up = is_last and not self.has_missed
