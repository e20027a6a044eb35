"""What is in a spool, in the memory of its owner: for whom, in which order, since when.

Owns: the order. Within a session of an entity one message goes after the other; a batch of several sessions goes when
it is first in each. Everything else may go at once. A record is known by its *position* alone, a number that grows:
eight bytes here for each in a line, however large the messages are. Knows nothing of files.
"""

from __future__ import annotations

import heapq
from array import array
from typing import TYPE_CHECKING, Final

from twinbus.model.path import key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_SHED: Final = 1024
"""Positions that have gone, before their memory is given back."""


class Line:
    """Positions, first in, first out."""

    __slots__ = ("_at", "_numbers")

    def __init__(self) -> None:
        """Nobody waits."""
        self._numbers = array("Q")
        self._at = 0

    def __len__(self) -> int:
        return len(self._numbers) - self._at

    @property
    def first(self) -> int:
        """Who goes next; there must be one."""
        return self._numbers[self._at]

    def append(self, number: int) -> None:
        """Wait behind the others."""
        self._numbers.append(number)

    def pop(self) -> int:
        """The first goes."""
        number = self._numbers[self._at]
        self._at += 1
        if self._at >= _SHED and 2 * self._at > len(self._numbers):
            del self._numbers[: self._at]
            self._at = 0
        return number


class Pile:
    """What waits for one entity."""

    def __init__(self, path: str) -> None:
        """`path` as it was spelled first."""
        self.path = path
        self._count = 0
        self._free = Line()
        """Of no session."""
        self._sessions: dict[str, Line] = {}
        """By session. The first of each waits in `_ready`, or is on its way."""
        self._several: dict[int, Sequence[str]] = {}
        """Sessions of a batch that has more than one."""
        self._ready: list[int] = []
        """A heap: what may go now because it is first in its sessions, and what was put back."""

    def __len__(self) -> int:
        """Records that have not gone, on their way or not."""
        return self._count

    def holds(self, session_ids: Iterable[str]) -> bool:
        """Whether something of one of these sessions has not gone."""
        return any(session_id in self._sessions for session_id in session_ids)

    def add(self, position: int, session_ids: Sequence[str]) -> None:
        """One more, behind the others of its sessions."""
        self._count += 1
        if not session_ids:
            self._free.append(position)
            return
        if len(session_ids) > 1:
            self._several[position] = session_ids
        for session_id in session_ids:
            self._sessions.setdefault(session_id, Line()).append(position)
        if self._is_first(position, session_ids):
            heapq.heappush(self._ready, position)

    def take(self) -> int | None:
        """The oldest that may go; it is on its way until it is `put_back` or `remove`d. None: nothing may."""
        if self._ready and (not self._free or self._ready[0] < self._free.first):
            return heapq.heappop(self._ready)
        return self._free.pop() if self._free else None

    def put_back(self, position: int) -> None:
        """It was on its way, and did not arrive: it is the next to go, and those behind it still wait."""
        heapq.heappush(self._ready, position)

    def remove(self, position: int, session_ids: Sequence[str]) -> None:
        """It was on its way, and has gone: those behind it may follow."""
        self._count -= 1
        self._several.pop(position, None)
        following: dict[int, Sequence[str]] = {}
        for session_id in session_ids:
            line = self._sessions[session_id]
            gone = line.pop()
            assert gone == position, "a message has overtaken another of its session"
            if line:
                following[line.first] = self._several.get(line.first, (session_id,))
            else:
                del self._sessions[session_id]
        for successor, its_sessions in following.items():
            if self._is_first(successor, its_sessions):
                heapq.heappush(self._ready, successor)

    def _is_first(self, position: int, session_ids: Iterable[str]) -> bool:
        return all(self._sessions[session_id].first == position for session_id in session_ids)


class SpoolIndex:
    """All that has not gone."""

    def __init__(self) -> None:
        """Nothing is there."""
        self.messages = 0
        self.piles: dict[str, Pile] = {}
        """By entity; an entity for which nothing waits has none."""
        self._order = Line()
        self._times_ms = Line()
        """When those of `_order` were spooled."""
        self._gone: set[int] = set()
        """Those that have gone, and still are in `_order` because an older one is."""

    @property
    def oldest_ms(self) -> int | None:
        """When the oldest of all was spooled; None if there is nothing."""
        return self._times_ms.first if self._times_ms else None

    def holds(self, path: str, session_ids: Iterable[str]) -> bool:
        """Whether something for one of these sessions of an entity has not gone."""
        pile = self.piles.get(key_of(path))
        return pile is not None and pile.holds(session_ids)

    def add(self, position: int, path: str, session_ids: Sequence[str], *, messages: int, spooled_at_ms: int) -> Pile:
        """One more; positions only grow. The pile it is on."""
        key = key_of(path)
        pile = self.piles.get(key)
        if pile is None:
            pile = self.piles[key] = Pile(path)
        pile.add(position, session_ids)
        self.messages += messages
        self._order.append(position)
        self._times_ms.append(spooled_at_ms)
        return pile

    def remove(self, position: int, path: str, session_ids: Sequence[str], *, messages: int) -> None:
        """It has gone."""
        key = key_of(path)
        pile = self.piles[key]
        pile.remove(position, session_ids)
        if not pile:
            del self.piles[key]
        self.messages -= messages
        self._gone.add(position)
        while self._order and self._order.first in self._gone:
            self._gone.remove(self._order.pop())
            self._times_ms.pop()
