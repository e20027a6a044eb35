"""One send of a paired sender that is more than one attempt.

Owns: what follows a failure: another attempt, waiting, parking, spooling, or the error. And the operation's time, of
which each step gets its share. The first attempt at a healthy primary is the sender's own, and costs nothing of this.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from twinbus.client.doubt import UNSENT, of_send
from twinbus.client.errors import ConnectionFailed, ConnectionLost, TimedOut
from twinbus.client.pairing.errors import MessageCannotBeParked, NotSent, SpoolFailed
from twinbus.client.pairing.events import EventKind
from twinbus.client.pairing.failover import EntityState
from twinbus.client.pairing.fragments import key_for_pings
from twinbus.client.pairing.spool_record import Record
from twinbus.client.pairing.triggers import class_of
from twinbus.client.retry import NO_RETRY
from twinbus.client.witness import FROM_SPOOL
from twinbus.model.errors import FailureClass, FragmentUnavailable, MessageTooLarge, ServiceBusError
from twinbus.model.times import duration_ms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinbus.client.pairing.backlog import BacklogQueue
    from twinbus.client.pairing.pairing import Pairing
    from twinbus.client.pairing.sender import SendAvailabilitySender
    from twinbus.model.message import BrokeredMessage

SHARE: Final = 3
"""A backlog queue gets this part of the time that is left, unless it is the last one."""
HELD_PAUSE_S: Final = 1.0
"""How long a held send waits before it tries the primary again."""
SPOOL_SHARE: Final = 10
"""Where there is a spool, this part of the operation's time is kept for it."""
SPOOL_LEAST_S: Final = 1.0
"""What the spool gets if the time is over all the same."""


