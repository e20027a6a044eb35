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
    from twinbus.broker.ports.callbacks import Answered
    from twinbus.store.protocol import Answer, Batch, Row, Store

    Applied: TypeAlias = Callable[[], None]

T = TypeVar("T")
FAILED: Final = "it failed, and is being opened again"


class Keeper(Protocol):
    """A fragment, as its journal knows it."""

    def write_marks(self, batch: Batch) -> None:
        """Add the fragment's counters to a batch that changes it."""

    def show_marks(self) -> None:
        """A commit that changed the fragment is on disk: its marks are what there is to see."""

    def settled_down(self) -> None:
        """... and everyone was told of it."""

    def lose_store(self) -> None:
        """The store failed: what is only in memory means nothing any more."""

    def find_store(self) -> None:
        """The store is there again."""


class _Commit:
    __slots__ = ("keepers", "size", "submitted_s", "waiters")

    def __init__(
        self, waiters: list[tuple[Applied, Answered]], keepers: list[Keeper], size: int, submitted_s: float
    ) -> None:
        self.waiters = waiters
        self.keepers = keepers
        self.size = size
        self.submitted_s = submitted_s


class Promise:
    """An answer to who wants to read: given once, by the fragment or, if the store is silent, by its journal."""

    __slots__ = ("_answer", "is_open", "since_s")

    def __init__(self, answer: Answered, since_s: float) -> None:
        """Made by `Journal.promise`."""
        self.is_open = True
        """Nobody has given it yet."""
        self.since_s = since_s
        self._answer = answer

    def give(self, error: ServiceBusError | None) -> None:
        """Answer."""
        if self.is_open:
            self.is_open = False
            self._answer(error)


class StoreState:
    """Whether a store works and takes messages, as far as this process knows."""

    def __init__(self, name: str, max_pending_bytes: int) -> None:
        """`name` is how clients are told of it."""
        self.name = name
        self.trouble: str | None = None
        """Why the store does not work, as clients are told it; None while it does."""
        self.refusal: str | None = None
        """Why the store takes no more messages: its disk is full. While `trouble` is None, the rest works."""
        self.pending_bytes = 0
        self._max_pending_bytes = max_pending_bytes

    def check_works(self) -> None:
        """StoreUnavailable if the store does not work now."""
        if self.trouble is not None:
            raise self._error(self.trouble)

    @property
    def takes_sends(self) -> bool:
        """It works, and takes more messages."""
        return self.trouble is None and self.refusal is None and self.pending_bytes <= self._max_pending_bytes

    def check_takes_sends(self) -> None:
        """... or takes no more messages."""
        if self.trouble is not None or self.refusal is not None:
            raise self._not_begun()
        if self.pending_bytes > self._max_pending_bytes:
            raise ServerBusy(
                f"{self.pending_bytes:,} bytes wait to be written to store {self.name}: send again in a moment"
            )

    def check_has_space(self) -> None:
        """DiskFull if the disk is full."""
        if self.refusal is not None:
            raise self._not_begun()

    def health(self) -> dict[str, object]:
        """Return its state, as the health page shows it."""
        health: dict[str, object] = {
            "name": self.name,
            "is_available": self.trouble is None,
            "takes_messages": self.trouble is None and self.refusal is None,
        }
        reason = self.refusal or self.trouble
        return health if reason is None else {**health, "reason": reason}

    def _error(self, trouble: str | None) -> StoreUnavailable:
        """The error for clients: a full disk comes first, because it is what an operator has to act on."""
        if self.refusal is None:
            return StoreUnavailable(f"store {self.name} is unavailable: {trouble}")
        state = "takes no messages" if trouble is None else "is unavailable"
        return DiskFull(f"store {self.name} {state}: {self.refusal}")

    def _not_begun(self) -> StoreUnavailable:
        """The same for an operation of which nothing was given to the store: it certainly was not carried out."""
        error = self._error(self.trouble)
        error.may_have_happened = False
        return error


