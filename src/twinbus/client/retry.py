"""Retries: which failures are tried again, how often, and after how long.

Owns: the policy, and the pauses of one operation. An operation asks for its next pause after each failure; this module
knows nothing of what the operation is.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from twinbus.client.errors import ConnectionFailed, ConnectionLost, FactoryFaulted, ObjectClosed, TimedOut
from twinbus.model.errors import FailureClass, ServerBusy, ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator

    # REMOVEPASS

BUSY_PAUSE_S: Final = 10.0
"""The pause for a busy server that does not name one."""
MAX_SHORT_PAUSES: Final = 3
"""Tries of a busy server that an operation makes in the time that is too short for the whole pause."""
MIN_BUSY_PAUSE_S: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Exponential back-off, as long as the operation has time."""

    max_retries: int = 3
    """For what is unavailable. A busy server is asked again until the operation's time is over."""
    first_pause_s: float = 0.1
    longest_pause_s: float = 30.0
    factor: float = 4.0
    busy_pause_s: float = BUSY_PAUSE_S
    waits_for_busy: bool = True
    """False: whoever runs the operation does so himself."""

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if self.max_retries < 0 or self.first_pause_s < 0 or self.factor < 1 or self.busy_pause_s < 0:
            raise ValueError(f"{self} cannot be: no number is below zero, and factor not below one")

    def pause_s(self, error: ServiceBusError, failures: int) -> float | None:
        """How long to wait after `failures` failures, of which `error` is the last; None: it is not tried again."""
        if error.failure_class is FailureClass.THROTTLED:
            return self.busy_pause_for(error) if self.waits_for_busy else None
        if error.failure_class is FailureClass.CALLER or failures > self.max_retries:
            return None
        return min(self.first_pause_s * self.factor ** (failures - 1), self.longest_pause_s)

    def busy_pause_for(self, error: ServiceBusError) -> float:
        """Return the pause that the server asks for; the policy's own if it names none."""
        asked_s = error.retry_after_s if isinstance(error, ServerBusy) else None
        return self.busy_pause_s if asked_s is None else asked_s


class Backoff:
    """The pauses of one operation, between its tries."""

    __slots__ = ("_failures", "_policy", "_short_pauses")

    def __init__(self, policy: RetryPolicy) -> None:
        """Nothing has failed yet."""
        self._policy = policy
        self._failures = 0
        self._short_pauses = 0

    def next_pause_s(self, error: ServiceBusError, left_s: float) -> float | None:
        """Return the pause after a failure, with `left_s` left of the operation's time; None: do not try again."""
        self._failures += 1
        pause_s = self._policy.pause_s(error, self._failures)
        if pause_s is None or pause_s < left_s:
            return pause_s
        return self._short_pause_s(left_s) if error.failure_class is FailureClass.THROTTLED else None

    def next_busy_pause_s(self, error: ServiceBusError, left_s: float) -> float | None:
        """Return the same for an error that is treated as that of a busy server, whatever its class."""
        pause_s = self._policy.busy_pause_for(error)
        return pause_s if pause_s < left_s else self._short_pause_s(left_s)

    def _short_pause_s(self, left_s: float) -> float | None:
        """Return a pause for a busy server that asks for more time than is left: half of it, `SHORT_PAUSES` times.

        So the last try is made in the last eighth of the time, and a caller that sends in a loop is held back for most
        of its timeout instead of failing at once.
        """
        short_s = left_s / 2
        if self._short_pauses >= MAX_SHORT_PAUSES or short_s < MIN_BUSY_PAUSE_S:
            return None
        self._short_pauses += 1
        return short_s


NO_RETRY: Final = RetryPolicy(max_retries=0, waits_for_busy=False)
RECONNECT_ONCE: Final = RetryPolicy(max_retries=1, first_pause_s=0.0, waits_for_busy=False)
"""A paired factory's: one more try at once, and no back-off. What it cannot deliver it parks."""


T = TypeVar("T")


async def run_with_retries(
    description: str,
    attempt: Callable[[], Awaitable[T]],
    *,
    limit_s: float,
    policy: RetryPolicy,
    check_open: Callable[[], None],
    outcome: OperationOutcome | None = None,
) -> T:
    """Try, and try again as the policy says. `check_open` raises where it should not even be tried.

    `doubt` knows whether a request has left; without one, an operation that timed out may have been carried out.
    """
    loop = asyncio.get_running_loop()
    deadline, pauses = loop.time() + limit_s, Backoff(policy)
    last: ServiceBusError | None = None
    while True:
        check_open()
        try:
            async with asyncio.timeout_at(deadline):
                return await attempt()
        except TimeoutError:
            reason = f"; before that: {last}" if last is not None else ""
            may_have_happened = True if outcome is None else outcome.may_have_happened
            text = f"{description} took longer than {limit_s:g} s{reason}"
            raise TimedOut(text, may_have_happened=may_have_happened) from last
        except ServiceBusError as error:
            pause_s = pauses.next_pause_s(error, deadline - loop.time())
            if pause_s is None:
                raise
            last = error
        await asyncio.sleep(pause_s)


