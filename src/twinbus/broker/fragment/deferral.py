"""Deferral: messages that were set aside, and come out by their sequence number.

Owns: their way out. They stay until someone asks for them: they do not expire, and nobody gets one unasked.
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
    """Messages as they go on the wire, each with its lock token; without a lock that is empty."""

MAX_RECEIVE_BYTES: Final = 4_194_304
"""All that one call may ask for."""


class Deferral:
    """The deferred messages of one fragment."""

    def __init__(self, fragment: Fragment) -> None:
        """Made by its fragment."""
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
        """Lock deferred messages, or delete them: all of them, or none where one is not there (MessageNotFound).

        They are of `session`, if one is given; then they are locked as long as that is.
        """
        fragment = self._fragment
        fragment.commit_log.check_available()
        fragment.check_loaded()
        self._check_unlocked(sequences, takes_locks=not receive_and_delete)
        for sequence in sequences:
            fragment.deferred_in_flight[sequence] = _mark_deferred(Lock(0, sequence, 0, NEVER_EXPIRES_S))
        life = fragment.incarnation
        hold = (
            fragment.sessions.session_locks.get(session_id)
            if fragment.sessions is not None and session_id is not None
            else None
        )
        items: list[tuple[int, bytes]] = []
        size = 0

        def visit(place: int, record: bytes | None) -> None:
            nonlocal size
            if record is not None and (session_id is None or session_id_of(record) == session_id):
                size += len(record)
                if size <= MAX_RECEIVE_BYTES:
                    items.append((sequences[place], record))

        def looked_up(error: ServiceBusError | None) -> None:
            problem = error or _receive_error(sequences, items, size)
            if hold is not None and hold.has_ended:  # locked as long as that they would be locked for ever
                problem = problem or session_lock_lost_error(hold.session_id)
            if problem is None and receive_and_delete:
                self._delete(items, on_result)
            elif problem is None:
                on_result(self._lock(items, session_locked_until_ms))
            else:
                self._unlock(sequences, life)
                on_result(problem)

        self._read(sequences, visit, looked_up)

    def _read(self, sequences: list[int], on_record: Callable[[int, bytes | None], None], on_done: OnDone) -> None:
        """Show each record to `visit`; for an exclusive receiver, once it is noted that these are handed out."""
        fragment = self._fragment
        life = fragment.incarnation

        def secured(error: ServiceBusError | None) -> None:
            if error is not None or life != fragment.incarnation:
                on_done(error or StoreUnavailable("the store failed before the messages were read"))
                return
            keys = [fragment.message_table.deferred_prefix + pack_sequence(one) for one in sequences]
            look_up_records(fragment, keys, on_record, on_done)

        fragment.redelivery.ensure_noted(sequences, secured)

    def _check_unlocked(self, sequences: list[int], *, takes_locks: bool) -> None:
        """MessageNotFound if another receiver has one of these; ServerBusy if too many would be locked."""
        out, most = self._fragment.deferred_in_flight, self._fragment.policy.max_locks
        taken = [sequence for sequence in sequences if sequence in out]
        if taken:
            raise MessageNotFound(f"the deferred message {taken[0]} is locked by another receiver")
        if takes_locks and len(out) + len(sequences) > most:
            raise ServerBusy(
                f"{len(out):,} deferred messages are locked, and {most:,} can be at a time: settle some before you "
                "receive more"
            )

    def _lock(self, messages: list[tuple[int, bytes]], session_locked_until_ms: int | None) -> ReceivedMessages:
        fragment = self._fragment
        duration_ms = fragment.policy.lock_duration_ms
        deadline_s = fragment.clock.monotonic_s() + duration_ms / 1000
        until_ms = fragment.clock.wall_ms() + duration_ms
        if session_locked_until_ms is not None:
            deadline_s, until_ms = NEVER_EXPIRES_S, session_locked_until_ms
        found = []
        for lock, (sequence, record) in zip(fragment.locks.add(messages, deadline_s), messages, strict=True):
            fragment.deferred_in_flight[sequence] = _mark_deferred(lock)
            token = fragment.locks.token_prefix + pack_lock_number(lock.number)
            shown = fragment.redelivery.as_delivered(sequence, record)
            found.append((render_deferred(shown, sequence, token, until_ms), token))
        if fragment.sessions is not None:
            fragment.sessions.attach_locks([fragment.deferred_in_flight[sequence] for sequence, _ in messages])
        if session_locked_until_ms is None:
            fragment.settlement.schedule_expiry(deadline_s)
        return found

    def _delete(
        self, messages: list[tuple[int, bytes]], on_result: Callable[[ReceivedMessages | ServiceBusError], None]
    ) -> None:
        locks = []
        for sequence, record in messages:
            lock = self._fragment.deferred_in_flight[sequence]
            lock.size, lock.session_id = len(record), session_id_of(record)
            locks.append(lock)
        seen = self._fragment.redelivery.as_delivered
        found = [(render_unlocked(seen(sequence, record), sequence), b"") for sequence, record in messages]
        self._fragment.remove(locks, lambda error: on_result(error if error is not None else found))

    def _unlock(self, sequences: list[int], incarnation: int) -> None:
        """Nobody has them after all."""
        if incarnation == self._fragment.incarnation:
            for sequence in sequences:
                del self._fragment.deferred_in_flight[sequence]


def _receive_error(sequences: list[int], messages: list[tuple[int, bytes]], size: int) -> ServiceBusError | None:
    if size > MAX_RECEIVE_BYTES:
        return MessageTooLarge(f"these messages have more than {MAX_RECEIVE_BYTES:,} bytes together: ask for fewer")
    there = {sequence for sequence, _ in messages}
    missing = next((sequence for sequence in sequences if sequence not in there), None)
    return MessageNotFound(f"Failed to find the deferred message {missing}.") if missing is not None else None


def _mark_deferred(lock: Lock) -> Lock:
    lock.is_deferred = lock.has_extra_rows = True
    lock.expiry_ms = 0
    return lock
