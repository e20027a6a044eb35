"""The simulation finds each fault that is planted in a part of the queue."""
# ruff: noqa: ANN401  # arguments are passed on unchanged

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation.queue.run import run, settings_of
from tests.simulation.queue.settings import Settings
from tests.simulation.seeded_runs import describe_error
from twinbus.broker.entities.resubmission import Resubmission
from twinbus.broker.fragment.deferral import Deferral
from twinbus.broker.fragment.duplicate_detection import DuplicateDetection
from twinbus.broker.fragment.fragment import Fragment
from twinbus.broker.fragment.message_browser import MessageBrowser
from twinbus.broker.fragment.message_table import MessageTable
from twinbus.broker.fragment.removal import RemovalScan
from twinbus.broker.fragment.schedule import Schedule
from twinbus.broker.fragment.session_dispatcher import SessionDispatcher
from twinbus.broker.fragment.session_lock import LocalSessionLock
from twinbus.broker.fragment.session_state import SessionStates
from twinbus.broker.fragment.settlement import Settlement
from twinbus.broker.fragment.time_index import TimeIndex
from twinbus.broker.ports.settlement import session_lock_lost_error
from twinbus.broker.store_keys import pack_sequence

ENOUGH = 400
"""Number of runs within which a fault must be found."""

Patch = pytest.MonkeyPatch
Kind = Callable[[Settings], bool]
"""Selects the runs in which a fault can be found."""
ANY: Kind = lambda _: True  # noqa: E731
SESSIONS: Kind = lambda settings: settings.description.requires_session  # noqa: E731
DUPLICATES: Kind = lambda settings: settings.description.requires_duplicate_detection  # noqa: E731
DEFERRALS: Kind = lambda settings: min(settings.weights[name] for name in ("defer", "remove", "receive_deferred")) >= 2  # noqa: E731


def first_fault(shows_in: Kind) -> str:
    """Return the description of the first fault that a run finds."""
    for seed in range(ENOUGH):
        if not shows_in(settings_of(seed)):
            continue
        try:
            run(seed)
        except (AttributeError, TypeError):
            raise  # the planted fault does not fit the code
        except Exception as error:  # noqa: BLE001  # a fault may cause any exception
            return describe_error(error)
    return "nothing"


def replace(patch: Patch, owner: type, name: str, wrong: Callable[..., Any]) -> None:
    """Replace a method by `wrong`, which gets the original method and its arguments."""
    right = getattr(owner, name)
    patch.setattr(owner, name, lambda *arguments, **options: wrong(right, *arguments, **options))


# --- scheduled and expiring messages --------------------------------------------------------------------------------


def a_due_timer_is_ignored(patch: Patch) -> None:
    replace(patch, TimeIndex, "_on_timer", lambda right, self: right(self) if self._is_sparse else None)


def entries_added_during_a_scan_are_forgotten(patch: Patch) -> None:
    def wrong(right: Any, self: TimeIndex, moments: Any, now_ms: int) -> None:
        self._first_added = (2**62, 0)
        right(self, moments, now_ms)

    replace(patch, TimeIndex, "_on_scanned", wrong)


def messages_are_due_two_seconds_early(patch: Patch) -> None:
    replace(patch, TimeIndex, "_on_scanned", lambda right, self, moments, now_ms: right(self, moments, now_ms + 2_000))


def scheduled_messages_become_active_twice(patch: Patch) -> None:
    def wrong(right: Any, self: MessageTable, sequence: int, *others: Any) -> None:
        key = self.scheduled_prefix + sequence.to_bytes(8, "big")
        right(self, sequence, *others)
        self._commit_log.batch.changes[:] = [  # type: ignore[attr-defined]
            change
            for change in self._commit_log.batch.changes  # type: ignore[attr-defined]
            if change[:2] != (key, None)
        ]

    replace(patch, MessageTable, "unschedule", wrong)


