"""Duplicates: messages whose id was sent before, within the queue's window, are accepted and dropped.

Owns: the ids that are remembered. They lie on disk in two generations, each about a window long: an id is looked up in
both, and when a generation is old enough all of it is removed at once, which costs no more for millions than for one.
How old an id is, is written beside it.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from twinbus.broker import keys
from twinbus.model.errors import ServiceBusError, StoreUnavailable
from twinbus.store.protocol import StoreError, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinbus.broker.fragment import Fragment
    from twinbus.broker.journal import Answered

_NUMBER: Final = Struct(">Q")


class Duplicates:
    """The ids that one fragment remembers."""

    def __init__(self, fragment: Fragment) -> None:
        """Made by its fragment."""
        self._fragment = fragment
        self._ids = fragment.holdings.prefix + keys.IDS
        self._writing: dict[bytes, None] = {}
        """Ids whose messages are on their way to the disk."""

    def restart(self) -> None:
        """What is in memory is void."""
        self._writing.clear()

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
                seen = [new or old for new, old in zip(values[::2], values[1::2], strict=True)]
                try:
                    self._store(records, ids, seen, numbers, promise.give)
                    if beside is not None:
                        beside()
                except ServiceBusError as error:
                    promise.give(error)

        places = [self._place(generation), self._place(generation - 1)]
        fragment.journal.get([place + one for one in ids for place in places], looked_up, Table.INDEX)

    def _store(
        self,
        records: Sequence[bytes],
        ids: Sequence[bytes],
        seen: Sequence[bytes | None],
        numbers: list[int],
        answer: Answered,
    ) -> None:
        fragment, writing = self._fragment, self._writing
        now_ms = fragment.clock.wall_ms()
        fresh: list[bytes] = []
        added: dict[bytes, None] = {}
        places: list[int | None] = []
        for record, one, value in zip(records, ids, seen, strict=True):
            if one in writing or one in added or (value is not None and self._is_recent(value, now_ms)):
                places.append(None)
                continue
            places.append(len(fresh))
            added[one] = None
            fresh.append(record)
        first = 0
        if fresh:
            first = fragment.enqueue(fresh, _nobody)
            value, place = _NUMBER.pack(now_ms), self._place(fragment.holdings.generation)
            for one in added:
                fragment.journal.batch.put(place + one, value, Table.INDEX)
            writing.update(added)
        numbers.extend([first + place if place is not None else 0 for place in places])

        def applied() -> None:
            for one in added:
                writing.pop(one, None)

        fragment.journal.add(fragment, 0, applied, answer)

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
        self._fragment.journal.add(self._fragment, 0, _nothing, _nobody)

    def _place(self, generation: int) -> bytes:
        return self._ids + _NUMBER.pack(max(0, generation))


def _nothing() -> None:
    """Nothing in memory has to change."""


def _nobody(_error: ServiceBusError | None) -> None:
    """Nobody waits for this."""
