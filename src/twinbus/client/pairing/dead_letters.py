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
from twinbus.client.pairing.blame import Blame, blame_for
from twinbus.client.pairing.destination import BATCH_BYTES, BATCH_MESSAGES, Senders
from twinbus.client.pairing.errors import ParkedMessageMalformed
from twinbus.client.pairing.rewriting import Expired, Restored, restore
from twinbus.client.retry import NO_RETRY
from twinbus.model.errors import PartlyStored, ServiceBusError
from twinbus.model.message import BATCH_FORMAT
from twinbus.model.path import SubQueue, key_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinbus.client.factory import MessagingFactory
    from twinbus.client.receiver import MessageReceiver
    from twinbus.model.message import BrokeredMessage

log: Final = logging.getLogger(__name__)

RECEIVED_AT_ONCE: Final = 100
NOTHING_COMES_S: Final = 1.0
"""A queue that delivers nothing for this long is empty, if all the messages that it counts were received."""
COUNTED_COME_S: Final = 10.0
"""The shortest wait for messages that the queue counts and does not deliver: another program may have locked them."""
MOST_HELD: Final = 5_000
MOST_HELD_BYTES: Final = 64_000_000
"""Of messages of one queue that stay: further ones are not looked at."""
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 5.0
RENEW_S: Final = 86_400.0


@dataclass(slots=True)
class Letter:
    """A dead-lettered message under a lock."""

    message: BrokeredMessage
    restored: Restored
    is_doubtful: bool
    """It may be stored at its destination: some attempt had no answer."""
    goes_alone: bool = False
    """It was in a batch that was refused."""


class DeadLetters:
    """The dead letters of some backlog queues."""

    def __init__(
        self,
        primary: MessagingFactory,
        secondary: MessagingFactory,
        queues: Mapping[str, int],
        *,
        counts: Mapping[str, int] | None = None,
        deduct: bool = False,
    ) -> None:
        """`queues` are the paths of backlog queues, each with the duration of its locks in milliseconds.

        `counts` says how many dead letters each queue has, as far as that is known.
        """
        self.moved = 0
        self.stays: Counter[tuple[str | None, str]] = Counter()
        """Messages that stay for a fault of their own, by destination (malformed ones have none) and reason."""
        self.waits: dict[str, tuple[int, str]] = {}
        """Messages that stay because of their destination: by that, how many, and why."""
        self.is_all = True
        """False: so many messages stay that others behind them were not looked at."""
        self.not_received = 0
        """Messages that their queues have by their counts, and that were not received."""
        self._senders = Senders(primary)
        epoch = primary.settings.clock.wall_ms()
        self._queues = [
            _Queue(self, secondary, path, lock_ms, count=(counts or {}).get(path, 0), epoch=epoch, deduct=deduct)
            for path, lock_ms in queues.items()
        ]

    @property
    def left(self) -> int:
        """Messages that were looked at and stay."""
        return self.stays.total() + sum(count for count, _ in self.waits.values())

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
            self.is_all &= not queue.is_full
            self.not_received += queue.missing
            for path, (count, why) in queue.waits().items():
                before, _ = self.waits.get(path, (0, why))
                self.waits[path] = before + count, why

    async def send(self, path: str, payload: bytes, message_format: int = 0) -> None:
        """Send to a destination once: whether it is tried again, and with which mark, is decided by the caller."""
        await self._senders.to(path).deliver(payload, message_format, policy=NO_RETRY)


