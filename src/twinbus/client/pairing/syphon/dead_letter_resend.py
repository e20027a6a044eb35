"""Dead letters of backlog queues, sent again: for operators who have removed the cause.

    dead_letters = DeadLetters(primary, secondary, {path: lock_ms})
    await dead_letters.run(wait_s=60)

Owns: the way of a message from the dead-letter queue of a backlog queue to its destination. A message leaves the
dead-letter queue after the primary has accepted it; every other message stays there, with the reason it has. The
backlog queue itself is not touched: a syphon that drains it goes on.

A message that stays is held under its lock until the end, so that it is not received again and again; then it is given
back. It is given back uncounted if it was provably not stored, so a delivery count above 0 is a doubt, and the message
is marked as a possible duplicate when it is sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twinbus.amqp.message import data
from twinbus.client.errors import may_have_happened
from twinbus.client.pairing.backlog.rewriting import ExpiredMessage, RestoredMessage, restore
from twinbus.client.pairing.delivery_failure import FailureCause, failure_cause_of
from twinbus.client.pairing.errors import ParkedMessageMalformed
from twinbus.client.pairing.syphon.destination import MAX_BATCH_BYTES, MAX_BATCH_MESSAGES, PrimarySenders
from twinbus.client.retry import NO_RETRY
from twinbus.model.errors import PartlyStored, ServiceBusError
from twinbus.model.message import BATCH_FORMAT
from twinbus.model.path import SubQueue, canonical_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinbus.client.factory import MessagingFactory
    from twinbus.client.receiver import MessageReceiver
    from twinbus.model.message import BrokeredMessage

log: Final = logging.getLogger(__name__)

RECEIVE_BATCH_SIZE: Final = 100
EMPTY_AFTER_S: Final = 1.0
"""A queue that delivers nothing for this long is empty, if all the messages that it counts were received."""
MIN_WAIT_FOR_COUNTED_S: Final = 10.0
"""The shortest wait for messages that the queue counts and does not deliver: another program may have locked them."""
MAX_HELD_MESSAGES: Final = 5_000
MAX_HELD_BYTES: Final = 64_000_000
"""Of messages of one queue that stay: further ones are not looked at."""
FIRST_PAUSE_S: Final = 0.5
MAX_PAUSE_S: Final = 5.0
LOCK_RENEWAL_S: Final = 86_400.0


@dataclass(slots=True)
class DeadLetteredMessage:
    """A dead-lettered message under a lock."""

    message: BrokeredMessage
    restored: RestoredMessage
    is_possible_duplicate: bool
    """It may be stored at its destination: some attempt had no answer."""
    is_sent_singly: bool = False
    """It was in a batch that was refused."""


class DeadLetterResend:
    """The dead letters of some backlog queues."""

    def __init__(
        self,
        primary: MessagingFactory,
        secondary: MessagingFactory,
        queues: Mapping[str, int],
        *,
        counts: Mapping[str, int] | None = None,
        deduct_parked_time: bool = False,
    ) -> None:
        """`queues` are the paths of backlog queues, each with the duration of its locks in milliseconds.

        `counts` says how many dead letters each queue has, as far as that is known.
        """
        self.moved = 0
        self.rejected: Counter[tuple[str | None, str]] = Counter()
        """Messages that stay for a fault of their own, by destination (malformed ones have none) and reason."""
        self.waiting: dict[str, tuple[int, str]] = {}
        """Messages that stay because of their destination: by that, how many, and why."""
        self.is_complete = True
        """False: so many messages stay that others behind them were not looked at."""
        self.not_received = 0
        """Messages that their queues have by their counts, and that were not received."""
        self._senders = PrimarySenders(primary)
        epoch = primary.settings.clock.wall_ms()
        self._queues = [
            _DeadLetterQueue(
                self,
                secondary,
                path,
                lock_ms,
                count=(counts or {}).get(path, 0),
                epoch=epoch,
                deduct_parked_time=deduct_parked_time,
            )
            for path, lock_ms in queues.items()
        ]

    @property
    def remaining(self) -> int:
        """Messages that were looked at and stay."""
        return self.rejected.total() + sum(count for count, _ in self.waiting.values())

    async def run(self, wait_s: float) -> None:
        """Send all; end when nothing has moved for `wait_s`. ServiceBusError if a dead-letter queue cannot be read."""
        running = [asyncio.ensure_future(queue.run(wait_s)) for queue in self._queues]
        try:
            await asyncio.gather(*running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        for queue in self._queues:
            self.is_complete &= not queue.is_full
            self.not_received += queue.missing
            for path, (count, why) in queue.waiting().items():
                before, _ = self.waiting.get(path, (0, why))
                self.waiting[path] = before + count, why

    async def send(self, path: str, payload: bytes, message_format: int = 0) -> None:
        """Send to a destination once: whether it is tried again, and with which mark, is decided by the caller."""
        await self._senders.sender_to(path).deliver(payload, message_format, policy=NO_RETRY)


class _DeadLetterQueue:
    """The dead letters of one backlog queue."""

    def __init__(
        self,
        resend: DeadLetterResend,
        secondary: MessagingFactory,
        path: str,
        lock_ms: int,
        *,
        count: int,
        epoch: int,
        deduct_parked_time: bool,
    ) -> None:
        self._resend = resend
        self._secondary = secondary
        self._path = f"{path}{SubQueue.DEAD_LETTER.value}"
        self._lock_ms = lock_ms
        self._count = count
        self._epoch = epoch
        self._deduct_parked_time = deduct_parked_time
        self._messages_by_destination: dict[str, list[DeadLetteredMessage]] = {}
        """By destination: those that are to be sent, in order."""
        self._reasons: dict[str, str] = {}
        """Why a destination did not accept messages, the last time."""
        self._blocked_destinations: set[str] = set()
        """Destinations that did not accept a message since the last pause."""
        self._is_empty = False
        """Nothing more came."""
        self._in_flight: Sequence[DeadLetteredMessage] = ()
        self._rejected: list[BrokeredMessage] = []
        """Those that stay for a fault of their own."""
        self._rejected_in_doubt: list[BrokeredMessage] = []
        """The same, of which a copy may have been stored."""
        self._held_bytes = 0
        self._accepted_numbers: set[int] = set()
        """Sequence numbers of messages that their destination has: they are not sent again."""
        self._received_numbers: set[int] = set()
        """Sequence numbers of all messages that were received."""

    async def run(self, wait_s: float) -> None:
        # A newer epoch displaces the older one: two programs never send the same dead letters.
        receiver = self._secondary.create_message_receiver(
            self._path, epoch=self._epoch, auto_renew=LOCK_RENEWAL_S, prefetch=0
        )
        async with receiver:
            await receiver.open()  # however long that takes: it is no sign of an empty queue
            try:
                await self._send_all(receiver, wait_s)
            finally:
                with suppress(ServiceBusError):  # its locks expire then
                    await self._release_all(receiver)

    async def _send_all(self, receiver: MessageReceiver, wait_s: float) -> None:
        """Receive until nothing comes; what a destination does not accept now is tried until nothing has moved."""
        loop = asyncio.get_running_loop()
        moved_s, pause_s = loop.time(), FIRST_PAUSE_S
        while True:
            received: list[BrokeredMessage] = []
            if not self._is_empty and self._has_room:
                received = await receiver.receive_batch(RECEIVE_BATCH_SIZE, EMPTY_AFTER_S)
                self._is_empty = not received and not self.missing
                await self._sort_by_destination(receiver, received)
            before = self._resend.moved
            for key in [key for key in self._messages_by_destination if key not in self._blocked_destinations]:
                await self._send(receiver, key)
            if received or self._resend.moved > before:
                moved_s, pause_s = loop.time(), FIRST_PAUSE_S
            if not received:
                if self._is_finished(wait_s, loop.time() - moved_s):
                    return
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, MAX_PAUSE_S)
                self._blocked_destinations.clear()

    def _is_finished(self, wait_s: float, idle_s: float) -> bool:
        """Tell whether to end: nothing was received or sent for `idle_s`."""
        if self._has_room and not self._is_empty:
            return idle_s >= max(wait_s, MIN_WAIT_FOR_COUNTED_S)
        return not self._messages_by_destination or idle_s >= wait_s

    @property
    def is_full(self) -> bool:
        """So many messages stay that others behind them were not looked at."""
        return not self._is_empty and not self._has_room

    @property
    def missing(self) -> int:
        """Messages that the queue has by its count, and that were not received."""
        return 0 if self.is_full else max(0, self._count - len(self._received_numbers))

    def waiting(self) -> dict[str, tuple[int, str]]:
        """Messages whose destination does not accept them now: by that, how many, and why."""
        return {
            letters[0].restored.path: (len(letters), self._reasons.get(key, "it was not tried"))
            for key, letters in self._messages_by_destination.items()
        }

    @property
    def _has_room(self) -> bool:
        count = (
            len(self._rejected) + len(self._rejected_in_doubt) + sum(map(len, self._messages_by_destination.values()))
        )
        return count < MAX_HELD_MESSAGES and self._held_bytes < MAX_HELD_BYTES

    async def _sort_by_destination(self, receiver: MessageReceiver, received: Sequence[BrokeredMessage]) -> None:
        """Restore messages, and put each in the line of its destination."""
        for message in received:
            self._received_numbers.add(message.sequence_number)
            if message.sequence_number in self._accepted_numbers:
                await receiver.complete(message)
                continue
            self._held_bytes += message.size
            is_doubtful = message.delivery_count > 1  # this delivery is counted
            try:
                restored = self._restore(message, is_possible_duplicate=is_doubtful)
            except ParkedMessageMalformed as error:
                self._reject(message, None, str(error))
                continue
            if isinstance(restored, ExpiredMessage):
                self._reject(message, restored.path, restored.description)
            else:
                letter = DeadLetteredMessage(message, restored, is_doubtful)
                self._messages_by_destination.setdefault(canonical_key(restored.path), []).append(letter)

    def _restore(self, message: BrokeredMessage, *, is_possible_duplicate: bool) -> RestoredMessage | ExpiredMessage:
        return restore(
            message.payload,
            0,
            deduct_parked_time=self._deduct_parked_time,
            lock_ms=self._lock_ms,
            is_possible_duplicate=is_possible_duplicate,
            is_dead_letter=True,
        )

    def _reject(
        self, message: BrokeredMessage, path: str | None, reason: str, *, is_possible_duplicate: bool = False
    ) -> None:
        """Leave a message where it is, for a fault of its own."""
        (self._rejected_in_doubt if is_possible_duplicate else self._rejected).append(message)
        self._resend.rejected[path, reason] += 1

    # --- sending ------------------------------------------------------------------------------------------------------

    async def _send(self, receiver: MessageReceiver, key: str) -> None:
        """Send the messages for one destination, in order, until it does not accept one."""
        letters = self._messages_by_destination[key]
        while letters:
            load = _next_batch(letters)
            path = load[0].restored.path
            error = await self._attempt(path, load)
            if error is not None:
                self._mark_possible_duplicates(_possibly_stored(load, error))
            if error is None:
                del letters[: len(load)]
                await self._complete(receiver, load)
            elif isinstance(error, PartlyStored) and error.stored:
                stored = set(error.stored)
                letters[: len(load)] = [one for place, one in enumerate(load) if place not in stored]
                await self._complete(receiver, [one for place, one in enumerate(load) if place in stored])
            elif failure_cause_of(error) is not FailureCause.MESSAGE:
                self._reasons[key] = str(error)
                self._blocked_destinations.add(key)
                return
            elif len(load) > 1:
                for letter in load:
                    letter.is_sent_singly = True
            else:
                self._reject(
                    load[0].message,
                    path,
                    f"{type(error).__name__}: {error}",
                    is_possible_duplicate=load[0].is_possible_duplicate,
                )
                del letters[0]
        del self._messages_by_destination[key]

    async def _attempt(self, path: str, batch: Sequence[DeadLetteredMessage]) -> ServiceBusError | None:
        payloads = [letter.restored.payload for letter in batch]
        self._in_flight = batch  # and they stay so if this is cancelled
        try:
            if len(batch) == 1:
                await self._resend.send(path, payloads[0])
            else:
                await self._resend.send(path, data(*payloads), BATCH_FORMAT)
        except ServiceBusError as error:
            self._in_flight = ()
            return error
        self._in_flight = ()
        return None

    def _mark_possible_duplicates(self, batch: Sequence[DeadLetteredMessage]) -> None:
        """Nobody knows whether these are stored: they are marked when they are sent again."""
        for letter in batch:
            if not letter.is_possible_duplicate:
                letter.is_possible_duplicate = True
                restored = self._restore(letter.message, is_possible_duplicate=True)
                if isinstance(restored, RestoredMessage):
                    letter.restored = restored

    async def _complete(self, receiver: MessageReceiver, batch: Sequence[DeadLetteredMessage]) -> None:
        self._resend.moved += len(batch)
        self._accepted_numbers.update(letter.message.sequence_number for letter in batch)
        self._held_bytes -= sum(letter.message.size for letter in batch)
        try:
            await receiver.complete_batch([letter.message for letter in batch])
        except ServiceBusError as error:
            log.warning("dead letters of '%s' were sent and not completed: %s", self._path, error)
            self._is_empty = False  # they come again, and are completed then

    async def _release_all(self, receiver: MessageReceiver) -> None:
        """Have all that stays in its place at once; what may be stored counts a delivery more."""
        self._mark_possible_duplicates(self._in_flight)
        waiting = [letter for letters in self._messages_by_destination.values() for letter in letters]
        for message in [*self._rejected, *(letter.message for letter in waiting if not letter.is_possible_duplicate)]:
            await receiver.release(message)
        for message in [
            *self._rejected_in_doubt,
            *(letter.message for letter in waiting if letter.is_possible_duplicate),
        ]:
            await receiver.abandon(message)


def _possibly_stored(batch: Sequence[DeadLetteredMessage], error: ServiceBusError) -> Sequence[DeadLetteredMessage]:
    """Return the messages that may be stored although they were refused together."""
    if not may_have_happened(error):
        return ()
    places = error.unsure if isinstance(error, PartlyStored) else None
    return batch if places is None else [batch[place] for place in places]


def _next_batch(messages: Sequence[DeadLetteredMessage]) -> list[DeadLetteredMessage]:
    """Return the first messages of a line that go in one batch."""
    load, size = [messages[0]], len(messages[0].restored.payload)
    for letter in messages[1:MAX_BATCH_MESSAGES]:
        size += len(letter.restored.payload)
        if size > MAX_BATCH_BYTES or letter.is_sent_singly or load[0].is_sent_singly:
            break
        load.append(letter)
    return load