def ignore_failure(future: asyncio.Future[Any]) -> None:
    """Take the failure of a future that is done: asyncio would log that nobody did."""
    if not future.cancelled():
        future.exception()


class SharedAttempt(Generic[T]):
    """An attempt that several wait for: a connection, or a link.

    At most one is under way; the next one begins when somebody wants it. Whoever gives up waiting does not take it from
    the others.
    """

    def __init__(self, description: str, attempt: Callable[[], Coroutine[Any, Any, T]], limit_s: float) -> None:
        """`what` is attempted, by `make`, for `limit_s` at most, however patient those are who wait."""
        self._description = description
        self._attempt = attempt
        self._limit_s = limit_s
        self._task: asyncio.Task[T] | None = None
        self._started_s = 0.0

    @property
    def elapsed_s(self) -> float:
        """For how long one has been under way; nothing if none is."""
        return 0.0 if self._task is None else asyncio.get_running_loop().time() - self._started_s

    async def result(self) -> T:
        """What the attempt that is under way brings; one begins if none is."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
            self._started_s = asyncio.get_running_loop().time()
            self._task.add_done_callback(self._on_done)
        task = self._task
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            waiter = asyncio.current_task()
            if task.cancelled() and (waiter is None or not waiter.cancelling()):  # not we, but it
                raise ConnectionFailed(f"{self._description} was given up") from None
            raise

    def cancel(self) -> None:
        """Give up what is under way; those who wait are told."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> T:
        try:
            async with asyncio.timeout(self._limit_s):
                return await self._attempt()
        except TimeoutError:
            raise TimedOut(
                f"{self._description} took longer than {self._limit_s:g} s", may_have_happened=False
            ) from None

    def _on_done(self, task: asyncio.Task[T]) -> None:
        self._task = None
        ignore_failure(task)  # whoever waits has it; if nobody does any more, it is no news


# --- whether an operation may have been carried out -------------------------------------------------------------------

MAY_BE_STORED: Final = "it may have been stored"
NOT_SENT: Final = "it was not sent"


class OperationOutcome:
    """Whether one operation of several attempts may have been carried out.

    An error says what became of one attempt. If an earlier attempt got no answer, the operation may have been carried
    out whatever the last attempt says; if no request ever left, it was not, even if the last error leaves that open in
    general.
    """

    __slots__ = ("may_have_happened",)

    def __init__(self, *, may_have_happened: bool = False) -> None:
        """`may_have_happened`: an attempt that was made before got no answer."""
        self.may_have_happened = may_have_happened
        """A request has left, and no answer says that nothing came of it."""

    def note_failure(self, error: ServiceBusError) -> None:
        """Take into account what became of a request that had left."""
        self.may_have_happened = self.may_have_happened or error.may_have_happened

    @contextmanager
    def adjusted_errors(self) -> Iterator[None]:
        """Have errors say what is known of the operation as a whole."""
        try:
            yield
        except ServiceBusError as error:
            told = self._adjusted(error)
            if told is error:
                raise
            raise told from error

    def _adjusted(self, error: ServiceBusError) -> ServiceBusError:
        if error.may_have_happened is self.may_have_happened:
            return error
        text = f"an earlier attempt got no answer and may have been carried out; then {error}"
        return error.copy_with(may_have_happened=self.may_have_happened, text=text if self.may_have_happened else None)


def adjusted_send_error(error: ServiceBusError, *, may_have_happened: bool) -> ServiceBusError:
    """Return the error of a send of several attempts, of which `error` ended the last one."""
    if isinstance(error, TimedOut) and not str(error).endswith((MAY_BE_STORED, NOT_SENT)):
        known = MAY_BE_STORED if may_have_happened else NOT_SENT
        return error.copy_with(may_have_happened=may_have_happened, text=f"{error}: {known}")
    if error.may_have_happened is may_have_happened:
        return error
    if not may_have_happened:
        is_of_link = isinstance(error, ConnectionLost)  # while attaching, say
        return ConnectionFailed(str(error)) if is_of_link else error.copy_with(may_have_happened=False)
    if isinstance(error, ObjectClosed | FactoryFaulted):
        return ConnectionLost(f"the sender ended before an answer came, {MAY_BE_STORED}: {error}")
    text = f"no answer came, {MAY_BE_STORED}; then {error}"
    if isinstance(error, ConnectionFailed):
        return ConnectionLost(text)
    return error.copy_with(may_have_happened=True, text=text)
