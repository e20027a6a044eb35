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

from twinbus.amqp.message import Message, Section
from twinbus.amqp.outcomes import RELEASED
from twinbus.amqp.types import Array
from twinbus.client.errors import ObjectClosed
from twinbus.client.pairing.destination import Destination
from twinbus.client.pairing.errors import ParkedMessageMalformed, PrimaryLost
from twinbus.client.pairing.events import EventKind
from twinbus.client.pairing.parcel import Arrived, TakenBack, dead_letter
from twinbus.client.pairing.rewriting import Expired, Restored, restore
from twinbus.model.errors import MessageNotFound, ServiceBusError
from twinbus.model.path import key_of

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from twinbus.amqp.delivery import IncomingDelivery
    from twinbus.client.pairing.parcel import Parcel
    from twinbus.client.pairing.pump import PumpSettings
    from twinbus.client.receiver import MessageReceiver
    from twinbus.client.receiving_link import ReceivingLink
    from twinbus.model.message import BrokeredMessage

log: Final = logging.getLogger(__name__)

WINDOW: Final = 500
"""Messages of one backlog queue that are on their way at a time."""
HELD_AT_MOST: Final = 2 * WINDOW
"""Messages that are kept: with what was answered, looked through once a window, whose memory serves those to come."""
PEEKED_AT_ONCE: Final = 250
TICK_S: Final = 5.0
FINISH_S: Final = 5.0
"""How long the end of a draining waits for answers."""
RENEW_AFTER_S: Final = 20.0
"""A lock of a backlog queue lasts a minute."""
GIVE_BACK_S: Final = 2.0
_SEQUENCE_NUMBER: Final = "x-opt-sequence-number"
_MALFORMED: Final = "ParkedMessageMalformed"
_EXPIRED: Final = "TTLExpiredException"


