"""The stores of a process: opened at its start, opened again when one fails, closed at its end.

Owns: the life of each store that is this process's own, and the watch over the space on its disk. What is done while
one is away is the broker's affair: its journal says that it is unavailable.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from twinbus.server.disk import OUT_OF_SPACE, DiskWatch, is_out_of_space
from twinbus.server.settings import StartError
from twinbus.store.protocol import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from pathlib import Path

    from twinbus.broker.journal import Journal
    from twinbus.broker.namespace import Namespace
    from twinbus.broker.remote.owner import Owner
    from twinbus.store.protocol import Answer, Store

log: Final = logging.getLogger(__name__)
T = TypeVar("T")

RETRY_S: Final = (0.5, 30.0)
"""How long to wait before a failed store is opened again: at first, and at most."""
CLOSE_S: Final = 3.0
"""How long stores have to close when the server stops."""


class Disks(Protocol):
    """Where the stores lie."""

    @property
    def directories(self) -> Sequence[Path]:
        """That of each store, by its number."""

    @property
    def look_s(self) -> float:
        """How often to look how much room there is."""

    def open(self, number: int, done: Answer[Store]) -> None:
        """Open a store; `done` gets it, or why it cannot be opened."""

    def free_bytes(self, directory: Path) -> int:
        """How much can still be written there. OSError if it is not there."""

    async def why_not(self, number: int) -> str | None:
        """What is wrong with the disk of a store that is to be opened again; nothing if it works well."""


class Stores:
    """All stores of a server, by their numbers."""

    def __init__(
        self,
        namespace: Namespace,
        disks: Disks,
        *,
        min_free_bytes: int,
        owner_of: Callable[[int], Owner | None] = lambda _: None,
    ) -> None:
        """Nothing is opened yet. `owner_of` says which other process has a store, if one has."""
        self._namespace = namespace
        self._disks = disks
        self._owner_of = owner_of
        self._own: dict[int, Journal] = {}
        """By the numbers of their stores."""
        own = {
            number: disks.directories[number] for number in range(len(disks.directories)) if owner_of(number) is None
        }
        self._watch = DiskWatch(own, min_free_bytes, disks.free_bytes)
        self._out_of_space: set[int] = set()
        """Stores that are closed because a write found no space."""
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False

    async def open(self) -> None:
        """Open all of them, side by side; StartError says which could not be."""
        numbers = range(len(self._disks.directories))
        own = [number for number in numbers if self._owner_of(number) is None]
        opened = dict(zip(own, await asyncio.gather(*[self._open(number) for number in own]), strict=True))
        for number in numbers:
            owner = self._owner_of(number)
            if owner is not None:
                self._namespace.add_remote_store(str(number), owner)
                continue
            store = opened[number]
            if isinstance(store, StoreError):
                raise StartError(f"a store cannot be opened: {store}")
            self._own[number] = self._namespace.add_store(store)
        self._start(self._look_at_disks())

    @property
    def own(self) -> dict[int, Journal]:
        """Those of this process, by their numbers."""
        return self._own

    def reopen(self, journal: Journal) -> None:
        """A store failed: close it, and open it anew as soon as that works."""
        if not self._is_closing:
            self._note_space(journal, journal.failure)
            self._start(self._reopen(journal))

    async def close(self) -> None:
        """Write what waits, and close."""
        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        for journal in self._own.values():
            journal.flush()
        closing = [self._loop.create_task(self._close(journal.store)) for journal in self._own.values()]
        _, hanging = await asyncio.wait(closing, timeout=CLOSE_S) if closing else (set(), set())
        if hanging:  # what was accepted is on disk; nothing else is to be saved
            log.warning("%d stores did not close within %g s: the server stops without them", len(hanging), CLOSE_S)
            for task in hanging:
                task.cancel()
            await asyncio.wait(hanging)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open(self, number: int) -> Store | StoreError:
        answer: asyncio.Future[Store | StoreError] = self._loop.create_future()
        self._disks.open(number, _setting(answer))
        return await answer

    async def _reopen(self, journal: Journal) -> None:
        number = self._namespace.journals.index(journal)
        log.warning("store %d is closed, to be opened again: %s", number, journal.failure)
        await self._close(journal.store)
        pause_s, longest_s = RETRY_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)
            reason = await self._disks.why_not(number)
            if reason is not None:
                self._note_space(journal, reason)
                log.warning("store %d is not opened again yet: %s", number, reason)
                continue
            store = await self._open(number)
            if not isinstance(store, StoreError):
                break
            self._note_space(journal, str(store))
            log.warning("store %d cannot be opened again yet: %s", number, store)
        log.info("store %d is open again", number)
        self._out_of_space.discard(number)
        journal.resume(store)
        self._watch.check()  # space may have been freed while the store was closed
        journal.refusal = self._refusal(number)

    async def _close(self, store: Store) -> None:
        answer: asyncio.Future[StoreError | None] = self._loop.create_future()
        store.close(_setting(answer))
        error = await answer
        if error is not None:
            log.warning("store could not be closed well: %s", error)

    def _note_space(self, journal: Journal, failure: str) -> None:
        """Tell clients that the disk is full, as long as that is why the store failed or cannot be opened again."""
        number = self._namespace.journals.index(journal)
        if is_out_of_space(failure):
            self._out_of_space.add(number)
        else:
            self._out_of_space.discard(number)
        journal.refusal = self._refusal(number)

    def _refusal(self, number: int) -> str | None:
        """Why a store takes no messages. Low space is no reason while the store does not work at all."""
        if number in self._out_of_space:
            return OUT_OF_SPACE
        return self._watch.reason(number) if self._own[number].trouble is None else None

    async def _look_at_disks(self) -> None:
        while True:
            self._watch.check()
            for number, journal in self._own.items():
                journal.refusal = self._refusal(number)
            await asyncio.sleep(self._disks.look_s)


def _setting(future: asyncio.Future[T]) -> Callable[[T], None]:
    """What sets the result of a future, unless nobody waits for it any more."""

    def set_result(result: T) -> None:
        if not future.done():
            future.set_result(result)

    return set_result
