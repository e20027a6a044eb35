"""Retries: which failures are retried, how often, and after which delay.

Owns the retry policy, the back-off of one operation, attempts shared by several callers, and the record of whether an
operation may have been carried out. This module knows nothing of what the operations do.
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

BUSY_PAUSE_S: Final = 10.0
"""Default delay before the retry of an operation that a busy server refused."""
MAX_SHORT_PAUSES: Final = 3
"""Retries per operation when a busy server asks for a longer delay than the time left."""
MIN_BUSY_PAUSE_S: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Exponential back-off, limited by the operation timeout."""

    max_retries: int = 3
    """Retries after failures of class UNAVAILABLE. A busy server is retried until the operation timeout."""
    first_pause_s: float = 0.1
    longest_pause_s: float = 30.0
    factor: float = 4.0
    busy_pause_s: float = BUSY_PAUSE_S
    waits_for_busy: bool = True
    """Whether to retry when the server is busy. If False, the caller handles ServerBusy."""

    def __post_init__(self) -> None:
        """Raise ValueError for invalid values."""
        if self.max_retries < 0 or self.first_pause_s < 0 or self.factor < 1 or self.busy_pause_s < 0:
            raise ValueError(f"invalid {self}: no value may be negative, and factor must be at least 1")

    def pause_s(self, error: ServiceBusError, failures: int) -> float | None:
        """Return the delay after `failures` failures, the last with `error`; None if there is no retry."""
        if error.failure_class is FailureClass.THROTTLED:
            return self.busy_pause_for(error) if self.waits_for_busy else None
        if error.failure_class is FailureClass.CALLER or failures > self.max_retries:
            return None
        return min(self.first_pause_s * self.factor ** (failures - 1), self.longest_pause_s)

    def busy_pause_for(self, error: ServiceBusError) -> float:
        """Return the delay that the busy server asks for, or the policy's own delay if the server asks for none."""
        asked_s = error.retry_after_s if isinstance(error, ServerBusy) else None
        return self.busy_pause_s if asked_s is None else asked_s


class Backoff:
    """The delays between the attempts of one operation."""

    __slots__ = ("_failures", "_policy", "_short_pauses")

    def __init__(self, policy: RetryPolicy) -> None:
        """Start with no failures."""
        self._policy = policy
        self._failures = 0
        self._short_pauses = 0

    def next_pause_s(self, error: ServiceBusError, left_s: float) -> float | None:
        """Return the delay after a failure, with `left_s` until the operation timeout; None if there is no retry."""
        self._failures += 1
        pause_s = self._policy.pause_s(error, self._failures)
        if pause_s is None or pause_s < left_s:
            return pause_s
        return self._short_pause_s(left_s) if error.failure_class is FailureClass.THROTTLED else None

    def next_busy_pause_s(self, error: ServiceBusError, left_s: float) -> float | None:
        """Return the delay after an error that is treated like ServerBusy, whatever its class."""
        pause_s = self._policy.busy_pause_for(error)
        return pause_s if pause_s < left_s else self._short_pause_s(left_s)

    def _short_pause_s(self, left_s: float) -> float | None:
        """Return half of the remaining time as the pause, because the server asks for a longer pause than that time.

        Return None after MAX_SHORT_PAUSES such pauses. The last attempt is then made in the last eighth of the time,
        and a caller that sends in a loop is slowed down for most of its timeout instead of failing at once.
        """
        short_s = left_s / 2
        if self._short_pauses >= MAX_SHORT_PAUSES or short_s < MIN_BUSY_PAUSE_S:
            return None
        self._short_pauses += 1
        return short_s


NO_RETRY: Final = RetryPolicy(max_retries=0, waits_for_busy=False)
RECONNECT_ONCE: Final = RetryPolicy(max_retries=1, first_pause_s=0.0, waits_for_busy=False)
"""Policy of a paired factory: one immediate retry and no back-off. Undeliverable messages are parked instead."""


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
    """Run `attempt`, retried as the policy says, for at most `limit_s`. Call `check_open` before each attempt.

    `outcome` records whether a request was sent; without `outcome`, TimedOut says that the operation may have been
    carried out.
    """
    loop = asyncio.get_running_loop()
    deadline, backoff = loop.time() + limit_s, Backoff(policy)
    last_error: ServiceBusError | None = None
    while True:
        check_open()
        try:
            async with asyncio.timeout_at(deadline):
                return await attempt()
        except TimeoutError:
            reason = f"; last error: {last_error}" if last_error is not None else ""
            may_have_happened = True if outcome is None else outcome.may_have_happened
            text = f"{description} took longer than {limit_s:g} s{reason}"
            raise TimedOut(text, may_have_happened=may_have_happened) from last_error
        except ServiceBusError as error:
            pause_s = backoff.next_pause_s(error, deadline - loop.time())
            if pause_s is None:
                raise
            last_error = error
        await asyncio.sleep(pause_s)


