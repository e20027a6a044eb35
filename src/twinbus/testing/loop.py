"""An event loop with virtual time.

    async def outage_of_an_hour() -> None:
        await asyncio.sleep(3600)

    run(outage_of_an_hour())      # takes no time

Whenever no callback is ready, the loop's time jumps to the next timer. An hour-long timeout takes no real time, and
timers fire in the same order on slow and fast machines. Connections use a network in memory (`network`), and calls to
an executor run at once in the loop's thread.

All callbacks of one host (`network.on_host`) can be frozen, as by SIGSTOP. A host that is never thawed and whose
connections are cut (`network.switch_off` or `network.unplug`) is in effect killed:

    loop.freeze("app-1")        # its tasks, timers and callbacks stand still, while time passes for other hosts
    loop.thaw("app-1")          # overdue timers fire now

Owns the loop's time, the frozen hosts and the real-time limit of a run. Knows nothing of namespaces.
"""
# ruff: noqa: SLF001  # freezing a host needs asyncio's private queues and handles

from __future__ import annotations

import asyncio
import functools
import heapq
import selectors
import time
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from twinbus.testing.network import Network, current_host, host_of_context

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextvars import Context

    from twinbus.testing.network import AddressInfo

T = TypeVar("T")
P = ParamSpec("P")

START_S: Final = 1_000.0
"""Initial time of a loop; not zero, as on a machine that has been running for a while."""
DEFAULT_WALL_LIMIT_S: Final = 60.0
_MAX_SKIPPED_SELECTS: Final = 32
"""Maximum number of consecutive turns of the loop that do not poll for real sockets and other threads."""
_SHUTDOWN_LIMIT_S: Final = 5.0
"""Real time that tasks have to finish after the limit is exceeded."""


class TookTooLong(Exception):
    """A run exceeded its real-time limit, probably because a task waits forever."""


class _TimeJumpingSelector(selectors.DefaultSelector):
    """Selector that advances the virtual time instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = START_S
        self.wall_deadline_s: float | None = None
        """Real monotonic time at which the run is stopped, or None for no limit."""
        self.turn_s = 0.0
        """Virtual duration of one turn of the loop."""
        self._skipped_selects = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        left_s = self._wall_time_left_s()
        self.now_s += self.turn_s
        if timeout is None:  # no timer is set, so only another thread or a real socket can wake the loop
            return super().select(left_s)
        # Callbacks are ready, and a system call costs more than running them.
        if not timeout and self._skipped_selects < _MAX_SKIPPED_SELECTS:
            self._skipped_selects += 1
            return []
        self._skipped_selects = 0
        ready = super().select(0)
        if not ready:
            self.now_s += timeout
        return ready

    def _wall_time_left_s(self) -> float | None:
        if self.wall_deadline_s is None:
            return None
        now_s = time.monotonic()
        if now_s < self.wall_deadline_s:
            return self.wall_deadline_s - now_s
        self.wall_deadline_s = now_s + _SHUTDOWN_LIMIT_S
        raise TookTooLong(
            f"the run exceeded its limit of real time after {self.now_s - START_S:,.0f} s of virtual time: "
            "look for a task that waits forever, or raise wall_limit_s"
        )


class _CancelledHandle:
    """Stand-in for a cancelled callback in the loop's ready queue."""

    _cancelled = True

    def cancelled(self) -> bool:
        return True


_CANCELLED_HANDLE: Final = _CancelledHandle()


