"""A peer's turn: how long its data may keep the loop busy before the others have theirs.

A loop reads from a socket for as long as there is data, and calls nobody else meanwhile. Owns: the time that one peer
has taken in this turn of the loop. Whoever reads asks `is_over`, and reads no more until the next turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

TURN_S: Final = 0.01


class Turn:
    """The time of one peer."""

    def __init__(
        self, now_s: Callable[[], float], soon: Callable[[Callable[[], None]], object], changed: Callable[[], None]
    ) -> None:
        """`soon` makes a call in the next turn; `changed` is called when `is_over` has become another."""
        self.is_over = False
        self._now_s = now_s
        self._soon = soon
        self._changed = changed
        self._began_s = 0.0
        self._spent_s = 0.0

    def begin(self) -> None:
        """Data has come."""
        if not self._spent_s:
            self._soon(self._start_anew)
        self._began_s = self._now_s()

    def end(self) -> None:
        """It was dealt with."""
        self._spent_s += self._now_s() - self._began_s
        if self._spent_s > TURN_S and not self.is_over:
            self.is_over = True
            self._changed()

    def _start_anew(self) -> None:
        self._spent_s = 0.0
        if self.is_over:
            self.is_over = False
            self._changed()