def ignore_failure(future: asyncio.Future[Any]) -> None:
    """Retrieve the exception of a done future, so that asyncio does not log it as never retrieved."""
    if not future.cancelled():
        future.exception()


class SharedAttempt(Generic[T]):
    """An attempt, to connect or to attach a link, that several callers share.

    At most one attempt runs at a time; the next call of `result` starts the next attempt. A cancelled caller does not
    cancel the attempt for other callers.
    """

    def __init__(self, description: str, attempt: Callable[[], Coroutine[Any, Any, T]], limit_s: float) -> None:
        """Set up attempts that run `attempt` for at most `limit_s`, whatever the timeouts of the callers."""
        self._description = description
        self._attempt = attempt
        self._limit_s = limit_s
        self._task: asyncio.Task[T] | None = None
        self._started_s = 0.0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start of the running attempt; 0 if none is running."""
        return 0.0 if self._task is None else asyncio.get_running_loop().time() - self._started_s

    async def result(self) -> T:
        """Wait for the result of the running attempt; start one if none is running."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
            self._started_s = asyncio.get_running_loop().time()
            self._task.add_done_callback(self._on_done)
        task = self._task
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            waiter = asyncio.current_task()
            if task.cancelled() and (waiter is None or not waiter.cancelling()):  # the caller was not cancelled
                raise ConnectionFailed(f"{self._description} was cancelled") from None
            raise

    def cancel(self) -> None:
        """Cancel the running attempt; its callers get ConnectionFailed."""
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
        ignore_failure(task)  # callers get the failure from `result`, and may all have left


# --- whether an operation may have been carried out -------------------------------------------------------------------

MAY_BE_STORED: Final = "it may have been stored"
NOT_SENT: Final = "it was not sent"


class OperationOutcome:
    """Whether an operation with several attempts may have been carried out.

    An error describes only one attempt. If an earlier attempt got no response, the operation may have been
    carried out, whatever the last error says. If no request was ever sent, the operation was not carried out, even if
    the class of the last error usually means that it may have been carried out.
    """

    __slots__ = ("may_have_happened",)

    def __init__(self, *, may_have_happened: bool = False) -> None:
        """Create a record; `may_have_happened` is True if an earlier attempt got no response."""
        self.may_have_happened = may_have_happened
        """Whether a request was sent and no response ruled out its effect."""

    def note_failure(self, error: ServiceBusError) -> None:
        """Record the failure of a request that was sent."""
        self.may_have_happened = self.may_have_happened or error.may_have_happened

    @contextmanager
    def adjusted_errors(self) -> Iterator[None]:
        """Adjust the `may_have_happened` of errors raised in the block to the operation as a whole."""
        try:
            yield
        except ServiceBusError as error:
            adjusted = self._adjusted(error)
            if adjusted is error:
                raise
            raise adjusted from error

    def _adjusted(self, error: ServiceBusError) -> ServiceBusError:
        if error.may_have_happened is self.may_have_happened:
            return error
        text = f"an earlier attempt got no response and may have been carried out; then {error}"
        return error.copy_with(may_have_happened=self.may_have_happened, text=text if self.may_have_happened else None)


def adjusted_send_error(error: ServiceBusError, *, may_have_happened: bool) -> ServiceBusError:
    """Return the error for a send with several attempts, the last of which failed with `error`."""
    if isinstance(error, TimedOut) and not str(error).endswith((MAY_BE_STORED, NOT_SENT)):
        outcome = MAY_BE_STORED if may_have_happened else NOT_SENT
        return error.copy_with(may_have_happened=may_have_happened, text=f"{error}: {outcome}")
    if error.may_have_happened is may_have_happened:
        return error
    if not may_have_happened:
        is_link_error = isinstance(error, ConnectionLost)  # for example while attaching
        return ConnectionFailed(str(error)) if is_link_error else error.copy_with(may_have_happened=False)
    if isinstance(error, ObjectClosed | FactoryFaulted):
        return ConnectionLost(f"the sender was closed before a response arrived, {MAY_BE_STORED}: {error}")
    text = f"no response arrived, {MAY_BE_STORED}; then {error}"
    if isinstance(error, ConnectionFailed):
        return ConnectionLost(text)
    return error.copy_with(may_have_happened=True, text=text)
