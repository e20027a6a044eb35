"""An event loop whose time passes at once.

    async def outage_of_an_hour() -> None:
        await asyncio.sleep(3600)

    run(outage_of_an_hour())      # takes no time

Whenever nothing is left to do, the loop's time jumps to when the next call is due: a time-out of an hour is over in a
moment, and two things that wait happen in the order of their times, on a slow machine as on a fast one. Sockets are
those of a network in memory (`network`), and what would run on another thread runs at once.

Owns: the loop's time, and how long a run may really take. Knows nothing of namespaces.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
import time
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from twinbus.testing.network import Network

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from twinbus.testing.network import AddressInfo

T = TypeVar("T")
P = ParamSpec("P")

START_S: Final = 1_000.0
"""What the loop's time is at first: some machine was started a while ago."""
REAL_LIMIT_S: Final = 60.0
_LAST_STEPS_S: Final = 5.0
"""What tasks have to end in when the limit is over."""


class TookTooLong(Exception):
    """A run did not end within the real time that it has: something waits that is never over."""


class _Jumping(selectors.DefaultSelector):
    """Never waits for a time: it lets that pass."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = START_S
        self.limit_s: float | None = None
        """When the run is ended, by the real monotonic clock."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        left_s = self._left_s()
        if timeout is None:  # nothing is due ever: only another thread can bring news
            return super().select(left_s)
        ready = super().select(0)
        if not ready:
            self.now_s += timeout
        return ready

    def _left_s(self) -> float | None:
        if self.limit_s is None:
            return None
        now_s = time.monotonic()
        if now_s < self.limit_s:
            return self.limit_s - now_s
        self.limit_s = now_s + _LAST_STEPS_S
        raise TookTooLong(
            f"it is not over, and {self.now_s - START_S:,.0f} s have passed in it: what does it wait for?"
        )


class FakeTimeLoop(asyncio.SelectorEventLoop):
    """A loop for tests, with a time and a network of its own."""

    def __init__(self) -> None:
        """At START_S, with nobody on its network."""
        self._jumping = _Jumping()
        super().__init__(self._jumping)
        self.network = Network(self)

    def time(self) -> float:
        """The loop's own time, in seconds."""
        return self._jumping.now_s

    def limit(self, real_s: float | None) -> None:
        """End with TookTooLong after so much real time from now."""
        self._jumping.limit_s = None if real_s is None else time.monotonic() + real_s

    def run_in_executor(self, executor: object, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]  # noqa: ANN401, ARG002  # as asyncio has it
        """Make the call at once: a thread would work while time jumps ahead of it."""
        answer: asyncio.Future[T] = self.create_future()
        try:
            answer.set_result(func(*args))
        except Exception as error:  # noqa: BLE001  # whoever waits for the answer has it
            answer.set_exception(error)
        return answer

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


def run(coroutine: Coroutine[Any, Any, T], *, wall_limit_s: float | None = REAL_LIMIT_S) -> T:
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
