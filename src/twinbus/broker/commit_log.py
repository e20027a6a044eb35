"""The way of all changes to one store: gathered in a turn of the loop, committed together, told when they are on disk.

Owns: the batch of this turn, who waits for which commit, and whether the store works. What a change means is the
fragments' affair.

    journal.batch.put(...)
    journal.add(fragment, size, applied, answer)      # at the end of the turn all that was added is one commit

`applied` is called when the changes are on disk, and changes what the fragment shows. `answer` tells whoever asked:
after `applied`, or earlier with an error. The two are apart because a store may be silent for long: then those who wait
are told that it is unavailable, and what they sent may still appear when it speaks again.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

from twinbus.model.callbacks import do_nothing, ignore
from twinbus.model.errors import DiskFull, ServerBusy, ServiceBusError, StoreUnavailable
from twinbus.store.protocol import StoreError, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.clock import Clock, Timers
    from twinbus.broker.ports.callbacks import OnDone
    from twinbus.store.protocol import Batch, OnResult, Row, Store

    OnApplied: TypeAlias = Callable[[], None]

T = TypeVar("T")
FAILED_REASON: Final = "it failed, and is being opened again"


class CommitParticipant(Protocol):
    """A fragment, as its journal knows it."""

    def write_counters(self, batch: Batch) -> None:
        """Add the fragment's counters to a batch that changes it."""

    def publish_counters(self) -> None:
        """A commit that changed the fragment is on disk: its marks are what there is to see."""

    def resume(self) -> None:
        """... and everyone was told of it."""

    def on_store_failed(self) -> None:
        """The store failed: what is only in memory means nothing any more."""

    def on_store_reopened(self) -> None:
        """The store is there again."""


class _Commit:
    __slots__ = ("participants", "size", "submitted_s", "waiters")

    def __init__(
        self,
        waiters: list[tuple[OnApplied, OnDone]],
        participants: list[CommitParticipant],
        size: int,
        submitted_s: float,
    ) -> None:
        self.waiters = waiters
        self.participants = participants
        self.size = size
        self.submitted_s = submitted_s


class WatchedRead:
    """An answer to who wants to read: given once, by the fragment or, if the store is silent, by its journal."""

    __slots__ = ("_on_done", "is_pending", "since_s")

    def __init__(self, on_done: OnDone, since_s: float) -> None:
        """Made by `Journal.promise`."""
        self.is_pending = True
        """Nobody has given it yet."""
        self.since_s = since_s
        self._on_done = on_done

    def finish(self, error: ServiceBusError | None) -> None:
        """Answer."""
        if self.is_pending:
            self.is_pending = False
            self._on_done(error)


class StoreState:
    """Whether a store works and takes messages, as far as this process knows."""

    def __init__(self, name: str, max_pending_bytes: int) -> None:
        """`name` is how clients are told of it."""
        self.name = name
        self.unavailable_reason: str | None = None
        """Why the store does not work, as clients are told it; None while it does."""
        self.disk_full_reason: str | None = None
        """Why the store takes no more messages: its disk is full. While `trouble` is None, the rest works."""
        self.pending_bytes = 0
        self._max_pending_bytes = max_pending_bytes

    def check_available(self) -> None:
        """StoreUnavailable if the store does not work now."""
        if self.unavailable_reason is not None:
            raise self._unavailable_error(self.unavailable_reason)

    @property
    def accepts_sends(self) -> bool:
        """It works, and takes more messages."""
        return (
            self.unavailable_reason is None
            and self.disk_full_reason is None
            and self.pending_bytes <= self._max_pending_bytes
        )

    def check_accepts_sends(self) -> None:
        """... or takes no more messages."""
        if self.unavailable_reason is not None or self.disk_full_reason is not None:
            raise self._not_started_error()
        if self.pending_bytes > self._max_pending_bytes:
            raise ServerBusy(
                f"{self.pending_bytes:,} bytes wait to be written to store {self.name}: send again in a moment"
            )

    def check_disk_space(self) -> None:
        """DiskFull if the disk is full."""
        if self.disk_full_reason is not None:
            raise self._not_started_error()

    def health(self) -> dict[str, object]:
        """Return its state, as the health page shows it."""
        health: dict[str, object] = {
            "name": self.name,
            "is_available": self.unavailable_reason is None,
            "takes_messages": self.unavailable_reason is None and self.disk_full_reason is None,
        }
        reason = self.disk_full_reason or self.unavailable_reason
        return health if reason is None else {**health, "reason": reason}

    def _unavailable_error(self, reason: str | None) -> StoreUnavailable:
        """The error for clients: a full disk comes first, because it is what an operator has to act on."""
        if self.disk_full_reason is None:
            return StoreUnavailable(f"store {self.name} is unavailable: {reason}")
        state = "takes no messages" if reason is None else "is unavailable"
        return DiskFull(f"store {self.name} {state}: {self.disk_full_reason}")

    def _not_started_error(self) -> StoreUnavailable:
        """The same for an operation of which nothing was given to the store: it certainly was not carried out."""
        error = self._unavailable_error(self.unavailable_reason)
        error.may_have_happened = False
        return error


