"""What is read from one peer, and when.

A server reads a peer's input in pieces and looks at the clock between them; the rest is held for the peer's next turn
(`turn` says why). It reads nothing at all from a peer that makes it hold too much: answers the socket does not take,
messages the handler has not answered, input that is held. A client reads everything at once and never pauses: if both
ends did, each could wait for the other to read.

Owns: the pieces, and whether the socket is read from. A part of the adapter to asyncio.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from twinbus.amqp.aio import Peer
    from twinbus.amqp.connection import Connection

TIME_SLICE_S: Final = 0.01
UNAUTHENTICATED_TIME_SLICE_S: Final = 0.002
"""... of a peer that has shown no credentials yet."""


class TimeSlice:
    """The time of one peer."""

    def __init__(
        self,
        now_s: Callable[[], float],
        call_soon: Callable[[Callable[[], None]], object],
        on_change: Callable[[], None],
    ) -> None:
        """`soon` makes a call in the next turn; `changed` is called when `is_over` has become another."""
        self.is_over = False
        self._now_s = now_s
        self._call_soon = call_soon
        self._on_change = on_change
        self._began_s = 0.0
        self._spent_s = 0.0

    def begin(self) -> None:
        """Data has come."""
        if not self._spent_s:
            self._call_soon(self._reset)
        self._began_s = self._now_s()

    def is_used_up(self, limit_s: float) -> bool:
        """Whether the peer has had so much time, what it has begun included."""
        return self._spent_s + self._now_s() - self._began_s > limit_s

    def end(self) -> None:
        """It was dealt with."""
        self._spent_s += self._now_s() - self._began_s
        if self._spent_s > TIME_SLICE_S and not self.is_over:
            self.is_over = True
            self._on_change()

    def _reset(self) -> None:
        self._spent_s = 0.0
        if self.is_over:
            self.is_over = False
            self._on_change()


class HeldInput(Protocol):
    """A peer whose input is held."""

    def read_slice(self) -> bool:
        """Handle a piece of the input; True where there is more that can be handled now."""


class HeldInputQueue:
    """The peers of one loop whose input is held, in the order of their turns."""

    def __init__(self, now_s: Callable[[], float], call_soon: Callable[[Callable[[], None]], object]) -> None:
        """`soon` makes a call in the next turn of the loop."""
        self._call_soon = call_soon
        self._now_s = now_s
        self._waiting: deque[HeldInput] = deque()
        self._is_scheduled = False

    def add(self, peer: HeldInput) -> None:
        """Let a peer wait for its turn. It is in the backlog until `read_piece` says False."""
        self._waiting.append(peer)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._run)

    def _run(self) -> None:
        """One turn for all: a piece of each in turn."""
        began_s = self._now_s()
        waiting = self._waiting
        try:
            while waiting and self._now_s() - began_s <= TIME_SLICE_S:
                peer = waiting.popleft()
                if peer.read_slice():
                    waiting.append(peer)
        finally:  # a fault of one peer's costs the others nothing
            self._is_scheduled = bool(waiting)
            if waiting:
                self._call_soon(self._run)


WORK_PER_SLICE: Final = 1_024
"""What a server handles of one peer's input before it looks at the clock: 1,024 transfers, or 32 attaches."""
CHECKS_PER_SILENCE_LIMIT: Final = 5
"""In an agreed limit of silence, at whether a peer reads: nothing is read from it until it does."""
_held_input_queues: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, HeldInputQueue]] = WeakKeyDictionary()


def held_input_queue_of(loop: asyncio.AbstractEventLoop) -> HeldInputQueue:
    """The backlog that all peers of a loop share."""
    found = _held_input_queues.get(loop)
    if found is None:
        found = _held_input_queues[loop] = HeldInputQueue(time.monotonic, loop.call_soon)
    return found


