"""The in-memory index of a spool: the destinations, order and age of its records.

Owns: the order of sends. The records of a session are sent one after the other; a batch with several sessions is sent
when it is first in each of them. All other records may be sent at any time. The index stores only the *position* of a
record, an increasing number: eight bytes per record in each queue, however large the messages are. Knows nothing of
files.
"""

from __future__ import annotations

import heapq
from array import array
from typing import TYPE_CHECKING, Final

from twinbus.model.path import canonical_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_COMPACT_AFTER: Final = 1024
"""The number of removed positions after which their memory is released."""


class PositionQueue:
    """A FIFO queue of positions."""

    __slots__ = ("_head", "_positions")

    def __init__(self) -> None:
        """Create an empty queue."""
        self._positions = array("Q")
        self._head = 0

    def __len__(self) -> int:
        return len(self._positions) - self._head

    @property
    def first(self) -> int:
        """The first position; the queue must not be empty."""
        return self._positions[self._head]

    def append(self, position: int) -> None:
        """Add a position at the end."""
        self._positions.append(position)

    def pop(self) -> int:
        """Remove and return the first position."""
        position = self._positions[self._head]
        self._head += 1
        if self._head >= _COMPACT_AFTER and 2 * self._head > len(self._positions):
            del self._positions[: self._head]
            self._head = 0
        return position


class EntityQueue:
    """The spooled records for one entity."""

    def __init__(self, path: str) -> None:
        """Create an empty queue for an entity; `path` is the first spelling of its path."""
        self.path = path
        self._count = 0
        self._without_session = PositionQueue()
        """Records without a session."""
        self._sessions: dict[str, PositionQueue] = {}
        """Records by session. The first record of each session is in `_ready` or in flight."""
        self._sessions_of_batch: dict[int, Sequence[str]] = {}
        """The sessions of each batch that has more than one session."""
        self._ready: list[int] = []
        """A heap of records that may be sent now: records that are first in their sessions, and records that were put
        back."""

    def __len__(self) -> int:
        """Return the number of records, including those in flight."""
        return self._count

    def holds_sessions(self, session_ids: Iterable[str]) -> bool:
        """Return whether a record of one of these sessions is spooled."""
        return any(session_id in self._sessions for session_id in session_ids)

    def add(self, position: int, session_ids: Sequence[str]) -> None:
        """Add a record behind the earlier records of its sessions."""
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
        """Take the oldest record that may be sent, or None. The record is in flight until `put_back` or `remove`."""
        if self._ready and (not self._without_session or self._ready[0] < self._without_session.first):
            return heapq.heappop(self._ready)
        return self._without_session.pop() if self._without_session else None

    def put_back(self, position: int) -> None:
        """Put back a record that could not be sent. The record is sent next, and the records behind it still wait."""
        heapq.heappush(self._ready, position)

    def remove(self, position: int, session_ids: Sequence[str]) -> None:
        """Remove a record that was in flight; the records behind it may follow."""
        self._count -= 1
        self._sessions_of_batch.pop(position, None)
        following: dict[int, Sequence[str]] = {}
        for session_id in session_ids:
            session_queue = self._sessions[session_id]
            removed = session_queue.pop()
            assert removed == position, "a message has overtaken another of its session"
            if session_queue:
                following[session_queue.first] = self._sessions_of_batch.get(session_queue.first, (session_id,))
            else:
                del self._sessions[session_id]
        for successor, successor_sessions in following.items():
            if self._is_first(successor, successor_sessions):
                heapq.heappush(self._ready, successor)

    def _is_first(self, position: int, session_ids: Iterable[str]) -> bool:
        return all(self._sessions[session_id].first == position for session_id in session_ids)


class SpoolIndex:
    """All records of a spool."""

    def __init__(self) -> None:
        """Create an empty index."""
        self.messages = 0
        self.entity_queues: dict[str, EntityQueue] = {}
        """The queues by entity; an entity without records has no queue."""
        self._order = PositionQueue()
        self._spooled_at_ms = PositionQueue()
        """The times when the records in `_order` were spooled."""
        self._removed: set[int] = set()
        """Removed records that are still in `_order`, because an older record is not removed."""

    @property
    def oldest_ms(self) -> int | None:
        """The time when the oldest record was spooled; None if the spool is empty."""
        return self._spooled_at_ms.first if self._spooled_at_ms else None

    def holds_sessions(self, path: str, session_ids: Iterable[str]) -> bool:
        """Return whether a record for one of an entity's sessions is spooled."""
        queue = self.entity_queues.get(canonical_key(path))
        return queue is not None and queue.holds_sessions(session_ids)

    def add(
        self, position: int, path: str, session_ids: Sequence[str], *, messages: int, spooled_at_ms: int
    ) -> EntityQueue:
        """Add a record and return the queue of its entity; positions must increase."""
        key = canonical_key(path)
        queue = self.entity_queues.get(key)
        if queue is None:
            queue = self.entity_queues[key] = EntityQueue(path)
        queue.add(position, session_ids)
        self.messages += messages
        self._order.append(position)
        self._spooled_at_ms.append(spooled_at_ms)
        return queue

    def remove(self, position: int, path: str, session_ids: Sequence[str], *, messages: int) -> None:
        """Remove a record."""
        key = canonical_key(path)
        queue = self.entity_queues[key]
        queue.remove(position, session_ids)
        if not queue:
            del self.entity_queues[key]
        self.messages -= messages
        self._removed.add(position)
        while self._order and self._order.first in self._removed:
            self._removed.remove(self._order.pop())
            self._spooled_at_ms.pop()
