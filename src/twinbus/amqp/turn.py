"""Turns: how long the data of peers may keep the loop busy before other peers have theirs.

A loop reads from a socket for as long as there is data, and calls nobody else meanwhile; and one read may hold
thousands of frames that are dear to handle. So the time is looked at between pieces of a read. A peer whose turn is
over has the rest of its input held, joins the `Backlog`, and is read from no more until that is handled. All peers in
the backlog together have one turn in each turn of the loop: a peer with little to say never waits for many with much.

Owns: the time that peers have taken in this turn of the loop, and the order in which held input is handled.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

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
