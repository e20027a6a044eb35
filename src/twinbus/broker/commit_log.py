"""The commit log: all changes to one store, collected in one turn of the event loop and committed together.

Owns: the batch of the current turn, the callbacks of pending commits, and the state of the store. The contents of a
change belong to the fragments.

    commit_log.batch.put(...)
    commit_log.add(fragment, size, on_applied, on_done)      # at the end of a turn, all its changes become one commit

`on_applied` is called when the changes are on disk, and updates the visible state of the fragment. `on_done` notifies
the caller, either without an error (after `on_applied`) or with an error. There are two callbacks because a store may
take too long to respond. In that case `on_done` gets StoreUnavailable, and `on_applied` is still called if the store
responds later.
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
FAILED_REASON: Final = "it failed and is being reopened"


class CommitParticipant(Protocol):
    """The fragment interface that the commit log uses."""

    def write_counters(self, batch: Batch) -> None:
        """Add the fragment's counters to a batch that changes the fragment."""

    def publish_counters(self) -> None:
        """Make the counters visible: a commit that changed the fragment is on disk."""

    def resume(self) -> None:
        """Continue work that waits for a commit; called after the callbacks of the commit."""

    def on_store_failed(self) -> None:
        """Discard the state in memory: the store failed."""

    def on_store_reopened(self) -> None:
        """Load the state again: the store was reopened."""


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
    """The callback for a read, called once: by the fragment, or by the commit log if the store does not respond."""

    __slots__ = ("_on_done", "is_pending", "since_s")

    def __init__(self, on_done: OnDone, since_s: float) -> None:
        """Create a pending read; use `CommitLog.watch_read` to start one."""
        self.is_pending = True
        """Whether the callback has not been called yet."""
        self.since_s = since_s
        self._on_done = on_done

    def finish(self, error: ServiceBusError | None) -> None:
        """Call the callback, unless it was called before."""
        if self.is_pending:
            self.is_pending = False
            self._on_done(error)


class StoreState:
    """The state of a store, as this process knows it: available or not, accepting messages or not."""

    def __init__(self, name: str, max_pending_bytes: int) -> None:
        """Create the state of a working store; error messages to clients contain `name`."""
        self.name = name
        self.unavailable_reason: str | None = None
        """The reason why the store is unavailable, for error messages to clients; None while the store works."""
        self.disk_full_reason: str | None = None
        """The reason why the store accepts no messages (its disk is full), or None; other operations still work."""
        self.pending_bytes = 0
        self._max_pending_bytes = max_pending_bytes

    def check_available(self) -> None:
        """Raise StoreUnavailable if the store is unavailable."""
        if self.unavailable_reason is not None:
            raise self._unavailable_error(self.unavailable_reason)

    @property
    def accepts_sends(self) -> bool:
        """Whether the store is available and accepts more messages."""
        return (
            self.unavailable_reason is None
            and self.disk_full_reason is None
            and self.pending_bytes <= self._max_pending_bytes
        )

    def check_accepts_sends(self) -> None:
        """Raise StoreUnavailable, DiskFull or ServerBusy if the store accepts no messages now."""
        if self.unavailable_reason is not None or self.disk_full_reason is not None:
            raise self._not_started_error()
        if self.pending_bytes > self._max_pending_bytes:
            raise ServerBusy(
                f"{self.pending_bytes:,} bytes are waiting to be written to store {self.name}: send again in a moment"
            )

    def check_disk_space(self) -> None:
        """Raise DiskFull if the disk is full."""
        if self.disk_full_reason is not None:
            raise self._not_started_error()

    def health(self) -> dict[str, object]:
        """Return the state of the store, as the health page shows it."""
        health: dict[str, object] = {
            "name": self.name,
            "is_available": self.unavailable_reason is None,
            "takes_messages": self.unavailable_reason is None and self.disk_full_reason is None,
        }
        reason = self.disk_full_reason or self.unavailable_reason
        return health if reason is None else {**health, "reason": reason}

    def _unavailable_error(self, reason: str | None) -> StoreUnavailable:
        """Return the error for clients; a full disk takes precedence, because an operator has to act on it."""
        if self.disk_full_reason is None:
            return StoreUnavailable(f"store {self.name} is unavailable: {reason}")
        state = "takes no messages" if reason is None else "is unavailable"
        return DiskFull(f"store {self.name} {state}: {self.disk_full_reason}")

    def _not_started_error(self) -> StoreUnavailable:
        """Return the error for an operation that never reached the store, and therefore cannot have happened."""
        error = self._unavailable_error(self.unavailable_reason)
        error.may_have_happened = False
        return error


