"""Shared bodies: bare messages that several subscriptions of a topic share, stored once.

Owns: the stored bodies, and their deletion as soon as no message refers to them. Each body is stored with the keys of
its users, which are the messages that were created with the body. References to the latest bodies are counted in
memory, which suffices while receivers keep up. For older bodies, and for all bodies after a restart, the count is
unknown. In that case, the batch that removes a message also writes a check row. Afterwards, the users of the body are
looked up; the check row is deleted, and so is the body if it has no users left.

A message that is deferred, dead-lettered or changed gets a body of its own.
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
"""The maximum number of bodies whose references are counted in memory."""
CHECK_BATCH_SIZE: Final = 10
_USER_COUNT: Final = Struct(">I")
"""The number of users of a body; their keys and the bare message follow."""


class SharedBodies:
    """The shared bodies of one fragment of a topic."""

    def __init__(self, key_prefix: bytes, commit_log: CommitLog) -> None:
        """Create the shared bodies for the topic's fragment with the given key prefix."""
        self._commit_log = commit_log
        self._body_prefix = key_prefix + store_keys.SHARED_BODY
        self._check_prefix = key_prefix + store_keys.BODY_CHECK
        self._check_end = store_keys.kind_end(key_prefix, store_keys.BODY_CHECK)
        self._reference_counts: dict[int, int] = {}
        """The number of references to each body, by body number, oldest first."""
        self._pending_checks: dict[int, None] = {}
        self._is_checking = False
        self._incarnation = 0

    # --- writing: each method puts its changes into the batch of this turn --------------------------------------------

    def put(self, body_number: int, bare_message: bytes, user_keys: Sequence[bytes]) -> None:
        """Store a bare message that the records with these keys share."""
        value = b"".join([_USER_COUNT.pack(len(user_keys)), *user_keys, bare_message])
        self._commit_log.batch.put(self._body_prefix + pack_sequence(body_number), value)
        self._reference_counts[body_number] = len(user_keys)
        if len(self._reference_counts) > MAX_COUNTED_BODIES:
            del self._reference_counts[next(iter(self._reference_counts))]

    def release(self, body_number: int) -> None:
        """Release the body of a message that is removed in this batch; delete the body if no references are left."""
        count = self._reference_counts.get(body_number)
        if count is None:
            self._commit_log.batch.put(self._check_prefix + pack_sequence(body_number), b"", Table.INDEX)
            self._pending_checks[body_number] = None
        elif count > 1:
            self._reference_counts[body_number] = count - 1
        else:
            del self._reference_counts[body_number]
            self._commit_log.batch.delete(self._body_prefix + pack_sequence(body_number))

    # --- reading ------------------------------------------------------------------------------------------------------

    def complete_records(
        self, keys: Sequence[bytes], records: Sequence[bytes | None], on_result: OnResult[list[bytes | None]]
    ) -> None:
        """Complete records, which were read from these keys, with their bodies.

        Completing a record takes a second read, and a message may be removed in between. The records are therefore read
        again together with the bodies, so that the result is consistent, which all callers rely on.
        """
        numbers = [shared_body_of(record) for record in records if record is not None and record[1] & HAS_SHARED_BODY]
        if not numbers:
            on_result(list(records))
            return
        record_keys = [key for key, record in zip(keys, records, strict=True) if record is not None]

        def on_read(values: list[bytes | None] | StoreError) -> None:
            if isinstance(values, StoreError):
                on_result(values)
                return
            bodies = dict(zip(numbers, values[: len(numbers)], strict=True))
            records_by_key = dict(zip(record_keys, values[len(numbers) :], strict=True))
            on_result([_complete(records_by_key.get(key), bodies) for key in keys])

        self._commit_log.get(
            [*[self._body_prefix + pack_sequence(number) for number in numbers], *record_keys], on_read
        )

    def complete_rows(self, rows: list[Row], max_bytes: int, on_result: OnResult[list[Row]]) -> None:
        """Complete rows of a scan, up to `max_bytes`; the result may be empty if messages were removed meanwhile."""
        size, count = 0, 0
        for count, (_, record) in enumerate(rows, 1):  # noqa: B007
            size += full_size_of(record)
            if size > max_bytes:
                break
        chosen = rows[:count]

        def on_complete(records: list[bytes | None] | StoreError) -> None:
            if isinstance(records, StoreError):
                on_result(records)
                return
            pairs = zip(chosen, records, strict=True)
            on_result([(key, record) for (key, _), record in pairs if record is not None])

        self.complete_records([key for key, _ in chosen], [record for _, record in chosen], on_complete)

    # --- checking for users -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Discard the state in memory, and run the checks that an earlier run left on disk."""
        self._incarnation += 1
        self._reference_counts.clear()
        self._pending_checks.clear()
        self._is_checking = False
        self._read_pending_checks(self._check_prefix)

    def _read_pending_checks(self, start: bytes) -> None:
        incarnation = self._incarnation

        def on_rows(rows: list[Row] | StoreError) -> None:
            if incarnation != self._incarnation or isinstance(rows, StoreError) or not rows:
                return
            self._pending_checks.update(dict.fromkeys([sequence_of_key(key) for key, _ in rows]))
            self._run_checks()
            self._read_pending_checks(rows[-1][0] + b"\0")

        self._commit_log.scan(start, self._check_end, on_rows, limit=1_000, max_bytes=1, table=Table.INDEX)

    def resume(self) -> None:
        """Run pending checks after a commit is on disk."""
        if self._pending_checks:
            self._run_checks()

    def _run_checks(self) -> None:
        if self._is_checking or not self._pending_checks or self._commit_log.unavailable_reason is not None:
            return
        self._is_checking = True
        numbers = [number for number, _ in zip(self._pending_checks, range(CHECK_BATCH_SIZE), strict=False)]
        for number in numbers:
            del self._pending_checks[number]
        incarnation = self._incarnation

        def on_read(values: list[bytes | None] | StoreError) -> None:
            if incarnation != self._incarnation or isinstance(values, StoreError):
                return  # the check rows stay on disk
            users = {number: _user_keys_of(value) for number, value in zip(numbers, values, strict=True) if value}
            self._check_users(numbers, users, incarnation)

        self._commit_log.get([self._body_prefix + pack_sequence(number) for number in numbers], on_read)

    def _check_users(self, body_numbers: list[int], users_by_body: dict[int, list[bytes]], incarnation: int) -> None:
        users = [(number, key) for number, keys in users_by_body.items() for key in keys]

        def on_read(values: list[bytes | None] | StoreError) -> None:
            if incarnation != self._incarnation or isinstance(values, StoreError):
                return
            needed = {
                number
                for (number, _), record in zip(users, values, strict=True)
                if record is not None and shared_body_of(record) == number
            }
            for number in body_numbers:
                if number not in self._pending_checks:  # otherwise another user was removed meanwhile
                    self._commit_log.batch.delete(self._check_prefix + pack_sequence(number), Table.INDEX)
                if number in users_by_body and number not in needed:
                    self._commit_log.batch.delete(self._body_prefix + pack_sequence(number))
            self._commit_log.add_without_participant(lambda _: self._on_checked(incarnation))

        self._commit_log.get([key for _, key in users], on_read)

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