class FakeTimeLoop(asyncio.SelectorEventLoop):
    """Event loop for tests, with virtual time and a network in memory."""

    def __init__(self) -> None:
        """Create a loop whose time is START_S and whose network is empty."""
        self._time_selector = _TimeJumpingSelector()
        super().__init__(self._time_selector)
        self.network = Network(self)
        self._frozen: dict[str, list[asyncio.Handle]] = {}
        """Held callbacks of each frozen host, in order."""

    def time(self) -> float:
        """Return the loop's virtual time in seconds."""
        return self._time_selector.now_s

    def take_time(self, turn_s: float) -> None:
        """Make every turn of the loop take `turn_s` seconds of virtual time (default: 0), as on a real machine.

        If turns take no time, code that polls the clock until a deadline, and rounds the time, may never see the
        deadline.
        """
        self._time_selector.turn_s = turn_s

    def limit(self, real_s: float | None) -> None:
        """Raise TookTooLong after `real_s` seconds of real time from now; None removes the limit."""
        self._time_selector.wall_deadline_s = None if real_s is None else time.monotonic() + real_s

    def run_in_executor(self, executor: object, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]  # noqa: ANN401, ARG002  # asyncio's signature
        """Call `func` at once, because virtual time would jump ahead while a thread works."""
        result: asyncio.Future[T] = self.create_future()
        try:
            result.set_result(func(*args))
        except Exception as error:  # noqa: BLE001  # passed to the future's awaiter
            result.set_exception(error)
        return result

    # --- frozen hosts -------------------------------------------------------------------------------------------------

    def freeze(self, host: str) -> None:
        """Hold all callbacks of a host until `thaw`; time passes, and the network buffers data sent to the host."""
        if host in self._frozen:
            return
        if not self._frozen:  # overridden only while a host is frozen, because the check costs time
            self.call_soon = self._call_soon_unless_frozen  # type: ignore[assignment, method-assign]
            self.call_at = self._call_at_unless_frozen  # type: ignore[assignment, method-assign]
        held = self._frozen[host] = []
        ready, timers = self._ready, self._scheduled  # type: ignore[attr-defined]  # private to asyncio's base loop
        for index, handle in enumerate(ready):
            if not handle.cancelled() and host_of_context(handle._context) == host:
                held.append(handle)
                ready[index] = _CANCELLED_HANDLE  # keep the length of the queue, which the loop has counted
        timers_held = [item for item in timers if not item.cancelled() and host_of_context(item._context) == host]
        for timer in timers_held:
            timer._scheduled = False
        held += sorted(timers_held)
        timers[:] = [item for item in timers if item.cancelled() or item._scheduled]
        heapq.heapify(timers)

    def thaw(self, host: str) -> None:
        """Resume a frozen host; its overdue timers fire now."""
        held = self._frozen.pop(host, [])
        if not self._frozen:
            self.__dict__.pop("call_soon", None)
            self.__dict__.pop("call_at", None)
        for handle in held:
            if handle.cancelled():
                continue
            if isinstance(handle, asyncio.TimerHandle):
                handle._scheduled = True  # type: ignore[attr-defined]
                heapq.heappush(self._scheduled, handle)  # type: ignore[attr-defined]
            else:
                self._ready.append(handle)  # type: ignore[attr-defined]

    def is_frozen(self, host: str) -> bool:
        """Return whether a host is frozen."""
        return host in self._frozen

    def _call_soon_unless_frozen(
        self,
        callback: Callable[..., object],
        *args: Any,  # noqa: ANN401  # asyncio's signature
        context: Context | None = None,
    ) -> asyncio.Handle:
        host = current_host() if context is None else host_of_context(context)
        if host not in self._frozen:
            return super().call_soon(callback, *args, context=context)
        assert host is not None
        handle = asyncio.Handle(callback, args, self, context)
        self._frozen[host].append(handle)
        return handle

    def _call_at_unless_frozen(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,  # noqa: ANN401  # asyncio's signature
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        host = current_host() if context is None else host_of_context(context)
        if host not in self._frozen:
            return super().call_at(when, callback, *args, context=context)
        assert host is not None
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._frozen[host].append(timer)
        return timer

    # --- the network in memory ----------------------------------------------------------------------------------------

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:  # noqa: ANN401  # asyncio's signature
        """Connect to a server on the loop's network, or use an existing socket (`sock`)."""
        if options.get("sock") is not None:
            return await super().create_connection(protocol_factory, host, port, **options)
        _refuse_tls(options)
        return await self.network.connect(protocol_factory, host, int(port))

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:  # noqa: ANN401  # asyncio's signature
        """Listen on the loop's network, or on an existing socket (`sock`)."""
        if options.get("sock") is not None:
            return await super().create_server(protocol_factory, host, port, **options)
        _refuse_tls(options)
        return self.network.listen(protocol_factory, host, int(port or 0))

    async def getaddrinfo(self, host: Any, port: Any, **_options: Any) -> list[AddressInfo]:  # type: ignore[override]  # noqa: ANN401  # asyncio's signature
        """Return the address of a host on the loop's network."""
        return self.network.look_up(host, port)


def run(coroutine: Coroutine[Any, Any, T], *, wall_limit_s: float | None = DEFAULT_WALL_LIMIT_S) -> T:
    """Run a coroutine on a new FakeTimeLoop; raise TookTooLong after `wall_limit_s` seconds of real time."""
    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, FakeTimeLoop)
        loop.limit(wall_limit_s)
        return runner.run(coroutine)


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Decorate an async test so that it runs on a FakeTimeLoop; pytest fixtures work as usual."""

    @functools.wraps(test)
    def run_test(*arguments: P.args, **named: P.kwargs) -> T:
        return run(test(*arguments, **named))

    return run_test


def fake_time_loop() -> FakeTimeLoop:
    """Return the running FakeTimeLoop; raise RuntimeError if the running loop is of another type."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, FakeTimeLoop):
        raise RuntimeError(  # noqa: TRY004  # no argument has the wrong type
            f"the running loop is a {type(loop).__name__}, but namespaces in memory need a FakeTimeLoop: use "
            "twinbus.testing.run, or decorate the test with @in_virtual_time"
        )
    return loop


def _refuse_tls(options: dict[str, Any]) -> None:
    if options.get("ssl"):
        raise NotImplementedError("the network in memory does not support TLS: connect without it")
