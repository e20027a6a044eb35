"""The comparison finds what it is there to find: each fault planted in a part of the queue comes out."""
# ruff: noqa: ANN401  # what is passed on untouched; and what nobody but a saboteur would touch

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
"""Runs in which a fault must show."""

Patch = pytest.MonkeyPatch
Kind = Callable[[Settings], bool]
"""Which runs a fault may show in."""
ANY: Kind = lambda _: True  # noqa: E731
SESSIONS: Kind = lambda settings: settings.description.requires_session  # noqa: E731
DUPLICATES: Kind = lambda settings: settings.description.requires_duplicate_detection  # noqa: E731
DEFERRALS: Kind = lambda settings: min(settings.weights[name] for name in ("defer", "remove", "receive_deferred")) >= 2  # noqa: E731


def found(shows_in: Kind) -> str:
    """What the first run that finds something says."""
    for seed in range(ENOUGH):
        if not shows_in(settings_of(seed)):
            continue
        try:
            run(seed)
        except (AttributeError, TypeError):
            raise  # what is planted does not fit what is there
        except Exception as error:  # noqa: BLE001  # a fault may show as anything
            return describe_error(error)
    return "nothing"


def instead(patch: Patch, owner: type, name: str, wrong: Callable[..., Any]) -> None:
    """`wrong` is given the method that is right, and all that this would be given."""
    right = getattr(owner, name)
    patch.setattr(owner, name, lambda *arguments, **options: wrong(right, *arguments, **options))


# --- what comes later, and what expires -------------------------------------------------------------------------------


def an_alarm_is_slept_through(patch: Patch) -> None:
    instead(patch, TimeIndex, "_on_timer", lambda right, self: right(self) if self._is_sparse else None)


def what_is_added_during_a_look_is_forgotten(patch: Patch) -> None:
    def wrong(right: Any, self: TimeIndex, moments: Any, now_ms: int) -> None:
        self._first_added = (2**62, 0)
        right(self, moments, now_ms)

    instead(patch, TimeIndex, "_on_scanned", wrong)


def two_seconds_early(patch: Patch) -> None:
    instead(patch, TimeIndex, "_on_scanned", lambda right, self, moments, now_ms: right(self, moments, now_ms + 2_000))


def scheduled_ones_become_active_twice(patch: Patch) -> None:
    def wrong(right: Any, self: MessageTable, sequence: int, *others: Any) -> None:
        key = self.scheduled_prefix + sequence.to_bytes(8, "big")
        right(self, sequence, *others)
        self._commit_log.batch.changes[:] = [  # type: ignore[attr-defined]
            change
            for change in self._commit_log.batch.changes  # type: ignore[attr-defined]
            if change[:2] != (key, None)
        ]

    instead(patch, MessageTable, "unschedule", wrong)


def looked_at_from_behind_what_is_being_cancelled(patch: Patch) -> None:
    instead(
        patch,
        TimeIndex,
        "mark_processed",
        lambda right, self, low, **_: right(self, max(low, (self._clock.wall_ms(), 0))),
    )


def the_first_only_is_cancelled(patch: Patch) -> None:
    instead(patch, Schedule, "cancel", lambda right, self, sequences, answer: right(self, sequences[:1], answer))


def expired_ones_are_delivered(patch: Patch) -> None:
    patch.setattr(Fragment, "_without_expired", lambda _, items, _now_ms: items)


def expired_ones_are_dropped_where_they_should_be_dead_lettered(patch: Patch) -> None:
    patch.setattr(
        Settlement, "_drop_expired", lambda self, found: self._fragment.remove([lock for lock, _ in found], print)
    )


def an_expired_one_leaves_its_rows(patch: Patch) -> None:
    def wrong(right: Any, self: Fragment, locks: Any, answer: Any) -> None:
        for lock in locks:
            lock.has_extra_rows = lock.has_extra_rows and lock.is_deferred
        right(self, locks, answer)

    instead(patch, Fragment, "remove", wrong)


# --- what was set aside, sent before, or is dead ----------------------------------------------------------------------


def deferred_ones_are_received_by_two(patch: Patch) -> None:
    def wrong(right: Any, self: Deferral, sequences: Any, done: Any, **options: Any) -> None:
        self._fragment.deferred_in_flight.clear()
        right(self, sequences, done, **options)

    instead(patch, Deferral, "receive", wrong)


def deferred_ones_expire(patch: Patch) -> None:
    def wrong(right: Any, self: MessageTable, lock: Any, record: bytes) -> None:
        right(self, lock, record)
        if lock.sequence % 7 == 0:
            self._commit_log.batch.delete(self.deferred_prefix + lock.sequence.to_bytes(8, "big"))

    instead(patch, MessageTable, "defer", wrong)


def duplicates_are_forgotten_by_a_restart(patch: Patch) -> None:
    def wrong(right: Any, self: MessageTable, value: bytes | None) -> None:
        right(self, value)
        self.id_generation = 0

    instead(patch, MessageTable, "load_counters", wrong)


def duplicates_are_found_for_ever(patch: Patch) -> None:
    patch.setattr(DuplicateDetection, "_is_recent", lambda *_: True)


