"""Input from one peer, and when a server reads it.

A server handles a peer's input in slices and checks the clock between slices; the remaining input is held until the
peer's next turn. So a peer that sends without pause, or whose frames are expensive, cannot starve the other peers on
the event loop. A server stops reading from a peer for which it holds too much: output that the socket does not accept,
messages that the handler has not answered, or held input. A client reads everything at once and never pauses: if both
ends paused, each could wait for the other to read.

Owns the slices, and decides whether the socket is read. Part of the asyncio adapter.
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
"""Time slice for a peer that has not authenticated yet."""


class TimeSlice:
    """Time that one peer's input has used in this iteration of the event loop."""

    def __init__(
        self,
        now_s: Callable[[], float],
        call_soon: Callable[[Callable[[], None]], object],
        on_change: Callable[[], None],
    ) -> None:
        """Create an unused slice.

        `call_soon` schedules a call in the next iteration of the event loop; `on_change` is called when `is_over`
        changes.
        """
        self.is_over = False
        self._now_s = now_s
        self._call_soon = call_soon
        self._on_change = on_change
        self._began_s = 0.0
        self._spent_s = 0.0

    def begin(self) -> None:
        """Start measuring: data has arrived."""
        if not self._spent_s:
            self._call_soon(self._reset)
        self._began_s = self._now_s()

    def is_used_up(self, limit_s: float) -> bool:
        """Return whether the peer has used more than `limit_s`, including the current measurement."""
        return self._spent_s + self._now_s() - self._began_s > limit_s

    def end(self) -> None:
        """Stop measuring: the data was handled."""
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
    """Peer whose input is held."""

    def read_slice(self) -> bool:
        """Handle a slice of the input; return True if more input can be handled now."""


class HeldInputQueue:
    """Round-robin queue of the peers on one event loop whose input is held."""

    def __init__(self, now_s: Callable[[], float], call_soon: Callable[[Callable[[], None]], object]) -> None:
        """Create an empty queue; `call_soon` schedules a call in the next iteration of the event loop."""
        self._call_soon = call_soon
        self._now_s = now_s
        self._waiting: deque[HeldInput] = deque()
        self._is_scheduled = False

    def add(self, peer: HeldInput) -> None:
        """Queue a peer for its turn. The peer stays queued until its `read_slice` returns False."""
        self._waiting.append(peer)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._run)

    def _run(self) -> None:
        """Handle one slice of each queued peer in turn, for one time slice in total."""
        began_s = self._now_s()
        waiting = self._waiting
        try:
            while waiting and self._now_s() - began_s <= TIME_SLICE_S:
                peer = waiting.popleft()
                if peer.read_slice():
                    waiting.append(peer)
        finally:  # an exception from one peer must not stall other peers
            self._is_scheduled = bool(waiting)
            if waiting:
                self._call_soon(self._run)


WORK_PER_SLICE: Final = 1_024
"""Work that a server does for one peer before it checks the clock: 1,024 transfers, or 32 attaches."""
CHECKS_PER_SILENCE_LIMIT: Final = 5
"""Number of times per silence limit that a server checks whether the peer reads. Only done while the socket is full."""
_held_input_queues: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, HeldInputQueue]] = WeakKeyDictionary()


def held_input_queue_of(loop: asyncio.AbstractEventLoop) -> HeldInputQueue:
    """Return the queue that all peers on an event loop share."""
    queue = _held_input_queues.get(loop)
    if queue is None:
        queue = _held_input_queues[loop] = HeldInputQueue(time.monotonic, loop.call_soon)
    return queue


