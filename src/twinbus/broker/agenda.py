"""What happens when: times kept on disk, looked at when they come.

Owns: the rows of one kind, each a time of the wall clock and a sequence number, and from where on to look at them.
What is to be done with messages whose time has come is told by whoever made the agenda.

Rows are looked at in the order of their times, a bounded number at once, and a look never starts before `low`: below it
all rows are gone, and to search what was deleted takes as long as if it were still there. Rows of messages that are
settled before their time leave such gaps above `low` too. So an agenda whose rows mostly come to nothing (`is_sparse`:
times to live) does not search for the next time: it remembers in which seconds there may be something, as many of them
as it has room for, and beyond those it looks every now and then.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final, TypeAlias

from twinbus.broker.keys import after_kind, moment_of, pack_moment
from twinbus.store.protocol import StoreError, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.clock import Timer, Times
    from twinbus.broker.journal import Journal
    from twinbus.store.protocol import Row

    Moments: TypeAlias = list[tuple[int, int]]
    """Times and sequence numbers."""

AT_ONCE: Final = 500
"""Rows that are looked at in one turn."""
REMEMBERED: Final = 4_096
"""Seconds, of one sparse agenda."""
LOOK_MS: Final = 10_000
"""How often a sparse agenda looks when it remembers nothing."""
FAR_MS: Final = 2**62
_NONE: Final = (FAR_MS, 0)
_ROW_BYTES: Final = 64


class Agenda:
    """The rows of one kind, of one fragment."""

    def __init__(
        self,
        prefix: bytes,
        kind: bytes,
        journal: Journal,
        times: Times,
        handle: Callable[[Moments], None],
        *,
        is_sparse: bool,
    ) -> None:
        """`handle` is given what is due; it calls `done` when that is dealt with on disk."""
        self.low: tuple[int, int] = (0, 0)
        """There are no rows before this time and sequence number."""
        self._kind = prefix + kind
        self._end = after_kind(prefix, kind)
        self._journal = journal
        self._clock = times.clock
        self._alarms = times.alarms
        self._handle = handle
        self._is_sparse = is_sparse
        self._is_busy = False
        self._added: tuple[int, int] = _NONE
        """The first of the rows that were added since the look that is going on began."""
        self._wants_look = False
        self._timer: Timer | None = None
        self._timer_ms = FAR_MS
        self._next_ms = FAR_MS
        """Before it nothing is due, as far as is known; of a dense agenda."""
        self._seconds: list[int] = []
        self._known: set[int] = set()
        self._beyond_ms = FAR_MS
        """From then on there may be rows in seconds that are not remembered."""
        self._life = 0

    def start(self, low: tuple[int, int], *, is_empty: bool) -> None:
        """Its store was opened; where rows may be is only known by `low`."""
        self.stop()
        self.low = low
        if not is_empty:
            self._next_ms = self._beyond_ms = low[0]
            self._watch()

    def stop(self) -> None:
        """Forget all that is in memory."""
        self._life += 1
        self._is_busy = self._wants_look = False
        self._next_ms = self._beyond_ms = self._timer_ms = FAR_MS
        self._seconds.clear()
        self._known.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- rows ---------------------------------------------------------------------------------------------------------

    def add(self, when_ms: int, sequence: int) -> None:
        """Put a row into the batch of this turn."""
        self._journal.batch.put(self._kind + pack_moment(when_ms, sequence), b"", Table.INDEX)
        self.low = min(self.low, (when_ms, sequence))  # the wall clock may have been set back
        self._added = min(self._added, (when_ms, sequence))
        if self._is_sparse:
            second = when_ms // 1000
            if second not in self._known:
                self._remember(second)
                self._watch()
        elif when_ms < self._next_ms:
            self._next_ms = when_ms
            self._watch()

    def recall(self, when_ms: int, sequence: int) -> None:
        """A row that is there may have been looked at in vain: it is looked at again."""
        self.low = min(self.low, (when_ms, sequence))
        self._added = min(self._added, (when_ms, sequence))
        self._next_ms = min(self._next_ms, when_ms)
        self._watch()

    def remove(self, when_ms: int, sequence: int) -> None:
        """Delete a row, in the batch of this turn."""
        self._journal.batch.delete(self._kind + pack_moment(when_ms, sequence), Table.INDEX)

    def remove_all(self) -> None:
        """Delete all rows, however many."""
        self._journal.batch.delete_range(self._kind, self._end, Table.INDEX)

    def _remember(self, second: int) -> None:
        heapq.heappush(self._seconds, second)
        self._known.add(second)
        if len(self._seconds) > REMEMBERED:
            self._seconds.sort()
            for dropped in self._seconds[REMEMBERED // 2 :]:
                self._known.discard(dropped)
                self._beyond_ms = min(self._beyond_ms, dropped * 1000)
            del self._seconds[REMEMBERED // 2 :]

    # --- time ---------------------------------------------------------------------------------------------------------

    def _due_ms(self) -> int:
        if not self._is_sparse:
            return self._next_ms
        remembered_ms = (self._seconds[0] + 1) * 1000 if self._seconds else FAR_MS
        return min(remembered_ms, self._beyond_ms)

    def _watch(self) -> None:
        due_ms = self._due_ms()
        if self._is_busy or due_ms >= self._timer_ms or due_ms >= FAR_MS:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = due_ms
        self._timer = self._alarms.call_at(due_ms, self._ring)

    def _ring(self) -> None:
        self._timer, self._timer_ms = None, FAR_MS
        self.look()

    def look(self) -> None:
        """See what is due now."""
        if self._is_busy:
            return
        if self._journal.trouble is not None:
            self._wants_look = True  # until the store speaks again
            return
        self._journal.flush()  # what was added in this turn is to be found
        self._is_busy, self._added = True, _NONE
        life, now_ms = self._life, self._clock.wall_ms()
        start = self._kind + pack_moment(*self.low)
        end = self._kind + pack_moment(now_ms + 1, 0) if self._is_sparse else self._end
        if end <= start:
            self._looked([], now_ms)
            return

        def found(rows: list[Row] | StoreError) -> None:
            if life != self._life:
                return
            if isinstance(rows, StoreError):
                self._journal.fail(str(rows))
                return
            self._looked([moment_of(key) for key, _ in rows], now_ms)

        self._journal.scan(start, end, found, limit=AT_ONCE, max_bytes=AT_ONCE * _ROW_BYTES, table=Table.INDEX)

    def _looked(self, moments: Moments, now_ms: int) -> None:
        due = [moment for moment in moments if moment[0] <= now_ms]
        if self._is_sparse:
            self._forget_until(now_ms, is_all=len(moments) < AT_ONCE)
        else:
            later = moments[len(due) :]
            next_ms = later[0][0] if later else (now_ms if due else FAR_MS)
            self._next_ms = min(next_ms, self._added[0])  # what was added meanwhile was not found
        if due:
            self._handle(due)
        else:
            self.done((now_ms + 1, 0) if self._is_sparse else self.low)

    def _forget_until(self, now_ms: int, *, is_all: bool) -> None:
        if not is_all:
            self._beyond_ms = min(self._beyond_ms, now_ms)
            return
        while self._seconds and (self._seconds[0] + 1) * 1000 <= now_ms:
            self._known.discard(heapq.heappop(self._seconds))
        if self._beyond_ms <= now_ms:
            self._beyond_ms = now_ms + LOOK_MS
        if self._added[0] <= now_ms:
            self._beyond_ms = self._added[0]  # what was added meanwhile was not found

    def done(self, low: tuple[int, int], *, is_early: bool = False) -> None:
        """What was due is dealt with: below `low` all rows are gone. Then it looks on.

        `is_early` if the next ones are not for anyone to see before their commit is synced.
        """
        self._is_busy = False
        self.low = min(max(self.low, low), self._added)
        if is_early:
            self._wants_look = True
        else:
            self._watch()

    def settled_down(self) -> None:
        """The store speaks again, or has changed."""
        if self._wants_look:
            self._wants_look = False
            self.look()
