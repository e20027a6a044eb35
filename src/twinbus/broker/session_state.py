"""What sessions remember: a few bytes each, which live longer than their messages; and which sessions there are.

Owns: the rows of states, their size, and the listing of sessions. Who may read or write a state is not its affair.

States count against the quota of their entity, each with its key: a million sessions with empty states are not free.
The size of all states is one of the fragment's marks. A state that replaces another changes it by the difference, so
the one that is there is read first.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from twinbus.broker import keys
from twinbus.broker.keys import LAST_SEQUENCE, after_kind, pack_session, session_of_key
from twinbus.model.callbacks import do_nothing, ignore
from twinbus.model.errors import ServiceBusError, StoreUnavailable
from twinbus.store.protocol import StoreError, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.fragment import Fragment
    from twinbus.broker.journal import Promise
    from twinbus.broker.ports.callbacks import Answered
    from twinbus.store.protocol import Row

_UPDATED: Final = Struct(">Q")
_SIZE_BYTES: Final = 2
"""In front of a session's id in keys."""
PAGES: Final = 1_000
"""Places in the listing that are remembered, so that the next page need not count from the first session."""
STATES_AT_ONCE: Final = 200


class _Written:
    """A state that is being written: its size, and how many commits that change it are not on disk."""

    __slots__ = ("commits", "size")

    def __init__(self) -> None:
        self.size = 0
        self.commits = 0