class CommitLog(StoreState):
    """The changes to one store: the open batch, pending commits and watched reads."""

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
        """Create a commit log without pending changes.

        `call_at_turn_end` schedules a call for the end of this turn; `on_failed` is called when the store must be
        reopened.
        """
        super().__init__(store.name, max_pending_bytes)
        self.store = store
        self.batch: Batch = store.batch()
        self.last_failure = ""
        """The reason for the last failure, for operators: the text may contain file names."""
        self.participants: dict[CommitParticipant, None] = {}
        """All fragments in the store, in order of creation."""
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
        """Pending reads, oldest first."""

    # --- called by fragments ------------------------------------------------------------------------------------------

    def add(self, participant: CommitParticipant, size: int, on_applied: OnApplied, on_done: OnDone) -> None:
        """Register `size` bytes of changes that `participant` put into `batch`."""
        self._changed_participants[participant] = None
        self._waiters.append((on_applied, on_done))
        self._batch_bytes += size
        self.pending_bytes += size
        self._schedule_flush()

    def watch_read(self, on_done: OnDone) -> WatchedRead:
        """Watch a read: if the store does not respond in time, `on_done` gets StoreUnavailable."""
        watched_read = WatchedRead(on_done, self._clock.monotonic_s())
        self._watched_reads.append(watched_read)
        self._schedule_timeout()
        return watched_read

    def get(self, keys: list[bytes], on_result: OnResult[list[bytes | None]], table: Table = Table.LOG) -> None:
        """Read the values of keys."""
        self.store.get(keys, self._ending_timeout(on_result), table)

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
        """Read the records in a range of keys, in key order."""
        self.store.scan(start, end, self._ending_timeout(on_result), limit=limit, max_bytes=max_bytes, table=table)

    def add_without_participant(self, on_done: OnDone) -> None:
        """Register changes in `batch` that belong to no fragment, such as records of a deleted entity."""
        self._waiters.append((do_nothing, on_done))
        self._schedule_flush()

    def _schedule_flush(self) -> None:
        if not self._flush_is_scheduled:
            self._flush_is_scheduled = True
            self._call_at_turn_end(self.flush)

    def flush(self) -> None:
        """Commit the changes of this turn."""
        self._flush_is_scheduled = False
        if not self._waiters:
            return
        for participant in self._changed_participants:
            participant.write_counters(self.batch)
        commit = _Commit(self._waiters, list(self._changed_participants), self._batch_bytes, self._clock.monotonic_s())
        batch, self.batch = self.batch, self.store.batch()
        self._waiters, self._changed_participants, self._batch_bytes = [], {}, 0
        self._pending_commits.append(commit)
        store = self.store
        store.commit(batch, lambda error: self._on_committed(store, error))
        self._schedule_timeout()

    # --- the store's results ------------------------------------------------------------------------------------------

    def _on_committed(self, store: Store, error: StoreError | None) -> None:
        if store is not self.store or self._has_failed:
            return
        if error is not None:
            self.fail(str(error))
            return
        commit = self._pending_commits.popleft()
        self.pending_bytes -= commit.size
        was_timed_out = self._end_timeout()
        faults: list[Exception] = []
        for participant in commit.participants:
            participant.publish_counters()
        for on_applied, on_done in commit.waiters:
            try:
                on_applied()
                on_done(None)
            except Exception as fault:  # noqa: BLE001  # raised below, after the other callbacks
                faults.append(fault)
        for participant in list(self.participants) if was_timed_out else commit.participants:
            participant.resume()
        self._schedule_timeout()
        if faults:
            raise ExceptionGroup("callbacks of a commit failed", faults)

    def _ending_timeout(self, on_result: OnResult[T]) -> OnResult[T]:
        store = self.store

        def on_answer(answer: T | StoreError) -> None:
            was_timed_out = store is self.store and not isinstance(answer, StoreError) and self._end_timeout()
            on_result(answer)
            if was_timed_out:
                for participant in list(self.participants):
                    participant.resume()

        return on_answer

    def _end_timeout(self) -> bool:
        """Mark a store that responds after a timeout as available again; return whether there was a timeout."""
        if self.unavailable_reason is None or self._has_failed:
            return False
        self.unavailable_reason = None
        return True

    def fail(self, reason: str) -> None:
        """Mark the store as failed, fail all pending changes, and have the store reopened."""
        if self._has_failed:
            return
        self._has_failed = True
        self.last_failure, self.unavailable_reason = reason, FAILED_REASON
        waiters = self._waiters
        for commit in self._pending_commits:
            waiters = commit.waiters + waiters
        self._pending_commits.clear()
        self._waiters, self._changed_participants, self._batch_bytes, self.pending_bytes = [], {}, 0, 0
        for participant in list(self.participants):
            participant.on_store_failed()
        self._on_failed(self)
        self._fail_callbacks([on_done for _, on_done in waiters], FAILED_REASON)

    def reopen(self, store: Store) -> None:
        """Continue with the reopened store; fragments load their state from disk."""
        self.store = store
        self.batch = store.batch()
        self.unavailable_reason = None
        self._has_failed = False
        for participant in list(self.participants):
            participant.on_store_reopened()

    # --- timeouts -----------------------------------------------------------------------------------------------------

    def _schedule_timeout(self) -> None:
        since_s = self._oldest_request_s()
        if not self._timeout_is_scheduled and since_s is not None:
            self._timeout_is_scheduled = True
            self._timers.call_at(since_s + self._timeout_s, self._check_timeout)

    def _oldest_request_s(self) -> float | None:
        """Return the start time of the oldest pending commit or read, or None if nothing is pending."""
        reads = self._watched_reads
        while reads and not reads[0].is_pending:
            reads.popleft()
        times_s = [self._pending_commits[0].submitted_s] if self._pending_commits else []
        if reads:
            times_s.append(reads[0].since_s)
        return min(times_s, default=None)

    def _check_timeout(self) -> None:
        self._timeout_is_scheduled = False
        since_s = self._oldest_request_s()
        if since_s is None or since_s + self._timeout_s > self._clock.monotonic_s():
            self._schedule_timeout()
            return
        self.unavailable_reason = f"its disk has not answered for {self._timeout_s:g} s"
        callbacks: list[OnDone] = []
        for commit in self._pending_commits:
            callbacks += [on_done for _, on_done in commit.waiters]
            commit.waiters = [(on_applied, ignore) for on_applied, _ in commit.waiters]
        callbacks += [watched_read.finish for watched_read in self._watched_reads]
        self._watched_reads.clear()
        self._fail_callbacks(callbacks, self.unavailable_reason)

    def _fail_callbacks(self, callbacks: list[OnDone], reason: str) -> None:
        error = self._unavailable_error(reason)
        faults: list[Exception] = []
        for callback in callbacks:
            try:
                callback(error)
            except Exception as fault:  # noqa: BLE001  # raised below, after the other callbacks
                faults.append(fault)
        if faults:
            raise ExceptionGroup("callbacks for an unavailable store failed", faults)
