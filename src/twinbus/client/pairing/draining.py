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
from twinbus.client.pairing.deferred import DEAD_LETTERED, DEFERRED, DeferredMessages, marking
from twinbus.client.pairing.destination import Destination
from twinbus.client.pairing.errors import ParkedMessageMalformed, PrimaryLost
from twinbus.client.pairing.events import EventKind
from twinbus.client.pairing.outages import side_of
from twinbus.client.pairing.parcel import IN_DOUBT, Arrived, Origin, TakenBack, dead_letter, release_all
from twinbus.client.pairing.rewriting import LOCK_MS, Expired, Restored, look, restore, was_delivered
from twinbus.client.pairing.withholding import Withholding
from twinbus.model.annotations import DEFERRED_STATE, MESSAGE_STATE, SEQUENCE_NUMBER
from twinbus.model.errors import MessageLockLost, MessageNotFound, ServiceBusError
from twinbus.model.path import key_of

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from twinbus.amqp.delivery import IncomingDelivery
    from twinbus.client.pairing.parcel import Parcel
    from twinbus.client.pairing.pump import PumpSettings
    from twinbus.client.receiver import MessageReceiver
    from twinbus.client.receiving_link import ReceivingLink

log: Final = logging.getLogger(__name__)

WINDOW: Final = 500
"""Messages of one backlog queue that are on their way at a time."""
HELD_AT_MOST: Final = 2 * WINDOW
"""Messages that are kept: with what was answered, looked through once a window, whose memory serves those to come."""
TICK_S: Final = 5.0
FINISH_S: Final = 5.0
"""How long the end of a draining waits for answers."""
RENEW_AFTER_S: Final = 20.0
"""A lock of a backlog queue lasts a minute."""
GIVE_BACK_S: Final = 2.0
CLAIM_LOOK_S: Final = 0.1
"""How often a pump that may have lost its queue looks whether it is certainly its own again."""
_MALFORMED: Final = "ParkedMessageMalformed"
_EXPIRED: Final = "TTLExpiredException"


