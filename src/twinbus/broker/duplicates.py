"""Duplicates: messages whose id was sent before, within the queue's window, are accepted and dropped.

Owns: the ids that are remembered. They lie on disk in two generations, each about a window long: an id is looked up in
both, and when a generation is old enough all of it is removed at once, which costs no more for millions than for one.
How old an id is, is written beside it.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from twinbus.broker import keys
from twinbus.model.callbacks import do_nothing, ignore
from twinbus.model.errors import ServiceBusError, StoreUnavailable
from twinbus.store.protocol import StoreError, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinbus.broker.fragment import Fragment
    from twinbus.broker.ports.callbacks import Answered

_NUMBER: Final = Struct(">Q")


class Duplicates:
    """The ids that one fragment remembers."""

    def __init__(self, fragment: Fragment) -> None:
        """Made by its fragment."""
        self._fragment = fragment
        self._ids = fragment.holdings.prefix + keys.IDS
        self._writing: dict[bytes, None] = {}
        """Ids whose messages are on their way to the disk."""
        self._waiting = 0
        """Sends whose ids were looked up, and that wait for others of the fragment."""
        self._meanwhile: dict[bytes, None] = {}
        """Ids that were stored since one of these was looked up."""

    def restart(self) -> None:
        """What is in memory is void."""
        self._writing.clear()
        self._meanwhile.clear()
        self._waiting = 0

    def enqueue(
        self,
        records: Sequence[bytes],
        ids: Sequence[bytes],
        numbers: list[int],
        answer: Answered,
        beside: Callable[[], None] | None = None,
    ) -> None:
        """Store those messages that are new; `numbers` gets the sequence number of each, 0 for one that is not.

        `beside` is called when they are put into a batch, and may put something into the same.
        """
        fragment = self._fragment
        fragment.journal.check_takes_sends()
        fragment.check_loaded()
        self._begin_generation()
        life, generation = fragment.life, fragment.holdings.generation
        promise = fragment.journal.promise(answer)

        def looked_up(values: list[bytes | None] | StoreError) -> None:
            if life != fragment.life or isinstance(values, StoreError):
                promise.give(StoreUnavailable("the store failed before the messages were stored"))
                return
            if promise.is_open:  # else the sender was told that they are not stored
                promise.is_open = False  # the store has spoken: if it takes longer now, that is not the store's fault
                seen = [new or old for new, old in zip(values[::2], values[1::2], strict=True)]
                self._store_in_order(records, ids, seen, numbers, answer, beside)

        places = [self._place(generation), self._place(generation - 1)]
        fragment.journal.get([place + one for one in ids for place in places], looked_up, Table.INDEX)

    def _store_in_order(
        self,
        records: Sequence[bytes],
        ids: Sequence[bytes],
        seen: Sequence[bytes | None],
        numbers: list[int],
        answer: Answered,
        beside: Callable[[], None] | None,
    ) -> None:
        """Store the messages once those that were sent before are in a batch, and their ids with them."""
        fragment = self._fragment
        is_late = fragment.is_busy
        self._waiting += is_late

        def store() -> None:
            try:
                self._store(records, ids, seen, numbers, answer, beside)
            finally:
                if is_late:
                    self._waiting -= 1
                if not self._waiting:
                    self._meanwhile.clear()

        try:
            fragment.in_order(store, answer, sum([len(record) for record in records]) if is_late else 0)
        except ServiceBusError as error:
            answer(error)

    def _store(
        self,
        records: Sequence[bytes],
        ids: Sequence[bytes],
        seen: Sequence[bytes | None],
        numbers: list[int],
        answer: Answered,
        beside: Callable[[], None] | None,
    ) -> None:
        fragment, writing, meanwhile = self._fragment, self._writing, self._meanwhile
        now_ms = fragment.clock.wall_ms()
        fresh: list[bytes] = []
        added: dict[bytes, None] = {}
        places: list[int | None] = []
        for record, one, value in zip(records, ids, seen, strict=True):
            is_known = one in writing or one in added or one in meanwhile
            if is_known or (value is not None and self._is_recent(value, now_ms)):
                places.append(None)
                continue
            places.append(len(fresh))
            added[one] = None
            fresh.append(record)
        if not fresh:
            numbers.extend([0] * len(places))
            fragment.journal.add(fragment, 0, do_nothing, answer)
            if beside is not None:
                beside()
            return
        first = self._enqueue(fresh, added, now_ms, answer, beside)
        numbers.extend([first + place if place is not None else 0 for place in places])

    def _enqueue(
        self,
        fresh: list[bytes],
        added: dict[bytes, None],
        now_ms: int,
        answer: Answered,
        beside: Callable[[], None] | None,
    ) -> int:
        """Store messages with their ids; a topic may take some turns to put both into a batch."""
        fragment, writing, life, is_put = self._fragment, self._writing, self._fragment.life, False

        def put() -> None:
            nonlocal is_put
            is_put = True
            value, place = _NUMBER.pack(now_ms), self._place(fragment.holdings.generation)
            for one in added:
                fragment.journal.batch.put(place + one, value, Table.INDEX)
            fragment.journal.add(fragment, 0, applied, ignore)
            if beside is not None:
                beside()

        def applied() -> None:
            for one in added:
                writing.pop(one, None)
            if self._waiting:
                self._meanwhile.update(added)

        def told(error: ServiceBusError | None) -> None:
            if error is not None and not is_put and life == fragment.life:  # they are in no batch, and never will be
                for one in added:
                    writing.pop(one, None)
            answer(error)

        first = fragment.enqueue(fresh, told, put)
        writing.update(added)
        return first

    def _is_recent(self, value: bytes, now_ms: int) -> bool:
        return bool(now_ms - _NUMBER.unpack(value)[0] < self._fragment.policy.duplicate_window_ms)

    def _begin_generation(self) -> None:
        """Once the ids of the generation before are all older than the window, they are forgotten."""
        holdings, now_ms = self._fragment.holdings, self._fragment.clock.wall_ms()
        if holdings.generation and 0 <= now_ms - holdings.generation_ms < self._fragment.policy.duplicate_window_ms:
            return
        if holdings.generation and now_ms < holdings.generation_ms:
            return  # the wall clock was set back: what is remembered is remembered longer
        holdings.generation += 1
        holdings.generation_ms = now_ms
        old = self._place(holdings.generation - 2) if holdings.generation > 1 else None
        if old is not None:
            self._fragment.journal.batch.delete_range(old, self._place(holdings.generation - 1), Table.INDEX)
        self._fragment.journal.add(self._fragment, 0, do_nothing, ignore)

    def _place(self, generation: int) -> bytes:
        return self._ids + _NUMBER.pack(max(0, generation))
