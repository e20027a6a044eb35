"""Resends dead-lettered messages from backlog queues, for operators who have fixed the cause.

    dead_letters = DeadLetterResend(primary, secondary, {path: lock_ms})
    await dead_letters.run(wait_s=60)

Owns: moving messages from the dead-letter queue of a backlog queue to their destinations. A message leaves the
dead-letter queue after the primary has accepted it; all other messages stay there, with their dead-letter reasons. The
backlog queue itself is not touched: a syphon can drain it at the same time.

A message that stays is kept locked until the run finishes, so that it is not received repeatedly, and then returns to
the dead-letter queue. Its delivery count is increased only if the primary may have stored the message. So a message
with a delivery count above 0 is marked as a possible duplicate when it is sent.
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
"""The time without a delivery after which a queue is considered empty, if all the messages that it counts were
received."""
MIN_WAIT_FOR_COUNTED_S: Final = 10.0
"""The minimum wait for messages that the queue counts but does not deliver, because another program may have locked
them."""
MAX_HELD_MESSAGES: Final = 5_000
MAX_HELD_BYTES: Final = 64_000_000
"""The maximum total size of messages kept locked per queue; further messages are not received."""
FIRST_PAUSE_S: Final = 0.5
MAX_PAUSE_S: Final = 5.0
LOCK_RENEWAL_S: Final = 86_400.0


@dataclass(slots=True)
class DeadLetteredMessage:
    """A dead-lettered message under a lock."""

    message: BrokeredMessage
    restored: RestoredMessage
    is_possible_duplicate: bool
    """Whether the message may be stored at its destination, because an attempt got no outcome."""
    is_sent_singly: bool = False
    """Whether the message was in a rejected batch, and is therefore sent alone."""


class DeadLetterResend:
    """A run that resends dead-lettered messages from some backlog queues."""

    def __init__(
        self,
        primary: MessagingFactory,
        secondary: MessagingFactory,
        queues: Mapping[str, int],
        *,
        counts: Mapping[str, int] | None = None,
        deduct_parked_time: bool = False,
    ) -> None:
        """Create a run for `queues`: paths of backlog queues with their lock durations in milliseconds.

        `counts` has the known numbers of dead-lettered messages in the queues.
        """
        self.moved = 0
        self.rejected: Counter[tuple[str | None, str]] = Counter()
        """Messages left in the queue as undeliverable, by destination (None if malformed) and reason."""
        self.waiting: dict[str, tuple[int, str]] = {}
        """Messages that stay in the queue because their destination does not accept them now: for each destination, the
        number of messages and the reason."""
        self.is_complete = True
        """Whether all messages could be received; False if too many messages had to be kept locked."""
        self.not_received = 0
        """The number of messages that the queues count and that were not received."""
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
        """The number of received messages that are left in the dead-letter queues."""
        return self.rejected.total() + sum(count for count, _ in self.waiting.values())

    async def run(self, wait_s: float) -> None:
        """Send messages until none has moved for `wait_s`. Raise ServiceBusError if a queue cannot be read."""
        tasks = [asyncio.ensure_future(queue.run(wait_s)) for queue in self._queues]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for queue in self._queues:
            self.is_complete &= not queue.is_full
            self.not_received += queue.missing
            for path, (count, reason) in queue.waiting().items():
                previous_count, _ = self.waiting.get(path, (0, reason))
                self.waiting[path] = previous_count + count, reason

    async def send(self, path: str, payload: bytes, message_format: int = 0) -> None:
        """Send a message or a batch to a destination once, without retries; the caller marks possible duplicates."""
        await self._senders.sender_to(path).deliver(payload, message_format, policy=NO_RETRY)


class _DeadLetterQueue:
    """The dead-lettered messages of one backlog queue."""

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
        """Messages to send, by destination, in order."""
        self._reasons: dict[str, str] = {}
        """The last error of each destination."""
        self._blocked_destinations: set[str] = set()
        """Destinations that did not accept a message since the last pause."""
        self._is_empty = False
        """Whether all messages were received."""
        self._in_flight: Sequence[DeadLetteredMessage] = ()
        self._rejected: list[BrokeredMessage] = []
        """Messages that can never be accepted."""
        self._rejected_in_doubt: list[BrokeredMessage] = []
        """Messages that can never be accepted, although a copy may have been stored."""
        self._held_bytes = 0
        self._accepted_numbers: set[int] = set()
        """Sequence numbers of messages that their destination has accepted, and that are not sent again."""
        self._received_numbers: set[int] = set()
        """Sequence numbers of all messages that were received."""

    async def run(self, wait_s: float) -> None:
        # A receiver with a newer epoch displaces the older one, so that two programs never send the same dead letters.
        receiver = self._secondary.create_message_receiver(
            self._path, epoch=self._epoch, auto_renew=LOCK_RENEWAL_S, prefetch=0
        )
        async with receiver:
            await receiver.open()  # before the first receive: a slow attach does not mean that the queue is empty
            try:
                await self._send_all(receiver, wait_s)
            finally:
                with suppress(ServiceBusError):  # the queue releases the messages itself when their locks expire
                    await self._release_all(receiver)

    async def _send_all(self, receiver: MessageReceiver, wait_s: float) -> None:
        """Receive and send all messages. Retry messages that were not accepted until none has moved for `wait_s`."""
        loop = asyncio.get_running_loop()
        moved_s, pause_s = loop.time(), FIRST_PAUSE_S
        while True:
            received: list[BrokeredMessage] = []
            if not self._is_empty and self._has_room:
                received = await receiver.receive_batch(RECEIVE_BATCH_SIZE, EMPTY_AFTER_S)
                self._is_empty = not received and not self.missing
                await self._sort_by_destination(receiver, received)
            moved_before = self._resend.moved
            for key in [key for key in self._messages_by_destination if key not in self._blocked_destinations]:
                await self._send(receiver, key)
            if received or self._resend.moved > moved_before:
                moved_s, pause_s = loop.time(), FIRST_PAUSE_S
            if not received:
                if self._is_finished(wait_s, loop.time() - moved_s):
                    return
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, MAX_PAUSE_S)
                self._blocked_destinations.clear()

    def _is_finished(self, wait_s: float, idle_s: float) -> bool:
        """Return whether the resend should stop after `idle_s` seconds without a receive or a send."""
        if self._has_room and not self._is_empty:
            return idle_s >= max(wait_s, MIN_WAIT_FOR_COUNTED_S)
        return not self._messages_by_destination or idle_s >= wait_s

    @property
    def is_full(self) -> bool:
        """Whether so many messages are kept locked that the messages behind them were not received."""
        return not self._is_empty and not self._has_room

    @property
    def missing(self) -> int:
        """The number of messages that the queue counts and that were not received."""
        return 0 if self.is_full else max(0, self._count - len(self._received_numbers))

    def waiting(self) -> dict[str, tuple[int, str]]:
        """Return, for each destination that accepts no messages now, the number of messages and the reason."""
        return {
            dead_letters[0].restored.path: (len(dead_letters), self._reasons.get(key, "not attempted"))
            for key, dead_letters in self._messages_by_destination.items()
        }

    @property
    def _has_room(self) -> bool:
        count = (
            len(self._rejected) + len(self._rejected_in_doubt) + sum(map(len, self._messages_by_destination.values()))
        )
        return count < MAX_HELD_MESSAGES and self._held_bytes < MAX_HELD_BYTES

    async def _sort_by_destination(self, receiver: MessageReceiver, received: Sequence[BrokeredMessage]) -> None:
        """Restore messages, and add each to the list of its destination."""
        for message in received:
            self._received_numbers.add(message.sequence_number)
            if message.sequence_number in self._accepted_numbers:
                await receiver.complete(message)
                continue
            self._held_bytes += message.size
            is_possible_duplicate = message.delivery_count > 1  # the count includes this delivery
            try:
                restored = self._restore(message, is_possible_duplicate=is_possible_duplicate)
            except ParkedMessageMalformed as error:
                self._reject(message, None, str(error))
                continue
            if isinstance(restored, ExpiredMessage):
                self._reject(message, restored.path, restored.description)
            else:
                dead_letter = DeadLetteredMessage(message, restored, is_possible_duplicate)
                self._messages_by_destination.setdefault(canonical_key(restored.path), []).append(dead_letter)

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
        """Leave a message that can never be accepted in the dead-letter queue."""
        (self._rejected_in_doubt if is_possible_duplicate else self._rejected).append(message)
        self._resend.rejected[path, reason] += 1

    # --- sending ------------------------------------------------------------------------------------------------------

    async def _send(self, receiver: MessageReceiver, key: str) -> None:
        """Send the messages for one destination, in order, until one is not accepted."""
        dead_letters = self._messages_by_destination[key]
        while dead_letters:
            batch = _next_batch(dead_letters)
            path = batch[0].restored.path
            error = await self._attempt(path, batch)
            if error is not None:
                self._mark_possible_duplicates(_possibly_stored(batch, error))
            if error is None:
                del dead_letters[: len(batch)]
                await self._complete(receiver, batch)
            elif isinstance(error, PartlyStored) and error.stored:
                stored = set(error.stored)
                dead_letters[: len(batch)] = [message for index, message in enumerate(batch) if index not in stored]
                await self._complete(receiver, [message for index, message in enumerate(batch) if index in stored])
            elif failure_cause_of(error) is not FailureCause.MESSAGE:
                self._reasons[key] = str(error)
                self._blocked_destinations.add(key)
                return
            elif len(batch) > 1:
                for dead_letter in batch:
                    dead_letter.is_sent_singly = True
            else:
                self._reject(
                    batch[0].message,
                    path,
                    f"{type(error).__name__}: {error}",
                    is_possible_duplicate=batch[0].is_possible_duplicate,
                )
                del dead_letters[0]
        del self._messages_by_destination[key]

    async def _attempt(self, path: str, batch: Sequence[DeadLetteredMessage]) -> ServiceBusError | None:
        payloads = [dead_letter.restored.payload for dead_letter in batch]
        self._in_flight = batch  # stays set if this task is cancelled, so that the messages are marked
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
        """Mark messages that may have been stored as possible duplicates for the next attempt."""
        for dead_letter in batch:
            if not dead_letter.is_possible_duplicate:
                dead_letter.is_possible_duplicate = True
                restored = self._restore(dead_letter.message, is_possible_duplicate=True)
                if isinstance(restored, RestoredMessage):
                    dead_letter.restored = restored

    async def _complete(self, receiver: MessageReceiver, batch: Sequence[DeadLetteredMessage]) -> None:
        self._resend.moved += len(batch)
        self._accepted_numbers.update(dead_letter.message.sequence_number for dead_letter in batch)
        self._held_bytes -= sum(dead_letter.message.size for dead_letter in batch)
        try:
            await receiver.complete_batch([dead_letter.message for dead_letter in batch])
        except ServiceBusError as error:
            log.warning("messages of '%s' were sent, but could not be completed: %s", self._path, error)
            self._is_empty = False  # the messages are redelivered, and then completed

    async def _release_all(self, receiver: MessageReceiver) -> None:
        """Return all remaining messages to the queue; messages that may be stored get a higher delivery count."""
        self._mark_possible_duplicates(self._in_flight)
        waiting = [
            dead_letter for dead_letters in self._messages_by_destination.values() for dead_letter in dead_letters
        ]
        for message in [
            *self._rejected,
            *(dead_letter.message for dead_letter in waiting if not dead_letter.is_possible_duplicate),
        ]:
            await receiver.release(message)
        for message in [
            *self._rejected_in_doubt,
            *(dead_letter.message for dead_letter in waiting if dead_letter.is_possible_duplicate),
        ]:
            await receiver.abandon(message)


def _possibly_stored(batch: Sequence[DeadLetteredMessage], error: ServiceBusError) -> Sequence[DeadLetteredMessage]:
    """Return the messages of a failed batch that may be stored."""
    if not may_have_happened(error):
        return ()
    unsure_indexes = error.unsure if isinstance(error, PartlyStored) else None
    return batch if unsure_indexes is None else [batch[index] for index in unsure_indexes]


def _next_batch(messages: Sequence[DeadLetteredMessage]) -> list[DeadLetteredMessage]:
    """Return the first messages, as many as fit in one batch."""
    batch, size = [messages[0]], len(messages[0].restored.payload)
    for dead_letter in messages[1:MAX_BATCH_MESSAGES]:
        size += len(dead_letter.restored.payload)
        if size > MAX_BATCH_BYTES or dead_letter.is_sent_singly or batch[0].is_sent_singly:
            break
        batch.append(dead_letter)
    return batch