class Draining:
    """One life of a pump."""

    def __init__(
        self,
        settings: PumpSettings,
        receiver: MessageReceiver,
        link: ReceivingLink,
        in_doubt: set[int],
        lock_ms: int = LOCK_MS,
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
        self._by_spelling: dict[str, Destination] = {}
        """The same, by their paths as messages have them."""
        self._over: asyncio.Future[ServiceBusError] = self._loop.create_future()
        self._drained: asyncio.Future[None] | None = None
        self._woken = asyncio.Event()
        self._before = link.on_arrival
        """Who hears of arrivals when this is over: the receiver."""
        self._held: dict[IncomingDelivery, float] = {}
        """What came on the link and is not settled, with the time its lock is good from."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._deferred = DeferredMessages(receiver)
        self._origin = Origin(self._deferred, self._start)
        self.withholding = Withholding(receiver, is_possible=link.lease is not None)  # a lease: the server is a twinbus
        self._in_doubt = in_doubt
        self._last_arrival_s = self._loop.time()
        self._awaiting_claim: asyncio.Task[None] | None = None

    async def run(self) -> ServiceBusError:
        """Drain until the link is over, or the primary gone; why. Then, or whatever it raises, it is ended (`end`)."""
        await self._find_deferred()
        self._link.on_arrival = self._arrived
        self._link.on_over = self._end
        if self._link.failure is not None:
            return self._link.failure
        self._grant_credit()
        while not self._over.done():
            await self._pause()
            if not self._over.done():
                await self._tick()
        self._link.stop_topping_up()
        if self._link.is_open:  # its `failure` was None above, and what is compiled takes that for granted
            await self._finish()
        return self._over.result()

    async def end(self) -> None:
        """Give back what was not settled."""
        self._close()
        await self._give_back()

    async def _pause(self) -> None:
        """Until there is something to do: soon, while messages are on their way; else when the poll is over."""
        idle_s = self._last_arrival_s + self._settings.poll_s - self._loop.time()
        self._woken.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(TICK_S if self._held or self._origin.since_s else max(0.0, idle_s)):
                await self._woken.wait()

    def stop(self) -> None:
        """End it well, soon."""
        self._end(ObjectClosed("the pump was stopped"))

    def lose_primary(self, path: str, error: ServiceBusError) -> None:
        """End it because the primary cannot be reached; the credit is taken back before anything else is parked."""
        if not self._over.done():
            self._link.stop_topping_up()
            self._link.drain()
            self._lose_primary(path, error)

    async def _finish(self) -> None:
        """Complete what the primary accepts of what is on its way: given back, it would be sent again."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FINISH_S):
                await asyncio.gather(*[destination.finish() for destination in self._destinations.values()])
                await asyncio.sleep(0)  # what was completed in this turn is told at its end
                if self._tasks:
                    await asyncio.wait(list(self._tasks))

    def _grant_credit(self) -> None:
        """Receive, unless it is over: a message that comes then goes back unsent, and is charged again."""
        if not self._over.done():
            self._link.keep_credit(WINDOW)

    def _end(self, error: ServiceBusError) -> None:
        if not self._over.done():
            self._over.set_result(error)
            self._woken.set()

    def _lose_primary(self, path: str, error: ServiceBusError) -> None:
        self._end(PrimaryLost(path, error))

    def _close(self) -> None:
        """What was not settled goes back to its place, to be the first of the next draining.

        What was never sent is released; what may have arrived is given back with a delivery on its count.
        """
        sent: set[IncomingDelivery] = set()
        for destination in self._destinations.values():
            for parcel in destination.close():
                self._in_doubt.add(parcel.sequence_number)
                parcel.mark()
                if isinstance(parcel, Arrived):
                    sent.add(parcel.delivery)
        self._link.stop_topping_up()
        self._link.on_arrival, self._link.on_over = self._before, None  # closing the receiver drains the rest
        left = [delivery for delivery in self._held if not delivery.answered]
        self._link.release([delivery for delivery in left if delivery in sent], IN_DOUBT)
        self._link.release([delivery for delivery in left if delivery not in sent], RELEASED)
        for task in list(self._tasks):
            task.cancel()

    async def _give_back(self) -> None:
        """Those that were taken back from the deferred ones are free at once, not only when their locks are over."""
        asked = [task for destination in self._destinations.values() for task in destination.requests]
        if asked:
            await asyncio.wait(asked, timeout=GIVE_BACK_S)
        giving_back: list[asyncio.Future[None]] = []
        for is_marked in (False, True):
            some = [parcel for parcel in self._origin.since_s if parcel.is_marked is is_marked]
            if some:
                giving_back.append(self._origin.settle(some, DEFERRED, marking(is_marked=is_marked)))
        with suppress(TimeoutError):
            async with asyncio.timeout(GIVE_BACK_S):
                await asyncio.gather(*giving_back, return_exceptions=True)

    # --- messages in --------------------------------------------------------------------------------------------------

    def _arrived(self) -> None:
        """Messages have come, or a drain is over."""
        arrived = self._link.arrived
        if arrived and self.holds_claim():
            self._last_arrival_s = now_s = self._loop.time()
            now_ms = self._settings.clock.wall_ms()
            if not self._held:
                self._woken.set()
            is_any_deferring = any(destination.is_deferring for destination in self._destinations.values())
            while arrived:
                delivery = arrived.popleft()
                self._held[delivery] = now_s
                if not is_any_deferring or not self._put_aside(delivery):
                    self._sort(delivery, now_ms)
            if len(self._held) > HELD_AT_MOST:
                self._forget_answered()
        if self._drained is not None and not self._drained.done() and not self._link.is_draining:
            self._drained.set_result(None)

    def _sort(self, delivery: IncomingDelivery, now_ms: int) -> None:
        """Send one message on its way, or to the dead letters."""
        try:
            restored = restore(delivery.payload, now_ms, deduct=self._settings.deduct, lock_ms=self._lock_ms)
        except ParkedMessageMalformed as error:
            self._bury(delivery, None, _MALFORMED, str(error))
            return
        if isinstance(restored, Expired):
            self._bury(delivery, restored.path, _EXPIRED, restored.text)
            return
        arrived = Arrived(self._link, delivery, restored, self._last_arrival_s)
        self._destination(restored.path).take(self._checked(arrived))

    def _put_aside(self, delivery: IncomingDelivery) -> bool:
        """Defer a message whose destination takes nothing now, as it is; False if it is to be sorted."""
        try:
            looked = look(delivery.payload)
        except ParkedMessageMalformed:
            return False
        destination = self._destination(looked.path)
        if not destination.is_deferring:
            return False
        as_it_is = Restored(looked.path, looked.session_id, delivery.payload, looked.sequence_number)
        destination.take(self._checked(Arrived(self._link, delivery, as_it_is)))
        return True

    def _checked(self, arrived: Arrived) -> Arrived:
        """The same; marked, if this host may have sent it and its backlog queue has not heard of that."""
        if self._in_doubt and arrived.sequence_number in self._in_doubt:
            arrived.mark()
        return arrived

    def _bury(self, delivery: IncomingDelivery, path: str | None, reason: str, description: str) -> None:
        is_marked = _was_delivered(delivery.payload)
        dead_letter(self._link, delivery, reason, description, is_marked=is_marked).add_done_callback(_heed)
        self._tell_buried(delivery.payload, path, reason, description)

    def _tell_buried(self, payload: bytes, path: str | None, reason: str, description: str) -> None:
        self._settings.events.emit(
            EventKind.DEAD_LETTERED,
            path=path,
            backlog_queue=self._receiver.path,
            sequence_number=_number_of(payload),
            reason=f"{reason}: {description}",
        )

    def _destination(self, path: str) -> Destination:
        destination = self._by_spelling.get(path) or self._destinations.get(key_of(path))
        if destination is None:
            destination = self._destinations[key_of(path)] = Destination(
                self._settings.sender_to(path),
                self._receiver.path,
                self._settings.events,
                source=self,
                lost=partial(self._lose_primary, path),
                wakeups=self._settings.wakeups,
                not_found_grace_s=self._settings.not_found_grace_s,
            )
        self._by_spelling[path] = destination
        return destination

    # --- the claim ----------------------------------------------------------------------------------------------------

    def holds_claim(self) -> bool:
        """Whether the queue is certainly ours: another host may have it after we were silent (`client.lease`).

        If not, nothing is sent, deferred or dead-lettered until it is: what we hold may be the other host's by now.
        """
        link = self._link
        if link.failure is not None:
            return False
        if self._awaiting_claim is None and (link.lease is None or link.lease.is_valid):
            return True  # else what waits since then is sent first
        if self._awaiting_claim is None and not self._over.done():
            self._awaiting_claim = self._start(self._await_claim())
        return False

    async def _await_claim(self) -> None:
        link = self._link
        while link.failure is None and not (link.lease is None or link.lease.is_valid):  # noqa: ASYNC110  # time passes
            await asyncio.sleep(CLAIM_LOOK_S)
        self._awaiting_claim = None
        if link.failure is None and not self._over.done():
            for destination in list(self._destinations.values()):
                destination.go_on()
            self._arrived()

    # --- deferred ones ------------------------------------------------------------------------------------------------

    async def _find_deferred(self) -> None:
        """What an earlier pump has put aside comes before all that waits for the same destination (Q19)."""
        start = 1
        while start:
            start = self._note_deferred(await self._deferred.find(start))

    def _note_deferred(self, payloads: Sequence[bytes]) -> int:
        """Give the destinations the numbers of their deferred messages; the number to go on from, 0 after the last."""
        number = 0
        for payload in payloads:
            number = _number_of(payload)
            try:
                looked = look(payload)
            except ParkedMessageMalformed:
                log.warning("deferred message %d of '%s' is none of ours", number, self._receiver.path)
                continue
            if looked.is_deferred:
                self._destination(looked.path).found_deferred(number)
        return number + 1 if payloads else 0

    @property
    def at_once(self) -> int:
        """How many deferred messages fit in one request."""
        return self._deferred.at_once

    async def take_back(self, numbers: Sequence[int]) -> list[Parcel]:
        """Deferred messages by their numbers, in order; one that is not there any more is somebody else's affair.

        MessageNotFound where one is there and cannot be had: a pump that was killed holds it until its lock is over.
        """
        asked_s = self._loop.time()
        missing: MessageNotFound | None = None
        taken: list[tuple[bytes, uuid.UUID]] = []
        try:
            taken = await self._deferred.take(numbers)
        except MessageNotFound as error:
            missing = error
        if missing is not None:
            there = await self._still_deferred(numbers)
            if len(there) == len(numbers):
                raise missing
            return await self.take_back(there) if there else []
        self._woken.set()  # their locks are to be renewed
        now_ms = self._settings.clock.wall_ms()
        parcels = [self._open(payload, lock, now_ms) for payload, lock in taken]
        opened = [parcel for parcel in parcels if parcel is not None]
        opened.sort(key=_by_number)
        self._origin.since_s.update(dict.fromkeys(opened, asked_s))
        return [*opened]

    def _open(self, payload: bytes, lock: uuid.UUID, now_ms: int) -> TakenBack | None:
        """A message that was taken back; None if it goes to the dead letters."""
        restored: Restored | Expired
        try:
            restored = restore(payload, now_ms, deduct=self._settings.deduct, lock_ms=self._lock_ms)
        except ParkedMessageMalformed as error:
            self._bury_deferred(payload, lock, None, _MALFORMED, str(error))
            return None
        if isinstance(restored, Expired):
            self._bury_deferred(payload, lock, restored.path, _EXPIRED, restored.text)
            return None
        parcel = TakenBack(self._origin, restored, lock)
        if self._in_doubt and parcel.sequence_number in self._in_doubt:
            parcel.mark()
        return parcel

    def _bury_deferred(self, payload: bytes, lock: uuid.UUID, path: str | None, reason: str, description: str) -> None:
        why: dict[str, object] = {"deadletter-reason": reason, "deadletter-description": description}
        why |= marking(is_marked=_was_delivered(payload))
        self._start(self._deferred.settle(DEAD_LETTERED, [lock], why)).add_done_callback(_heed)
        self._tell_buried(payload, path, reason, description)

    def restore_again(self, parcel: Arrived) -> bool:
        """Restore a message that was kept for a while as it is now; False if its time is over: it is dead-lettered."""
        now_ms, waited_ms = self._settings.clock.wall_ms(), round((self._loop.time() - parcel.arrived_s) * 1000)
        lock_ms = self._lock_ms - waited_ms  # as if it had been locked now: it is parked until then
        restored = restore(parcel.delivery.payload, now_ms, deduct=self._settings.deduct, lock_ms=lock_ms)
        if isinstance(restored, Expired):
            parcel.dead_letter(_EXPIRED, restored.text).add_done_callback(_heed)
            self._tell_buried(parcel.delivery.payload, restored.path, _EXPIRED, restored.text)
            return False
        parcel.restored = restored
        if parcel.is_marked:
            parcel.mark()
        return True

    def give_back(self, parcels: Sequence[Arrived]) -> list[asyncio.Future[None]]:
        """Release messages that the queue withholds; those that may have been sent, with a delivery on their count."""
        self._in_doubt.update([parcel.sequence_number for parcel in parcels if parcel.is_marked])
        return release_all(parcels)

    async def _still_deferred(self, numbers: Sequence[int]) -> list[int]:
        """Which of these are there, whoever has them now."""
        wanted, start, there = set(numbers), min(numbers), set[int]()
        while start and start <= max(wanted):
            found = [_number_of(payload) for payload in await self._deferred.find(start) if _is_deferred(payload)]
            there.update(number for number in found if number in wanted)
            start = found[-1] + 1 if found else 0
        return sorted(there)

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- time ---------------------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        """Renew locks, give up on what has no answer, and begin the next poll when this one is over."""
        self._forget_answered()
        await self._renew_locks()
        for destination in self._destinations.values():
            destination.give_up(self._settings.send_timeout_s)
        if not self._held and self._loop.time() - self._last_arrival_s >= self._settings.poll_s:
            await self._poll_again()

    def _forget_answered(self) -> None:
        self._held = {delivery: since_s for delivery, since_s in self._held.items() if not delivery.answered}

    async def _poll_again(self) -> None:
        """Give the credit back and grant it anew: what a receive call was in the original."""
        self._last_arrival_s = self._loop.time()
        if self._link.drain():
            self._drained = self._loop.create_future()
            over: list[asyncio.Future[Any]] = [self._drained, self._over]
            await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
        self._grant_credit()

    async def _renew_locks(self) -> None:
        now_s = self._loop.time()
        due = [delivery for delivery, since_s in self._held.items() if now_s - since_s >= RENEW_AFTER_S]
        since_s_of = self._origin.since_s
        deferred = [parcel for parcel, since_s in since_s_of.items() if now_s - since_s >= RENEW_AFTER_S]
        locks: list[object] = [uuid.UUID(bytes_le=delivery.tag) for delivery in due]
        locks += [parcel.lock for parcel in deferred]
        if not locks:
            return
        lost = await self._renew(locks)
        for delivery, lock in zip(due, locks, strict=False):
            if lock in lost:  # it comes again; asked for once more, it would keep the others from being renewed
                self._held.pop(delivery, None)
            else:
                self._held[delivery] = now_s
        for parcel in deferred:
            if parcel in since_s_of:
                since_s_of[parcel] = now_s

    async def _renew(self, locks: list[object]) -> set[object]:
        """Renew locks, all in one request if none is lost; those that are lost."""
        failure: ServiceBusError | None = None
        body: dict[str, object] = {"lock-tokens": Array(uuid.UUID, locks)}
        try:
            await self._receiver.factory.ask(self._receiver.path, "com.microsoft:renew-lock", body, timeout_s=TICK_S)
        except ServiceBusError as error:
            failure = error
        if failure is None:
            return set()
        if not isinstance(failure, MessageLockLost):
            level = logging.WARNING if side_of(failure) is None else logging.DEBUG  # an outage is told once
            log.log(level, "locks of '%s' were not renewed: %s", self._receiver.path, failure)
            return set()
        if len(locks) == 1:
            return set(locks)
        half = len(locks) // 2
        return await self._renew(locks[:half]) | await self._renew(locks[half:])


def _number_of(payload: bytes) -> int:
    number = Message(payload).lookup(Section.MESSAGE_ANNOTATIONS, SEQUENCE_NUMBER)
    return int(number) if isinstance(number, int) else 0


def _by_number(parcel: TakenBack) -> int:
    return parcel.sequence_number


def _is_deferred(payload: bytes) -> bool:
    state = Message(payload).lookup(Section.MESSAGE_ANNOTATIONS, MESSAGE_STATE)
    return state == DEFERRED_STATE


def _was_delivered(payload: bytes) -> bool:
    """As far as can be read."""
    try:
        return was_delivered(payload)
    except DecodeError:
        return True


def _heed(future: asyncio.Future[None]) -> None:
    """A message whose settling failed comes again."""
    if not future.cancelled() and (error := future.exception()) is not None:
        log.warning("a parked message was not dead-lettered: %s", error)