def duplicates_on_their_way_are_not_found(patch: Patch) -> None:
    def wrong(right: Any, self: DuplicateDetection, *arguments: Any) -> None:
        self._uncommitted_ids.clear()
        right(self, *arguments)

    instead(patch, DuplicateDetection, "_store", wrong)


def a_resubmitted_one_stays_a_dead_letter(patch: Patch) -> None:
    instead(patch, Resubmission, "_move", lambda right, self, _, parcel, done: right(self, [], parcel, done))


def what_someone_has_is_purged(patch: Patch) -> None:
    def wrong(right: Any, self: RemovalScan, rows: Any) -> None:
        self._is_in_flight = lambda _: False
        right(self, rows)

    instead(patch, RemovalScan, "_remove_rows", wrong)


def what_comes_between_neighbours_is_purged_with_them(patch: Patch) -> None:
    def wrong(self: RemovalScan, sequences: list[int]) -> None:
        if sequences:
            first, last = (
                self._key_prefix + pack_sequence(sequences[0]),
                self._key_prefix + pack_sequence(sequences[-1] + 1),
            )
            self._fragment.commit_log.batch.delete_range(first, last)

    patch.setattr(RemovalScan, "_delete_records", wrong)


# --- sessions ---------------------------------------------------------------------------------------------------------


def a_session_is_given_to_two(patch: Patch) -> None:
    def wrong(right: Any, self: SessionDispatcher, consumer: Any, session: bytes, granted: Any) -> None:
        self.session_locks.pop(session, None)
        right(self, consumer, session, granted)

    instead(patch, SessionDispatcher, "accept_session", wrong)


def what_comes_back_is_last_in_its_session(patch: Patch) -> None:
    def wrong(self: LocalSessionLock, sequence: int, record: bytes) -> None:
        self.ready.append((sequence, record))
        self.ready_bytes += len(record)

    patch.setattr(LocalSessionLock, "requeue", wrong)


def what_a_receiver_had_stays_with_it(patch: Patch) -> None:
    def wrong(right: Any, self: SessionDispatcher, hold: LocalSessionLock) -> Any:
        right(self, hold)
        return []

    instead(patch, SessionDispatcher, "_release", wrong)


def a_session_is_lost_when_the_clock_jumps(patch: Patch) -> None:
    def wrong(right: Any, self: SessionDispatcher, session: bytes, consumer: Any = None) -> Any:
        hold = right(self, session, consumer)
        if hold.locked_until_ms < self._fragment.clock.wall_ms():
            raise session_lock_lost_error(session)
        return hold

    instead(patch, SessionDispatcher, "find_lock", wrong)


def who_waits_is_forgotten(patch: Patch) -> None:
    patch.setattr(SessionDispatcher, "_search_log", lambda _: None)


def those_held_up_are_forgotten(patch: Patch) -> None:
    def wrong(right: Any, self: SessionDispatcher) -> None:
        self._blocked.clear()
        right(self)

    instead(patch, SessionDispatcher, "dispatch", wrong)


def a_session_remembers_nothing(patch: Patch) -> None:
    instead(patch, SessionStates, "set", lambda right, self, session, _, answer: right(self, session, None, answer))


def a_peek_misses_the_first(patch: Patch) -> None:
    instead(patch, MessageBrowser, "peek", lambda right, self, start, *others: right(self, max(start, 2), *others))


FAULTS: dict[Callable[[Patch], None], Kind] = {
    an_alarm_is_slept_through: ANY,
    what_is_added_during_a_look_is_forgotten: ANY,
    two_seconds_early: ANY,
    scheduled_ones_become_active_twice: ANY,
    looked_at_from_behind_what_is_being_cancelled: ANY,
    the_first_only_is_cancelled: ANY,
    expired_ones_are_delivered: ANY,
    expired_ones_are_dropped_where_they_should_be_dead_lettered: ANY,
    an_expired_one_leaves_its_rows: ANY,
    deferred_ones_are_received_by_two: DEFERRALS,
    deferred_ones_expire: ANY,
    duplicates_are_forgotten_by_a_restart: DUPLICATES,
    duplicates_are_found_for_ever: DUPLICATES,
    duplicates_on_their_way_are_not_found: DUPLICATES,
    a_resubmitted_one_stays_a_dead_letter: ANY,
    what_someone_has_is_purged: ANY,
    what_comes_between_neighbours_is_purged_with_them: DEFERRALS,
    a_session_is_given_to_two: SESSIONS,
    what_comes_back_is_last_in_its_session: SESSIONS,
    what_a_receiver_had_stays_with_it: SESSIONS,
    a_session_is_lost_when_the_clock_jumps: SESSIONS,
    who_waits_is_forgotten: SESSIONS,
    those_held_up_are_forgotten: SESSIONS,
    a_session_remembers_nothing: SESSIONS,
    a_peek_misses_the_first: ANY,
}
"""That the same seeds find nothing without a fault is the test of seeded runs."""


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    plant(monkeypatch)
    assert found(FAULTS[plant]) != "nothing"