class CommitLog(StoreState):
    """All changes to one store."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        timers: Timers,
        call_at_turn_end: Callable[[Callable[[], None]], object],
        timeout_s: float,
        max_pending_bytes: int,
        on_failed: Callable[[CommitLog], None],
    ) -> None:
        """`defer` makes a call at the end of this turn; `on_failed` is told when the store must be opened anew."""
        super().__init__(store.name, max_pending_bytes)
        self.store = store
        self.batch: Batch = store.batch()
        self.last_failure = ""
        """Why it failed last, as its owner may know it: with the names of files."""
        self.participants: dict[CommitParticipant, None] = {}
        """Every fragment that lies in the store, in the order of their making."""
        self._clock = clock
        self._timers = timers
        self._call_at_turn_end = call_at_turn_end
        self._timeout_s = timeout_s
        self._on_failed = on_failed
        self._has_failed = False
        self._flush_is_scheduled = False
        self._timeout_is_scheduled = False
        self._batch_bytes = 0
        self._waiters: list[tuple[OnApplied, OnDone]] = []
        self._changed_participants: dict[CommitParticipant, None] = {}
        self._pending_commits: deque[_Commit] = deque()
        self._watched_reads: deque[WatchedRead] = deque()
        """Who waits for something to be read, the longest first."""

    # --- fragments call these -----------------------------------------------------------------------------------------

    def add(self, participant: CommitParticipant, size: int, on_applied: OnApplied, on_done: OnDone) -> None:
        """Changes were put into `batch`: `size` bytes of them, of `keeper`."""
        self._changed_participants[participant] = None
        self._waiters.append((on_applied, on_done))
        self._batch_bytes += size
        self.pending_bytes += size
        self._schedule_flush()

    def watch_read(self, on_done: OnDone) -> WatchedRead:
        """Somebody waits for what has to be read: if the store is silent, he is told so."""
        promise = WatchedRead(on_done, self._clock.monotonic_s())
        self._watched_reads.append(promise)
        self._schedule_timeout()
        return promise

    def get(self, keys: list[bytes], on_result: OnResult[list[bytes | None]], table: Table = Table.LOG) -> None:
        """Read the values of some keys."""
        self.store.get(keys, self._clearing_silence(on_result), table)

    def scan(
        self,
        start: bytes,
        end: bytes,
        on_result: OnResult[list[Row]],
        *,
        limit: int,
        max_bytes: int,
        table: Table = Table.LOG,
    ) -> None:
        """Read records in the order of their keys."""
        self.store.scan(start, end, self._clearing_silence(on_result), limit=limit, max_bytes=max_bytes, table=table)

    def add_without_participant(self, on_done: OnDone) -> None:
        """Changes were put into `batch` that are no fragment's any more."""
        self._waiters.append((do_nothing, on_done))
        self._schedule_flush()

    def _schedule_flush(self) -> None:
        if not self._flush_is_scheduled:
            self._flush_is_scheduled = True
            self._call_at_turn_end(self.flush)

    def flush(self) -> None:
        """Commit what was gathered."""
        self._flush_is_scheduled = False
        if not self._waiters:
            return
        for keeper in self._changed_participants:
            keeper.write_counters(self.batch)
        commit = _Commit(self._waiters, list(self._changed_participants), self._batch_bytes, self._clock.monotonic_s())
        batch, self.batch = self.batch, self.store.batch()
        self._waiters, self._changed_participants, self._batch_bytes = [], {}, 0
        self._pending_commits.append(commit)
        store = self.store
        store.commit(batch, lambda error: self._on_committed(store, error))
        self._schedule_timeout()

    # --- the store's answers ------------------------------------------------------------------------------------------

    def _on_committed(self, store: Store, error: StoreError | None) -> None:
        if store is not self.store or self._has_failed:
            return
        if error is not None:
            self.fail(str(error))
            return
        commit = self._pending_commits.popleft()
        self.pending_bytes -= commit.size
        was_silent = self._clear_silence()
        faults: list[Exception] = []
        for keeper in commit.participants:
            keeper.publish_counters()
        for applied, answer in commit.waiters:
            try:
                applied()
                answer(None)
            except Exception as fault:  # noqa: BLE001  # told below: one's fault must not leave the others waiting
                faults.append(fault)
        for keeper in list(self.participants) if was_silent else commit.participants:
            keeper.resume()
        self._schedule_timeout()
        if faults:
            raise ExceptionGroup("what was committed could not be told", faults)

    def _clearing_silence(self, on_result: OnResult[T]) -> OnResult[T]:
        store = self.store

        def heard(answer: T | StoreError) -> None:
            was_silent = store is self.store and not isinstance(answer, StoreError) and self._clear_silence()
            on_result(answer)
            if was_silent:
                for keeper in list(self.participants):
                    keeper.resume()

        return heard

    def _clear_silence(self) -> bool:
        """The store has answered: if it was silent, which is told, it is not any more."""
        if self.unavailable_reason is None or self._has_failed:
            return False
        self.unavailable_reason = None
        return True

    def fail(self, reason: str) -> None:
        """The store is no more: tell everyone who waits, and have it opened anew."""
        if self._has_failed:
            return
        self._has_failed = True
        self.last_failure, self.unavailable_reason = reason, FAILED_REASON
        waiters = self._waiters
        for commit in self._pending_commits:
            waiters = commit.waiters + waiters
        self._pending_commits.clear()
        self._waiters, self._changed_participants, self._batch_bytes, self.pending_bytes = [], {}, 0, 0
        for keeper in list(self.participants):
            keeper.on_store_failed()
        self._on_failed(self)
        self._fail_callbacks([answer for _, answer in waiters], FAILED_REASON)

    def reopen(self, store: Store) -> None:
        """The store was opened anew: what the disk holds is what there is."""
        self.store = store
        self.batch = store.batch()
        self.unavailable_reason = None
        self._has_failed = False
        for keeper in list(self.participants):
            keeper.on_store_reopened()

    # --- silence ------------------------------------------------------------------------------------------------------

    def _schedule_timeout(self) -> None:
        since_s = self._oldest_request_s()
        if not self._timeout_is_scheduled and since_s is not None:
            self._timeout_is_scheduled = True
            self._timers.call_at(since_s + self._timeout_s, self._check_timeout)

    def _oldest_request_s(self) -> float | None:
        """When that was asked for which has waited longest."""
        promises = self._watched_reads
        while promises and not promises[0].is_pending:
            promises.popleft()
        times_s = [self._pending_commits[0].submitted_s] if self._pending_commits else []
        if promises:
            times_s.append(promises[0].since_s)
        return min(times_s, default=None)

    def _check_timeout(self) -> None:
        self._timeout_is_scheduled = False
        since_s = self._oldest_request_s()
        if since_s is None or since_s + self._timeout_s > self._clock.monotonic_s():
            self._schedule_timeout()
            return
        self.unavailable_reason = f"its disk has not answered for {self._timeout_s:g} s"
        answers: list[OnDone] = []
        for commit in self._pending_commits:
            answers += [answer for _, answer in commit.waiters]
            commit.waiters = [(applied, ignore) for applied, _ in commit.waiters]
        answers += [promise.finish for promise in self._watched_reads]
        self._watched_reads.clear()
        self._fail_callbacks(answers, self.unavailable_reason)

    def _fail_callbacks(self, callbacks: list[OnDone], reason: str) -> None:
        error = self._unavailable_error(reason)
        faults: list[Exception] = []
        for answer in callbacks:
            try:
                answer(error)
            except Exception as fault:  # noqa: BLE001  # told below: one's fault must not leave the others waiting
                faults.append(fault)
        if faults:
            raise ExceptionGroup("that a store is unavailable could not be told", faults)