class Sending:
    """One message, or one batch, until it is safe or has failed."""

    def __init__(
        self,
        pairing: Pairing,
        sender: SendAvailabilitySender,
        payload: bytes,
        message_format: int,
        messages: Sequence[BrokeredMessage],
        *,
        deadline_s: float,
        limit_s: float,
    ) -> None:
        """`deadline_s` by the loop's clock is when the operation's time, `limit_s` in all, is over."""
        self._pairing = pairing
        self._sender = sender
        self._health = sender.health
        self._choice = sender.choice
        self._payload = payload
        self._message_format = message_format
        self._messages = messages
        self._limit_s = limit_s
        self._deadline_s = deadline_s
        self._loop = asyncio.get_running_loop()
        self._primary_error: ServiceBusError | None = None
        self._may_have_arrived = False
        """Some attempt got no answer: whatever is sent from now on is marked as a possible duplicate."""
        self._is_fragment_down = False
        """The primary has just said so of the one that it leads to."""
        self._spool = pairing.spool
        self._is_from_spool = False

    async def run_from_spool(self, *, may_have_arrived: bool) -> None:
        """Send what was spooled; it is not spooled again. `may_have_arrived`: some attempt before had no answer."""
        self._spool, self._may_have_arrived, self._is_from_spool = None, may_have_arrived, True
        await self.run()

    async def run(self, failure: ServiceBusError | None = None) -> None:
        """Go on from the state the entity is in; `failure` is that of an attempt that was made already.

        Whatever error this raises speaks of all attempts: whether one of them may have arrived.
        """
        try:
            await self._run(failure)
        except ServiceBusError as error:
            told = self._told(error)
            if told is error:
                raise
            raise told from error

    def _told(self, error: ServiceBusError) -> ServiceBusError:
        if isinstance(error, NotSent):
            return error  # it says so itself
        may_have_happened = self._may_have_arrived or error.may_have_happened
        if isinstance(error, MessageCannotBeParked) and not may_have_happened:
            return error.retold(may_have_happened=False, text=f"{error}; {UNSENT}")
        return of_send(error, may_have_happened=may_have_happened)

    async def _run(self, failure: ServiceBusError | None) -> None:
        while True:
            if failure is None:
                state = self._health.state
                if state is EntityState.FAILED_OVER:
                    await self._park()
                    return
                if state is EntityState.UNREACHABLE:
                    raise self._health.refusal
                if self._is_fragment_down or self._health.fragments.outage_for(self._messages) is not None:
                    await self._park()
                    return
                failure = await self._attempt()
            if failure is None:
                return
            await self._after(failure)
            failure = None

    async def _attempt(self) -> ServiceBusError | None:
        """Try the primary; why it did not take the message."""
        sender, payload, message_format = self._sender, self._payload, self._message_format
        try:
            copies = [payload]
            if self._may_have_arrived:
                copies = sender.marked_copies_of(payload, message_format)
            for one in copies:
                attempt_s = min(self._pairing.attempt_s(self._limit_s), self._left_s())
                await sender.deliver(one, message_format, timeout_s=attempt_s, policy=sender.policy)
        except ServiceBusError as error:
            return error
        self._health.send_succeeded()
        self._sender.tell_sent(self._messages, is_from_spool=self._is_from_spool)
        return None

    async def _after(self, error: ServiceBusError) -> None:
        """What follows a failure of the primary: this returns when it is time for the next step, or raises."""
        self._may_have_arrived = self._may_have_arrived or error.may_have_happened
        self._check_not_over(error)
        self._primary_error = error
        kind = class_of(error, self._pairing.options.triggers)
        if kind is FailureClass.CALLER:
            raise error
        if kind is FailureClass.UNAVAILABLE:
            if isinstance(error, FragmentUnavailable) and self._pairing.options.park_on_fragment_outage:
                self._health.fragments.fail(error, self._messages)
                self._is_fragment_down = True
                return
            self._tell_failure(error)
        state = self._health.state
        if state is EntityState.FAILED_OVER:
            return
        if state is EntityState.UNREACHABLE:
            raise error
        if kind is FailureClass.THROTTLED:
            await self._wait_for_busy(error)
        elif self._pairing.options.hold_during_failover_interval:
            await self._hold()
        else:
            raise error

    def _check_not_over(self, error: ServiceBusError) -> None:
        """Raise `error` if the sender was closed: then it is our own end that failed, which says nothing of others."""
        if self._sender.is_closed or self._pairing.primary.ended.is_set():
            raise error

    def _tell_failure(self, error: ServiceBusError) -> None:
        if isinstance(error, TimedOut):
            self._sender.factory.drop_if_silent(min(self._pairing.attempt_s(self._limit_s), self._limit_s))
        self._health.send_failed(error, key_for_pings(error, self._messages))

    async def _wait_for_busy(self, error: ServiceBusError) -> None:
        """A busy server is no reason to fail over: wait as it asks, and send again."""
        pause_s = self._sender.factory.settings.retry_policy.busy_pause_s
        if pause_s >= self._left_s():
            raise error
        await asyncio.sleep(pause_s)

    async def _hold(self) -> None:
        """Wait a little: for a success, after which it is delivered, or for failover, when it is parked."""
        with suppress(TimeoutError):
            async with asyncio.timeout(HELD_PAUSE_S):
                await self._health.moved.wait()
        # Waiting for the interval is not the operation's time: else none could outlast an interval of its own length.
        self._deadline_s = self._loop.time() + self._limit_s

    def _left_s(self) -> float:
        return max(0.0, self._deadline_s - self._loop.time())

    def _left_to_park_s(self) -> float:
        kept_s = 0.0 if self._spool is None else self._limit_s / SPOOL_SHARE
        return max(0.0, self._left_s() - kept_s)

    # --- parking ------------------------------------------------------------------------------------------------------

    async def _park(self) -> None:
        """Put it in a backlog queue. A batch that is too large for that is split, in order (Q22)."""
        try:
            await self.park_whole()
        except MessageCannotBeParked:
            if len(self._messages) < 2:  # noqa: PLR2004  # there is nothing to split
                raise
        else:
            return
        safe = 0
        for payload, messages in self._sender.split(self._payload, self._messages):
            part = self._part(payload, messages)
            try:
                if self._spool is not None and self._sender.is_behind(messages):  # as an earlier part of its session
                    await part.spool_behind()
                else:
                    await part.park_whole()
            except ServiceBusError as error:
                self._may_have_arrived = self._may_have_arrived or part.may_have_arrived
                if not safe:
                    raise
                raise self._partly_stored(error, range(safe)) from error
            safe += len(messages)

    def _partly_stored(self, error: ServiceBusError, stored: Sequence[int]) -> NotSent:
        """A part of the batch failed, with `error`, after others were safe."""
        primary: BaseException | None = error
        backlog: Mapping[str, BaseException] = {}
        spool: BaseException | None = None
        if isinstance(error, NotSent):
            primary, backlog, spool = error.primary, error.backlog, error.spool
        return NotSent(
            self._sender.path,
            primary,
            backlog,
            spool=spool,
            may_have_happened=self._may_have_arrived or error.may_have_happened,
            stored=stored,
        )

    @property
    def may_have_arrived(self) -> bool:
        """Some attempt got no answer."""
        return self._may_have_arrived

    def _part(self, payload: bytes, messages: Sequence[BrokeredMessage]) -> Sending:
        """Some messages of this batch, which share its time and its history."""
        part = Sending(
            self._pairing,
            self._sender,
            payload,
            self._message_format,
            messages,
            deadline_s=self._deadline_s,
            limit_s=self._limit_s,
        )
        part._primary_error, part._may_have_arrived = self._primary_error, self._may_have_arrived
        part._spool, part._is_from_spool = self._spool, self._is_from_spool
        return part

    async def park_whole(self) -> None:
        """Put it in the chosen backlog queue, or, when that fails, in any other, while there is time."""
        reasons: dict[str, BaseException] = {}
        tried: list[BacklogQueue] = []
        queue = self._choice.first()
        while queue is not None and self._left_to_park_s() > 0:
            tried.append(queue)
            error = await self._park_in(queue, is_last=len(tried) == len(self._pairing.rotation.queues))
            if error is None:
                self._tell_parked(queue)
                return
            reasons[queue.path] = error
            queue = self._choice.next(tried)
        await self._spool_it(reasons)

    def _not_sent(self, reasons: Mapping[str, BaseException], spool: ServiceBusError | None = None) -> NotSent:
        outage = self._health.fragments.outage_for(self._messages)
        why = self._primary_error or self._health.why or (None if outage is None else outage.why)
        return NotSent(self._sender.path, why, reasons, spool=spool, may_have_happened=self._may_have_arrived)

    async def _park_in(self, queue: BacklogQueue, *, is_last: bool) -> ServiceBusError | None:
        """Park it there; why that failed. A lost connection is made once more."""
        error = await self._try_to_park(queue, is_last=is_last)
        if isinstance(error, ConnectionLost | ConnectionFailed) and queue.failure is None:
            error = await self._try_to_park(queue, is_last=is_last)
        if error is None:
            self._pairing.rotation.took(queue)
        else:
            self._check_not_over(error)
            self._pairing.rotation.pull(queue, error)
        return error

    async def _try_to_park(self, queue: BacklogQueue, *, is_last: bool) -> ServiceBusError | None:
        # Made anew each time: after a try without an answer the message may be there twice, and has to say so.
        parked = self._sender.park(self._payload, self._message_format, is_possible_duplicate=self._may_have_arrived)
        left_s = self._left_to_park_s()
        share_s = left_s if is_last else left_s / SHARE
        try:
            await queue.sender.deliver(parked, self._message_format, timeout_s=share_s, policy=NO_RETRY)
        except MessageTooLarge:
            raise  # the queue is as good as before
        except ServiceBusError as error:
            if isinstance(error, TimedOut):
                queue.sender.factory.drop_if_silent(share_s)
            self._may_have_arrived = self._may_have_arrived or error.may_have_happened
            return error
        return None

    def _tell_parked(self, queue: BacklogQueue) -> None:
        for message in self._messages:
            self._pairing.telling.tell(
                EventKind.PARKED,
                path=self._sender.path,
                backlog_queue=queue.path,
                message_id=message.message_id,
                session_id=message.session_id,
                time_to_live_ms=_ttl_ms(message),
                reason=FROM_SPOOL if self._is_from_spool else None,
            )

    # --- the last resort ----------------------------------------------------------------------------------------------

    async def spool_behind(self) -> None:
        """Keep it on the local disk because what its session sent before is there: it must not overtake that."""
        await self._spool_it({})

    async def _spool_it(self, reasons: Mapping[str, BaseException]) -> None:
        """Keep it on the local disk. NotSent, with all reasons, if that does not take it either."""
        if self._spool is None:
            raise self._not_sent(reasons)
        self._sender.check_open()
        messages = self._messages
        record = Record(
            path=self._sender.path,
            message_format=self._message_format,
            payload=self._payload,
            may_have_arrived=self._may_have_arrived,
            spooled_at_ms=self._sender.factory.settings.clock.wall_ms(),
            message_ids=[str(message.message_id) for message in messages],
            session_ids=sessions_of(messages),
        )
        limit_s = max(self._left_s(), SPOOL_LEAST_S)
        try:
            async with asyncio.timeout(limit_s):
                await self._spool.append(record)
        except TimeoutError:
            self._may_have_arrived = True
            error = SpoolFailed(
                f"the disk gave no answer within {limit_s:g} s; if it takes the message, that is sent",
                may_have_happened=True,
            )
            raise self._not_sent(reasons, error) from None
        except SpoolFailed as error:
            raise self._not_sent(reasons, error) from error
        for message in messages:
            self._pairing.telling.tell(
                EventKind.SPOOLED,
                path=self._sender.path,
                message_id=message.message_id,
                session_id=message.session_id,
                time_to_live_ms=_ttl_ms(message),
                reason=str(self._primary_error or self._health.why or "its session has messages in the spool"),
            )


def sessions_of(messages: Sequence[BrokeredMessage]) -> list[str]:
    """The sessions of messages, each once."""
    return list(dict.fromkeys(message.session_id for message in messages if message.session_id is not None))


def _ttl_ms(message: BrokeredMessage) -> int | None:
    return None if message.time_to_live is None else duration_ms(message.time_to_live)
