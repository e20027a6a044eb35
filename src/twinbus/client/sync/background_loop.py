"""The loop in the background: one thread for all factories of a process.

Owns: the thread. It starts with the first call and ends with the process, after whatever is still open was closed.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from typing import TYPE_CHECKING, Final, Generic, Protocol, Self, TypeVar

import uvloop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from twinbus.client.client_entity import ClientEntity

T = TypeVar("T")
_STOP_TIMEOUT_S: Final = 5.0
"""How long the end of a process waits for the loop."""
_CLOSE_TIMEOUT_S: Final = 2.0
"""How long of that for what is still open."""


class Closable(Protocol):
    """What is closed with the process, unless it was before."""

    async def close(self) -> None:
        """End it. May be called again."""


class BackgroundLoop:
    """A loop on a thread of its own."""

    def __init__(self) -> None:
        """It runs at once."""
        self.closables: weakref.WeakSet[Closable] = weakref.WeakSet()
        self.pairings: weakref.WeakSet[Closable] = weakref.WeakSet()
        """What is closed before the others, since these belong to it."""
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="twinbus-client", daemon=True)
        self._thread.start()

    @property
    def is_current_thread(self) -> bool:
        """The caller is on this thread."""
        return threading.current_thread() is self._thread

    def run_blocking(self, coroutine_function: Callable[[], Awaitable[T]]) -> T:
        """What an awaitable brings, or raises, that is made there. Whoever is interrupted has it cancelled."""
        if self.is_current_thread:
            raise RuntimeError(
                "a call that waits was made on the client's own thread, by a watcher: it would wait forever"
            )

        async def run() -> T:
            return await coroutine_function()

        future = asyncio.run_coroutine_threadsafe(run(), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End whatever runs there, and the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_STOP_TIMEOUT_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._close_all())
            self._loop.close()

    async def _close_all(self) -> None:
        ends = asyncio.get_running_loop().time() + _CLOSE_TIMEOUT_S
        for some in (self.pairings, self.closables):
            closing = [asyncio.ensure_future(one.close()) for one in list(some)]
            if closing:
                await asyncio.wait(closing, timeout=max(0.0, ends - asyncio.get_running_loop().time()))
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


_background_loop: BackgroundLoop | None = None
_start_lock = threading.Lock()


def _get_background_loop() -> BackgroundLoop:
    global _background_loop  # noqa: PLW0603  # one of a process
    with _start_lock:
        if _background_loop is None:
            _background_loop = BackgroundLoop()
        return _background_loop


def run_blocking(coroutine_function: Callable[[], Awaitable[T]]) -> T:
    """What an awaitable brings, or raises, that is made on the loop in the background."""
    return _get_background_loop().run_blocking(coroutine_function)


def close_at_exit(closable: Closable) -> None:
    """Have something closed with the process."""
    _get_background_loop().closables.add(closable)


def close_pair_at_exit(pairing: Closable) -> None:
    """The same for what has others in it, which are closed with it and in its order."""
    _get_background_loop().pairings.add(pairing)


def call_blocking(function: Callable[[], T]) -> T:
    """What a function returns, or raises, that is called on the loop in the background."""

    async def run() -> T:
        return function()

    return run_blocking(run)


def read_blocking(function: Callable[[], T]) -> T:
    """Call a function that only reads: on the loop in the background, also where the caller is a listener there."""
    return function() if _get_background_loop().is_current_thread else call_blocking(function)


@atexit.register
def _stop_at_exit() -> None:
    if _background_loop is not None:
        _background_loop.stop()


def _reset_after_fork() -> None:
    """A child has the memory of its parent, and none of its threads."""
    global _background_loop, _start_lock
    _background_loop, _start_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_reset_after_fork)


# --- blocking objects -------------------------------------------------------------------------------------------------

ClosableT = TypeVar("ClosableT", bound=Closable)
InnerT = TypeVar("InnerT", bound="ClientEntity")


class BlockingObject(Generic[ClosableT]):
    """Stands for one object of `twinbus.client`."""

    def __init__(self, inner: ClosableT) -> None:
        """`inner` is what does the work; it belongs to the loop in the background."""
        self.inner = inner

    def __repr__(self) -> str:
        return f"<sync {self.inner!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it, and all that was made by it. May be called again."""
        run_blocking(self.inner.close)


class BlockingEntity(BlockingObject[InnerT]):
    """A sender, a receiver, or a client that has both. Made by a factory."""

    @property
    def path(self) -> str:
        """Of its entity."""
        return self.inner.path

    @property
    def is_closed(self) -> bool:
        """It cannot be used any more."""
        return self.inner.is_closed