class Journal(StoreState):
    """All changes to one store."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        timers: Timers,
        defer: Callable[[Callable[[], None]], object],
        timeout_s: float,
        max_pending_bytes: int,
        on_failed: Callable[[Journal], None],
    ) -> None:
        """`defer` makes a call at the end of this turn; `on_failed` is told when the store must be opened anew."""
        super().__init__(store.name, max_pending_bytes)
        self.store = store
        self.batch: Batch = store.batch()
        self.failure = ""
        """Why it failed last, as its owner may know it: with the names of files."""
        self.keepers: dict[Keeper, None] = {}
        """Every fragment that lies in the store, in the order of their making."""
        self._clock = clock
        self._timers = timers
        self._defer = defer
        self._timeout_s = timeout_s
        self._on_failed = on_failed
        self._has_failed = False
        self._flush_is_due = False
        self._watch_is_set = False
        self._size = 0
        self._waiters: list[tuple[Applied, Answered]] = []
        self._touched: dict[Keeper, None] = {}
        self._commits: deque[_Commit] = deque()
        self._promises: deque[Promise] = deque()
        """Who waits for something to be read, the longest first."""

    # --- fragments call these -----------------------------------------------------------------------------------------

    def add(self, keeper: Keeper, size: int, applied: Applied, answer: Answered) -> None:
        """Changes were put into `batch`: `size` bytes of them, of `keeper`."""
        self._touched[keeper] = None
        self._waiters.append((applied, answer))
        self._size += size
        self.pending_bytes += size
        self._flush_soon()

    def promise(self, answer: Answered) -> Promise:
        """Somebody waits for what has to be read: if the store is silent, he is told so."""
        promise = Promise(answer, self._clock.monotonic_s())
        self._promises.append(promise)
        self._watch()
        return promise

    def get(self, keys: list[bytes], done: Answer[list[bytes | None]], table: Table = Table.LOG) -> None:
        """Read the values of some keys."""
        self.store.get(keys, self._hearing(done), table)

    def scan(
        self,
        start: bytes,
        end: bytes,
        done: Answer[list[Row]],
        *,
        limit: int,
        max_bytes: int,
        table: Table = Table.LOG,
    ) -> None:
        """Read records in the order of their keys."""
        self.store.scan(start, end, self._hearing(done), limit=limit, max_bytes=max_bytes, table=table)

    def add_loose(self, answer: Answered) -> None:
        """Changes were put into `batch` that are no fragment's any more."""
        self._waiters.append((do_nothing, answer))
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flush_is_due:
            self._flush_is_due = True
            self._defer(self.flush)

    def flush(self) -> None:
        """Commit what was gathered."""
        self._flush_is_due = False
        if not self._waiters:
            return
        for keeper in self._touched:
            keeper.write_marks(self.batch)
        commit = _Commit(self._waiters, list(self._touched), self._size, self._clock.monotonic_s())
        batch, self.batch = self.batch, self.store.batch()
        self._waiters, self._touched, self._size = [], {}, 0
        self._commits.append(commit)
        store = self.store
        store.commit(batch, lambda error: self._committed(store, error))
        self._watch()

    # --- the store's answers ------------------------------------------------------------------------------------------

    def _committed(self, store: Store, error: StoreError | None) -> None:
        if store is not self.store or self._has_failed:
            return
        if error is not None:
            self.fail(str(error))
            return
        commit = self._commits.popleft()
        self.pending_bytes -= commit.size
        was_silent = self._hear()
        faults: list[Exception] = []
        for keeper in commit.keepers:
            keeper.show_marks()
        for applied, answer in commit.waiters:
            try:
                applied()
                answer(None)
            except Exception as fault:  # noqa: BLE001  # told below: one's fault must not leave the others waiting
                faults.append(fault)
        for keeper in list(self.keepers) if was_silent else commit.keepers:
            keeper.settled_down()
        self._watch()
        if faults:
            raise ExceptionGroup("what was committed could not be told", faults)

    def _hearing(self, done: Answer[T]) -> Answer[T]:
        store = self.store

        def heard(answer: T | StoreError) -> None:
            was_silent = store is self.store and not isinstance(answer, StoreError) and self._hear()
            done(answer)
            if was_silent:
                for keeper in list(self.keepers):
                    keeper.settled_down()

        return heard

    def _hear(self) -> bool:
        """The store has answered: if it was silent, which is told, it is not any more."""
        if self.trouble is None or self._has_failed:
            return False
        self.trouble = None
        return True

    def fail(self, reason: str) -> None:
        """The store is no more: tell everyone who waits, and have it opened anew."""
        if self._has_failed:
            return
        self._has_failed = True
        self.failure, self.trouble = reason, FAILED
        waiters = self._waiters
        for commit in self._commits:
            waiters = commit.waiters + waiters
        self._commits.clear()
        self._waiters, self._touched, self._size, self.pending_bytes = [], {}, 0, 0
        for keeper in list(self.keepers):
            keeper.lose_store()
        self._on_failed(self)
        self._refuse([answer for _, answer in waiters], FAILED)

    def resume(self, store: Store) -> None:
        """The store was opened anew: what the disk holds is what there is."""
        self.store = store
        self.batch = store.batch()
        self.trouble = None
        self._has_failed = False
        for keeper in list(self.keepers):
            keeper.find_store()

    # --- silence ------------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        since_s = self._waiting_since_s()
        if not self._watch_is_set and since_s is not None:
            self._watch_is_set = True
            self._timers.call_at(since_s + self._timeout_s, self._look)

    def _waiting_since_s(self) -> float | None:
        """When that was asked for which has waited longest."""
        promises = self._promises
        while promises and not promises[0].is_open:
            promises.popleft()
        times_s = [self._commits[0].submitted_s] if self._commits else []
        if promises:
            times_s.append(promises[0].since_s)
        return min(times_s, default=None)

    def _look(self) -> None:
        self._watch_is_set = False
        since_s = self._waiting_since_s()
        if since_s is None or since_s + self._timeout_s > self._clock.monotonic_s():
            self._watch()
            return
        self.trouble = f"its disk has not answered for {self._timeout_s:g} s"
        answers: list[Answered] = []
        for commit in self._commits:
            answers += [answer for _, answer in commit.waiters]
            commit.waiters = [(applied, ignore) for applied, _ in commit.waiters]
        answers += [promise.give for promise in self._promises]
        self._promises.clear()
        self._refuse(answers, self.trouble)

    def _refuse(self, answers: list[Answered], reason: str) -> None:
        error = self._error(reason)
        faults: list[Exception] = []
        for answer in answers:
            try:
                answer(error)
            except Exception as fault:  # noqa: BLE001  # told below: one's fault must not leave the others waiting
                faults.append(fault)
        if faults:
            raise ExceptionGroup("that a store is unavailable could not be told", faults)
