"""Purging: active messages deleted in bulk, which nobody has received; and the mark of how far that went.

Owns: the mark. Whoever reads the log of a fragment later can tell by it that messages which he has not read are gone
for good; numbers that are missing say nothing, since somebody may have had their messages. It is written with the
deletes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from twinbus.broker import keys
from twinbus.broker.keys import pack_sequence
from twinbus.model.errors import ServiceBusError, StoreUnavailable
from twinbus.store.protocol import StoreError, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.fragment import Fragment, Item
    from twinbus.broker.removal import Done, Wanted

    Found: TypeAlias = Callable[[int | ServiceBusError], None]


def find_purged(fragment: Fragment, found: Found) -> None:
    """The highest number of a message that was purged; 0 if none was."""
    life, number = fragment.life, 0

    def told(error: ServiceBusError | None) -> None:
        found(number if error is None else error)

    def read(values: list[bytes | None] | StoreError) -> None:
        nonlocal number
        if not promise.is_open:
            return
        if life != fragment.life or isinstance(values, StoreError):
            promise.give(StoreUnavailable("the store failed before it told how far the fragment was purged"))
            return
        number = int.from_bytes(values[0] or b"")
        promise.give(None)

    promise = fragment.journal.promise(told)
    fragment.journal.get([_place(fragment)], read, Table.INDEX)


def purge(fragment: Fragment, wanted: Wanted, done: Done) -> None:
    """Delete active messages that nobody has, from the oldest on. StoreUnavailable."""
    fragment.journal.check_works()
    fragment.check_loaded()

    def found(known: int | ServiceBusError) -> None:
        if isinstance(known, ServiceBusError):
            done(known)
            return
        try:
            fragment.removal.remove_active(wanted, done, lambda items: _mark(fragment, items, known))
        except ServiceBusError as error:
            done(error)

    find_purged(fragment, found)


def _mark(fragment: Fragment, items: list[Item], known: int) -> None:
    """What was skipped before, because somebody had it, may be purged later: the mark does not go back for that."""
    last = max(known, items[-1][0])
    fragment.journal.batch.put(_place(fragment), pack_sequence(last), Table.INDEX)


def _place(fragment: Fragment) -> bytes:
    return fragment.holdings.prefix + keys.PURGED
