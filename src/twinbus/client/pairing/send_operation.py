"""One send of a paired sender that is more than one attempt.

Owns: what follows a failure: another attempt, waiting, parking, spooling, or the error. And the operation's time, of
which each step gets its share. The first attempt at a healthy primary is the sender's own, and costs nothing of this.

The messages of a batch may part (`portion`). What goes to the primary goes first; messages that are held back because
their fragment is down are parked after that, so that nothing is parked of a batch that the primary refuses.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from twinbus.client.errors import ConnectionFailed, ConnectionLost, TimedOut
from twinbus.client.events import FROM_SPOOL
from twinbus.client.pairing.batch_portion import BatchPortion
from twinbus.client.pairing.errors import MessageCannotBeParked, NotSent, SpoolFailed
from twinbus.client.pairing.failover.entity_health import EntityState
from twinbus.client.pairing.failover.fragment_outages import ping_key_for
from twinbus.client.pairing.observe.events import EventKind
from twinbus.client.pairing.spool.record import SpoolRecord
from twinbus.client.pairing.triggers import class_of
from twinbus.client.retry import NO_RETRY, NOT_SENT, Backoff, adjusted_send_error
from twinbus.model.errors import (
    FailureClass,
    FragmentUnavailable,
    MessageTooLarge,
    PartlyStored,
    ServerBusy,
    ServiceBusError,
)
from twinbus.model.message import BATCH_FORMAT
from twinbus.model.times import duration_ms, duration_s

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from twinbus.client.pairing.backlog.rotation import BacklogQueue
    from twinbus.client.pairing.failover.fragment_outages import ParkingTurn
    from twinbus.client.pairing.pairing import Pairing
    from twinbus.client.pairing.sender import SendAvailabilitySender
    from twinbus.model.message import BrokeredMessage

BACKLOG_QUEUE_SHARE: Final = 3
"""A backlog queue gets this part of the time that is left, unless it is the last one."""
HOLD_PAUSE_S: Final = 1.0
"""How long a held send waits before it tries the primary again."""
SPOOL_SHARE: Final = 10
"""Where there is a spool, this part of the operation's time is kept for it."""
MIN_SPOOL_TIMEOUT_S: Final = 1.0
"""What the spool gets if the time is over all the same."""


