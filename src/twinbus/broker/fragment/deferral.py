"""Deferral: receiving deferred messages by sequence number.

Owns: locking or deleting deferred messages for a receiver. Deferred messages do not expire, and are delivered only on
request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from twinbus.broker.fragment.locks import NEVER_EXPIRES_S, Lock, pack_lock_number
from twinbus.broker.fragment.record_lookup import look_up_records
from twinbus.broker.message_record import render_deferred, render_unlocked, session_id_of
from twinbus.broker.ports.settlement import session_lock_lost_error
from twinbus.broker.store_keys import pack_sequence
from twinbus.model.errors import MessageNotFound, MessageTooLarge, ServerBusy, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.fragment.fragment import Fragment
    from twinbus.broker.ports.callbacks import OnDone
    from twinbus.model.errors import ServiceBusError

    ReceivedMessages: TypeAlias = list[tuple[bytes, bytes]]
    """Encoded messages, each with its lock token, which is empty for a message without a lock."""

MAX_RECEIVE_BYTES: Final = 4_194_304
"""The maximum total size of the messages that one call receives."""


class Deferral:
    """The deferred messages of one fragment."""

    def __init__(self, fragment: Fragment) -> None:
        """Create the deferral for `fragment`."""
        self._fragment = fragment

    def receive(
        self,
        sequences: list[int],
        on_result: Callable[[ReceivedMessages | ServiceBusError], None],
        *,
        receive_and_delete: bool,
        session_id: bytes | None = None,
        session_locked_until_ms: int | None = None,
    ) -> None:
        """Lock or delete deferred messages: all of them, or none if any message does not exist (MessageNotFound).

        If `session_id` is given, all messages must belong to that session, and their locks last as long as the lock of
        the session.
        """
        fragment = self._fragment
        fragment.commit_log.check_available()
        fragment.check_loaded()
        self._check_unlocked(sequences, takes_locks=not receive_and_delete)
        for sequence in sequences:
            fragment.deferred_in_flight[sequence] = _mark_deferred(Lock(0, sequence, 0, NEVER_EXPIRES_S))
        incarnation = fragment.incarnation
        session_lock = (
            fragment.sessions.session_locks.get(session_id)
            if fragment.sessions is not None and session_id is not None
            else None
        )
        items: list[tuple[int, bytes]] = []
        size = 0

        def visit(index: int, record: bytes | None) -> None:
            nonlocal size
            if record is not None and (session_id is None or session_id_of(record) == session_id):
                size += len(record)
                if size <= MAX_RECEIVE_BYTES:
                    items.append((sequences[index], record))

        def looked_up(error: ServiceBusError | None) -> None:
            problem = error or _receive_error(sequences, items, size)
            if session_lock is not None and session_lock.has_ended:  # otherwise these locks would never be released
                problem = problem or session_lock_lost_error(session_lock.session_id)
            if problem is None and receive_and_delete:
                self._delete(items, on_result)
            elif problem is None:
                on_result(self._lock(items, session_locked_until_ms))
            else:
                self._unlock(sequences, incarnation)
                on_result(problem)

        self._read(sequences, visit, looked_up)

    def _read(self, sequences: list[int], on_record: Callable[[int, bytes | None], None], on_done: OnDone) -> None:
        """Read records; for an exclusive receiver, first note on disk that the messages may have been delivered."""
        fragment = self._fragment
        incarnation = fragment.incarnation

        def on_noted(error: ServiceBusError | None) -> None:
            if error is not None or incarnation != fragment.incarnation:
                on_done(error or StoreUnavailable("the store failed before the messages were read"))
                return
            keys = [fragment.message_table.deferred_prefix + pack_sequence(sequence) for sequence in sequences]
            look_up_records(fragment, keys, on_record, on_done)

        fragment.redelivery.ensure_noted(sequences, on_noted)

    def _check_unlocked(self, sequences: list[int], *, takes_locks: bool) -> None:
        """Raise MessageNotFound if another receiver has locked a message, ServerBusy for too many locked messages."""
        locks, max_locks = self._fragment.deferred_in_flight, self._fragment.policy.max_locks
        locked = [sequence for sequence in sequences if sequence in locks]
        if locked:
            raise MessageNotFound(f"the deferred message {locked[0]} is locked by another receiver")
        if takes_locks and len(locks) + len(sequences) > max_locks:
            raise ServerBusy(
                f"{len(locks):,} deferred messages are locked, and the limit is {max_locks:,}: settle some before you "
                "receive more"
            )

    def _lock(self, messages: list[tuple[int, bytes]], session_locked_until_ms: int | None) -> ReceivedMessages:
        fragment = self._fragment
        duration_ms = fragment.policy.lock_duration_ms
        deadline_s = fragment.clock.monotonic_s() + duration_ms / 1000
        until_ms = fragment.clock.wall_ms() + duration_ms
        if session_locked_until_ms is not None:
            deadline_s, until_ms = NEVER_EXPIRES_S, session_locked_until_ms
        received = []
        for lock, (sequence, record) in zip(fragment.locks.add(messages, deadline_s), messages, strict=True):
            fragment.deferred_in_flight[sequence] = _mark_deferred(lock)
            token = fragment.locks.token_prefix + pack_lock_number(lock.number)
            shown = fragment.redelivery.as_delivered(sequence, record)
            received.append((render_deferred(shown, sequence, token, until_ms), token))
        if fragment.sessions is not None:
            fragment.sessions.attach_locks([fragment.deferred_in_flight[sequence] for sequence, _ in messages])
        if session_locked_until_ms is None:
            fragment.settlement.schedule_expiry(deadline_s)
        return received

    def _delete(
        self, messages: list[tuple[int, bytes]], on_result: Callable[[ReceivedMessages | ServiceBusError], None]
    ) -> None:
        locks = []
        for sequence, record in messages:
            lock = self._fragment.deferred_in_flight[sequence]
            lock.size, lock.session_id = len(record), session_id_of(record)
            locks.append(lock)
        as_delivered = self._fragment.redelivery.as_delivered
        received = [(render_unlocked(as_delivered(sequence, record), sequence), b"") for sequence, record in messages]
        self._fragment.remove(locks, lambda error: on_result(error if error is not None else received))

    def _unlock(self, sequences: list[int], incarnation: int) -> None:
        """Release deferred messages that were not delivered."""
        if incarnation == self._fragment.incarnation:
            for sequence in sequences:
                del self._fragment.deferred_in_flight[sequence]


def _receive_error(sequences: list[int], messages: list[tuple[int, bytes]], size: int) -> ServiceBusError | None:
    if size > MAX_RECEIVE_BYTES:
        return MessageTooLarge(f"these messages together are larger than {MAX_RECEIVE_BYTES:,} bytes: request fewer")
    existing = {sequence for sequence, _ in messages}
    missing = next((sequence for sequence in sequences if sequence not in existing), None)
    return MessageNotFound(f"Failed to find the deferred message {missing}.") if missing is not None else None


def _mark_deferred(lock: Lock) -> Lock:
    lock.is_deferred = lock.has_extra_rows = True
    lock.expiry_ms = 0
    return lock