class PeerInput:
    """Input from one peer."""

    def __init__(self, peer: Peer, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        """Create the input for a peer that has not sent anything yet."""
        self.is_paused = False
        self._peer = peer
        self._connection = connection
        self._loop = loop
        self._time_slice = TimeSlice(time.monotonic, loop.call_soon, self.update_paused)
        self._held_input_queue = held_input_queue_of(loop)
        self._is_queued = False
        self._unwritten_bytes = 0
        """Size of the socket's write buffer at the last check."""
        self._max_work = None if connection.is_client else WORK_PER_SLICE

    def receive(self, data: bytes) -> None:
        """Handle received data within the peer's time slice."""
        connection = self._connection
        self._time_slice.begin()
        if self._max_work is not None and connection.has_held_input:
            work: int | None = 0  # the data arrived while reading was being paused: append it to the held input
        else:
            work = self._max_work
        self._peer.handle(connection.receive_data(data, now=self._loop.time(), work=work))
        if work != 0 and connection.has_held_input:
            self._read_held()
        self._peer.flush_due()
        self._time_slice.end()

    def _read_held(self) -> None:
        """Handle held input in slices until the time slice is used up; the remaining input waits in the queue."""
        connection, limit_s = self._connection, self.time_slice_s
        while connection.has_held_input and not self._time_slice.is_used_up(limit_s):
            self._peer.handle(connection.receive_data(b"", now=self._loop.time(), work=self._max_work))

    @property
    def time_slice_s(self) -> float:
        """Maximum time for handling the peer's input at once; shorter before the peer has authenticated."""
        connection = self._connection
        return UNAUTHENTICATED_TIME_SLICE_S if connection.limits is not connection.settings.limits else TIME_SLICE_S

    def read_held(self) -> None:
        """On a client, read input that was held until the handler responded. A server reads such input in slices."""
        connection = self._connection
        while self._max_work is None and connection.has_held_input:
            self._peer.handle(connection.receive_data(b"", now=self._loop.time()))

    def read_slice(self) -> bool:
        """Handle a slice of the held input; return True if there is more. Only `HeldInputQueue` calls this."""
        connection = self._connection
        try:
            if connection.has_held_input and not self._is_full:
                self._peer.handle(connection.receive_data(b"", now=self._loop.time(), work=self._max_work))
            has_more = self._is_queued = connection.has_held_input and not self._is_full
            self._peer.flush_due()
        except BaseException:
            self._peer.transport.abort()  # the input would never be read again
            raise
        return has_more

    @property
    def _is_full(self) -> bool:
        """True if reading more of the peer's input would make us hold too much."""
        connection = self._connection
        return not self._peer.is_writable or connection.unanswered_bytes > connection.limits.max_unanswered_bytes

    @property
    def check_in_s(self) -> float:
        """Seconds until the next check on whether the peer reads; infinite if no check is needed."""
        limit_s = self._connection.silence_limit.limit_s
        return limit_s / CHECKS_PER_SILENCE_LIMIT if limit_s > 0 and not self._peer.is_writable else float("inf")

    def excuse_paused_peer(self, now: float) -> None:
        """If we have paused reading, do not count the peer's silence, as long as the peer reads our output.

        If the socket's write buffer is full but shrinks, the peer is excused only from an agreed silence limit, not
        from the idle timeout.
        """
        if not self.is_paused:
            return
        if self._peer.is_writable:
            self._connection.mark_received(now=now)
            return
        previous_bytes, self._unwritten_bytes = self._unwritten_bytes, self._peer.transport.get_write_buffer_size()
        if self._unwritten_bytes < previous_bytes:
            self._connection.silence_limit.note_progress(now)

    def update_paused(self) -> None:
        """Pause or resume reading according to the current state."""
        transport = self._peer.transport
        if self._max_work is None or transport.is_closing():
            return
        has_held_input, is_full = self._connection.has_held_input, self._is_full
        if has_held_input and not is_full and not self._is_queued:
            self._is_queued = True
            self._held_input_queue.add(self)
        should_pause = has_held_input or is_full or self._time_slice.is_over
        if should_pause and not self.is_paused:
            transport.pause_reading()
        elif self.is_paused and not should_pause:
            transport.resume_reading()
        self.is_paused = should_pause
