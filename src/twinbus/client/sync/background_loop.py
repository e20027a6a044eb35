"""The background loop: one thread with an event loop for all blocking factories of a process.

Owns the thread and the base classes of the blocking wrappers. The thread starts with the first call. At process exit,
the thread closes open pairs, factories and managers, and then stops.
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
"""How long process exit waits for the loop."""
_CLOSE_TIMEOUT_S: Final = 2.0
"""Part of _STOP_TIMEOUT_S for closing open factories, managers and pairs."""


class Closable(Protocol):
    """An object that is closed at process exit."""

    async def close(self) -> None:
        """Close the object. Idempotent."""


class BackgroundLoop:
    """An event loop on its own thread."""

    def __init__(self) -> None:
        """Create the loop and start its thread."""
        self.closables: weakref.WeakSet[Closable] = weakref.WeakSet()
        self.pairings: weakref.WeakSet[Closable] = weakref.WeakSet()
        """Pairs, which are closed before the factories that they use."""
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="twinbus-client", daemon=True)
        self._thread.start()

    @property
    def is_current_thread(self) -> bool:
        """Whether the caller runs on the thread of this loop."""
        return threading.current_thread() is self._thread

    def run_blocking(self, coroutine_function: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine function on the loop and return its result. An interrupted caller cancels the coroutine."""
        if self.is_current_thread:
            raise RuntimeError(
                "a blocking call on the client's own thread would deadlock: do not make one in a watcher or listener"
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
        """Close open objects, cancel the remaining tasks and stop the thread."""
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
        deadline = asyncio.get_running_loop().time() + _CLOSE_TIMEOUT_S
        for group in (self.pairings, self.closables):
            closing = [asyncio.ensure_future(closable.close()) for closable in list(group)]
            if closing:
                await asyncio.wait(closing, timeout=max(0.0, deadline - asyncio.get_running_loop().time()))
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


_background_loop: BackgroundLoop | None = None
_start_lock = threading.Lock()


def _get_background_loop() -> BackgroundLoop:
    global _background_loop  # noqa: PLW0603  # one per process
    with _start_lock:
        if _background_loop is None:
            _background_loop = BackgroundLoop()
        return _background_loop


def run_blocking(coroutine_function: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine function on the background loop and return its result."""
    return _get_background_loop().run_blocking(coroutine_function)


def close_at_exit(closable: Closable) -> None:
    """Close an object at process exit."""
    _get_background_loop().closables.add(closable)


def close_pair_at_exit(pairing: Closable) -> None:
    """Close a pair at process exit, before the factories and managers that it uses."""
    _get_background_loop().pairings.add(pairing)


def call_blocking(function: Callable[[], T]) -> T:
    """Call a function on the background loop and return its result."""

    async def run() -> T:
        return function()

    return run_blocking(run)


def read_blocking(function: Callable[[], T]) -> T:
    """Call a function that only reads, on the background loop.

    Listeners may use this function, but not `call_blocking`.
    """
    return function() if _get_background_loop().is_current_thread else call_blocking(function)


@atexit.register
def _stop_at_exit() -> None:
    if _background_loop is not None:
        _background_loop.stop()


def _reset_after_fork() -> None:
    """Forget the loop in a forked child, which has no thread for it."""
    global _background_loop, _start_lock
    _background_loop, _start_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_reset_after_fork)


# --- blocking objects -------------------------------------------------------------------------------------------------

ClosableT = TypeVar("ClosableT", bound=Closable)
InnerT = TypeVar("InnerT", bound="ClientEntity")


class BlockingObject(Generic[ClosableT]):
    """Blocking wrapper around an object from `twinbus.client`."""

    def __init__(self, inner: ClosableT) -> None:
        """Wrap `inner`, which runs on the background loop."""
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
        """Close the object and everything it created. Idempotent."""
        run_blocking(self.inner.close)


class BlockingEntity(BlockingObject[InnerT]):
    """Blocking wrapper around a sender, receiver or client."""

    @property
    def path(self) -> str:
        """Path of the entity."""
        return self.inner.path

    @property
    def is_closed(self) -> bool:
        """Whether the object is closed."""
        return self.inner.is_closed
