"""The locks that a fragment gave to an exclusive receiver.

The next exclusive receiver gets the messages under these locks at once, in order, instead of when they expire.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.ports.claim import Span

if TYPE_CHECKING:
    from twinbus.broker.fragment import Fragment
    from twinbus.broker.locks import Locks


class LockSpan(Span):
    """The locks that one fragment of this process gave while it had an exclusive receiver."""

    def __init__(self, fragment: Fragment) -> None:
        """Made by its fragment: the locks from now on."""
        self._fragment = fragment
        self._locks = fragment.locks
        self._first = self._end = fragment.locks.next_serial

    def end(self) -> None:
        """End it: later locks are not of it. If the fragment was loaded anew meanwhile, all locks since then are."""
        self._fragment.redelivery.guard(is_on=False)
        self._fragment.line.withhold()
        locks = self._fragment.locks
        if locks is not self._locks:
            self._locks, self._first = locks, 0
        self._end = locks.next_serial

    def free(self) -> None:
        """Return the messages of locks that are still there: their receiver is gone for good."""
        fragment = self._fragment
        left = self._left(fragment.locks) if not fragment.has_sessions else []
        if left:
            fragment.settlement.free(left)

    def _left(self, locks: Locks) -> list[int]:
        """Those that are still there; none if the fragment was loaded anew meanwhile."""
        if locks is not self._locks:
            return []
        return [number for number, lock in locks.by_number.items() if self._first <= lock.serial < self._end]
