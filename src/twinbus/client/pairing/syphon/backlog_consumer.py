"""A backlog queue while it is being drained: from the attach of its link until that is over.

Owns: what came on the link and where each message goes, the renewal of their locks, and the long poll. What is left
over at the end belongs to the next draining, of this host or another's.

Nothing is awaited here while an exception is handled: compiled, a coroutine forgets that exception over an await, and
who raises it again raises what is not there any more.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from twinbus.amqp.errors import DecodeError
from twinbus.amqp.message import Message, Section
from twinbus.amqp.outcomes import RELEASED
from twinbus.amqp.types import Array
from twinbus.client.errors import ObjectClosed
from twinbus.client.pairing.backlog.rewriting import (
    DEFAULT_LOCK_MS,
    ExpiredMessage,
    RestoredMessage,
    restore,
    summarize_parked,
    was_delivered,
)
from twinbus.client.pairing.errors import ParkedMessageMalformed, PrimaryLost
from twinbus.client.pairing.failover.namespace_outages import lost_namespace
from twinbus.client.pairing.observe.events import EventKind
from twinbus.client.pairing.syphon.deferred_requests import (
    STATUS_DEAD_LETTERED,
    STATUS_DEFERRED,
    DeferredRequests,
    possible_duplicate_change,
)
from twinbus.client.pairing.syphon.destination import Destination
from twinbus.client.pairing.syphon.parked_message import (
    MODIFIED_IN_DOUBT,
    DeferredParkedMessage,
    DeferredSettlement,
    DeliveredParkedMessage,
    dead_letter,
    release_all,
)
from twinbus.client.pairing.syphon.withheld_messages import WithheldPaths
from twinbus.model.annotations import DEFERRED_STATE, MESSAGE_STATE, SEQUENCE_NUMBER
from twinbus.model.errors import MessageLockLost, MessageNotFound, ServiceBusError
from twinbus.model.path import canonical_key

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from twinbus.amqp.delivery import IncomingDelivery
    from twinbus.client.amqp.receiver_link import ReceiverLink
    from twinbus.client.pairing.syphon.parked_message import ParkedMessage
    from twinbus.client.pairing.syphon.pump import PumpSettings
    from twinbus.client.receiver import MessageReceiver

log: Final = logging.getLogger(__name__)

PREFETCH_WINDOW: Final = 500
"""Messages of one backlog queue that are on their way at a time."""
MAX_TRACKED: Final = 2 * PREFETCH_WINDOW
"""Messages that are kept: with what was answered, looked through once a window, whose memory serves those to come."""
TICK_INTERVAL_S: Final = 5.0
FINISH_TIMEOUT_S: Final = 5.0
"""How long the end of a draining waits for answers."""
RENEW_AFTER_S: Final = 20.0
"""A lock of a backlog queue lasts a minute."""
RELEASE_TIMEOUT_S: Final = 2.0
EXCLUSIVE_CHECK_S: Final = 0.1
"""How often a pump that may have lost its queue looks whether it is certainly its own again."""
_MALFORMED_REASON: Final = "ParkedMessageMalformed"
_EXPIRED_REASON: Final = "TTLExpiredException"


class BacklogConsumer:
    """One life of a pump."""

    def __init__(
        self,
        settings: PumpSettings,
        receiver: MessageReceiver,
        link: ReceiverLink,
        possibly_delivered: set[int],
        lock_ms: int = DEFAULT_LOCK_MS,
    ) -> None:
        """`link` is attached. `in_doubt` has the numbers of messages that this host may have sent before.

        `lock_ms` is how long the backlog queue locks messages.
        """
        self._settings = settings
        self._lock_ms = lock_ms
        self._receiver = receiver
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._destinations: dict[str, Destination] = {}
        self._destination_by_path: dict[str, Destination] = {}
        """The same, by their paths as messages have them."""
        self._end_reason: asyncio.Future[ServiceBusError] = self._loop.create_future()
        self._credit_drained: asyncio.Future[None] | None = None
        self._wake_up = asyncio.Event()
        self._previous_on_arrival = link.on_arrival
        """Who hears of arrivals when this is over: the receiver."""
        self._unsettled: dict[IncomingDelivery, float] = {}
        """What came on the link and is not settled, with the time its lock is good from."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._deferred_requests = DeferredRequests(receiver)
        self._deferred_settlement = DeferredSettlement(self._deferred_requests, self._start_task)
        self.withheld_paths = WithheldPaths(
            receiver, is_possible=link.lease is not None
        )  # a lease: the server is a twinbus
        self._possibly_delivered = possibly_delivered
        self._last_arrival_s = self._loop.time()
        self._exclusive_wait: asyncio.Task[None] | None = None

    async def run(self) -> ServiceBusError:
        """Drain until the link is over, or the primary gone; why. Then, or whatever it raises, it is ended (`end`)."""
        await self._find_deferred()
        self._link.on_arrival = self._on_arrival
        self._link.on_ended = self._set_end_reason
        if self._link.failure is not None:
            return self._link.failure
        self._grant_credit()
        while not self._end_reason.done():
            await self._wait_for_work()
            if not self._end_reason.done():
                await self._tick()
        self._link.stop_topping_up()
        if self._link.is_open:  # its `failure` was None above, and what is compiled takes that for granted
            await self._finish()
        return self._end_reason.result()

    async def end(self) -> None:
        """Give back what was not settled."""
        self._release_unsettled()
        await self._release_deferred()

    async def _wait_for_work(self) -> None:
        """Until there is something to do: soon, while messages are on their way; else when the poll is over."""
        idle_s = self._last_arrival_s + self._settings.poll_s - self._loop.time()
        self._wake_up.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(
                TICK_INTERVAL_S if self._unsettled or self._deferred_settlement.locked_since_s else max(0.0, idle_s)
            ):
                await self._wake_up.wait()

    def stop(self) -> None:
        """End it well, soon."""
        self._set_end_reason(ObjectClosed("the pump was stopped"))

    def on_primary_lost(self, path: str, error: ServiceBusError) -> None:
        """End it because the primary cannot be reached; the credit is taken back before anything else is parked."""
        if not self._end_reason.done():
            self._link.stop_topping_up()
            self._link.drain()
            self._end_with_primary_lost(path, error)

    async def _finish(self) -> None:
        """Complete what the primary accepts of what is on its way: given back, it would be sent again."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FINISH_TIMEOUT_S):
                await asyncio.gather(*[destination.finish() for destination in self._destinations.values()])
                await asyncio.sleep(0)  # what was completed in this turn is told at its end
                if self._tasks:
                    await asyncio.wait(list(self._tasks))

    def _grant_credit(self) -> None:
        """Receive, unless it is over: a message that comes then goes back unsent, and is charged again."""
        if not self._end_reason.done():
            self._link.keep_credit(PREFETCH_WINDOW)

    def _set_end_reason(self, error: ServiceBusError) -> None:
        if not self._end_reason.done():
            self._end_reason.set_result(error)
            self._wake_up.set()

    def _end_with_primary_lost(self, path: str, error: ServiceBusError) -> None:
        self._set_end_reason(PrimaryLost(path, error))

    def _release_unsettled(self) -> None:
        """What was not settled goes back to its place, to be the first of the next draining.

        What was never sent is released; what may have arrived is given back with a delivery on its count.
        """
        sent: set[IncomingDelivery] = set()
        for destination in self._destinations.values():
            for parcel in destination.close():
                self._possibly_delivered.add(parcel.sequence_number)
                parcel.mark_possible_duplicate()
                if isinstance(parcel, DeliveredParkedMessage):
                    sent.add(parcel.delivery)
        self._link.stop_topping_up()
        self._link.on_arrival, self._link.on_ended = (
            self._previous_on_arrival,
            None,
        )  # closing the receiver drains the rest
        left = [delivery for delivery in self._unsettled if not delivery.answered]
        self._link.release([delivery for delivery in left if delivery in sent], MODIFIED_IN_DOUBT)
        self._link.release([delivery for delivery in left if delivery not in sent], RELEASED)
        for task in list(self._tasks):
            task.cancel()

    async def _release_deferred(self) -> None:
        """Those that were taken back from the deferred ones are free at once, not only when their locks are over."""
        asked = [task for destination in self._destinations.values() for task in destination.receive_tasks]
        if asked:
            await asyncio.wait(asked, timeout=RELEASE_TIMEOUT_S)
        giving_back: list[asyncio.Future[None]] = []
        for is_marked in (False, True):
            some = [parcel for parcel in self._deferred_settlement.locked_since_s if parcel.is_marked is is_marked]
            if some:
                giving_back.append(
                    self._deferred_settlement.settle(
                        some, STATUS_DEFERRED, possible_duplicate_change(is_marked=is_marked)
                    )
                )
        with suppress(TimeoutError):
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                await asyncio.gather(*giving_back, return_exceptions=True)

    # --- messages in --------------------------------------------------------------------------------------------------

    def _on_arrival(self) -> None:
        """Messages have come, or a drain is over."""
        arrived = self._link.arrived
        if arrived and self.has_exclusive_access():
            self._last_arrival_s = now_s = self._loop.time()
            now_ms = self._settings.clock.wall_ms()
            if not self._unsettled:
                self._wake_up.set()
            is_any_deferring = any(destination.is_deferring for destination in self._destinations.values())
            while arrived:
                delivery = arrived.popleft()
                self._unsettled[delivery] = now_s
                if not is_any_deferring or not self._defer_unrestored(delivery):
                    self._route(delivery, now_ms)
            if len(self._unsettled) > MAX_TRACKED:
                self._remove_answered()
        if self._credit_drained is not None and not self._credit_drained.done() and not self._link.is_draining:
            self._credit_drained.set_result(None)

    def _route(self, delivery: IncomingDelivery, now_ms: int) -> None:
        """Send one message on its way, or to the dead letters."""
        try:
            restored = restore(
                delivery.payload, now_ms, deduct_parked_time=self._settings.deduct_parked_time, lock_ms=self._lock_ms
            )
        except ParkedMessageMalformed as error:
            self._dead_letter(delivery, None, _MALFORMED_REASON, str(error))
            return
        if isinstance(restored, ExpiredMessage):
            self._dead_letter(delivery, restored.path, _EXPIRED_REASON, restored.description)
            return
        arrived = DeliveredParkedMessage(self._link, delivery, restored, self._last_arrival_s)
        self._destination_for(restored.path).submit(self._marked_if_in_doubt(arrived))

    def _defer_unrestored(self, delivery: IncomingDelivery) -> bool:
        """Defer a message whose destination takes nothing now, as it is; False if it is to be sorted."""
        try:
            looked = summarize_parked(delivery.payload)
        except ParkedMessageMalformed:
            return False
        destination = self._destination_for(looked.path)
        if not destination.is_deferring:
            return False
        as_it_is = RestoredMessage(looked.path, looked.session_id, delivery.payload, looked.sequence_number)
        destination.submit(self._marked_if_in_doubt(DeliveredParkedMessage(self._link, delivery, as_it_is)))
        return True

    def _marked_if_in_doubt(self, message: DeliveredParkedMessage) -> DeliveredParkedMessage:
        """The same; marked, if this host may have sent it and its backlog queue has not heard of that."""
        if self._possibly_delivered and message.sequence_number in self._possibly_delivered:
            message.mark_possible_duplicate()
        return message

    def _dead_letter(self, delivery: IncomingDelivery, path: str | None, reason: str, description: str) -> None:
        is_marked = _may_have_been_delivered(delivery.payload)
        dead_letter(self._link, delivery, reason, description, is_marked=is_marked).add_done_callback(_log_failure)
        self._emit_dead_lettered(delivery.payload, path, reason, description)

    def _emit_dead_lettered(self, payload: bytes, path: str | None, reason: str, description: str) -> None:
        self._settings.events.emit(
            EventKind.DEAD_LETTERED,
            path=path,
            backlog_queue=self._receiver.path,
            sequence_number=_sequence_number_in(payload),
            reason=f"{reason}: {description}",
        )

    def _destination_for(self, path: str) -> Destination:
        destination = self._destination_by_path.get(path) or self._destinations.get(canonical_key(path))
        if destination is None:
            destination = self._destinations[canonical_key(path)] = Destination(
                self._settings.sender_to(path),
                self._receiver.path,
                self._settings.events,
                source=self,
                on_primary_lost=partial(self._end_with_primary_lost, path),
                wakeups=self._settings.wakeups,
                not_found_grace_s=self._settings.not_found_grace_s,
            )
        self._destination_by_path[path] = destination
        return destination

    # --- the claim ----------------------------------------------------------------------------------------------------

    def has_exclusive_access(self) -> bool:
        """Whether the queue is certainly ours: another host may have it after we were silent (`client.lease`).

        If not, nothing is sent, deferred or dead-lettered until it is: what we hold may be the other host's by now.
        """
        link = self._link
        if link.failure is not None:
            return False
        if self._exclusive_wait is None and (link.lease is None or link.lease.is_valid):
            return True  # else what waits since then is sent first
        if self._exclusive_wait is None and not self._end_reason.done():
            self._exclusive_wait = self._start_task(self._wait_for_exclusive_access())
        return False

    async def _wait_for_exclusive_access(self) -> None:
        link = self._link
        while link.failure is None and not (link.lease is None or link.lease.is_valid):  # noqa: ASYNC110  # time passes
            await asyncio.sleep(EXCLUSIVE_CHECK_S)
        self._exclusive_wait = None
        if link.failure is None and not self._end_reason.done():
            for destination in list(self._destinations.values()):
                destination.resume()
            self._on_arrival()

    # --- deferred ones ------------------------------------------------------------------------------------------------

    async def _find_deferred(self) -> None:
        """What an earlier pump has put aside comes before all that waits for the same destination (Q19)."""
        start = 1
        while start:
            start = self._assign_deferred(await self._deferred_requests.peek(start))

    def _assign_deferred(self, payloads: Sequence[bytes]) -> int:
        """Give the destinations the numbers of their deferred messages; the number to go on from, 0 after the last."""
        number = 0
        for payload in payloads:
            number = _sequence_number_in(payload)
            try:
                looked = summarize_parked(payload)
            except ParkedMessageMalformed:
                log.warning("deferred message %d of '%s' is none of ours", number, self._receiver.path)
                continue
            if looked.is_deferred:
                self._destination_for(looked.path).add_deferred(number)
        return number + 1 if payloads else 0

    @property
    def max_per_request(self) -> int:
        """How many deferred messages fit in one request."""
        return self._deferred_requests.max_per_request

    async def receive_deferred(self, sequence_numbers: Sequence[int]) -> list[ParkedMessage]:
        """Deferred messages by their numbers, in order; one that is not there any more is somebody else's affair.

        MessageNotFound where one is there and cannot be had: a pump that was killed holds it until its lock is over.
        """
        asked_s = self._loop.time()
        missing: MessageNotFound | None = None
        taken: list[tuple[bytes, uuid.UUID]] = []
        try:
            taken = await self._deferred_requests.receive(sequence_numbers)
        except MessageNotFound as error:
            missing = error
        if missing is not None:
            there = await self._still_deferred(sequence_numbers)
            if len(there) == len(sequence_numbers):
                raise missing
            return await self.receive_deferred(there) if there else []
        self._wake_up.set()  # their locks are to be renewed
        now_ms = self._settings.clock.wall_ms()
        parcels = [self._restore_deferred(payload, lock, now_ms) for payload, lock in taken]
        opened = [parcel for parcel in parcels if parcel is not None]
        opened.sort(key=_sequence_number_of)
        self._deferred_settlement.locked_since_s.update(dict.fromkeys(opened, asked_s))
        return [*opened]

    def _restore_deferred(self, payload: bytes, lock_token: uuid.UUID, now_ms: int) -> DeferredParkedMessage | None:
        """A message that was taken back; None if it goes to the dead letters."""
        restored: RestoredMessage | ExpiredMessage
        try:
            restored = restore(
                payload, now_ms, deduct_parked_time=self._settings.deduct_parked_time, lock_ms=self._lock_ms
            )
        except ParkedMessageMalformed as error:
            self._dead_letter_deferred(payload, lock_token, None, _MALFORMED_REASON, str(error))
            return None
        if isinstance(restored, ExpiredMessage):
            self._dead_letter_deferred(payload, lock_token, restored.path, _EXPIRED_REASON, restored.description)
            return None
        parcel = DeferredParkedMessage(self._deferred_settlement, restored, lock_token)
        if self._possibly_delivered and parcel.sequence_number in self._possibly_delivered:
            parcel.mark_possible_duplicate()
        return parcel

    def _dead_letter_deferred(
        self, payload: bytes, lock_token: uuid.UUID, path: str | None, reason: str, description: str
    ) -> None:
        why: dict[str, object] = {"deadletter-reason": reason, "deadletter-description": description}
        why |= possible_duplicate_change(is_marked=_may_have_been_delivered(payload))
        self._start_task(self._deferred_requests.settle(STATUS_DEAD_LETTERED, [lock_token], why)).add_done_callback(
            _log_failure
        )
        self._emit_dead_lettered(payload, path, reason, description)

    def restore_again(self, message: DeliveredParkedMessage) -> bool:
        """Restore a message that was kept for a while as it is now; False if its time is over: it is dead-lettered."""
        now_ms, waited_ms = self._settings.clock.wall_ms(), round((self._loop.time() - message.received_s) * 1000)
        lock_ms = self._lock_ms - waited_ms  # as if it had been locked now: it is parked until then
        restored = restore(
            message.delivery.payload, now_ms, deduct_parked_time=self._settings.deduct_parked_time, lock_ms=lock_ms
        )
        if isinstance(restored, ExpiredMessage):
            message.dead_letter(_EXPIRED_REASON, restored.description).add_done_callback(_log_failure)
            self._emit_dead_lettered(message.delivery.payload, restored.path, _EXPIRED_REASON, restored.description)
            return False
        message.restored = restored
        if message.is_marked:
            message.mark_possible_duplicate()
        return True

    def release(self, messages: Sequence[DeliveredParkedMessage]) -> list[asyncio.Future[None]]:
        """Release messages that the queue withholds; those that may have been sent, with a delivery on their count."""
        self._possibly_delivered.update([parcel.sequence_number for parcel in messages if parcel.is_marked])
        return release_all(messages)

    async def _still_deferred(self, sequence_numbers: Sequence[int]) -> list[int]:
        """Which of these are there, whoever has them now."""
        wanted, start, there = set(sequence_numbers), min(sequence_numbers), set[int]()
        while start and start <= max(wanted):
            found = [
                _sequence_number_in(payload)
                for payload in await self._deferred_requests.peek(start)
                if _is_deferred(payload)
            ]
            there.update(number for number in found if number in wanted)
            start = found[-1] + 1 if found else 0
        return sorted(there)

    def _start_task(self, coroutine: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- time ---------------------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        """Renew locks, give up on what has no answer, and begin the next poll when this one is over."""
        self._remove_answered()
        await self._renew_locks()
        for destination in self._destinations.values():
            destination.expire_sends(self._settings.send_timeout_s)
        if not self._unsettled and self._loop.time() - self._last_arrival_s >= self._settings.poll_s:
            await self._restart_poll()

    def _remove_answered(self) -> None:
        self._unsettled = {delivery: since_s for delivery, since_s in self._unsettled.items() if not delivery.answered}

    async def _restart_poll(self) -> None:
        """Give the credit back and grant it anew: what a receive call was in the original."""
        self._last_arrival_s = self._loop.time()
        if self._link.drain():
            self._credit_drained = self._loop.create_future()
            over: list[asyncio.Future[Any]] = [self._credit_drained, self._end_reason]
            await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
        self._grant_credit()

    async def _renew_locks(self) -> None:
        now_s = self._loop.time()
        due = [delivery for delivery, since_s in self._unsettled.items() if now_s - since_s >= RENEW_AFTER_S]
        since_s_of = self._deferred_settlement.locked_since_s
        deferred = [parcel for parcel, since_s in since_s_of.items() if now_s - since_s >= RENEW_AFTER_S]
        locks: list[object] = [uuid.UUID(bytes_le=delivery.tag) for delivery in due]
        locks += [parcel.lock_token for parcel in deferred]
        if not locks:
            return
        lost = await self._renew(locks)
        for delivery, lock in zip(due, locks, strict=False):
            if lock in lost:  # it comes again; asked for once more, it would keep the others from being renewed
                self._unsettled.pop(delivery, None)
            else:
                self._unsettled[delivery] = now_s
        for parcel in deferred:
            if parcel in since_s_of:
                since_s_of[parcel] = now_s

    async def _renew(self, lock_tokens: list[object]) -> set[object]:
        """Renew locks, all in one request if none is lost; those that are lost."""
        failure: ServiceBusError | None = None
        body: dict[str, object] = {"lock-tokens": Array(uuid.UUID, lock_tokens)}
        try:
            await self._receiver.factory.request(
                self._receiver.path, "com.microsoft:renew-lock", body, timeout_s=TICK_INTERVAL_S
            )
        except ServiceBusError as error:
            failure = error
        if failure is None:
            return set()
        if not isinstance(failure, MessageLockLost):
            level = logging.WARNING if lost_namespace(failure) is None else logging.DEBUG  # an outage is told once
            log.log(level, "locks of '%s' were not renewed: %s", self._receiver.path, failure)
            return set()
        if len(lock_tokens) == 1:
            return set(lock_tokens)
        half = len(lock_tokens) // 2
        return await self._renew(lock_tokens[:half]) | await self._renew(lock_tokens[half:])


def _sequence_number_in(payload: bytes) -> int:
    number = Message(payload).lookup(Section.MESSAGE_ANNOTATIONS, SEQUENCE_NUMBER)
    return int(number) if isinstance(number, int) else 0


def _sequence_number_of(message: DeferredParkedMessage) -> int:
    return message.sequence_number


def _is_deferred(payload: bytes) -> bool:
    state = Message(payload).lookup(Section.MESSAGE_ANNOTATIONS, MESSAGE_STATE)
    return state == DEFERRED_STATE


def _may_have_been_delivered(payload: bytes) -> bool:
    """As far as can be read."""
    try:
        return was_delivered(payload)
    except DecodeError:
        return True


def _log_failure(future: asyncio.Future[None]) -> None:
    """A message whose settling failed comes again."""
    if not future.cancelled() and (error := future.exception()) is not None:
        log.warning("a parked message was not dead-lettered: %s", error)
