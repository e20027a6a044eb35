"""Session states, which outlive the messages of their sessions, and the listing of sessions.

Owns: the stored states, their size, and the listing of sessions. Callers check who may read or write a state.

States count against the quota of the entity, each with its key, because a million sessions with empty states take
space, too. The size of all states is one of the fragment's counters. Replacing a state changes that size by the
difference, so the present state is read first.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from twinbus.broker import store_keys
from twinbus.broker.store_keys import LAST_SEQUENCE, kind_end, pack_session_id, session_id_of_key
from twinbus.model.callbacks import do_nothing, ignore
from twinbus.model.errors import ServiceBusError, StoreUnavailable
from twinbus.store.protocol import StoreError, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.commit_log import WatchedRead
    from twinbus.broker.fragment.fragment import Fragment
    from twinbus.broker.ports.callbacks import OnDone
    from twinbus.store.protocol import Row

_UPDATED: Final = Struct(">Q")
_SESSION_ID_SIZE_BYTES: Final = 2
"""The length field before a session id in keys."""
MAX_PAGES: Final = 1_000
"""The maximum number of pages of the listing whose starts are remembered, so that a page is found without counting the
sessions before it."""
SCAN_BATCH_SIZE: Final = 200


class _PendingState:
    """A state that is being written: its size, and the number of its commits that are not on disk."""

    __slots__ = ("pending_commits", "size")

    def __init__(self) -> None:
        self.size = 0
        self.pending_commits = 0


class SessionStates:
    """The states of one fragment's sessions."""

    def __init__(self, fragment: Fragment) -> None:
        """Create the session states for `fragment`."""
        self._fragment = fragment
        self._state_prefix = fragment.message_table.key_prefix + store_keys.SESSION_STATE
        self._state_end = kind_end(fragment.message_table.key_prefix, store_keys.SESSION_STATE)
        self._session_end = kind_end(fragment.message_table.key_prefix, store_keys.SESSION_MESSAGES)
        self._page_starts: dict[int, bytes] = {}
        """The packed id of the session before a page, by the number of sessions before the page."""
        self._pending_states: dict[bytes, _PendingState] = {}
        """States that are not on disk yet, by session id."""
        self._waiting_changes: dict[bytes, list[tuple[WatchedRead, Callable[[int], None]]]] = {}
        """Changes that wait for the size of the present state, by session id."""

    def get(self, session_id: bytes, on_result: Callable[[bytes | ServiceBusError | None], None]) -> None:
        """Read the state of a session; `on_result` gets None if the session has no state."""
        self._check_available()
        states: list[bytes] = []
        watched_read = self._fragment.commit_log.watch_read(
            lambda error: on_result(error if error is not None else (states[0] if states else None))
        )

        def on_read(values: list[bytes | None] | StoreError) -> None:
            if isinstance(values, StoreError):
                watched_read.finish(_unavailable_error(values))
                return
            if values[0] is not None:
                states.append(values[0][_UPDATED.size :])
            watched_read.finish(None)

        self._fragment.commit_log.get([self._state_prefix + pack_session_id(session_id)], on_read, Table.INDEX)

    def set(
        self, session_id: bytes, state: bytes | None, on_done: OnDone, check: Callable[[], object] | None = None
    ) -> None:
        """Set the state of a session, or delete it (None). `check` raises an error if the caller lost the session.

        A change that frees space is accepted even if the entity or the disk is full. Any other change is refused in
        that case: `on_done` gets QuotaExceeded, StoreUnavailable or ServerBusy.
        """
        self._check_available()

        def change(old_size: int) -> None:
            try:
                self._check_available()
                if check is not None:
                    check()
                self._write(session_id, state, old_size, on_done)
            except ServiceBusError as error:
                on_done(error)

        pending_state = self._pending_states.get(session_id)
        if pending_state is not None:
            change(pending_state.size)
            return
        watched_read = self._fragment.commit_log.watch_read(lambda error: on_done(error) if error is not None else None)
        waiting = self._waiting_changes.setdefault(session_id, [])
        waiting.append((watched_read, change))
        if len(waiting) == 1:
            self._read_size(session_id)

    def _read_size(self, session_id: bytes) -> None:
        """Read the size of a state, then apply the changes that wait for the size, in order."""
        key, incarnation = self._state_prefix + pack_session_id(session_id), self._fragment.incarnation

        def on_read(values: list[bytes | None] | StoreError) -> None:
            if incarnation != self._fragment.incarnation:
                return  # the callers already got an error
            waiting = self._waiting_changes.pop(session_id)
            if isinstance(values, StoreError):
                for watched_read, _ in waiting:
                    watched_read.finish(_unavailable_error(values))
                return
            value = values[0]
            size = len(key) + len(value) if value is not None else 0
            for watched_read, change in waiting:
                if watched_read.is_pending:  # otherwise the caller already got a timeout
                    watched_read.finish(None)
                    pending_state = self._pending_states.get(session_id)
                    change(pending_state.size if pending_state is not None else size)

        self._fragment.commit_log.get([key], on_read, Table.INDEX)

    def _write(self, session_id: bytes, state: bytes | None, old_size: int, on_done: OnDone) -> None:
        fragment, key = self._fragment, self._state_prefix + pack_session_id(session_id)
        commit_log, size = fragment.commit_log, 0
        if state is None:
            commit_log.batch.delete(key, Table.INDEX)
        else:
            value = _UPDATED.pack(fragment.clock.wall_ms()) + state
            size = len(key) + len(value)
            if size >= old_size:
                commit_log.check_accepts_sends()  # on a full disk, only changes that free space are written
            if size > old_size:
                fragment.check_quota(size - old_size)
            commit_log.batch.put(key, value, Table.INDEX)
        fragment.message_table.session_state_bytes += size - old_size
        pending_state = self._pending_states.setdefault(session_id, _PendingState())
        pending_state.size = size
        pending_state.pending_commits += 1

        def on_applied() -> None:
            pending_state.pending_commits -= 1
            if not pending_state.pending_commits:
                self._pending_states.pop(session_id, None)

        commit_log.add(fragment, size, on_applied, on_done)

    def count_stored_bytes(self, on_done: Callable[[ServiceBusError | None], None]) -> None:
        """Count the size of states written by an earlier version, and store the size; called by `Fragment.load`."""
        fragment, incarnation = self._fragment, self._fragment.incarnation
        total = 0

        def scan_from(start: bytes) -> None:
            fragment.commit_log.scan(
                start, self._state_end, on_rows, limit=SCAN_BATCH_SIZE, max_bytes=1_048_576, table=Table.INDEX
            )

        def on_rows(rows: list[Row] | StoreError) -> None:
            nonlocal total
            if isinstance(rows, StoreError):
                on_done(_unavailable_error(rows))
            elif incarnation != fragment.incarnation:
                on_done(StoreUnavailable("the store failed before the session states were counted"))
            elif rows:
                total += sum([len(key) + len(value) for key, value in rows])
                scan_from(rows[-1][0] + b"\x00")
            else:
                fragment.message_table.set_session_state_bytes(total)
                on_done(None)
                fragment.commit_log.add(fragment, 0, do_nothing, ignore)

        scan_from(self._state_prefix)

    def reset(self) -> None:
        """Discard the state in memory, and fail waiting changes."""
        self._pending_states.clear()
        waiting_changes, self._waiting_changes = self._waiting_changes, {}
        for waiting in waiting_changes.values():
            for watched_read, _ in waiting:
                watched_read.finish(
                    StoreUnavailable("the store failed before the state was set: try again in a moment")
                )

    # --- listing sessions ---------------------------------------------------------------------------------------------

    def list_all(self, skip: int, top: int, on_result: Callable[[list[bytes] | ServiceBusError], None]) -> None:
        """List up to `top` sessions that have active messages or a state; skip the first `skip` sessions."""
        self._check_available()
        start_count = max((count for count in self._page_starts if count <= skip), default=0)
        session_ids: list[bytes] = []

        def find_from(after: bytes, count: int) -> None:
            def on_next(packed_id: bytes | ServiceBusError | None) -> None:
                if isinstance(packed_id, ServiceBusError):
                    on_result(packed_id)
                    return
                if packed_id is not None and count >= skip:
                    session_ids.append(packed_id[_SESSION_ID_SIZE_BYTES:])
                if packed_id is None or len(session_ids) == top:
                    if packed_id is not None:
                        self._remember_page(count + 1, packed_id)
                    on_result(session_ids)
                else:
                    find_from(packed_id, count + 1)

            self._find_next(after, on_next)

        find_from(self._page_starts.get(start_count, b""), start_count)

    def _find_next(self, after: bytes, on_result: Callable[[bytes | ServiceBusError | None], None]) -> None:
        """Find the packed id of the session after `after`, skipping all messages in that session at once."""
        start = after + LAST_SEQUENCE + b"\xff" if after else b""
        answers: list[list[Row]] = []
        packed_ids: list[bytes] = []
        watched_read = self._fragment.commit_log.watch_read(
            lambda error: on_result(error if error is not None else min(packed_ids, default=None))
        )

        def on_rows(rows: list[Row] | StoreError) -> None:
            if isinstance(rows, StoreError):
                watched_read.finish(_unavailable_error(rows))
                return
            answers.append(rows)
            packed_ids.extend([pack_session_id(session_id_of_key(key)) for key, _ in rows])
            if len(answers) == len(ranges):
                watched_read.finish(None)

        ranges = (
            (self._fragment.message_table.session_prefix, self._session_end),
            (self._state_prefix, self._state_end),
        )
        for prefix, end in ranges:
            self._fragment.commit_log.scan(prefix + start, end, on_rows, limit=1, max_bytes=1, table=Table.INDEX)

    def _remember_page(self, count: int, after: bytes) -> None:
        if len(self._page_starts) >= MAX_PAGES:
            self._page_starts.clear()
        self._page_starts[count] = after

    def list_updated(
        self, since_ms: int, skip: int, top: int, on_result: Callable[[list[bytes] | ServiceBusError], None]
    ) -> None:
        """List up to `top` sessions whose state was set after `since_ms`; skip the first `skip` sessions."""
        self._check_available()
        session_ids: list[bytes] = []
        updated_count = 0

        def add_rows(rows: list[Row]) -> None:
            nonlocal updated_count
            for key, value in rows:
                if _UPDATED.unpack_from(value)[0] > since_ms:
                    updated_count += 1
                    if updated_count > skip and len(session_ids) < top:
                        session_ids.append(session_id_of_key(key))
            if rows and len(session_ids) < top:
                scan_from(rows[-1][0] + b"\x00")
            else:
                on_result(session_ids)

        def scan_from(start: bytes) -> None:
            scanned_rows: list[Row] = []
            watched_read = self._fragment.commit_log.watch_read(
                lambda error: on_result(error) if error is not None else add_rows(scanned_rows)
            )

            def on_rows(rows: list[Row] | StoreError) -> None:
                if isinstance(rows, StoreError):
                    watched_read.finish(_unavailable_error(rows))
                    return
                scanned_rows.extend(rows)
                watched_read.finish(None)

            self._fragment.commit_log.scan(
                start, self._state_end, on_rows, limit=SCAN_BATCH_SIZE, max_bytes=1_048_576, table=Table.INDEX
            )

        scan_from(self._state_prefix)

    def _check_available(self) -> None:
        self._fragment.commit_log.check_available()
        self._fragment.check_loaded()


def _unavailable_error(error: StoreError) -> StoreUnavailable:
    return StoreUnavailable(f"the store is unavailable: {error}")