def the_time_index_skips_messages_being_cancelled(patch: Patch) -> None:
    replace(
        patch,
        TimeIndex,
        "mark_processed",
        lambda right, self, low, **_: right(self, max(low, (self._clock.wall_ms(), 0))),
    )


def only_the_first_message_is_cancelled(patch: Patch) -> None:
    replace(patch, Schedule, "cancel", lambda right, self, sequences, answer: right(self, sequences[:1], answer))


def expired_messages_are_delivered(patch: Patch) -> None:
    patch.setattr(Fragment, "_without_expired", lambda _, items, _now_ms: items)


def expired_messages_are_dropped_instead_of_dead_lettered(patch: Patch) -> None:
    patch.setattr(
        Settlement, "_drop_expired", lambda self, expired: self._fragment.remove([lock for lock, _ in expired], print)
    )


def an_expired_message_leaves_its_index_rows(patch: Patch) -> None:
    def wrong(right: Any, self: Fragment, locks: Any, answer: Any) -> None:
        for lock in locks:
            lock.has_extra_rows = lock.has_extra_rows and lock.is_deferred
        right(self, locks, answer)

    replace(patch, Fragment, "remove", wrong)


# --- deferral, duplicates, dead letters, removal --------------------------------------------------------------------


def deferred_messages_are_received_twice(patch: Patch) -> None:
    def wrong(right: Any, self: Deferral, sequences: Any, done: Any, **options: Any) -> None:
        self._fragment.deferred_in_flight.clear()
        right(self, sequences, done, **options)

    replace(patch, Deferral, "receive", wrong)


def deferred_messages_are_deleted(patch: Patch) -> None:
    def wrong(right: Any, self: MessageTable, lock: Any, record: bytes) -> None:
        right(self, lock, record)
        if lock.sequence % 7 == 0:
            self._commit_log.batch.delete(self.deferred_prefix + lock.sequence.to_bytes(8, "big"))

    replace(patch, MessageTable, "defer", wrong)


def duplicates_are_forgotten_by_a_restart(patch: Patch) -> None:
    def wrong(right: Any, self: MessageTable, value: bytes | None) -> None:
        right(self, value)
        self.id_generation = 0

    replace(patch, MessageTable, "load_counters", wrong)


def duplicates_are_detected_for_ever(patch: Patch) -> None:
    patch.setattr(DuplicateDetection, "_is_recent", lambda *_: True)


def uncommitted_duplicates_are_not_detected(patch: Patch) -> None:
    def wrong(right: Any, self: DuplicateDetection, *arguments: Any) -> None:
        self._uncommitted_ids.clear()
        right(self, *arguments)

    replace(patch, DuplicateDetection, "_store", wrong)


def a_resubmitted_message_stays_a_dead_letter(patch: Patch) -> None:
    def wrong(right: Any, self: Resubmission, source: Any, sequences: Any, store_again: Any, on_failed: Any) -> None:
        def store_and_keep(records: Any) -> None:
            store_again(records)
            source.remove = keep  # the next call would delete the dead letters

        def keep(_locks: Any, on_done: Any) -> None:
            del source.remove
            source.remove([], on_done)

        right(self, source, sequences, store_and_keep, on_failed)

    replace(patch, Resubmission, "_take", wrong)


def locked_messages_are_purged(patch: Patch) -> None:
    def wrong(right: Any, self: RemovalScan, rows: Any) -> None:
        self._is_in_flight = lambda _: False
        right(self, rows)

    replace(patch, RemovalScan, "_remove_rows", wrong)


def a_purge_deletes_the_whole_range(patch: Patch) -> None:
    def wrong(self: RemovalScan, sequences: list[int]) -> None:
        if sequences:
            first, last = (
                self._key_prefix + pack_sequence(sequences[0]),
                self._key_prefix + pack_sequence(sequences[-1] + 1),
            )
            self._fragment.commit_log.batch.delete_range(first, last)

    patch.setattr(RemovalScan, "_delete_records", wrong)


