"""What sessions remember: a few bytes each, which live longer than their messages; and which sessions there are.

Owns: the rows of states, their size, and the listing of sessions. Who may read or write a state is not its affair.

States count against the quota of their entity, each with its key: a million sessions with empty states are not free.
The size of all states is one of the fragment's marks. A state that replaces another changes it by the difference, so
the one that is there is read first.
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
"""In front of a session's id in keys."""
MAX_PAGES: Final = 1_000
"""Places in the listing that are remembered, so that the next page need not count from the first session."""
SCAN_BATCH_SIZE: Final = 200


class _PendingState:
    """A state that is being written: its size, and how many commits that change it are not on disk."""

    __slots__ = ("pending_commits", "size")

    def __init__(self) -> None:
        self.size = 0
        self.pending_commits = 0


class SessionStates:
    """The states of one fragment's sessions."""

    def __init__(self, fragment: Fragment) -> None:
        """Made by its fragment."""
        self._fragment = fragment
        self._state_prefix = fragment.message_table.key_prefix + store_keys.SESSION_STATE
        self._state_end = kind_end(fragment.message_table.key_prefix, store_keys.SESSION_STATE)
        self._session_end = kind_end(fragment.message_table.key_prefix, store_keys.SESSION_MESSAGES)
        self._page_starts: dict[int, bytes] = {}
        """By how many sessions come before: the key part of the last of them."""
        self._pending_states: dict[bytes, _PendingState] = {}
        """By sessions: states that are not on disk yet."""
        self._waiting_changes: dict[bytes, list[tuple[WatchedRead, Callable[[int], None]]]] = {}
        """By sessions: changes that wait until the size of the present state was read."""

    def get(self, session_id: bytes, on_result: Callable[[bytes | ServiceBusError | None], None]) -> None:
        """What a session remembers; None if nothing."""
        self._check_available()
        found: list[bytes] = []
        promise = self._fragment.commit_log.watch_read(
            lambda error: on_result(error if error is not None else (found[0] if found else None))
        )

        def read(values: list[bytes | None] | StoreError) -> None:
            if isinstance(values, StoreError):
                promise.finish(_unavailable_error(values))
                return
            if values[0] is not None:
                found.append(values[0][_UPDATED.size :])
            promise.finish(None)

        self._fragment.commit_log.get([self._state_prefix + pack_session_id(session_id)], read, Table.INDEX)

    def set(
        self, session_id: bytes, state: bytes | None, on_done: OnDone, check: Callable[[], object] | None = None
    ) -> None:
        """Let a session remember something, or, with None, nothing. `check` raises if that is not allowed any more.

        Whatever frees room is done also in a full entity and on a full disk; else `answer` hears QuotaExceeded,
        StoreUnavailable or ServerBusy.
        """
        self._check_available()

        def change(before: int) -> None:
            try:
                self._check_available()
                if check is not None:
                    check()
                self._write(session_id, state, before, on_done)
            except ServiceBusError as error:
                on_done(error)

        written = self._pending_states.get(session_id)
        if written is not None:
            change(written.size)
            return
        promise = self._fragment.commit_log.watch_read(lambda error: on_done(error) if error is not None else None)
        waiting = self._waiting_changes.setdefault(session_id, [])
        waiting.append((promise, change))
        if len(waiting) == 1:
            self._read_size(session_id)

    def _read_size(self, session_id: bytes) -> None:
        """Find out how large a state is, and make the changes that wait for that, in their order."""
        key, life = self._state_prefix + pack_session_id(session_id), self._fragment.incarnation

        def read(values: list[bytes | None] | StoreError) -> None:
            if life != self._fragment.incarnation:
                return  # everyone was told
            waiting = self._waiting_changes.pop(session_id)
            if isinstance(values, StoreError):
                for promise, _ in waiting:
                    promise.finish(_unavailable_error(values))
                return
            value = values[0]
            size = len(key) + len(value) if value is not None else 0
            for promise, change in waiting:
                if promise.is_pending:  # else the caller was told that the store is silent
                    promise.finish(None)
                    written = self._pending_states.get(session_id)
                    change(written.size if written is not None else size)

        self._fragment.commit_log.get([key], read, Table.INDEX)

    def _write(self, session_id: bytes, state: bytes | None, old_size: int, on_done: OnDone) -> None:
        fragment, key = self._fragment, self._state_prefix + pack_session_id(session_id)
        journal, size = fragment.commit_log, 0
        if state is None:
            journal.batch.delete(key, Table.INDEX)
        else:
            value = _UPDATED.pack(fragment.clock.wall_ms()) + state
            size = len(key) + len(value)
            if size >= old_size:
                journal.check_accepts_sends()  # on a full disk, only what frees room is written
            if size > old_size:
                fragment.check_quota(size - old_size)
            journal.batch.put(key, value, Table.INDEX)
        fragment.message_table.session_state_bytes += size - old_size
        written = self._pending_states.setdefault(session_id, _PendingState())
        written.size = size
        written.pending_commits += 1

        def applied() -> None:
            written.pending_commits -= 1
            if not written.pending_commits:
                self._pending_states.pop(session_id, None)

        journal.add(fragment, size, applied, on_done)

    def count_stored_bytes(self, on_done: Callable[[ServiceBusError | None], None]) -> None:
        """Count states that an earlier version has written, and write their size down. Before the fragment is used."""
        fragment, life = self._fragment, self._fragment.incarnation
        total = 0

        def ask(start: bytes) -> None:
            fragment.commit_log.scan(
                start, self._state_end, counted, limit=SCAN_BATCH_SIZE, max_bytes=1_048_576, table=Table.INDEX
            )

        def counted(rows: list[Row] | StoreError) -> None:
            nonlocal total
            if isinstance(rows, StoreError):
                on_done(_unavailable_error(rows))
            elif life != fragment.incarnation:
                on_done(StoreUnavailable("the store failed before the session states were counted"))
            elif rows:
                total += sum([len(key) + len(value) for key, value in rows])
                ask(rows[-1][0] + b"\x00")
            else:
                fragment.message_table.set_session_state_bytes(total)
                on_done(None)
                fragment.commit_log.add(fragment, 0, do_nothing, ignore)

        ask(self._state_prefix)

    def reset(self) -> None:
        """What is in memory is void: what is on disk is what there is."""
        self._pending_states.clear()
        asked, self._waiting_changes = self._waiting_changes, {}
        for waiting in asked.values():
            for promise, _ in waiting:
                promise.finish(StoreUnavailable("the store failed before the state was set: try again in a moment"))

    # --- which sessions there are -------------------------------------------------------------------------------------

    def list_all(self, skip: int, top: int, on_result: Callable[[list[bytes] | ServiceBusError], None]) -> None:
        """Sessions that have active messages or a state: `top` of them, after the first `skip`."""
        self._check_available()
        known = max((count for count in self._page_starts if count <= skip), default=0)
        found: list[bytes] = []

        def step(after: bytes, count: int) -> None:
            def told(nearest: bytes | ServiceBusError | None) -> None:
                if isinstance(nearest, ServiceBusError):
                    on_result(nearest)
                    return
                if nearest is not None and count >= skip:
                    found.append(nearest[_SESSION_ID_SIZE_BYTES:])
                if nearest is None or len(found) == top:
                    if nearest is not None:
                        self._remember_page(count + 1, nearest)
                    on_result(found)
                else:
                    step(nearest, count + 1)

            self._find_next(after, told)

        step(self._page_starts.get(known, b""), known)

    def _find_next(self, after: bytes, on_result: Callable[[bytes | ServiceBusError | None], None]) -> None:
        """The session behind one, as it is in keys; its messages, however many, are passed over at once."""
        start = after + LAST_SEQUENCE + b"\xff" if after else b""
        heard: list[list[Row]] = []
        nearest: list[bytes] = []
        promise = self._fragment.commit_log.watch_read(
            lambda error: on_result(error if error is not None else min(nearest, default=None))
        )

        def hear(rows: list[Row] | StoreError) -> None:
            if isinstance(rows, StoreError):
                promise.finish(_unavailable_error(rows))
                return
            heard.append(rows)
            nearest.extend([pack_session_id(session_id_of_key(key)) for key, _ in rows])
            if len(heard) == len(places):
                promise.finish(None)

        places = (
            (self._fragment.message_table.session_prefix, self._session_end),
            (self._state_prefix, self._state_end),
        )
        for place, end in places:
            self._fragment.commit_log.scan(place + start, end, hear, limit=1, max_bytes=1, table=Table.INDEX)

    def _remember_page(self, count: int, after: bytes) -> None:
        if len(self._page_starts) >= MAX_PAGES:
            self._page_starts.clear()
        self._page_starts[count] = after

    def list_updated(
        self, since_ms: int, skip: int, top: int, on_result: Callable[[list[bytes] | ServiceBusError], None]
    ) -> None:
        """Sessions whose state was set after a time."""
        self._check_available()
        found: list[bytes] = []
        passed = 0

        def take(rows: list[Row]) -> None:
            nonlocal passed
            for key, value in rows:
                if _UPDATED.unpack_from(value)[0] > since_ms:
                    passed += 1
                    if passed > skip and len(found) < top:
                        found.append(session_id_of_key(key))
            if rows and len(found) < top:
                ask(rows[-1][0] + b"\x00")
            else:
                on_result(found)

        def ask(start: bytes) -> None:
            read: list[Row] = []
            promise = self._fragment.commit_log.watch_read(
                lambda error: on_result(error) if error is not None else take(read)
            )

            def heard(rows: list[Row] | StoreError) -> None:
                if isinstance(rows, StoreError):
                    promise.finish(_unavailable_error(rows))
                    return
                read.extend(rows)
                promise.finish(None)

            self._fragment.commit_log.scan(
                start, self._state_end, heard, limit=SCAN_BATCH_SIZE, max_bytes=1_048_576, table=Table.INDEX
            )

        ask(self._state_prefix)

    def _check_available(self) -> None:
        self._fragment.commit_log.check_available()
        self._fragment.check_loaded()


def _unavailable_error(error: StoreError) -> StoreUnavailable:
    return StoreUnavailable(f"the store is unavailable: {error}")
