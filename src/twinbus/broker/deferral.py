"""Deferral: messages that were set aside, and come out by their sequence number.

Owns: their way out. They stay until someone asks for them: they do not expire, and nobody gets one unasked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from twinbus.broker.keys import pack_sequence
from twinbus.broker.locks import NEVER_S, Lock, pack_number
from twinbus.broker.lookup import look_up
from twinbus.broker.ports.settlement import session_lock_lost
from twinbus.broker.record import render_deferred, render_open, session_of
from twinbus.model.errors import MessageNotFound, MessageTooLarge, ServerBusy, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.fragment import Fragment
    from twinbus.broker.ports.callbacks import Answered
    from twinbus.model.errors import ServiceBusError

    Found: TypeAlias = list[tuple[bytes, bytes]]
    """Messages as they go on the wire, each with its lock token; without a lock that is empty."""

RECEIVE_MAX_BYTES: Final = 4_194_304
"""All that one call may ask for."""


class Deferral:
    """The deferred messages of one fragment."""

    def __init__(self, fragment: Fragment) -> None:
        """Made by its fragment."""
        self._fragment = fragment

    def receive(
        self,
        sequences: list[int],
        done: Callable[[Found | ServiceBusError], None],
        *,
        deletes: bool,
        session: bytes | None = None,
        session_until_ms: int | None = None,
    ) -> None:
        """Lock deferred messages, or delete them: all of them, or none where one is not there (MessageNotFound).

        They are of `session`, if one is given; then they are locked as long as that is.
        """
        fragment = self._fragment
        fragment.journal.check_works()
        fragment.check_loaded()
        self._check_free(sequences, locks=not deletes)
        for sequence in sequences:
            fragment.deferred_out[sequence] = _as_deferred(Lock(0, sequence, 0, NEVER_S))
        life = fragment.life
        hold = fragment.sessions.holds.get(session) if fragment.sessions is not None and session is not None else None
        items: list[tuple[int, bytes]] = []
        size = 0

        def visit(place: int, record: bytes | None) -> None:
            nonlocal size
            if record is not None and (session is None or session_of(record) == session):
                size += len(record)
                if size <= RECEIVE_MAX_BYTES:
                    items.append((sequences[place], record))

        def looked_up(error: ServiceBusError | None) -> None:
            problem = error or _problem(sequences, items, size)
            if hold is not None and hold.is_over:  # locked as long as that they would be locked for ever
                problem = problem or session_lock_lost(hold.session)
            if problem is None and deletes:
                self._delete(items, done)
            elif problem is None:
                done(self._lock(items, session_until_ms))
            else:
                self._leave(sequences, life)
                done(problem)

        self._read(sequences, visit, looked_up)

    def _read(self, sequences: list[int], visit: Callable[[int, bytes | None], None], done: Answered) -> None:
        """Show each record to `visit`; for an exclusive receiver, once it is noted that these are handed out."""
        fragment = self._fragment
        life = fragment.life

        def secured(error: ServiceBusError | None) -> None:
            if error is not None or life != fragment.life:
                done(error or StoreUnavailable("the store failed before the messages were read"))
                return
            keys = [fragment.holdings.deferred + pack_sequence(one) for one in sequences]
            look_up(fragment, keys, visit, done)

        fragment.redelivery.secure(sequences, secured)

    def _check_free(self, sequences: list[int], *, locks: bool) -> None:
        """MessageNotFound if another receiver has one of these; ServerBusy if too many would be locked."""
        out, most = self._fragment.deferred_out, self._fragment.policy.max_locks
        taken = [sequence for sequence in sequences if sequence in out]
        if taken:
            raise MessageNotFound(f"the deferred message {taken[0]} is locked by another receiver")
        if locks and len(out) + len(sequences) > most:
            raise ServerBusy(
                f"{len(out):,} deferred messages are locked, and {most:,} can be at a time: settle some before you "
                "receive more"
            )

    def _lock(self, items: list[tuple[int, bytes]], session_until_ms: int | None) -> Found:
        fragment = self._fragment
        duration_ms = fragment.policy.lock_duration_ms
        deadline_s = fragment.clock.monotonic_s() + duration_ms / 1000
        until_ms = fragment.clock.wall_ms() + duration_ms
        if session_until_ms is not None:
            deadline_s, until_ms = NEVER_S, session_until_ms
        found = []
        for lock, (sequence, record) in zip(fragment.locks.add(items, deadline_s), items, strict=True):
            fragment.deferred_out[sequence] = _as_deferred(lock)
            token = fragment.locks.token_prefix + pack_number(lock.number)
            shown = fragment.redelivery.seen(sequence, record)
            found.append((render_deferred(shown, sequence, token, until_ms), token))
        if fragment.sessions is not None:
            fragment.sessions.note_locks([fragment.deferred_out[sequence] for sequence, _ in items])
        if session_until_ms is None:
            fragment.settlement.watch(deadline_s)
        return found

    def _delete(self, items: list[tuple[int, bytes]], done: Callable[[Found | ServiceBusError], None]) -> None:
        locks = []
        for sequence, record in items:
            lock = self._fragment.deferred_out[sequence]
            lock.size, lock.session = len(record), session_of(record)
            locks.append(lock)
        seen = self._fragment.redelivery.seen
        found = [(render_open(seen(sequence, record), sequence), b"") for sequence, record in items]
        self._fragment.remove(locks, lambda error: done(error if error is not None else found))

    def _leave(self, sequences: list[int], life: int) -> None:
        """Nobody has them after all."""
        if life == self._fragment.life:
            for sequence in sequences:
                del self._fragment.deferred_out[sequence]


def _problem(sequences: list[int], items: list[tuple[int, bytes]], size: int) -> ServiceBusError | None:
    if size > RECEIVE_MAX_BYTES:
        return MessageTooLarge(f"these messages have more than {RECEIVE_MAX_BYTES:,} bytes together: ask for fewer")
    there = {sequence for sequence, _ in items}
    missing = next((sequence for sequence in sequences if sequence not in there), None)
    return MessageNotFound(f"Failed to find the deferred message {missing}.") if missing is not None else None


def _as_deferred(lock: Lock) -> Lock:
    lock.is_deferred = lock.is_special = True
    lock.alarm_ms = 0
    return lock