class _Queue:
    """The dead letters of one backlog queue."""

    def __init__(
        self,
        all_letters: DeadLetters,
        secondary: MessagingFactory,
        path: str,
        lock_ms: int,
        *,
        count: int,
        epoch: int,
        deduct: bool,
    ) -> None:
        self._all = all_letters
        self._secondary = secondary
        self._path = f"{path}{SubQueue.DEAD_LETTER.value}"
        self._lock_ms = lock_ms
        self._count = count
        self._epoch = epoch
        self._deduct = deduct
        self._letters: dict[str, list[Letter]] = {}
        """By destination: those that are to be sent, in order."""
        self._reasons: dict[str, str] = {}
        """Why a destination did not accept messages, the last time."""
        self._is_blocked: set[str] = set()
        """Destinations that did not accept a message since the last pause."""
        self._is_empty = False
        """Nothing more came."""
        self._on_way: Sequence[Letter] = ()
        self._held: list[BrokeredMessage] = []
        """Those that stay for a fault of their own."""
        self._held_in_doubt: list[BrokeredMessage] = []
        """The same, of which a copy may have been stored."""
        self._held_bytes = 0
        self._accepted: set[int] = set()
        """Sequence numbers of messages that their destination has: they are not sent again."""
        self._received: set[int] = set()
        """Sequence numbers of all messages that were received."""

    async def run(self, wait_s: float) -> None:
        # A newer epoch displaces the older one: two programs never send the same dead letters.
        receiver = self._secondary.create_message_receiver(
            self._path, epoch=self._epoch, auto_renew=RENEW_S, prefetch=0
        )
        async with receiver:
            await receiver.open()  # however long that takes: it is no sign of an empty queue
            try:
                await self._send_all(receiver, wait_s)
            finally:
                with suppress(ServiceBusError):  # its locks expire then
                    await self._give_back(receiver)

    async def _send_all(self, receiver: MessageReceiver, wait_s: float) -> None:
        """Receive until nothing comes; what a destination does not accept now is tried until nothing has moved."""
        loop = asyncio.get_running_loop()
        moved_s, pause_s = loop.time(), FIRST_PAUSE_S
        while True:
            received: list[BrokeredMessage] = []
            if not self._is_empty and self._has_room:
                received = await receiver.receive_batch(RECEIVED_AT_ONCE, NOTHING_COMES_S)
                self._is_empty = not received and not self.missing
                await self._sort(receiver, received)
            before = self._all.moved
            for key in [key for key in self._letters if key not in self._is_blocked]:
                await self._send(receiver, key)
            if received or self._all.moved > before:
                moved_s, pause_s = loop.time(), FIRST_PAUSE_S
            if not received:
                if self._is_over(wait_s, loop.time() - moved_s):
                    return
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                self._is_blocked.clear()

    def _is_over(self, wait_s: float, idle_s: float) -> bool:
        """Tell whether to end: nothing was received or sent for `idle_s`."""
        if self._has_room and not self._is_empty:
            return idle_s >= max(wait_s, COUNTED_COME_S)
        return not self._letters or idle_s >= wait_s

    @property
    def is_full(self) -> bool:
        """So many messages stay that others behind them were not looked at."""
        return not self._is_empty and not self._has_room

    @property
    def missing(self) -> int:
        """Messages that the queue has by its count, and that were not received."""
        return 0 if self.is_full else max(0, self._count - len(self._received))

    def waits(self) -> dict[str, tuple[int, str]]:
        """Messages whose destination does not accept them now: by that, how many, and why."""
        return {
            letters[0].restored.path: (len(letters), self._reasons.get(key, "it was not tried"))
            for key, letters in self._letters.items()
        }

    @property
    def _has_room(self) -> bool:
        count = len(self._held) + len(self._held_in_doubt) + sum(map(len, self._letters.values()))
        return count < MOST_HELD and self._held_bytes < MOST_HELD_BYTES

    async def _sort(self, receiver: MessageReceiver, received: Sequence[BrokeredMessage]) -> None:
        """Restore messages, and put each in the line of its destination."""
        for message in received:
            self._received.add(message.sequence_number)
            if message.sequence_number in self._accepted:
                await receiver.complete(message)
                continue
            self._held_bytes += message.size
            is_doubtful = message.delivery_count > 1  # this delivery is counted
            try:
                restored = self._restore(message, is_doubtful=is_doubtful)
            except ParkedMessageMalformed as error:
                self._keep(message, None, str(error))
                continue
            if isinstance(restored, Expired):
                self._keep(message, restored.path, restored.text)
            else:
                letter = Letter(message, restored, is_doubtful)
                self._letters.setdefault(key_of(restored.path), []).append(letter)

    def _restore(self, message: BrokeredMessage, *, is_doubtful: bool) -> Restored | Expired:
        return restore(
            message.payload,
            0,
            deduct=self._deduct,
            lock_ms=self._lock_ms,
            is_possible_duplicate=is_doubtful,
            is_dead_letter=True,
        )

    def _keep(self, message: BrokeredMessage, path: str | None, reason: str, *, is_doubtful: bool = False) -> None:
        """Leave a message where it is, for a fault of its own."""
        (self._held_in_doubt if is_doubtful else self._held).append(message)
        self._all.stays[path, reason] += 1

    # --- sending ------------------------------------------------------------------------------------------------------

    async def _send(self, receiver: MessageReceiver, key: str) -> None:
        """Send the messages for one destination, in order, until it does not accept one."""
        letters = self._letters[key]
        while letters:
            load = _load(letters)
            path = load[0].restored.path
            error = await self._attempt(path, load)
            if error is not None:
                self._doubt(_unsure(load, error))
            if error is None:
                del letters[: len(load)]
                await self._complete(receiver, load)
            elif isinstance(error, PartlyStored) and error.stored:
                stored = set(error.stored)
                letters[: len(load)] = [one for place, one in enumerate(load) if place not in stored]
                await self._complete(receiver, [one for place, one in enumerate(load) if place in stored])
            elif blame_for(error) is not Blame.MESSAGE:
                self._reasons[key] = str(error)
                self._is_blocked.add(key)
                return
            elif len(load) > 1:
                for letter in load:
                    letter.goes_alone = True
            else:
                self._keep(load[0].message, path, f"{type(error).__name__}: {error}", is_doubtful=load[0].is_doubtful)
                del letters[0]
        del self._letters[key]

    async def _attempt(self, path: str, load: Sequence[Letter]) -> ServiceBusError | None:
        payloads = [letter.restored.payload for letter in load]
        self._on_way = load  # and they stay so if this is cancelled
        try:
            if len(load) == 1:
                await self._all.send(path, payloads[0])
            else:
                await self._all.send(path, data(*payloads), BATCH_FORMAT)
        except ServiceBusError as error:
            self._on_way = ()
            return error
        self._on_way = ()
        return None

    def _doubt(self, load: Sequence[Letter]) -> None:
        """Nobody knows whether these are stored: they are marked when they are sent again."""
        for letter in load:
            if not letter.is_doubtful:
                letter.is_doubtful = True
                restored = self._restore(letter.message, is_doubtful=True)
                if isinstance(restored, Restored):
                    letter.restored = restored

    async def _complete(self, receiver: MessageReceiver, load: Sequence[Letter]) -> None:
        self._all.moved += len(load)
        self._accepted.update(letter.message.sequence_number for letter in load)
        self._held_bytes -= sum(letter.message.size for letter in load)
        try:
            await receiver.complete_batch([letter.message for letter in load])
        except ServiceBusError as error:
            log.warning("dead letters of '%s' were sent and not completed: %s", self._path, error)
            self._is_empty = False  # they come again, and are completed then

    async def _give_back(self, receiver: MessageReceiver) -> None:
        """Have all that stays in its place at once; what may be stored counts a delivery more."""
        self._doubt(self._on_way)
        waiting = [letter for letters in self._letters.values() for letter in letters]
        for message in [*self._held, *(letter.message for letter in waiting if not letter.is_doubtful)]:
            await receiver.release(message)
        for message in [*self._held_in_doubt, *(letter.message for letter in waiting if letter.is_doubtful)]:
            await receiver.abandon(message)


def _unsure(load: Sequence[Letter], error: ServiceBusError) -> Sequence[Letter]:
    """Return the messages that may be stored although they were refused together."""
    if not may_have_happened(error):
        return ()
    places = error.unsure if isinstance(error, PartlyStored) else None
    return load if places is None else [load[place] for place in places]


def _load(letters: Sequence[Letter]) -> list[Letter]:
    """Return the first messages of a line that go in one batch."""
    load, size = [letters[0]], len(letters[0].restored.payload)
    for letter in letters[1:BATCH_MESSAGES]:
        size += len(letter.restored.payload)
        if size > BATCH_BYTES or letter.goes_alone or load[0].goes_alone:
            break
        load.append(letter)
    return load
