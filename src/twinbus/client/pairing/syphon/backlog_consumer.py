"""The consumer of a backlog queue, from attaching its link until the link or the primary is lost.

Owns: the messages delivered on the link and their routing to destinations, the renewal of locks, and the long poll.
Messages that are unsettled when the consumer stops are left to the next consumer, on this host or another host.

No code here awaits while it handles an exception: in compiled code a coroutine loses the current exception at an await,
and a bare `raise` after it would fail.
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
"""The credit of the link: the maximum number of messages in flight from one backlog queue."""
MAX_TRACKED: Final = 2 * PREFETCH_WINDOW
"""The number of tracked deliveries above which settled deliveries are no longer tracked. The limit is twice the window,
so that the removal of settled deliveries costs little per message."""
TICK_INTERVAL_S: Final = 5.0
FINISH_TIMEOUT_S: Final = 5.0
"""How long a consumer that stops waits for outcomes."""
RENEW_AFTER_S: Final = 20.0
"""The age at which a lock is renewed; locks of a backlog queue last a minute."""
RELEASE_TIMEOUT_S: Final = 2.0
EXCLUSIVE_CHECK_S: Final = 0.1
"""The interval at which a pump whose lease is in doubt checks whether the lease is valid again."""
_MALFORMED_REASON: Final = "ParkedMessageMalformed"
_EXPIRED_REASON: Final = "TTLExpiredException"


class BacklogConsumer:
    """A consumer of a backlog queue, for one attached link of a pump."""

    def __init__(
        self,
        settings: PumpSettings,
        receiver: MessageReceiver,
        link: ReceiverLink,
        possibly_delivered: set[int],
        lock_ms: int = DEFAULT_LOCK_MS,
    ) -> None:
        """Create a consumer of an attached link.

        `possibly_delivered` has the sequence numbers of messages that earlier consumers of this pump may have sent to
        the primary. `lock_ms` is the lock duration of the backlog queue.
        """
        self._settings = settings
        self._lock_ms = lock_ms
        self._receiver = receiver
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._destinations: dict[str, Destination] = {}
        self._destination_by_path: dict[str, Destination] = {}
        """The destinations by path, as spelled in messages."""
        self._end_reason: asyncio.Future[ServiceBusError] = self._loop.create_future()
        self._credit_drained: asyncio.Future[None] | None = None
        self._wake_up = asyncio.Event()
        self._previous_on_arrival = link.on_arrival
        """The receiver's own callback, which is restored when the consumer stops."""
        self._unsettled: dict[IncomingDelivery, float] = {}
        """Unsettled deliveries on the link, and when each was locked."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._deferred_requests = DeferredRequests(receiver)
        self._deferred_settlement = DeferredSettlement(self._deferred_requests, self._start_task)
        self.withheld_paths = WithheldPaths(receiver, is_possible=link.lease is not None)  # only twinbus grants leases
        self._possibly_delivered = possibly_delivered
        self._last_arrival_s = self._loop.time()
        self._exclusive_wait: asyncio.Task[None] | None = None

    async def run(self) -> ServiceBusError:
        """Drain until the link or the primary is lost, and return the error. The caller must call `end` afterwards."""
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
        self._link.stop_replenishing()
        if self._link.is_open:  # not `failure`: compiled code assumes that it is still None, as checked above
            await self._finish()
        return self._end_reason.result()

    async def end(self) -> None:
        """Release all messages that were not settled."""
        self._release_unsettled()
        await self._release_deferred()

    async def _wait_for_work(self) -> None:
        """Wait until the next tick while messages are locked; otherwise until a message arrives or the poll is over."""
        idle_s = self._last_arrival_s + self._settings.poll_s - self._loop.time()
        self._wake_up.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(
                TICK_INTERVAL_S if self._unsettled or self._deferred_settlement.locked_since_s else max(0.0, idle_s)
            ):
                await self._wake_up.wait()

    def stop(self) -> None:
        """Stop draining, after finishing the messages in flight."""
        self._set_end_reason(ObjectClosed("the pump was stopped"))

    def on_primary_lost(self, path: str, error: ServiceBusError) -> None:
        """Stop draining because the primary cannot be reached; first withdraw the credit."""
        if not self._end_reason.done():
            self._link.stop_replenishing()
            self._link.drain()
            self._end_with_primary_lost(path, error)

    async def _finish(self) -> None:
        """Wait for the outcomes of messages in flight, and complete the messages that the primary accepts.

        If these messages were released instead, the next consumer would send them again.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(FINISH_TIMEOUT_S):
                await asyncio.gather(*[destination.finish() for destination in self._destinations.values()])
                await asyncio.sleep(0)  # completions are sent at the end of a turn of the loop
                if self._tasks:
                    await asyncio.wait(list(self._tasks))

    def _grant_credit(self) -> None:
        """Grant credit, unless draining has stopped.

        After draining has stopped, arriving messages would be released without being sent, although their delivery is
        a billed operation.
        """
        if not self._end_reason.done():
            self._link.keep_credit(PREFETCH_WINDOW)

    def _set_end_reason(self, error: ServiceBusError) -> None:
        if not self._end_reason.done():
            self._end_reason.set_result(error)
            self._wake_up.set()

    def _end_with_primary_lost(self, path: str, error: ServiceBusError) -> None:
        self._set_end_reason(PrimaryLost(path, error))

    def _release_unsettled(self) -> None:
        """Release unsettled messages to their places in the queue, so that the next consumer receives them first.

        Messages that were never sent are released; the delivery count of messages that may have arrived is increased.
        """
        sent: set[IncomingDelivery] = set()
        for destination in self._destinations.values():
            for message in destination.close():
                self._possibly_delivered.add(message.sequence_number)
                message.mark_possible_duplicate()
                if isinstance(message, DeliveredParkedMessage):
                    sent.add(message.delivery)
        self._link.stop_replenishing()
        self._link.on_arrival, self._link.on_ended = (
            self._previous_on_arrival,
            None,
        )  # closing the receiver drains the link
        unanswered = [delivery for delivery in self._unsettled if not delivery.answered]
        self._link.release([delivery for delivery in unanswered if delivery in sent], MODIFIED_IN_DOUBT)
        self._link.release([delivery for delivery in unanswered if delivery not in sent], RELEASED)
        for task in list(self._tasks):
            task.cancel()

    async def _release_deferred(self) -> None:
        """Unlock deferred messages that were received, so that they are available before their locks expire."""
        receive_tasks = [task for destination in self._destinations.values() for task in destination.receive_tasks]
        if receive_tasks:
            await asyncio.wait(receive_tasks, timeout=RELEASE_TIMEOUT_S)
        settlements: list[asyncio.Future[None]] = []
        for is_marked in (False, True):
            locked = [message for message in self._deferred_settlement.locked_since_s if message.is_marked is is_marked]
            if locked:
                settlements.append(
                    self._deferred_settlement.settle(
                        locked, STATUS_DEFERRED, possible_duplicate_change(is_marked=is_marked)
                    )
                )
        with suppress(TimeoutError):
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                await asyncio.gather(*settlements, return_exceptions=True)

    # --- messages in --------------------------------------------------------------------------------------------------

    def _on_arrival(self) -> None:
        """Handle arrived messages, or a finished credit drain."""
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
        """Submit a message to its destination, or dead-letter it."""
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
        message = DeliveredParkedMessage(self._link, delivery, restored, self._last_arrival_s)
        self._destination_for(restored.path).submit(self._marked_if_in_doubt(message))

    def _defer_unrestored(self, delivery: IncomingDelivery) -> bool:
        """Defer a message, without restoring it, if its destination is deferring; otherwise return False."""
        try:
            summary = summarize_parked(delivery.payload)
        except ParkedMessageMalformed:
            return False
        destination = self._destination_for(summary.path)
        if not destination.is_deferring:
            return False
        unrestored = RestoredMessage(summary.path, summary.session_id, delivery.payload, summary.sequence_number)
        destination.submit(self._marked_if_in_doubt(DeliveredParkedMessage(self._link, delivery, unrestored)))
        return True

    def _marked_if_in_doubt(self, message: DeliveredParkedMessage) -> DeliveredParkedMessage:
        """Return the message, marked if this host may have sent it and the backlog queue has not recorded that."""
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

    # --- the lease ----------------------------------------------------------------------------------------------------

    def has_exclusive_access(self) -> bool:
        """Return whether the lease on the queue is definitely valid (`client.amqp.lease`).

        If the lease may have expired, another host may be draining the queue and holding the same messages. Therefore
        no message is sent, deferred or dead-lettered until the lease is valid again.
        """
        link = self._link
        if link.failure is not None:
            return False
        if self._exclusive_wait is None and (link.lease is None or link.lease.is_valid):
            return True  # while `_exclusive_wait` is set, messages are postponed, and new ones must not overtake them
        if self._exclusive_wait is None and not self._end_reason.done():
            self._exclusive_wait = self._start_task(self._wait_for_exclusive_access())
        return False

    async def _wait_for_exclusive_access(self) -> None:
        link = self._link
        while link.failure is None and not (link.lease is None or link.lease.is_valid):  # noqa: ASYNC110  # no event signals a valid lease
            await asyncio.sleep(EXCLUSIVE_CHECK_S)
        self._exclusive_wait = None
        if link.failure is None and not self._end_reason.done():
            for destination in list(self._destinations.values()):
                destination.resume()
            self._on_arrival()

    # --- deferred messages --------------------------------------------------------------------------------------------

    async def _find_deferred(self) -> None:
        """Find the messages that an earlier pump deferred. They precede all later messages for their destination."""
        start = 1
        while start:
            start = self._assign_deferred(await self._deferred_requests.peek(start))

    def _assign_deferred(self, payloads: Sequence[bytes]) -> int:
        """Assign deferred messages to their destinations; return the next number to peek at, or 0 at the end."""
        number = 0
        for payload in payloads:
            number = _sequence_number_in(payload)
            try:
                summary = summarize_parked(payload)
            except ParkedMessageMalformed:
                log.warning("deferred message %d of '%s' is not a parked message", number, self._receiver.path)
                continue
            if summary.is_deferred:
                self._destination_for(summary.path).add_deferred(number)
        return number + 1 if payloads else 0

    @property
    def max_per_request(self) -> int:
        """The number of deferred messages that fit in one request."""
        return self._deferred_requests.max_per_request

    async def receive_deferred(self, sequence_numbers: Sequence[int]) -> list[ParkedMessage]:
        """Receive deferred messages by their numbers, in order; numbers that no longer exist are skipped.

        Raise MessageNotFound if all the messages exist but one of them cannot be received, because a pump that was
        killed still holds its lock.
        """
        asked_s = self._loop.time()
        missing: MessageNotFound | None = None
        received: list[tuple[bytes, uuid.UUID]] = []
        try:
            received = await self._deferred_requests.receive(sequence_numbers)
        except MessageNotFound as error:
            missing = error
        if missing is not None:
            still_deferred = await self._still_deferred(sequence_numbers)
            if len(still_deferred) == len(sequence_numbers):
                raise missing
            return await self.receive_deferred(still_deferred) if still_deferred else []
        self._wake_up.set()  # the tick must renew their locks
        now_ms = self._settings.clock.wall_ms()
        messages = [self._restore_deferred(payload, lock, now_ms) for payload, lock in received]
        restored = [message for message in messages if message is not None]
        restored.sort(key=_sequence_number_of)
        self._deferred_settlement.locked_since_s.update(dict.fromkeys(restored, asked_s))
        return [*restored]

    def _restore_deferred(self, payload: bytes, lock_token: uuid.UUID, now_ms: int) -> DeferredParkedMessage | None:
        """Restore a deferred message that was received; None if it was dead-lettered."""
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
        message = DeferredParkedMessage(self._deferred_settlement, restored, lock_token)
        if self._possibly_delivered and message.sequence_number in self._possibly_delivered:
            message.mark_possible_duplicate()
        return message

    def _dead_letter_deferred(
        self, payload: bytes, lock_token: uuid.UUID, path: str | None, reason: str, description: str
    ) -> None:
        extra_fields: dict[str, object] = {"deadletter-reason": reason, "deadletter-description": description}
        extra_fields |= possible_duplicate_change(is_marked=_may_have_been_delivered(payload))
        self._start_task(
            self._deferred_requests.settle(STATUS_DEAD_LETTERED, [lock_token], extra_fields)
        ).add_done_callback(_log_failure)
        self._emit_dead_lettered(payload, path, reason, description)

    def restore_again(self, message: DeliveredParkedMessage) -> bool:
        """Restore a message again after a wait. Return False if the message has expired and was dead-lettered."""
        now_ms, waited_ms = self._settings.clock.wall_ms(), round((self._loop.time() - message.received_s) * 1000)
        lock_ms = self._lock_ms - waited_ms  # the parked time includes the wait
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
        """Release messages that the queue withholds; increase the delivery count of those that may have been sent."""
        self._possibly_delivered.update([message.sequence_number for message in messages if message.is_marked])
        return release_all(messages)

    async def _still_deferred(self, sequence_numbers: Sequence[int]) -> list[int]:
        """Return the numbers of these messages that are still deferred, even if another consumer has locked them."""
        wanted, start, still_deferred = set(sequence_numbers), min(sequence_numbers), set[int]()
        while start and start <= max(wanted):
            deferred = [
                _sequence_number_in(payload)
                for payload in await self._deferred_requests.peek(start)
                if _is_deferred(payload)
            ]
            still_deferred.update(number for number in deferred if number in wanted)
            start = deferred[-1] + 1 if deferred else 0
        return sorted(still_deferred)

    def _start_task(self, coroutine: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- time ---------------------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        """Renew locks, expire sends without an outcome, and restart the poll when it is over."""
        self._remove_answered()
        await self._renew_locks()
        for destination in self._destinations.values():
            destination.expire_sends(self._settings.send_timeout_s)
        if not self._unsettled and self._loop.time() - self._last_arrival_s >= self._settings.poll_s:
            await self._restart_poll()

    def _remove_answered(self) -> None:
        self._unsettled = {delivery: since_s for delivery, since_s in self._unsettled.items() if not delivery.answered}

    async def _restart_poll(self) -> None:
        """Drain the credit and grant it again, which is the equivalent of a new receive call in Microsoft's client."""
        self._last_arrival_s = self._loop.time()
        if self._link.drain():
            self._credit_drained = self._loop.create_future()
            ends: list[asyncio.Future[Any]] = [self._credit_drained, self._end_reason]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        self._grant_credit()

    async def _renew_locks(self) -> None:
        now_s = self._loop.time()
        due = [delivery for delivery, since_s in self._unsettled.items() if now_s - since_s >= RENEW_AFTER_S]
        since_s_of = self._deferred_settlement.locked_since_s
        deferred = [message for message, since_s in since_s_of.items() if now_s - since_s >= RENEW_AFTER_S]
        locks: list[object] = [uuid.UUID(bytes_le=delivery.tag) for delivery in due]
        locks += [message.lock_token for message in deferred]
        if not locks:
            return
        lost = await self._renew(locks)
        for delivery, lock in zip(due, locks, strict=False):
            if lock in lost:  # the message is redelivered; its lost lock would make the next request fail
                self._unsettled.pop(delivery, None)
            else:
                self._unsettled[delivery] = now_s
        for message in deferred:
            if message in since_s_of:
                since_s_of[message] = now_s

    async def _renew(self, lock_tokens: list[object]) -> set[object]:
        """Renew locks, in one request if none is lost; return the lost locks."""
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
            level = logging.WARNING if lost_namespace(failure) is None else logging.DEBUG  # an outage is logged once
            log.log(level, "could not renew locks of '%s': %s", self._receiver.path, failure)
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
    """Return whether the header of a message records an earlier delivery; True if the header cannot be read."""
    try:
        return was_delivered(payload)
    except DecodeError:
        return True


def _log_failure(future: asyncio.Future[None]) -> None:
    """Log a failed dead-lettering; the message will be redelivered."""
    if not future.cancelled() and (error := future.exception()) is not None:
        log.warning("could not dead-letter a parked message: %s", error)
