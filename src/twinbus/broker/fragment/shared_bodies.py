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

from twinbus.broker import store_keys
from twinbus.broker.message_record import HAS_SHARED_BODY, full_size_of, shared_body_of
from twinbus.broker.store_keys import RECORD_KEY_BYTES, pack_sequence, sequence_of_key
from twinbus.store.protocol import StoreError, Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinbus.broker.commit_log import CommitLog
    from twinbus.store.protocol import OnResult, Row

MAX_COUNTED_BODIES: Final = 100_000
"""Bodies whose users are counted in memory."""
CHECK_BATCH_SIZE: Final = 10
_USER_COUNT: Final = Struct(">I")
"""How many have it; their keys and the bare message follow."""


class SharedBodies:
    """The shared bodies of one fragment of a topic."""

    def __init__(self, key_prefix: bytes, commit_log: CommitLog) -> None:
        """`prefix` is how the keys of the topic's fragment start."""
        self._commit_log = commit_log
        self._body_prefix = key_prefix + store_keys.SHARED_BODY
        self._check_prefix = key_prefix + store_keys.BODY_CHECK
        self._check_end = store_keys.kind_end(key_prefix, store_keys.BODY_CHECK)
        self._reference_counts: dict[int, int] = {}
        """How many messages still need a body, by its number, the oldest first."""
        self._pending_checks: dict[int, None] = {}
        self._is_checking = False
        self._incarnation = 0

    # --- each of these puts its changes into the batch of this turn ---------------------------------------------------

    def put(self, body_number: int, bare_message: bytes, user_keys: Sequence[bytes]) -> None:
        """A bare message that the records with these keys have."""
        value = b"".join([_USER_COUNT.pack(len(user_keys)), *user_keys, bare_message])
        self._commit_log.batch.put(self._body_prefix + pack_sequence(body_number), value)
        self._reference_counts[body_number] = len(user_keys)
        if len(self._reference_counts) > MAX_COUNTED_BODIES:
            del self._reference_counts[next(iter(self._reference_counts))]

    def release(self, body_number: int) -> None:
        """A message that needed it is removed in this batch."""
        left = self._reference_counts.get(body_number)
        if left is None:
            self._commit_log.batch.put(self._check_prefix + pack_sequence(body_number), b"", Table.INDEX)
            self._pending_checks[body_number] = None
        elif left > 1:
            self._reference_counts[body_number] = left - 1
        else:
            del self._reference_counts[body_number]
            self._commit_log.batch.delete(self._body_prefix + pack_sequence(body_number))

    # --- reading ------------------------------------------------------------------------------------------------------

    def complete_records(
        self, keys: Sequence[bytes], records: Sequence[bytes | None], on_result: OnResult[list[bytes | None]]
    ) -> None:
        """Make records whole, which were read from these keys.

        That takes a second reading, and a message may be removed meanwhile. So records are read again with the bodies:
        what is told of them is as new as if all had been read at once, which everyone relies on who reads.
        """
        numbers = [shared_body_of(record) for record in records if record is not None and record[1] & HAS_SHARED_BODY]
        if not numbers:
            on_result(list(records))
            return
        again = [place for place, record in zip(keys, records, strict=True) if record is not None]

        def read(values: list[bytes | None] | StoreError) -> None:
            if isinstance(values, StoreError):
                on_result(values)
                return
            bodies = dict(zip(numbers, values[: len(numbers)], strict=True))
            found = dict(zip(again, values[len(numbers) :], strict=True))
            on_result([_complete(found.get(place), bodies) for place in keys])

        self._commit_log.get([*[self._body_prefix + pack_sequence(number) for number in numbers], *again], read)

    def complete_rows(self, rows: list[Row], max_bytes: int, on_result: OnResult[list[Row]]) -> None:
        """The same for what a scan found, and no more of it than may be in memory. None of it may be left."""
        size, count = 0, 0
        for count, (_, record) in enumerate(rows, 1):  # noqa: B007
            size += full_size_of(record)
            if size > max_bytes:
                break
        chosen = rows[:count]

        def joined(records: list[bytes | None] | StoreError) -> None:
            if isinstance(records, StoreError):
                on_result(records)
                return
            pairs = zip(chosen, records, strict=True)
            on_result([(key, record) for (key, _), record in pairs if record is not None])

        self.complete_records([key for key, _ in chosen], [record for _, record in chosen], joined)

    # --- who still needs it -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """What is in memory is void. Look at what a stop left to be looked at."""
        self._incarnation += 1
        self._reference_counts.clear()
        self._pending_checks.clear()
        self._is_checking = False
        self._read_pending_checks(self._check_prefix)

    def _read_pending_checks(self, start: bytes) -> None:
        life = self._incarnation

        def found(rows: list[Row] | StoreError) -> None:
            if life != self._incarnation or isinstance(rows, StoreError) or not rows:
                return
            self._pending_checks.update(dict.fromkeys([sequence_of_key(key) for key, _ in rows]))
            self._run_checks()
            self._read_pending_checks(rows[-1][0] + b"\0")

        self._commit_log.scan(start, self._check_end, found, limit=1_000, max_bytes=1, table=Table.INDEX)

    def resume(self) -> None:
        """A commit is on disk: what it removed can be looked at."""
        if self._pending_checks:
            self._run_checks()

    def _run_checks(self) -> None:
        if self._is_checking or not self._pending_checks or self._commit_log.unavailable_reason is not None:
            return
        self._is_checking = True
        numbers = [number for number, _ in zip(self._pending_checks, range(CHECK_BATCH_SIZE), strict=False)]
        for number in numbers:
            del self._pending_checks[number]
        life = self._incarnation

        def read(values: list[bytes | None] | StoreError) -> None:
            if life != self._incarnation or isinstance(values, StoreError):
                return  # the notes are on disk
            users = {number: _user_keys_of(value) for number, value in zip(numbers, values, strict=True) if value}
            self._check_users(numbers, users, life)

        self._commit_log.get([self._body_prefix + pack_sequence(number) for number in numbers], read)

    def _check_users(self, body_numbers: list[int], users_by_body: dict[int, list[bytes]], incarnation: int) -> None:
        asked = [(number, key) for number, found in users_by_body.items() for key in found]

        def read(values: list[bytes | None] | StoreError) -> None:
            if incarnation != self._incarnation or isinstance(values, StoreError):
                return
            needed = {
                number
                for (number, _), record in zip(asked, values, strict=True)
                if record is not None and shared_body_of(record) == number
            }
            for number in body_numbers:
                if number not in self._pending_checks:  # else another of them was removed meanwhile
                    self._commit_log.batch.delete(self._check_prefix + pack_sequence(number), Table.INDEX)
                if number in users_by_body and number not in needed:
                    self._commit_log.batch.delete(self._body_prefix + pack_sequence(number))
            self._commit_log.add_without_participant(lambda _: self._on_checked(incarnation))

        self._commit_log.get([key for _, key in asked], read)

    def _on_checked(self, incarnation: int) -> None:
        if incarnation == self._incarnation:
            self._is_checking = False
            self._run_checks()


def _complete(record: bytes | None, shared_bodies: Mapping[int, bytes | None]) -> bytes | None:
    if record is None or not record[1] & HAS_SHARED_BODY:
        return record
    value = shared_bodies.get(shared_body_of(record))
    return record + _bare_message_of(value) if value is not None else None


def _user_keys_of(value: bytes) -> list[bytes]:
    (count,) = _USER_COUNT.unpack_from(value)
    return [
        value[at : at + RECORD_KEY_BYTES]
        for at in range(_USER_COUNT.size, _USER_COUNT.size + count * RECORD_KEY_BYTES, RECORD_KEY_BYTES)
    ]


def _bare_message_of(value: bytes) -> bytes:
    (count,) = _USER_COUNT.unpack_from(value)
    return value[_USER_COUNT.size + count * RECORD_KEY_BYTES :]