class SessionStates:
    """The states of one fragment's sessions."""

    def __init__(self, fragment: Fragment) -> None:
        """Made by its fragment."""
        self._fragment = fragment
        self._states = fragment.holdings.prefix + keys.STATE
        self._states_end = after_kind(fragment.holdings.prefix, keys.STATE)
        self._sessions_end = after_kind(fragment.holdings.prefix, keys.SESSION)
        self._pages: dict[int, bytes] = {}
        """By how many sessions come before: the key part of the last of them."""
        self._written: dict[bytes, _Written] = {}
        """By sessions: states that are not on disk yet."""
        self._asked: dict[bytes, list[tuple[Promise, Callable[[int], None]]]] = {}
        """By sessions: changes that wait until the size of the present state was read."""

    def get(self, session: bytes, done: Callable[[bytes | ServiceBusError | None], None]) -> None:
        """What a session remembers; None if nothing."""
        self._check()
        found: list[bytes] = []
        promise = self._fragment.journal.promise(
            lambda error: done(error if error is not None else (found[0] if found else None))
        )

        def read(values: list[bytes | None] | StoreError) -> None:
            if isinstance(values, StoreError):
                promise.give(_unavailable(values))
                return
            if values[0] is not None:
                found.append(values[0][_UPDATED.size :])
            promise.give(None)

        self._fragment.journal.get([self._states + pack_session(session)], read, Table.INDEX)

    def set(
        self, session: bytes, state: bytes | None, answer: Answered, check: Callable[[], object] | None = None
    ) -> None:
        """Let a session remember something, or, with None, nothing. `check` raises if that is not allowed any more.

        Whatever frees room is done also in a full entity and on a full disk; else `answer` hears QuotaExceeded,
        StoreUnavailable or ServerBusy.
        """
        self._check()

        def change(before: int) -> None:
            try:
                self._check()
                if check is not None:
                    check()
                self._change(session, state, before, answer)
            except ServiceBusError as error:
                answer(error)

        written = self._written.get(session)
        if written is not None:
            change(written.size)
            return
        promise = self._fragment.journal.promise(lambda error: answer(error) if error is not None else None)
        waiting = self._asked.setdefault(session, [])
        waiting.append((promise, change))
        if len(waiting) == 1:
            self._read_size(session)

    def _read_size(self, session: bytes) -> None:
        """Find out how large a state is, and make the changes that wait for that, in their order."""
        key, life = self._states + pack_session(session), self._fragment.life

        def read(values: list[bytes | None] | StoreError) -> None:
            if life != self._fragment.life:
                return  # everyone was told
            waiting = self._asked.pop(session)
            if isinstance(values, StoreError):
                for promise, _ in waiting:
                    promise.give(_unavailable(values))
                return
            value = values[0]
            size = len(key) + len(value) if value is not None else 0
            for promise, change in waiting:
                if promise.is_open:  # else the caller was told that the store is silent
                    promise.give(None)
                    written = self._written.get(session)
                    change(written.size if written is not None else size)

        self._fragment.journal.get([key], read, Table.INDEX)

    def _change(self, session: bytes, state: bytes | None, before: int, answer: Answered) -> None:
        fragment, key = self._fragment, self._states + pack_session(session)
        journal, size = fragment.journal, 0
        if state is None:
            journal.batch.delete(key, Table.INDEX)
        else:
            value = _UPDATED.pack(fragment.clock.wall_ms()) + state
            size = len(key) + len(value)
            if size >= before:
                journal.check_takes_sends()  # on a full disk, only what frees room is written
            if size > before:
                fragment.check_room(size - before)
            journal.batch.put(key, value, Table.INDEX)
        fragment.holdings.state_bytes += size - before
        written = self._written.setdefault(session, _Written())
        written.size = size
        written.commits += 1

        def applied() -> None:
            written.commits -= 1
            if not written.commits:
                self._written.pop(session, None)

        journal.add(fragment, size, applied, answer)

    def count_all(self, done: Callable[[ServiceBusError | None], None]) -> None:
        """Count states that an earlier version has written, and write their size down. Before the fragment is used."""
        fragment, life = self._fragment, self._fragment.life
        total = 0

        def ask(start: bytes) -> None:
            fragment.journal.scan(
                start, self._states_end, counted, limit=STATES_AT_ONCE, max_bytes=1_048_576, table=Table.INDEX
            )

        def counted(rows: list[Row] | StoreError) -> None:
            nonlocal total
            if isinstance(rows, StoreError):
                done(_unavailable(rows))
            elif life != fragment.life:
                done(StoreUnavailable("the store failed before the session states were counted"))
            elif rows:
                total += sum([len(key) + len(value) for key, value in rows])
                ask(rows[-1][0] + b"\x00")
            else:
                fragment.holdings.add_counted_states(total)
                done(None)
                fragment.journal.add(fragment, 0, do_nothing, ignore)

        ask(self._states)

    def restart(self) -> None:
        """What is in memory is void: what is on disk is what there is."""
        self._written.clear()
        asked, self._asked = self._asked, {}
        for waiting in asked.values():
            for promise, _ in waiting:
                promise.give(StoreUnavailable("the store failed before the state was set: try again in a moment"))

    # --- which sessions there are -------------------------------------------------------------------------------------

    def list_all(self, skip: int, top: int, done: Callable[[list[bytes] | ServiceBusError], None]) -> None:
        """Sessions that have active messages or a state: `top` of them, after the first `skip`."""
        self._check()
        known = max((count for count in self._pages if count <= skip), default=0)
        found: list[bytes] = []

        def step(after: bytes, count: int) -> None:
            def told(nearest: bytes | ServiceBusError | None) -> None:
                if isinstance(nearest, ServiceBusError):
                    done(nearest)
                    return
                if nearest is not None and count >= skip:
                    found.append(nearest[_SIZE_BYTES:])
                if nearest is None or len(found) == top:
                    if nearest is not None:
                        self._remember(count + 1, nearest)
                    done(found)
                else:
                    step(nearest, count + 1)

            self._find_next(after, told)

        step(self._pages.get(known, b""), known)

    def _find_next(self, after: bytes, told: Callable[[bytes | ServiceBusError | None], None]) -> None:
        """The session behind one, as it is in keys; its messages, however many, are passed over at once."""
        start = after + LAST_SEQUENCE + b"\xff" if after else b""
        heard: list[list[Row]] = []
        nearest: list[bytes] = []
        promise = self._fragment.journal.promise(
            lambda error: told(error if error is not None else min(nearest, default=None))
        )

        def hear(rows: list[Row] | StoreError) -> None:
            if isinstance(rows, StoreError):
                promise.give(_unavailable(rows))
                return
            heard.append(rows)
            nearest.extend([pack_session(session_of_key(key)) for key, _ in rows])
            if len(heard) == len(places):
                promise.give(None)

        places = (
            (self._fragment.holdings.sessions, self._sessions_end),
            (self._states, self._states_end),
        )
        for place, end in places:
            self._fragment.journal.scan(place + start, end, hear, limit=1, max_bytes=1, table=Table.INDEX)

    def _remember(self, count: int, after: bytes) -> None:
        if len(self._pages) >= PAGES:
            self._pages.clear()
        self._pages[count] = after

    def list_updated(
        self, since_ms: int, skip: int, top: int, done: Callable[[list[bytes] | ServiceBusError], None]
    ) -> None:
        """Sessions whose state was set after a time."""
        self._check()
        found: list[bytes] = []
        passed = 0

        def take(rows: list[Row]) -> None:
            nonlocal passed
            for key, value in rows:
                if _UPDATED.unpack_from(value)[0] > since_ms:
                    passed += 1
                    if passed > skip and len(found) < top:
                        found.append(session_of_key(key))
            if rows and len(found) < top:
                ask(rows[-1][0] + b"\x00")
            else:
                done(found)

        def ask(start: bytes) -> None:
            read: list[Row] = []
            promise = self._fragment.journal.promise(lambda error: done(error) if error is not None else take(read))

            def heard(rows: list[Row] | StoreError) -> None:
                if isinstance(rows, StoreError):
                    promise.give(_unavailable(rows))
                    return
                read.extend(rows)
                promise.give(None)

            self._fragment.journal.scan(
                start, self._states_end, heard, limit=STATES_AT_ONCE, max_bytes=1_048_576, table=Table.INDEX
            )

        ask(self._states)

    def _check(self) -> None:
        self._fragment.journal.check_works()
        self._fragment.check_loaded()


def _unavailable(error: StoreError) -> StoreUnavailable:
    return StoreUnavailable(f"the store is unavailable: {error}")
