"""A send of a paired sender that needs more than the first attempt at the primary.

Owns: the steps after a failure (another attempt, waiting, parking, spooling, or raising the error), and the time limit
of the operation, of which each step gets a share. The first attempt at a healthy primary is made by the sender, without
this class.

The messages of a batch may take different routes (`batch_portion`). Messages for the primary are sent first; messages
whose fragment is down are parked afterwards, so that no message is parked if the primary refuses the batch.
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
"""The divisor for the time limit of a backlog queue: each attempt gets 1/3 of the remaining time, and the last queue
all of it."""
HOLD_PAUSE_S: Final = 1.0
"""The longest pause of a held send before it retries the primary."""
SPOOL_SHARE: Final = 10
"""The divisor for the time reserved for the spool: 1/10 of the operation's time, if there is a spool."""
MIN_SPOOL_TIMEOUT_S: Final = 1.0
"""The time the spool gets even if the operation's time is up."""


class SendOperation:
    """The send of one message or batch, until each message is stored or the send has failed.

    A message is stored once the primary, a backlog queue or the spool has confirmed it.
    """

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
        """Create an operation that may take `limit_s` in total; `deadline_s` is its deadline in loop time."""
        self._pairing = pairing
        self._sender = sender
        self._health = sender.health
        self._queue_choice = sender.queue_choice
        self._portion = BatchPortion(payload, message_format, messages)
        """The messages that are not stored yet and go to the primary next."""
        self._held_portion: BatchPortion | None = None
        """The messages that are not stored yet and are parked next, because their fragments are down."""
        self._stored_positions: set[int] = set()
        """The positions of messages that are stored."""
        self._parking_turn: ParkingTurn | None = None
        """The turn to park the held messages."""
        self._limit_s = limit_s
        self._deadline_s = deadline_s
        self._loop = asyncio.get_running_loop()
        self._primary_error: ServiceBusError | None = None
        self._unsure_positions: set[int] = set()
        """The positions of messages that an attempt may have stored. Later attempts send these messages with a mark as
        possible duplicates."""
        self._is_fragment_down = False
        """Whether the primary reported a fragment outage, but the keys do not show which messages it affects, so that
        all messages are parked."""
        self._spool = pairing.spool
        self._is_from_spool = False
        self._hold_deadline_s: float | None = None
        self._backoff: Backoff | None = None
        """The back-off for a busy namespace; created on first use."""

    async def run_from_spool(self, *, may_have_arrived: bool, stored: Collection[int] = ()) -> None:
        """Send spooled messages, without spooling them again.

        `may_have_arrived` means that an earlier attempt got no response. `stored` has the positions of messages that
        earlier attempts stored, and that are not sent again.
        """
        self._spool, self._is_from_spool = None, True
        self._unsure_positions.update(self._portion.positions if may_have_arrived else ())
        self._stored_positions.update(stored)
        self._portion = self._portion.without(stored)
        await self.run()

    async def run(self, failure: ServiceBusError | None = None) -> None:
        """Continue from the entity's current state; `failure` is the error of an attempt that was already made.

        An error that this method raises covers all attempts: whether one of them may have stored messages, and which
        messages of a batch are stored.
        """
        try:
            if failure is not None:
                self._note_failure(failure, self._portion)
            await self._run_steps(failure)
        except ServiceBusError as error:
            adjusted = self._adjusted(error)
            if adjusted is error:
                raise
            raise adjusted from error
        finally:
            if self._parking_turn is not None:
                self._parking_turn.end()

    def _adjusted(self, error: ServiceBusError) -> ServiceBusError:
        if isinstance(error, NotSent):
            return error  # NotSent already covers all attempts
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
        """Send the current portion to the primary; return the error if not all of it was accepted."""
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
        """Return the portions to send, with possible duplicates marked, split where they are too large.

        A batch from the spool can be too large although none of its messages is too large, because the size of the
        batch was not checked when it was spooled.
        """
        marked = self._portion.marked(self._unsure_positions)
        if marked is not self._portion:
            return marked.split_to_fit(self._sender.check_marked_size)
        return marked.split_to_fit(self._check_batch_size) if self._is_from_spool else [marked]

    def _check_batch_size(self, payload: bytes, message_format: int) -> None:
        if message_format == BATCH_FORMAT:
            self._sender.check_marked_size(payload, message_format)

    def _note_failure(self, error: ServiceBusError, portion: BatchPortion) -> None:
        """Record what the primary's error says about each message: stored, possibly stored, or not stored."""
        if not isinstance(error, PartlyStored):
            self._unsure_positions.update(portion.positions if error.may_have_happened else ())
            return
        stored = portion.positions_at(error.stored)
        self._note_stored(portion.only(stored))
        unsure = set(portion.positions) if error.unsure is None else portion.positions_at(error.unsure)
        self._unsure_positions |= unsure - stored

    def _note_stored(self, portion: BatchPortion) -> None:
        """Record that the primary has stored these messages."""
        self._stored_positions.update(portion.positions)
        self._portion = self._portion.without(portion.positions)
        self._health.send_succeeded()
        self._sender.publish_sent(portion.messages, is_from_spool=self._is_from_spool)

    async def _handle_failure(self, error: ServiceBusError) -> None:
        """Handle a failure of the primary. Return when the next step can start, or raise the error."""
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
        """Raise `error` if the sender was closed, since the error then says nothing about the primary."""
        if self._sender.is_closed or self._pairing.primary.ended.is_set():
            raise error

    def _note_fragment_outage(self, error: ServiceBusError) -> bool:
        """Note a fragment outage if the error reports one; return whether only that fragment's messages are parked."""
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
        """Hold back messages whose fragments are down; they are parked once the primary has stored the others."""
        down = self._health.fragment_outages.affected_messages(self._portion.messages)
        if not down:
            return
        if len(down) == len(self._portion):
            held, others = self._portion, self._portion.only(())
        else:
            positions = self._portion.positions_at(down)
            held, others = self._portion.only(positions), self._portion.without(positions)
            # Check before the other messages are sent, because a message that cannot be parked must fail the whole
            # batch.
            for payload in held.payloads:
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
        """Put the held messages back into the portion, in order."""
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
        """Wait as long as the busy server asks, or raise the error if the wait would exceed the operation's time.

        A busy server does not trigger failover.
        """
        pause_s = self._busy_backoff().next_busy_pause_s(error, self._left_s())
        if pause_s is None:
            raise error
        await asyncio.sleep(pause_s)

    def _busy_backoff(self) -> Backoff:
        if self._backoff is None:
            self._backoff = Backoff(self._sender.factory.settings.retry_policy)
        return self._backoff

    async def _wait_in_failover_interval(self) -> None:
        """Wait until the entity's state changes, but at most `HOLD_PAUSE_S`; then the send is retried or parked.

        After the failover interval, raise the primary's error instead of waiting. An entity whose other fragments
        accept sends never fails over, so the wait would never end.
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
        # The wait does not count towards the time limit: otherwise no send could be held for a failover interval that
        # is longer than the time limit.
        self._deadline_s = self._loop.time() + self._limit_s

    def _left_s(self) -> float:
        return max(0.0, self._deadline_s - self._loop.time())

    def _left_to_park_s(self) -> float:
        reserved_s = 0.0 if self._spool is None else self._limit_s / SPOOL_SHARE
        return max(0.0, self._left_s() - reserved_s)

    # --- parking ------------------------------------------------------------------------------------------------------

    async def _park(self) -> None:
        """Park the portion in a backlog queue. A batch that is too large to be parked is split, in order."""
        with suppress(MessageCannotBeParked):
            await self.park_whole()
            return
        for portion in self._portion.split_to_fit(partial(self._sender.park, is_possible_duplicate=True)):
            self._portion = portion
            # If an earlier portion was spooled, the later messages of its sessions must follow it.
            if self._spool is not None and self._sender.is_behind_spool(portion.messages):
                await self.spool_behind()
            else:
                await self.park_whole()

    async def park_whole(self) -> None:
        """Park the portion in the chosen backlog queue, or, if that fails, in any other queue while there is time."""
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
        """Try each backlog queue once; return whether one accepted the portion. Collect errors in `reasons`."""
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
        """Return the pause for a busy secondary; None if no queue is busy, if time is up, or if there is a spool.

        A spool can store the message at once. Without a spool, the send waits, because the secondary is only busy.
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
        own_error = primary or self._primary_error
        primary_error = own_error or self._health.failure or (None if outage is None else outage.failure)
        unsure = self._unsure_positions - self._stored_positions
        is_batch = len(self._portion.messages) + len(self._stored_positions) > 1
        return NotSent(
            self._sender.path,
            primary_error,
            reasons,
            spool=spool,
            may_have_happened=bool(unsure),
            stored=sorted(self._stored_positions),
            unsure=sorted(unsure) if is_batch else None,
            is_failed_over=own_error is None and self._health.failure is not None,
        )

    async def _park_in(self, queue: BacklogQueue, *, is_last: bool) -> ServiceBusError | None:
        """Park the portion in this queue; return the error if that fails. Retry once if the connection was lost."""
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
        # Each attempt encodes the messages again: after an attempt without an outcome, they are marked as possible
        # duplicates.
        portion = self._portion.marked(self._unsure_positions)
        parked = self._sender.park(portion.payload, portion.message_format, is_possible_duplicate=False)
        left_s = self._left_to_park_s()
        share_s = left_s if is_last else left_s / BACKLOG_QUEUE_SHARE
        try:
            await queue.sender.deliver(parked, portion.message_format, timeout_s=share_s, policy=NO_RETRY)
        except MessageTooLarge:
            raise  # not a failure of the queue
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

    # --- spooling -----------------------------------------------------------------------------------------------------

    async def spool_behind(self) -> None:
        """Store the portion in the spool, behind the earlier messages of its sessions, which it must not overtake."""
        await self._spool_portion({})

    async def _spool_portion(self, reasons: Mapping[str, BaseException]) -> None:
        """Store the portion in the spool. Raise NotSent, with all reasons, if the spool cannot store it."""
        if self._spool is None:
            raise self._not_sent(reasons)
        self._sender.check_open()
        portion, messages = self._portion, self._portion.messages
        is_unsure = self._unsure_positions.issuperset(portion.positions)
        if not is_unsure:  # if all messages may be stored, `may_have_arrived` of the record has the same effect
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
                f"the disk did not answer within {limit_s:g} s; if it stores the message later, the message is sent",
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
    """Return the session ids of messages, without duplicates."""
    return list(dict.fromkeys(message.session_id for message in messages if message.session_id is not None))


def _time_to_live_ms(message: BrokeredMessage) -> int | None:
    return None if message.time_to_live is None else duration_ms(message.time_to_live)
