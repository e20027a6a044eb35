"""What is in a spool, in the memory of its owner: for whom, in which order, since when.

Owns: the order. Within a session of an entity one message goes after the other; a batch of several sessions goes when
it is first in each. Everything else may go at once. A record is known by its *position* alone, a number that grows:
eight bytes here for each in a line, however large the messages are. Knows nothing of files.
"""

from __future__ import annotations

import heapq
from array import array
from typing import TYPE_CHECKING, Final

from twinbus.model.path import canonical_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_COMPACT_AFTER: Final = 1024
"""Positions that have gone, before their memory is given back."""


class PositionQueue:
    """Positions, first in, first out."""

    __slots__ = ("_head", "_positions")

    def __init__(self) -> None:
        """Nobody waits."""
        self._positions = array("Q")
        self._head = 0

    def __len__(self) -> int:
        return len(self._positions) - self._head

    @property
    def first(self) -> int:
        """Who goes next; there must be one."""
        return self._positions[self._head]

    def append(self, position: int) -> None:
        """Wait behind the others."""
        self._positions.append(position)

    def pop(self) -> int:
        """The first goes."""
        number = self._positions[self._head]
        self._head += 1
        if self._head >= _COMPACT_AFTER and 2 * self._head > len(self._positions):
            del self._positions[: self._head]
            self._head = 0
        return number


class EntityQueue:
    """What waits for one entity."""

    def __init__(self, path: str) -> None:
        """`path` as it was spelled first."""
        self.path = path
        self._count = 0
        self._without_session = PositionQueue()
        """Of no session."""
        self._sessions: dict[str, PositionQueue] = {}
        """By session. The first of each waits in `_ready`, or is on its way."""
        self._sessions_of_batch: dict[int, Sequence[str]] = {}
        """Sessions of a batch that has more than one."""
        self._ready: list[int] = []
        """A heap: what may go now because it is first in its sessions, and what was put back."""

    def __len__(self) -> int:
        """Records that have not gone, on their way or not."""
        return self._count

    def holds_sessions(self, session_ids: Iterable[str]) -> bool:
        """Whether something of one of these sessions has not gone."""
        return any(session_id in self._sessions for session_id in session_ids)

    def add(self, position: int, session_ids: Sequence[str]) -> None:
        """One more, behind the others of its sessions."""
        self._count += 1
        if not session_ids:
            self._without_session.append(position)
            return
        if len(session_ids) > 1:
            self._sessions_of_batch[position] = session_ids
        for session_id in session_ids:
            self._sessions.setdefault(session_id, PositionQueue()).append(position)
        if self._is_first(position, session_ids):
            heapq.heappush(self._ready, position)

    def take(self) -> int | None:
        """The oldest that may go; it is on its way until it is `put_back` or `remove`d. None: nothing may."""
        if self._ready and (not self._without_session or self._ready[0] < self._without_session.first):
            return heapq.heappop(self._ready)
        return self._without_session.pop() if self._without_session else None

    def put_back(self, position: int) -> None:
        """It was on its way, and did not arrive: it is the next to go, and those behind it still wait."""
        heapq.heappush(self._ready, position)

    def remove(self, position: int, session_ids: Sequence[str]) -> None:
        """It was on its way, and has gone: those behind it may follow."""
        self._count -= 1
        self._sessions_of_batch.pop(position, None)
        following: dict[int, Sequence[str]] = {}
        for session_id in session_ids:
            line = self._sessions[session_id]
            gone = line.pop()
            assert gone == position, "a message has overtaken another of its session"
            if line:
                following[line.first] = self._sessions_of_batch.get(line.first, (session_id,))
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
        self.entity_queues: dict[str, EntityQueue] = {}
        """By entity; an entity for which nothing waits has none."""
        self._order = PositionQueue()
        self._spooled_at_ms = PositionQueue()
        """When those of `_order` were spooled."""
        self._removed: set[int] = set()
        """Those that have gone, and still are in `_order` because an older one is."""

    @property
    def oldest_ms(self) -> int | None:
        """When the oldest of all was spooled; None if there is nothing."""
        return self._spooled_at_ms.first if self._spooled_at_ms else None

    def holds_sessions(self, path: str, session_ids: Iterable[str]) -> bool:
        """Whether something for one of these sessions of an entity has not gone."""
        pile = self.entity_queues.get(canonical_key(path))
        return pile is not None and pile.holds_sessions(session_ids)

    def add(
        self, position: int, path: str, session_ids: Sequence[str], *, messages: int, spooled_at_ms: int
    ) -> EntityQueue:
        """One more; positions only grow. The pile it is on."""
        key = canonical_key(path)
        pile = self.entity_queues.get(key)
        if pile is None:
            pile = self.entity_queues[key] = EntityQueue(path)
        pile.add(position, session_ids)
        self.messages += messages
        self._order.append(position)
        self._spooled_at_ms.append(spooled_at_ms)
        return pile

    def remove(self, position: int, path: str, session_ids: Sequence[str], *, messages: int) -> None:
        """It has gone."""
        key = canonical_key(path)
        pile = self.entity_queues[key]
        pile.remove(position, session_ids)
        if not pile:
            del self.entity_queues[key]
        self.messages -= messages
        self._removed.add(position)
        while self._order and self._order.first in self._removed:
            self._removed.remove(self._order.pop())
            self._spooled_at_ms.pop()
