"""What was promised of messages that were sent to a queue that several processes have, seen from outside of it.

Owns: that what was accepted is received until it is completed, and not after that; that nobody gets what another has;
that the messages of a session come in order, and those that came one way are stored in order; that a transaction is
done, or not at all; that whoever asks is answered once.

Words take time: what a receiver has not been given yet may be locked for it already, and what it gave back may not be
free yet. So what is said here is what clients were told and were given, and nothing of where messages are meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from tests.ledger.messages import FRAGMENT_SHIFT, State
from tests.ledger.problems import Violation
from tests.simulation.letter import read_delivery, read_locked_until
from tests.simulation.processes.copies import Copy, Holding, Lock, Message, Sending
from tests.simulation.processes.deletions import Deletions
from twinbus.model.errors import PartlyStored
from twinbus.model.partition_key import fragment_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.letter import Reading
    from tests.simulation.processes.takers import SessionTaker, Taker
    from twinbus.model.errors import ServiceBusError


class Ledger:
    """All messages that were sent in one run, and the copies that were received."""

    def __init__(self, stores: int, now_ms: Callable[[], int], store_of: Callable[[int], int]) -> None:
        """`store_of` says where a fragment lies."""
        self.troubles = [0] * stores
        """How often each store failed, or was silent."""
        self.messages: list[Message] = []
        self.sendings: list[Sending] = []
        self.now_ms = now_ms
        self.buries_often = False
        """Few deliveries are enough for a message to be a dead message."""
        self.is_alone = False
        """One process has all fragments: nothing is on its way between two of them."""
        self.is_plain = False
        """The queue has one fragment, which all keys lead to."""
        self.incidents = 0
        """Processes that died or were silent, and long waits: what was on its way then may be counted as delivered."""
        self.deletions = Deletions(self)
        self._store_of = store_of
        self._stored: dict[tuple[str, int], list[tuple[int, int]]] = {}
        """Of each key and the way its messages came: which there were, and under which sequence numbers."""
        self._first: dict[str, int] = {}
        """Of each session, the highest sequence number that was ever received."""
        self._highest: dict[str, int] = {}
        """Of each key, the highest sequence number that one process has handed out."""
        self.holdings: dict[str, Holding] = {}

    # --- sending ------------------------------------------------------------------------------------------------------

    def send_by(self, keys: list[str | None], way: int) -> Sending:
        """Record a send through a process, which is known by a number that no other one has had."""
        messages = [Message(len(self.messages) + at, key, way) for at, key in enumerate(keys)]
        sending = Sending(messages, self.troubles.copy())
        for message in messages:
            message.sending = sending
        self.messages += messages
        self.sendings.append(sending)
        return sending

    def sent(self, sending: Sending, error: ServiceBusError | None, working: list[int]) -> None:
        """It was answered, or refused at once, while these stores took messages."""
        if sending.is_answered or sending.is_void:
            raise Violation(f"{sending!r} was answered twice, or by a process that is gone")
        sending.is_answered = True
        stored = error.stored if isinstance(error, PartlyStored) else ()
        for place, message in enumerate(sending.messages):
            message.is_accepted = error is None or place in stored
        steady = [store for store in working if self.troubles[store] == sending.troubles[store]]
        if error is not None and steady and all(message.key is None for message in sending.messages):
            raise Violation(f"{sending!r} has no key, stores {steady} worked all the time, and it failed: {error}")

    def check_answered(self) -> None:
        for sending in self.sendings:
            if not sending.is_answered and not sending.is_void:
                raise Violation(f"{sending!r} is not answered")

    # --- receiving ----------------------------------------------------------------------------------------------------

    def lend(self, taker: Taker, payload: bytes, tag: bytes) -> Lock:
        """Someone was given a message under a lock."""
        until_ms = read_locked_until(payload)
        if until_ms < self.now_ms():
            return self._lend_late(taker, payload, tag, until_ms)
        copy = self._hand_out(taker, read_delivery(payload))
        if self.is_alone:
            self._check_first(copy)
        copy.given.append(Lock(copy, tag, until_ms, taker))
        return copy.given[-1]

    def _lend_late(self, taker: Taker, payload: bytes, tag: bytes, until_ms: int) -> Lock:
        """The lock was over when the message came: it is worth nothing, and others may have had the message since."""
        reading = read_delivery(payload)
        message = self.messages[reading.identity]
        copies = message.dead if taker.is_of_dead else message.copies
        copy = copies.get(reading.sequence) or Copy(message, reading.sequence, is_dead=taker.is_of_dead)
        lock = Lock(copy, tag, until_ms, taker)
        lock.is_late = True
        return lock

    def hand_over(self, taker: Taker, payload: bytes) -> Copy:
        """Someone was given a message for good."""
        copy = self._hand_out(taker, read_delivery(payload))
        copy.state = State.GONE
        self.deletions.deliver(copy.sequence)
        return copy

    def receive_aside(self, reading: Reading, *, is_dead: bool, is_done: bool) -> None:
        """A deferred message was received by its number, for good, if that `is_done`."""
        message = self.messages[reading.identity]
        copy = (message.dead if is_dead else message.copies).get(reading.sequence)
        if copy is None or copy.state in {State.GONE, State.DEAD}:
            raise Violation(f"{message!r} is deferred, and was not received before, or is gone")
        copy.asked[State.GONE] += 1
        if is_done:
            copy.state = State.GONE

    def _hand_out(self, taker: Taker, reading: Reading) -> Copy:
        message = self.messages[reading.identity]
        copy = self._find(message, reading, is_dead=taker.is_of_dead)
        self._check_deals(copy)
        copy.check_free(self.now_ms())
        self._check_count(copy, reading.delivered)
        if not copy.is_dead and isinstance(taker.session, str):
            self._check_session(taker, copy)
        return copy

    def _find(self, message: Message, reading: Reading, *, is_dead: bool) -> Copy:
        copies = message.dead if is_dead else message.copies
        copy = copies.get(reading.sequence)
        if copy is None:
            copy = copies[reading.sequence] = Copy(message, reading.sequence, is_dead=is_dead)
            if is_dead:
                self._check_burial(copy)
            else:
                self._check_arrival(copy)
        return copy

    def _check_arrival(self, copy: Copy) -> None:
        """A message is seen for the first time, or at another place."""
        message, sequence = copy.message, copy.sequence
        if message.deal is not None:
            message.deal.appeared(message)
        if message.key is None:
            if len(message.copies) > 1 and self.troubles == message.sending.troubles:
                raise Violation(f"{message!r} is there twice, and no store had trouble")
            return
        if len(message.copies) > 1:
            raise Violation(f"{message!r} has a key, and is there twice")
        if not self.is_plain and sequence >> FRAGMENT_SHIFT != fragment_of(message.key.encode()):
            raise Violation(f"{message!r} is in fragment {sequence >> FRAGMENT_SHIFT}")
        if message.deal is None:
            self._check_order(message, message.key, sequence)

    def _check_order(self, message: Message, key: str, sequence: int) -> None:
        """What came one way is stored in the order in which it came."""
        stored = self._stored.setdefault((key, message.way), [])
        place = bisect_left(stored, (message.identity, 0))
        stored.insert(place, (message.identity, sequence))
        numbers = [number for _, number in stored[max(0, place - 1) : place + 2]]
        if numbers != sorted(numbers):
            raise Violation(f"{message!r} was stored out of turn: {stored}")

    def _check_burial(self, copy: Copy) -> None:
        """A dead message is seen for the first time."""
        fragment, message = copy.sequence >> FRAGMENT_SHIFT, copy.message
        sources = [one for one in message.copies.values() if one.sequence >> FRAGMENT_SHIFT == fragment]
        source = next((one for one in sources if State.DEAD in one.may_be and not one.has_dead_letter), None)
        if source is not None:
            source.state, source.has_dead_letter = State.DEAD, True
            copy.counted = source.counted
        elif not self.buries_often:
            raise Violation(f"{message!r} is a dead message, and nobody asked for that")

    def _check_first(self, copy: Copy) -> None:
        """In one process, messages of a key are handed out for the first time in the order of their numbers.

        A message that was deleted for a receiver who has not got it comes back late.
        """
        key = copy.message.key
        if key is None or copy.is_dead or copy.was_handed_out or copy.message.was_deleted:
            return
        copy.was_handed_out = True
        if copy.sequence < self._highest.get(key, 0):
            raise Violation(f"{copy!r} comes after {self._highest[key]}")
        self._highest[key] = copy.sequence

    def _check_deals(self, copy: Copy) -> None:
        for deal in copy.deals:
            deal.comes_again(copy)

    def _check_count(self, copy: Copy, delivered: int) -> None:
        lock = copy.lock
        if lock is not None and not lock.is_counted and lock.until_ms <= self.now_ms() + 1:
            lock.is_counted = True
            copy.counted += 1
        if delivered > copy.counted + self.incidents and not self.buries_often:
            raise Violation(f"{copy!r} was delivered {delivered} times, as it says, and only {copy.counted} count")

    # --- sessions -----------------------------------------------------------------------------------------------------

    def grant(self, taker: SessionTaker, session: str, until_ms: int) -> None:
        before = self.holdings.get(session)
        if before is not None and before.until_ms > self.now_ms() + 1:
            raise Violation(f"the session {session} is {before.taker!r}'s until {before.until_ms}, and is {taker!r}'s")
        self.holdings[session] = Holding(taker, until_ms)

    def end_session(self, taker: SessionTaker) -> None:
        """Someone has left, or was told that the session is not his any more: what he had is free."""
        holding = self.holdings.get(taker.session) if taker.session is not None else None
        if holding is not None and holding.taker is taker:
            del self.holdings[holding.taker.session or ""]
        for lock in self._locks(lambda lock: lock.taker is taker):
            lock.is_void = lock.copy.was_returned = True

    def _check_session(self, taker: Taker, copy: Copy) -> None:
        session, sequence = taker.session, copy.sequence
        assert session is not None
        if copy.message.key != session:
            raise Violation(f"{copy!r} was given to {taker!r}")
        highest = self._first.get(session, 0)
        if not copy.was_seen and sequence < highest:
            raise Violation(f"{copy!r} of {session} comes after {highest}")
        if sequence <= taker.last_sequence and not copy.was_returned:
            raise Violation(f"{copy!r} comes to {taker!r} after {taker.last_sequence}")
        taker.last_sequence = max(taker.last_sequence, sequence)
        self._first[session] = max(highest, sequence)
        copy.was_seen, copy.was_returned = True, False

    # --- failures -----------------------------------------------------------------------------------------------------

    def lose(self, store: int) -> None:
        """All locks of a store are void."""
        self.troubles[store] += 1
        for lock in self._locks(lambda lock: self._store_of(lock.copy.sequence >> FRAGMENT_SHIFT) == store):
            lock.is_void = lock.is_lost = lock.copy.was_returned = True

    def lose_owner(self, stores: list[int]) -> None:
        """The process that has these stores is no more: nobody has a session of it."""
        for store in stores:
            self.lose(store)
        for session in list(self.holdings):
            if self._store_of(0 if self.is_plain else fragment_of(session.encode())) in stores:
                del self.holdings[session]

    def _locks(self, is_meant: Callable[[Lock], bool]) -> list[Lock]:
        return [lock for copy in self.copies() for lock in copy.given if is_meant(lock)]

    def lose_process(self, way: int) -> None:
        """Nobody is answered any more who was to be answered by a process."""
        for message in self.messages:
            sending = message.sending
            if message.way == way and not sending.is_answered:
                sending.is_void = True

    # --- the end ------------------------------------------------------------------------------------------------------

    def copies(self) -> list[Copy]:
        return [copy for message in self.messages for copy in (*message.copies.values(), *message.dead.values())]

    def check_all_received(self) -> None:
        for message in self.messages:
            copies = (*message.copies.values(), *message.dead.values())
            if message.is_accepted and not message.lost and not any(copy.may_be_gone for copy in copies):
                raise Violation(f"{message!r} was accepted, and is lost")