class Draining:
    """One life of a pump."""

    def __init__(self, settings: PumpSettings, receiver: MessageReceiver, link: ReceivingLink) -> None:
        """`link` is attached."""
        self._settings = settings
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
        self._taken_back: dict[BrokeredMessage, float] = {}
        """What was deferred, and is under a lock that no link holds, with the time from which that is good."""
        self._last_arrival_s = self._loop.time()
        self._tasks: set[asyncio.Task[None]] = set()

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
            async with asyncio.timeout(TICK_S if self._held or self._under_lock() else max(0.0, idle_s)):
                await self._woken.wait()

    def _under_lock(self) -> dict[BrokeredMessage, float]:
        """What was taken back of the deferred ones, and is not settled."""
        return {message: since_s for message, since_s in self._taken_back.items() if message.received.lock is not None}

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
        """What was not settled goes back to its place, to be the first of the next draining."""
        for destination in self._destinations.values():
            destination.close()
        self._link.stop_topping_up()
        self._link.on_arrival, self._link.on_over = self._before, None  # closing the receiver drains the rest
        self._link.release([delivery for delivery in self._held if not delivery.answered], RELEASED)
        for task in self._tasks:
            task.cancel()

    async def _give_back(self) -> None:
        """Those that were taken back from the deferred ones are free at once, not only when their locks are over."""
        abandoning = [self._receiver.abandon(message) for message in self._under_lock()]
        with suppress(TimeoutError):
            async with asyncio.timeout(GIVE_BACK_S):
                await asyncio.gather(*abandoning, return_exceptions=True)

    # --- messages in --------------------------------------------------------------------------------------------------

    def _arrived(self) -> None:
        """Messages have come, or a drain is over."""
        arrived = self._link.arrived
        if arrived:
            self._last_arrival_s = now_s = self._loop.time()
            now_ms = self._settings.clock.wall_ms()
            if not self._held:
                self._woken.set()
            while arrived:
                delivery = arrived.popleft()
                self._held[delivery] = now_s
                self._sort(delivery, now_ms)
            if len(self._held) > HELD_AT_MOST:
                self._forget_answered()
        if self._drained is not None and not self._drained.done() and not self._link.is_draining:
            self._drained.set_result(None)

    def _sort(self, delivery: IncomingDelivery, now_ms: int) -> None:
        """Send one message on its way, or to the dead letters."""
        try:
            restored = restore(delivery.payload, now_ms, deduct=self._settings.deduct)
        except ParkedMessageMalformed as error:
            self._bury(delivery, None, _MALFORMED, str(error))
            return
        if isinstance(restored, Expired):
            self._bury(delivery, restored.path, _EXPIRED, restored.text)
            return
        self._destination(restored.path).take(Arrived(self._link, delivery, restored))

    def _bury(self, delivery: IncomingDelivery, path: str | None, reason: str, description: str) -> None:
        dead_letter(self._link, delivery, reason, description).add_done_callback(_heed)
        self._settings.telling.tell(
            EventKind.DEAD_LETTERED,
            path=path,
            backlog_queue=self._receiver.path,
            sequence_number=_number_of(delivery.payload),
            reason=f"{reason}: {description}",
        )

    def _destination(self, path: str) -> Destination:
        destination = self._by_spelling.get(path) or self._destinations.get(key_of(path))
        if destination is None:
            destination = self._destinations[key_of(path)] = Destination(
                self._settings.sender_to(path),
                self._receiver.path,
                self._settings.telling,
                take_back=self._take_back,
                lost=partial(self._lose_primary, path),
                not_found_grace_s=self._settings.not_found_grace_s,
            )
        self._by_spelling[path] = destination
        return destination

    # --- deferred ones ------------------------------------------------------------------------------------------------

    async def _find_deferred(self) -> None:
        """What an earlier pump has put aside comes before all that waits for the same destination (Q19)."""
        start = 1
        while start:
            deferred, start = await self._receiver.peek_deferred(PEEKED_AT_ONCE, start)
            for message in deferred:
                self._found(message.payload, message.sequence_number)

    def _found(self, payload: bytes, sequence_number: int) -> None:
        try:
            restored = restore(payload, self._settings.clock.wall_ms())
        except ParkedMessageMalformed:
            log.warning("deferred message %d of '%s' is none of ours", sequence_number, self._receiver.path)
            return
        self._destination(restored.path).found_deferred(sequence_number)

    async def _take_back(self, numbers: Sequence[int]) -> list[Parcel]:
        """Deferred messages by their numbers, in order; one that is not there any more is somebody else's affair.

        MessageNotFound where one is there and cannot be had: a pump that was killed holds it until its lock is over.
        """
        asked_s = self._loop.time()
        missing: MessageNotFound | None = None
        messages: list[BrokeredMessage] = []
        try:
            messages = await self._receiver.receive_deferred(*numbers)
        except MessageNotFound as error:
            missing = error
        if missing is not None:
            there = await self._still_deferred(numbers)
            if len(there) == len(numbers):
                raise missing
            return await self._take_back(there) if there else []
        self._taken_back = self._under_lock() | dict.fromkeys(messages, asked_s)
        self._woken.set()  # their locks are to be renewed
        taken: list[Parcel] = []
        now_ms = self._settings.clock.wall_ms()
        for message in messages:
            restored: Restored | Expired | None = None
            malformed = ""
            try:
                restored = restore(message.payload, now_ms, deduct=self._settings.deduct)
            except ParkedMessageMalformed as error:
                malformed = str(error)
            if isinstance(restored, Restored):
                taken.append(TakenBack(self._receiver, message, restored, self._start))
            elif restored is None:
                await self._receiver.dead_letter(message, _MALFORMED, malformed)
            else:
                await self._receiver.dead_letter(message, _EXPIRED, restored.text)
        return taken

    async def _still_deferred(self, numbers: Sequence[int]) -> list[int]:
        """Which of these are there, whoever has them now."""
        wanted, start, there = set(numbers), min(numbers), []
        while start and start <= max(wanted):
            found, start = await self._receiver.peek_deferred(PEEKED_AT_ONCE, start)
            there += [message.sequence_number for message in found if message.sequence_number in wanted]
        return there

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
        deferred = [message for message, since_s in self._under_lock().items() if now_s - since_s >= RENEW_AFTER_S]
        locks = [delivery.tag for delivery in due] + [message.received.lock or b"" for message in deferred]
        if not locks:
            return
        tokens = Array(uuid.UUID, [uuid.UUID(bytes_le=lock) for lock in locks])
        try:
            await self._receiver.factory.ask(
                self._receiver.path, "com.microsoft:renew-lock", {"lock-tokens": tokens}, timeout_s=TICK_S
            )
        except ServiceBusError as error:
            log.warning("locks of '%s' were not renewed: %s", self._receiver.path, error)
        for delivery in due:
            self._held[delivery] = now_s
        for message in deferred:
            self._taken_back[message] = now_s


def _number_of(payload: bytes) -> int:
    number = Message(payload).lookup(Section.MESSAGE_ANNOTATIONS, _SEQUENCE_NUMBER)
    return int(number) if isinstance(number, int) else 0


def _heed(future: asyncio.Future[None]) -> None:
    """A message whose settling failed comes again."""
    if not future.cancelled() and (error := future.exception()) is not None:
        log.warning("a parked message was not dead-lettered: %s", error)