class SendOperation:
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
        self._queue_choice = sender.queue_choice
        self._portion = BatchPortion(payload, message_format, messages)
        """What is not safe yet, and goes to the primary next."""
        self._held_portion: BatchPortion | None = None
        """What is not safe yet, and is parked next, because its fragments are down."""
        self._stored_positions: set[int] = set()
        """The places of messages that are safe."""
        self._parking_turn: ParkingTurn | None = None
        """To park what is held."""
        self._limit_s = limit_s
        self._deadline_s = deadline_s
        self._loop = asyncio.get_running_loop()
        self._primary_error: ServiceBusError | None = None
        self._unsure_positions: set[int] = set()
        """The places of messages of which an attempt got no answer: they are marked wherever they are sent next."""
        self._is_fragment_down = False
        """The primary has just said so, of one that cannot be told from the keys here: all messages are parked."""
        self._spool = pairing.spool
        self._is_from_spool = False
        self._hold_deadline_s: float | None = None
        self._backoff: Backoff | None = None
        """For a busy namespace; made when one is busy."""

    async def run_from_spool(self, *, may_have_arrived: bool, stored: Collection[int] = ()) -> None:
        """Send what was spooled; it is not spooled again. `may_have_arrived`: some attempt before had no answer.

        `stored` are the places of messages that are safe since an earlier try: they are not sent again.
        """
        self._spool, self._is_from_spool = None, True
        self._unsure_positions.update(self._portion.positions if may_have_arrived else ())
        self._stored_positions.update(stored)
        self._portion = self._portion.without(stored)
        await self.run()

    async def run(self, failure: ServiceBusError | None = None) -> None:
        """Go on from the state the entity is in; `failure` is that of an attempt that was made already.

        Whatever error this raises speaks of all attempts: whether one of them may have arrived, and which messages of
        a batch are safe.
        """
        try:
            if failure is not None:
                self._note_failure(failure, self._portion)
            await self._run_steps(failure)
        except ServiceBusError as error:
            told = self._adjusted(error)
            if told is error:
                raise
            raise told from error
        finally:
            if self._parking_turn is not None:
                self._parking_turn.end()

    def _adjusted(self, error: ServiceBusError) -> ServiceBusError:
        if isinstance(error, NotSent):
            return error  # it says so itself
        if isinstance(error, PartlyStored):
            error.stored = sorted(self._stored_positions)
            error.unsure = None if error.unsure is None else sorted(self._unsure_positions - self._stored_positions)
            return error
        if self._stored_positions:
            return self._not_sent({}, primary=error)
        may_have_happened = bool(self._unsure_positions) or error.may_have_happened
        if isinstance(error, MessageCannotBeParked) and not may_have_happened:
            return error.copy_with(may_have_happened=False, text=f"{error}; {NOT_SENT}")
        return adjusted_send_error(error, may_have_happened=may_have_happened)

    async def _run_steps(self, failure: ServiceBusError | None) -> None:
        while True:
            if failure is None:
                state = self._health.state
                if state is EntityState.UNREACHABLE:
                    raise self._health.ping_refusal
                if state is EntityState.FAILED_OVER or self._is_fragment_down:
                    self._rejoin_held()
                    if self._portion:
                        await self._park()
                    return
                self._hold_back_messages()
                failure = await self._attempt_primary() if self._portion else None
                if failure is None:
                    await self._park_held()
                    return
            await self._handle_failure(failure)
            failure = None

    async def _attempt_primary(self) -> ServiceBusError | None:
        """Try the primary with what goes there; why it did not take all of it."""
        sender = self._sender
        try:
            copies = self._outgoing_portions()
        except MessageTooLarge as error:
            return error
        for portion in copies:
            left_s = self._left_s()
            attempt_s = min(
                self._pairing.primary_timeout_s(self._limit_s), left_s if self._held_portion is None else left_s / 2
            )
            try:
                await sender.deliver(
                    portion.payload, portion.message_format, timeout_s=attempt_s, policy=sender.retry_policy
                )
            except ServiceBusError as error:
                self._note_failure(error, portion)
                return error
            self._note_stored(portion)
        return None

    def _outgoing_portions(self) -> list[BatchPortion]:
        """Return what is sent: marked where an attempt may have arrived; in parts, if it is too large so.

        A batch from the spool may be too large as it is: nobody could tell the sender, and none of its messages is.
        """
        marked = self._portion.marked(self._unsure_positions)
        if marked is not self._portion:
            return marked.split_to_fit(self._sender.check_marked_size)
        return marked.split_to_fit(self._check_batch_size) if self._is_from_spool else [marked]

    def _check_batch_size(self, payload: bytes, message_format: int) -> None:
        if message_format == BATCH_FORMAT:
            self._sender.check_marked_size(payload, message_format)

    def _note_failure(self, error: ServiceBusError, portion: BatchPortion) -> None:
        """Take from a failure of the primary what it says of each message: stored, uncertain, or not stored."""
        if not isinstance(error, PartlyStored):
            self._unsure_positions.update(portion.positions if error.may_have_happened else ())
            return
        stored = portion.positions_at(error.stored)
        self._note_stored(portion.only(stored))
        unsure = set(portion.positions) if error.unsure is None else portion.positions_at(error.unsure)
        self._unsure_positions |= unsure - stored

    def _note_stored(self, portion: BatchPortion) -> None:
        """The primary has these."""
        self._stored_positions.update(portion.positions)
        self._portion = self._portion.without(portion.positions)
        self._health.send_succeeded()
        self._sender.publish_sent(portion.messages, is_from_spool=self._is_from_spool)

    async def _handle_failure(self, error: ServiceBusError) -> None:
        """What follows a failure of the primary: this returns when it is time for the next step, or raises."""
        self._check_not_closed(error)
        self._primary_error = error
        if self._note_fragment_outage(error):
            return
        kind = class_of(error, self._pairing.options.triggers)
        if kind is FailureClass.CALLER:
            raise error
        if kind is FailureClass.UNAVAILABLE:
            self._report_failure(error)
        state = self._health.state
        if state is EntityState.FAILED_OVER:
            return
        if state is EntityState.UNREACHABLE:
            raise error
        if kind is FailureClass.THROTTLED:
            await self._wait_for_busy(error)
        elif self._pairing.options.hold_during_failover_interval:
            await self._wait_in_failover_interval()
        else:
            raise error

    def _check_not_closed(self, error: ServiceBusError) -> None:
        """Raise `error` if the sender was closed: then it is our own end that failed, which says nothing of others."""
        if self._sender.is_closed or self._pairing.primary.ended.is_set():
            raise error

    def _note_fragment_outage(self, error: ServiceBusError) -> bool:
        """Whether the error says that a fragment is down whose messages are to be parked, and only those."""
        if not self._pairing.options.park_on_fragment_outage or error.fragment is None:
            return False
        outage = error
        if isinstance(error, PartlyStored):
            text = f"fragment {error.fragment} of '{self._sender.path}' did not store its messages of a batch"
            outage = FragmentUnavailable(text)
            outage.fragment = error.fragment
        is_down = isinstance(outage, FragmentUnavailable)
        if not is_down or class_of(outage, self._pairing.options.triggers) is not FailureClass.UNAVAILABLE:
            return False
        fragments, messages = self._health.fragment_outages, self._portion.messages
        fragments.note_failure(outage, messages)
        self._is_fragment_down = not fragments.affected_messages(messages)
        return True

    def _hold_back_messages(self) -> None:
        """Set messages aside whose fragments are down: they are parked when the primary has the others."""
        down = self._health.fragment_outages.affected_messages(self._portion.messages)
        if not down:
            return
        if len(down) == len(self._portion):
            held, others = self._portion, self._portion.only(())
        else:
            places = self._portion.positions_at(down)
            held, others = self._portion.only(places), self._portion.without(places)
            for payload in held.payloads:  # else the others would be at the primary when that is found out
                self._sender.park(payload, 0, is_possible_duplicate=True)
        numbers = set(down.values())
        if self._parking_turn is None:
            self._parking_turn = self._health.fragment_outages.take_turn(numbers, is_split=bool(others))
        else:
            self._parking_turn.fragment_numbers |= numbers
        self._held_portion, self._portion = (
            held if self._held_portion is None else self._held_portion.joined(held),
            others,
        )

    def _rejoin_held(self) -> None:
        """Let what was held go with the others, in order."""
        if self._held_portion is not None:
            self._portion, self._held_portion = self._portion.joined(self._held_portion), None

    async def _park_held(self) -> None:
        if self._held_portion is not None:
            if self._parking_turn is not None:
                await self._parking_turn.wait(self._left_to_park_s() / 2)
            self._rejoin_held()
            await self._park()

    def _report_failure(self, error: ServiceBusError) -> None:
        if isinstance(error, TimedOut):
            self._sender.factory.drop_if_silent(min(self._pairing.primary_timeout_s(self._limit_s), self._limit_s))
        self._health.send_failed(error, ping_key_for(error, self._portion.messages))

    async def _wait_for_busy(self, error: ServiceBusError) -> None:
        """A busy server is no reason to fail over: wait as it asks, or as long as there is time, and send again."""
        pause_s = self._busy_backoff().next_busy_pause_s(error, self._left_s())
        if pause_s is None:
            raise error
        await asyncio.sleep(pause_s)

    def _busy_backoff(self) -> Backoff:
        if self._backoff is None:
            self._backoff = Backoff(self._sender.factory.settings.retry_policy)
        return self._backoff

    async def _wait_in_failover_interval(self) -> None:
        """Wait a little: for a success, after which it is delivered, or for failover, when it is parked.

        Not longer than the interval: other fragments of the entity may succeed, and failover then never begins.
        """
        if self._hold_deadline_s is None:
            self._hold_deadline_s = (
                self._loop.time() + duration_s(self._pairing.options.failover_interval) + HOLD_PAUSE_S
            )
        elif self._loop.time() > self._hold_deadline_s and self._primary_error is not None:
            raise self._primary_error
        with suppress(TimeoutError):
            async with asyncio.timeout(HOLD_PAUSE_S):
                await self._health.state_changed.wait()
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
        with suppress(MessageCannotBeParked):
            await self.park_whole()
            return
        for portion in self._portion.split_to_fit(partial(self._sender.park, is_possible_duplicate=True)):
            self._portion = portion
            if self._spool is not None and self._sender.is_behind_spool(portion.messages):  # as an earlier part
                await self.spool_behind()
            else:
                await self.park_whole()

    async def park_whole(self) -> None:
        """Put it in the chosen backlog queue, or, when that fails, in any other, while there is time."""
        rotation = self._pairing.rotation
        reasons: dict[str, BaseException] = {}
        if not rotation.queues:
            await self._pairing.preparation.wait_for_first_attempt(self._left_to_park_s())
            if not rotation.queues:
                reasons[rotation.path_pattern] = self._pairing.preparation.failure
        while not await self._park_in_any(reasons):
            pause_s = self._pause_to_park_s(reasons)
            if pause_s is None:
                await self._spool_portion(reasons)
                return
            await asyncio.sleep(pause_s)

    async def _park_in_any(self, reasons: dict[str, BaseException]) -> bool:
        """Try each backlog queue once; whether one took it. `reasons` gets the failures of the others."""
        tried: list[BacklogQueue] = []
        queue = self._queue_choice.current()
        while queue is not None and self._left_to_park_s() > 0:
            tried.append(queue)
            error = await self._park_in(queue, is_last=len(tried) == len(self._pairing.rotation.queues))
            if error is None:
                self._stored_positions.update(self._portion.positions)
                self._emit_parked(queue)
                return True
            reasons[queue.path] = error
            queue = self._queue_choice.next(tried)
        return False

    def _pause_to_park_s(self, reasons: Mapping[str, BaseException]) -> float | None:
        """Return how long to wait for a busy secondary; None if none is busy, if time is over, or if there is a spool.

        The local disk takes a message at once; without one, a busy secondary is no reason to fail either.
        """
        busy = next((error for error in reasons.values() if isinstance(error, ServerBusy)), None)
        if busy is None or self._spool is not None:
            return None
        return self._busy_backoff().next_busy_pause_s(busy, self._left_s())

    def _not_sent(
        self,
        reasons: Mapping[str, BaseException],
        spool: ServiceBusError | None = None,
        primary: ServiceBusError | None = None,
    ) -> NotSent:
        outage = self._health.fragment_outages.outage_for(self._portion.messages)
        own = primary or self._primary_error
        why = own or self._health.failure or (None if outage is None else outage.failure)
        unsure = self._unsure_positions - self._stored_positions
        is_batch = len(self._portion.messages) + len(self._stored_positions) > 1
        return NotSent(
            self._sender.path,
            why,
            reasons,
            spool=spool,
            may_have_happened=bool(unsure),
            stored=sorted(self._stored_positions),
            unsure=sorted(unsure) if is_batch else None,
            is_failed_over=own is None and self._health.failure is not None,
        )

    async def _park_in(self, queue: BacklogQueue, *, is_last: bool) -> ServiceBusError | None:
        """Park it there; why that failed. A lost connection is made once more."""
        error = await self._try_to_park(queue, is_last=is_last)
        if isinstance(error, ConnectionLost | ConnectionFailed) and queue.failure is None:
            error = await self._try_to_park(queue, is_last=is_last)
        if error is None:
            self._pairing.rotation.note_success(queue)
        else:
            self._check_not_closed(error)
            self._pairing.rotation.note_failure(queue, error)
        return error

    async def _try_to_park(self, queue: BacklogQueue, *, is_last: bool) -> ServiceBusError | None:
        # Made anew each time: after a try without an answer the message may be there twice, and has to say so.
        portion = self._portion.marked(self._unsure_positions)
        parked = self._sender.park(portion.payload, portion.message_format, is_possible_duplicate=False)
        left_s = self._left_to_park_s()
        share_s = left_s if is_last else left_s / BACKLOG_QUEUE_SHARE
        try:
            await queue.sender.deliver(parked, portion.message_format, timeout_s=share_s, policy=NO_RETRY)
        except MessageTooLarge:
            raise  # the queue is as good as before
        except ServiceBusError as error:
            if isinstance(error, TimedOut):
                queue.sender.factory.drop_if_silent(share_s)
            self._unsure_positions.update(portion.positions if error.may_have_happened else ())
            return error
        return None

    def _emit_parked(self, queue: BacklogQueue) -> None:
        for message in self._portion.messages:
            self._pairing.event_publisher.emit(
                EventKind.PARKED,
                path=self._sender.path,
                backlog_queue=queue.path,
                message_id=message.message_id,
                session_id=message.session_id,
                time_to_live_ms=_time_to_live_ms(message),
                reason=FROM_SPOOL if self._is_from_spool else None,
            )

    # --- the last resort ----------------------------------------------------------------------------------------------

    async def spool_behind(self) -> None:
        """Keep it on the local disk because what its session sent before is there: it must not overtake that."""
        await self._spool_portion({})

    async def _spool_portion(self, reasons: Mapping[str, BaseException]) -> None:
        """Keep it on the local disk. NotSent, with all reasons, if that does not take it either."""
        if self._spool is None:
            raise self._not_sent(reasons)
        self._sender.check_open()
        portion, messages = self._portion, self._portion.messages
        is_unsure = self._unsure_positions.issuperset(portion.positions)
        if not is_unsure:  # else the record says it of all of them
            portion = portion.marked(self._unsure_positions)
        record = SpoolRecord(
            path=self._sender.path,
            message_format=portion.message_format,
            payload=portion.payload,
            may_have_arrived=is_unsure,
            spooled_at_ms=self._sender.factory.settings.clock.wall_ms(),
            message_ids=[str(message.message_id) for message in messages],
            session_ids=session_ids_of(messages),
        )
        limit_s = max(self._left_s(), MIN_SPOOL_TIMEOUT_S)
        try:
            async with asyncio.timeout(limit_s):
                await self._spool.append(record)
        except TimeoutError:
            self._unsure_positions.update(portion.positions)
            error = SpoolFailed(
                f"the disk gave no answer within {limit_s:g} s; if it takes the message, that is sent",
                may_have_happened=True,
            )
            raise self._not_sent(reasons, error) from None
        except SpoolFailed as error:
            raise self._not_sent(reasons, error) from error
        self._stored_positions.update(self._portion.positions)
        for message in messages:
            self._pairing.event_publisher.emit(
                EventKind.SPOOLED,
                path=self._sender.path,
                message_id=message.message_id,
                session_id=message.session_id,
                time_to_live_ms=_time_to_live_ms(message),
                reason=str(self._primary_error or self._health.failure or "its session has messages in the spool"),
            )


def session_ids_of(messages: Sequence[BrokeredMessage]) -> list[str]:
    """The sessions of messages, each once."""
    return list(dict.fromkeys(message.session_id for message in messages if message.session_id is not None))


def _time_to_live_ms(message: BrokeredMessage) -> int | None:
    return None if message.time_to_live is None else duration_ms(message.time_to_live)