class PeerInput:
    """The input of one peer."""

    def __init__(self, peer: Peer, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        """Nothing has come yet."""
        self.is_paused = False
        self._peer = peer
        self._connection = connection
        self._loop = loop
        self._time_slice = TimeSlice(time.monotonic, loop.call_soon, self.update_paused)
        self._held_input_queue = held_input_queue_of(loop)
        self._is_queued = False
        self._unwritten_bytes = 0
        """Bytes that the socket had not taken when that was last looked at."""
        self._max_work = None if connection.is_client else WORK_PER_SLICE

    def receive(self, data: bytes) -> None:
        """Handle what has come, as far as the peer's turn goes."""
        connection = self._connection
        self._time_slice.begin()
        if self._max_work is not None and connection.has_held_input:
            work: int | None = 0  # it was on its way when reading was paused: it is held behind the rest
        else:
            work = self._max_work
        self._peer.handle(connection.receive_data(data, now=self._loop.time(), work=work))
        if work != 0 and connection.has_held_input:
            self._read_held()
        self._peer.flush_due()
        self._time_slice.end()

    def _read_held(self) -> None:
        """Go on piece by piece until the turn is over; the rest waits in the backlog."""
        connection, turn_s = self._connection, self.time_slice_s
        while connection.has_held_input and not self._time_slice.is_used_up(turn_s):
            self._peer.handle(connection.receive_data(b"", now=self._loop.time(), work=self._max_work))

    @property
    def time_slice_s(self) -> float:
        """How long the peer's input may be handled at a time; less before the peer has shown credentials."""
        connection = self._connection
        return UNAUTHENTICATED_TIME_SLICE_S if connection.limits is not connection.settings.limits else TIME_SLICE_S

    def read_held(self) -> None:
        """Read what could not be read before the handler answered, if it has. A server does so in its next turn."""
        connection = self._connection
        while self._max_work is None and connection.has_held_input:
            self._peer.handle(connection.receive_data(b"", now=self._loop.time()))

    def read_slice(self) -> bool:
        """Handle a piece of the input that is held; True where there is more. For the backlog alone."""
        connection = self._connection
        try:
            if connection.has_held_input and not self._is_full:
                self._peer.handle(connection.receive_data(b"", now=self._loop.time(), work=self._max_work))
            has_more = self._is_queued = connection.has_held_input and not self._is_full
            self._peer.flush_due()
        except BaseException:
            self._peer.transport.abort()  # nobody would ever read on
            raise
        return has_more

    @property
    def _is_full(self) -> bool:
        """More of the peer's input would make us hold too much."""
        connection = self._connection
        return not self._peer.is_writable or connection.unanswered_bytes > connection.limits.max_unanswered_bytes

    @property
    def check_in_s(self) -> float:
        """How soon it has to be looked at whether the peer reads; infinite where nobody needs to know."""
        limit_s = self._connection.silence_limit.limit_s
        return limit_s / CHECKS_PER_SILENCE_LIMIT if limit_s > 0 and not self._peer.is_writable else float("inf")

    def excuse_paused_peer(self, now: float) -> None:
        """While nothing is read from the peer its silence is our doing, unless it does not read either.

        One that reads slowly is excused as far as an agreed limit of silence goes, and from no other.
        """
        if not self.is_paused:
            return
        if self._peer.is_writable:
            self._connection.mark_received(now=now)
            return
        before, self._unwritten_bytes = self._unwritten_bytes, self._peer.transport.get_write_buffer_size()
        if self._unwritten_bytes < before:
            self._connection.silence_limit.note_progress(now)

    def update_paused(self) -> None:
        """Pause or resume reading, as is right now."""
        transport = self._peer.transport
        if self._max_work is None or transport.is_closing():
            return
        has_held_input, is_full = self._connection.has_held_input, self._is_full
        if has_held_input and not is_full and not self._is_queued:
            self._is_queued = True
            self._held_input_queue.add(self)
        pause = has_held_input or is_full or self._time_slice.is_over
        if pause and not self.is_paused:
            transport.pause_reading()
        elif self.is_paused and not pause:
            transport.resume_reading()
        self.is_paused = pause