# --- sessions -------------------------------------------------------------------------------------------------------


def a_session_is_granted_to_two_receivers(patch: Patch) -> None:
    def wrong(right: Any, self: SessionDispatcher, consumer: Any, session: bytes, granted: Any) -> None:
        self.session_locks.pop(session, None)
        right(self, consumer, session, granted)

    replace(patch, SessionDispatcher, "accept_session", wrong)


def a_requeued_message_is_last_in_its_session(patch: Patch) -> None:
    def wrong(self: LocalSessionLock, sequence: int, record: bytes) -> None:
        self.ready.append((sequence, record))
        self.ready_bytes += len(record)

    patch.setattr(LocalSessionLock, "requeue", wrong)


def a_released_session_keeps_its_locks(patch: Patch) -> None:
    def wrong(right: Any, self: SessionDispatcher, hold: LocalSessionLock) -> Any:
        right(self, hold)
        return []

    replace(patch, SessionDispatcher, "_release", wrong)


def a_session_is_lost_when_the_clock_jumps(patch: Patch) -> None:
    def wrong(right: Any, self: SessionDispatcher, session: bytes, consumer: Any = None) -> Any:
        hold = right(self, session, consumer)
        if hold.locked_until_ms < self._fragment.clock.wall_ms():
            raise session_lock_lost_error(session)
        return hold

    replace(patch, SessionDispatcher, "find_lock", wrong)


def receivers_waiting_for_a_session_are_forgotten(patch: Patch) -> None:
    patch.setattr(SessionDispatcher, "_search_log", lambda _: None)


def blocked_receivers_are_forgotten(patch: Patch) -> None:
    def wrong(right: Any, self: SessionDispatcher) -> None:
        self._blocked.clear()
        right(self)

    replace(patch, SessionDispatcher, "dispatch", wrong)


def session_states_are_not_stored(patch: Patch) -> None:
    replace(patch, SessionStates, "set", lambda right, self, session, _, answer: right(self, session, None, answer))


def a_peek_skips_the_first_message(patch: Patch) -> None:
    replace(patch, MessageBrowser, "peek", lambda right, self, start, *others: right(self, max(start, 2), *others))


FAULTS: dict[Callable[[Patch], None], Kind] = {
    a_due_timer_is_ignored: ANY,
    entries_added_during_a_scan_are_forgotten: ANY,
    messages_are_due_two_seconds_early: ANY,
    scheduled_messages_become_active_twice: ANY,
    the_time_index_skips_messages_being_cancelled: ANY,
    only_the_first_message_is_cancelled: ANY,
    expired_messages_are_delivered: ANY,
    expired_messages_are_dropped_instead_of_dead_lettered: ANY,
    an_expired_message_leaves_its_index_rows: ANY,
    deferred_messages_are_received_twice: DEFERRALS,
    deferred_messages_are_deleted: ANY,
    duplicates_are_forgotten_by_a_restart: DUPLICATES,
    duplicates_are_detected_for_ever: DUPLICATES,
    uncommitted_duplicates_are_not_detected: DUPLICATES,
    a_resubmitted_message_stays_a_dead_letter: ANY,
    locked_messages_are_purged: ANY,
    a_purge_deletes_the_whole_range: DEFERRALS,
    a_session_is_granted_to_two_receivers: SESSIONS,
    a_requeued_message_is_last_in_its_session: SESSIONS,
    a_released_session_keeps_its_locks: SESSIONS,
    a_session_is_lost_when_the_clock_jumps: SESSIONS,
    receivers_waiting_for_a_session_are_forgotten: SESSIONS,
    blocked_receivers_are_forgotten: SESSIONS,
    session_states_are_not_stored: SESSIONS,
    a_peek_skips_the_first_message: ANY,
}
"""Planted faults, and the runs that can find them. test_seeded_runs.py checks that seeds find nothing otherwise."""


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    plant(monkeypatch)
    assert first_fault(FAULTS[plant]) != "nothing"
