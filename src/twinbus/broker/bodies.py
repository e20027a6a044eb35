"""Bodies: bare messages that several subscriptions of a topic have, kept once.

Owns: where they lie, and when one can go: as soon as no subscription has a message that needs it. Beside each lies the
list of those that had one. How many of them are left is counted in memory for the latest bodies, which is all that is
needed while receivers keep up. Of an older one, or after a restart, that is not known: then a note is written with the
same batch that removes a message, the list is looked through, and the note goes with the body, or without it.

A message that leaves its place (is deferred, dead-lettered, changed) takes a copy of its own along.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from twinbus.broker import keys
from twinbus.broker.keys import RECORD_KEY_BYTES, pack_sequence, sequence_of
from twinbus.broker.record import IS_SHARED, shared_of, weight_of
from twinbus.store.protocol import StoreError, Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinbus.broker.journal import Journal
    from twinbus.store.protocol import Answer, Row

COUNTED: Final = 100_000
"""Bodies whose users are counted in memory."""
CHECKED_AT_ONCE: Final = 10
_HEAD: Final = Struct(">I")
"""How many have it; their keys and the bare message follow."""


class Bodies:
    """The shared bodies of one fragment of a topic."""

    def __init__(self, prefix: bytes, journal: Journal) -> None:
        """`prefix` is how the keys of the topic's fragment start."""
        self._journal = journal
        self._place = prefix + keys.BODY
        self._checks = prefix + keys.CHECK
        self._checks_end = keys.after_kind(prefix, keys.CHECK)
        self._left: dict[int, int] = {}
        """How many messages still need a body, by its number, the oldest first."""
        self._unchecked: dict[int, None] = {}
        self._is_checking = False
        self._life = 0

    # --- each of these puts its changes into the batch of this turn ---------------------------------------------------

    def keep(self, number: int, bare: bytes, users: Sequence[bytes]) -> None:
        """A bare message that the records with these keys have."""
        value = b"".join([_HEAD.pack(len(users)), *users, bare])
        self._journal.batch.put(self._place + pack_sequence(number), value)
        self._left[number] = len(users)
        if len(self._left) > COUNTED:
            del self._left[next(iter(self._left))]

    def release(self, number: int) -> None:
        """A message that needed it is removed in this batch."""
        left = self._left.get(number)
        if left is None:
            self._journal.batch.put(self._checks + pack_sequence(number), b"", Table.INDEX)
            self._unchecked[number] = None
        elif left > 1:
            self._left[number] = left - 1
        else:
            del self._left[number]
            self._journal.batch.delete(self._place + pack_sequence(number))

    # --- reading ------------------------------------------------------------------------------------------------------

    def join(self, places: Sequence[bytes], records: Sequence[bytes | None], done: Answer[list[bytes | None]]) -> None:
        """Make records whole, which were read from these keys.

        That takes a second reading, and a message may be removed meanwhile. So records are read again with the bodies:
        what is told of them is as new as if all had been read at once, which everyone relies on who reads.
        """
        numbers = [shared_of(record) for record in records if record is not None and record[1] & IS_SHARED]
        if not numbers:
            done(list(records))
            return
        again = [place for place, record in zip(places, records, strict=True) if record is not None]

        def read(values: list[bytes | None] | StoreError) -> None:
            if isinstance(values, StoreError):
                done(values)
                return
            bodies = dict(zip(numbers, values[: len(numbers)], strict=True))
            found = dict(zip(again, values[len(numbers) :], strict=True))
            done([_whole(found.get(place), bodies) for place in places])

        self._journal.get([*[self._place + pack_sequence(number) for number in numbers], *again], read)

    def join_rows(self, rows: list[Row], max_bytes: int, done: Answer[list[Row]]) -> None:
        """The same for what a scan found, and no more of it than may be in memory. None of it may be left."""
        size, count = 0, 0
        for count, (_, record) in enumerate(rows, 1):  # noqa: B007
            size += weight_of(record)
            if size > max_bytes:
                break
        chosen = rows[:count]

        def joined(records: list[bytes | None] | StoreError) -> None:
            if isinstance(records, StoreError):
                done(records)
                return
            pairs = zip(chosen, records, strict=True)
            done([(key, record) for (key, _), record in pairs if record is not None])

        self.join([key for key, _ in chosen], [record for _, record in chosen], joined)

    # --- who still needs it -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """What is in memory is void. Look at what a stop left to be looked at."""
        self._life += 1
        self._left.clear()
        self._unchecked.clear()
        self._is_checking = False
        self._read_notes(self._checks)

    def _read_notes(self, start: bytes) -> None:
        life = self._life

        def found(rows: list[Row] | StoreError) -> None:
            if life != self._life or isinstance(rows, StoreError) or not rows:
                return
            self._unchecked.update(dict.fromkeys([sequence_of(key) for key, _ in rows]))
            self._look()
            self._read_notes(rows[-1][0] + b"\0")

        self._journal.scan(start, self._checks_end, found, limit=1_000, max_bytes=1, table=Table.INDEX)

    def settled_down(self) -> None:
        """A commit is on disk: what it removed can be looked at."""
        if self._unchecked:
            self._look()

    def _look(self) -> None:
        if self._is_checking or not self._unchecked or self._journal.trouble is not None:
            return
        self._is_checking = True
        numbers = [number for number, _ in zip(self._unchecked, range(CHECKED_AT_ONCE), strict=False)]
        for number in numbers:
            del self._unchecked[number]
        life = self._life

        def read(values: list[bytes | None] | StoreError) -> None:
            if life != self._life or isinstance(values, StoreError):
                return  # the notes are on disk
            users = {number: _users_of(value) for number, value in zip(numbers, values, strict=True) if value}
            self._look_at_users(numbers, users, life)

        self._journal.get([self._place + pack_sequence(number) for number in numbers], read)

    def _look_at_users(self, numbers: list[int], users: dict[int, list[bytes]], life: int) -> None:
        asked = [(number, key) for number, found in users.items() for key in found]

        def read(values: list[bytes | None] | StoreError) -> None:
            if life != self._life or isinstance(values, StoreError):
                return
            needed = {
                number
                for (number, _), record in zip(asked, values, strict=True)
                if record is not None and shared_of(record) == number
            }
            for number in numbers:
                if number not in self._unchecked:  # else another of them was removed meanwhile
                    self._journal.batch.delete(self._checks + pack_sequence(number), Table.INDEX)
                if number in users and number not in needed:
                    self._journal.batch.delete(self._place + pack_sequence(number))
            self._journal.add_loose(lambda _: self._looked(life))

        self._journal.get([key for _, key in asked], read)

    def _looked(self, life: int) -> None:
        if life == self._life:
            self._is_checking = False
            self._look()


def _whole(record: bytes | None, bodies: Mapping[int, bytes | None]) -> bytes | None:
    if record is None or not record[1] & IS_SHARED:
        return record
    value = bodies.get(shared_of(record))
    return record + _bare_of(value) if value is not None else None


def _users_of(value: bytes) -> list[bytes]:
    (count,) = _HEAD.unpack_from(value)
    return [
        value[at : at + RECORD_KEY_BYTES]
        for at in range(_HEAD.size, _HEAD.size + count * RECORD_KEY_BYTES, RECORD_KEY_BYTES)
    ]


def _bare_of(value: bytes) -> bytes:
    (count,) = _HEAD.unpack_from(value)
    return value[_HEAD.size + count * RECORD_KEY_BYTES :]
