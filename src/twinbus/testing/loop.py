"""An event loop whose time passes at once.

    async def outage_of_an_hour() -> None:
        await asyncio.sleep(3600)

    run(outage_of_an_hour())      # takes no time

Whenever nothing is left to do, the loop's time jumps to when the next call is due: a time-out of an hour is over in a
moment, and two things that wait happen in the order of their times, on a slow machine as on a fast one. Sockets are
those of a network in memory (`network`), and what would run on another thread runs at once.

All that runs on one host (`hosts`) can be frozen, as by SIGSTOP. One that is never thawed, and whose connections are
cut (`network.switch_off`, or `unplug`), was killed:

    loop.freeze("app-1")        # its tasks, timers and callbacks stand still, while time passes for the others
    loop.thaw("app-1")          # overdue timers fire now

Owns: the loop's time, which hosts run, and how long a run may really take. Knows nothing of namespaces.
"""
# ruff: noqa: SLF001  # to hold what is due for a host, the loop has to see its own callbacks

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
"""What the loop's time is at first: some machine was started a while ago."""
DEFAULT_WALL_LIMIT_S: Final = 60.0
_MAX_SKIPPED_SELECTS: Final = 32
"""Turns of the loop in a row in which real sockets and other threads are not asked for news."""
_SHUTDOWN_LIMIT_S: Final = 5.0
"""What tasks have to end in when the limit is over."""


class TookTooLong(Exception):
    """A run did not end within the real time that it has: something waits that is never over."""


class _TimeJumpingSelector(selectors.DefaultSelector):
    """Never waits for a time: it lets that pass."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = START_S
        self.wall_deadline_s: float | None = None
        """When the run is ended, by the real monotonic clock."""
        self.turn_s = 0.0
        """How long a turn of the loop takes."""
        self._skipped_selects = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        left_s = self._wall_time_left_s()
        self.now_s += self.turn_s
        if timeout is None:  # nothing is due ever: only another thread can bring news
            return super().select(left_s)
        if (
            not timeout and self._skipped_selects < _MAX_SKIPPED_SELECTS
        ):  # callbacks are ready: asking the system costs more than they
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
            f"it is not over, and {self.now_s - START_S:,.0f} s have passed in it: what does it wait for?"
        )


class _CancelledHandle:
    """A callback that was cancelled, as far as the loop looks at it."""

    _cancelled = True

    def cancelled(self) -> bool:
        return True


_CANCELLED_HANDLE: Final = _CancelledHandle()


class FakeTimeLoop(asyncio.SelectorEventLoop):
    """A loop for tests, with a time and a network of its own."""

    def __init__(self) -> None:
        """At START_S, with nobody on its network."""
        self._time_selector = _TimeJumpingSelector()
        super().__init__(self._time_selector)
        self.network = Network(self)
        self._frozen: dict[str, list[asyncio.Handle]] = {}
        """By host: the callbacks that stand still, in order."""

    def time(self) -> float:
        """The loop's own time, in seconds."""
        return self._time_selector.now_s

    def take_time(self, turn_s: float) -> None:
        """Let every turn of the loop take so long (default: 0), as on a real machine.

        Whoever waits until a time is over, and compares it with one that was rounded otherwise, may else look at the
        same time for ever.
        """
        self._time_selector.turn_s = turn_s

    def limit(self, real_s: float | None) -> None:
        """End with TookTooLong after so much real time from now."""
        self._time_selector.wall_deadline_s = None if real_s is None else time.monotonic() + real_s

    def run_in_executor(self, executor: object, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]  # noqa: ANN401, ARG002  # as asyncio has it
        """Make the call at once: a thread would work while time jumps ahead of it."""
        answer: asyncio.Future[T] = self.create_future()
        try:
            answer.set_result(func(*args))
        except Exception as error:  # noqa: BLE001  # whoever waits for the answer has it
            answer.set_exception(error)
        return answer

    # --- hosts that stand still ---------------------------------------------------------------------------------------

    def freeze(self, host: str) -> None:
        """Let nothing run that was started on a host, until `thaw`. Time passes, and the network takes what is sent."""
        if host in self._frozen:
            return
        if not self._frozen:  # only now: whoever freezes nothing pays nothing
            self.call_soon = self._call_soon_unless_frozen  # type: ignore[assignment, method-assign]
            self.call_at = self._call_at_unless_frozen  # type: ignore[assignment, method-assign]
        held = self._frozen[host] = []
        ready, timers = self._ready, self._scheduled  # type: ignore[attr-defined]  # of asyncio's own loop
        for place, handle in enumerate(ready):
            if not handle.cancelled() and host_of_context(handle._context) == host:
                held.append(handle)
                ready[place] = _CANCELLED_HANDLE  # the loop has counted them already
        timers_held = [one for one in timers if not one.cancelled() and host_of_context(one._context) == host]
        for timer in timers_held:
            timer._scheduled = False
        held += sorted(timers_held)
        timers[:] = [one for one in timers if one.cancelled() or one._scheduled]
        heapq.heapify(timers)

    def thaw(self, host: str) -> None:
        """Let a host that was frozen go on. Timers that are overdue fire now."""
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
        """Nothing of a host runs now."""
        return host in self._frozen

    def _call_soon_unless_frozen(
        self,
        callback: Callable[..., object],
        *args: Any,  # noqa: ANN401  # as asyncio has it
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
        *args: Any,  # noqa: ANN401  # as asyncio has it
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

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:  # noqa: ANN401  # as asyncio has it
        """Connect to somebody on the loop's network, or over a socket that is there."""
        if options.get("sock") is not None:
            return await super().create_connection(protocol_factory, host, port, **options)
        _refuse_tls(options)
        return await self.network.connect(protocol_factory, host, int(port))

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:  # noqa: ANN401  # as asyncio has it
        """Listen on the loop's network, or on a socket that is there."""
        if options.get("sock") is not None:
            return await super().create_server(protocol_factory, host, port, **options)
        _refuse_tls(options)
        return self.network.listen(protocol_factory, host, int(port or 0))

    async def getaddrinfo(self, host: Any, port: Any, **_options: Any) -> list[AddressInfo]:  # type: ignore[override]  # noqa: ANN401  # as asyncio has it
        """Where a host of the loop's network is."""
        return self.network.look_up(host, port)


def run(coroutine: Coroutine[Any, Any, T], *, wall_limit_s: float | None = DEFAULT_WALL_LIMIT_S) -> T:
    """Run a coroutine on a FakeTimeLoop of its own. TookTooLong if that really takes longer than the limit."""
    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, FakeTimeLoop)
        loop.limit(wall_limit_s)
        return runner.run(coroutine)


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Make a function of a coroutine: it runs on a FakeTimeLoop. For pytest and others; fixtures are given as ever."""

    @functools.wraps(test)
    def run_it(*arguments: P.args, **named: P.kwargs) -> T:
        return run(test(*arguments, **named))

    return run_it


def fake_time_loop() -> FakeTimeLoop:
    """The loop that runs this. RuntimeError if it is another one."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, FakeTimeLoop):
        raise RuntimeError(  # noqa: TRY004  # it is not the argument's fault: there is none
            f"this runs on a {type(loop).__name__}, and what is in memory needs a FakeTimeLoop: run it by "
            "twinbus.testing.run, or put @in_virtual_time before the test"
        )
    return loop


def _refuse_tls(options: dict[str, Any]) -> None:
    if options.get("ssl"):
        raise NotImplementedError("there is no TLS on the network in memory: connect without")
