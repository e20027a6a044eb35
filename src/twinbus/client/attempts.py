"""The attempts of one operation: retries, shared attempts, and whether an attempt may have been carried out.

    doubt = Doubt()
    with doubt.told():
        await attempts.run(..., doubt=doubt)

Owns: trying, waiting and trying again within the operation's time, and that the error of an operation speaks of all its
attempts. What is tried again is for the policy to say; `sender` and `requests` note what left.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from twinbus.client.errors import ConnectionFailed, ConnectionLost, FactoryFaulted, ObjectClosed, TimedOut
from twinbus.client.retry import Backoff
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator

    from twinbus.client.retry import RetryPolicy

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
