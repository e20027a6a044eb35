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

from tests.simulation.ledger import Violation
from tests.simulation.letter import read_delivery, read_locked_until
from tests.simulation.processes.copies import Copy, Holding, Letter, Lock
from tests.simulation.sendings import Sendings
from twinbus.model.partition_key import fragment_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.letter import Reading
    from tests.simulation.processes.takers import SessionTaker, Taker
    from tests.simulation.sendings import Sending

FRAGMENT_SHIFT = 48


class Ledger(Sendings[Letter]):
    def __init__(self, stores: int, now_ms: Callable[[], int], store_of: Callable[[int], int]) -> None:
        """`store_of` says where a fragment lies."""
        super().__init__(Letter, stores)
        self.now_ms = now_ms
        self.buries_often = False
        """Few deliveries are enough for a message to be a dead letter."""
        self.is_plain = False
        """The queue has one fragment, which all keys lead to."""
        self.incidents = 0
        """Processes that died or were silent, and long waits: what was on its way then may be counted as delivered."""
        self.lost_up_to = -1
        """Who receives and deletes may not get what was on its way to him when something failed: up to this one."""
        self._store_of = store_of
        self._stored: dict[tuple[str, int], list[tuple[int, int]]] = {}
        """Of each key and the way its messages came: which there were, and under which sequence numbers."""
        self._first: dict[str, int] = {}
        """Of each session, the highest sequence number that was ever received."""
        self.holdings: dict[str, Holding] = {}

    # --- sending ------------------------------------------------------------------------------------------------------

    def send_by(self, keys: list[str | None], way: int) -> Sending:
        """Through a process, which is known by a number that no other one has had."""
        sending = self.send(keys)
        for letter in sending.letters:
            assert isinstance(letter, Letter)
            letter.way = way
        return sending

    # --- receiving ----------------------------------------------------------------------------------------------------

    def lend(self, taker: Taker, payload: bytes, tag: bytes) -> Lock:
        """Someone was given a message under a lock."""
        until_ms = read_locked_until(payload)
        if until_ms < self.now_ms():
            return self._lend_late(taker, payload, tag, until_ms)
        copy = self._hand_out(taker, read_delivery(payload))
        lock = copy.lock = Lock(copy, tag, until_ms, taker)
        return lock

    def _lend_late(self, taker: Taker, payload: bytes, tag: bytes, until_ms: int) -> Lock:
        """The lock was over when the message came: it is worth nothing, and others may have had the message since."""
        reading = read_delivery(payload)
        letter = self.letters[reading.identity]
        copies = letter.dead if taker.is_of_dead else letter.copies
        copy = copies.get(reading.sequence) or Copy(letter, reading.sequence, is_dead=taker.is_of_dead)
        lock = Lock(copy, tag, until_ms, taker)
        lock.is_late = True
        return lock

    def hand_over(self, taker: Taker, payload: bytes) -> Copy:
        """Someone was given a message for good."""
        copy = self._hand_out(taker, read_delivery(payload))
        copy.is_ending = copy.is_gone = True
        return copy

    def receive_aside(self, reading: Reading, *, is_dead: bool, is_done: bool) -> None:
        """A deferred message was received by its number, for good, if that `is_done`."""
        letter = self.letters[reading.identity]
        copy = (letter.dead if is_dead else letter.copies).get(reading.sequence)
        if copy is None or copy.is_gone or copy.is_moved:
            raise Violation(f"{letter!r} is deferred, and was not received before, or is gone")
        copy.is_ending, copy.is_gone = True, is_done

    def _hand_out(self, taker: Taker, reading: Reading) -> Copy:
        letter = self.letters[reading.identity]
        copy = self._find(letter, reading, is_dead=taker.is_of_dead)
        self._check_deals(copy)
        copy.check_free(self.now_ms())
        self._check_count(copy, reading.delivered)
        if not copy.is_dead and isinstance(taker.session, str):
            self._check_session(taker, copy)
        return copy

    def _find(self, letter: Letter, reading: Reading, *, is_dead: bool) -> Copy:
        copies = letter.dead if is_dead else letter.copies
        copy = copies.get(reading.sequence)
        if copy is None:
            copy = copies[reading.sequence] = Copy(letter, reading.sequence, is_dead=is_dead)
            if is_dead:
                self._check_burial(copy)
            else:
                self._check_arrival(copy)
        return copy

    def _check_arrival(self, copy: Copy) -> None:
        """A message is seen for the first time, or at another place."""
        letter, sequence = copy.letter, copy.sequence
        if letter.deal is not None:
            letter.deal.appeared(letter)
        if letter.key is None:
            if len(letter.copies) > 1 and self.troubles == letter.sending.troubles:
                raise Violation(f"{letter!r} is there twice, and no store had trouble")
            return
        if len(letter.copies) > 1:
            raise Violation(f"{letter!r} has a key, and is there twice")
        if not self.is_plain and sequence >> FRAGMENT_SHIFT != fragment_of(letter.key.encode()):
            raise Violation(f"{letter!r} is in fragment {sequence >> FRAGMENT_SHIFT}")
        if letter.deal is None:
            self._check_order(letter, letter.key, sequence)

    def _check_order(self, letter: Letter, key: str, sequence: int) -> None:
        """What came one way is stored in the order in which it came."""
        stored = self._stored.setdefault((key, letter.way), [])
        place = bisect_left(stored, (letter.identity, 0))
        stored.insert(place, (letter.identity, sequence))
        numbers = [number for _, number in stored[max(0, place - 1) : place + 2]]
        if numbers != sorted(numbers):
            raise Violation(f"{letter!r} was stored out of turn: {stored}")

    def _check_burial(self, copy: Copy) -> None:
        """A dead letter is seen for the first time."""
        fragment, letter = copy.sequence >> FRAGMENT_SHIFT, copy.letter
        sources = [one for one in letter.copies.values() if one.sequence >> FRAGMENT_SHIFT == fragment]
        source = next((one for one in sources if one.may_be_dead and not one.is_buried), None)
        if source is not None:
            source.is_moved = source.is_buried = True
            copy.counted = source.counted
        elif not self.buries_often:
            raise Violation(f"{letter!r} is a dead letter, and nobody asked for that")

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
        if copy.letter.key != session:
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

    def may_lose(self) -> None:
        """Something failed while someone received and deleted."""
        self.lost_up_to = len(self.letters) - 1

    def lose_process(self, way: int) -> None:
        """Nobody is answered any more who was to be answered by a process."""
        for letter in self.letters.values():
            sending = letter.sending
            if letter.way == way and not sending.is_answered:
                sending.is_void = True

    # --- the end ------------------------------------------------------------------------------------------------------

    def copies(self) -> list[Copy]:
        return [copy for letter in self.letters.values() for copy in (*letter.copies.values(), *letter.dead.values())]

    def check_all_received(self) -> None:
        for letter in self.letters.values():
            copies = (*letter.copies.values(), *letter.dead.values())
            is_excused = letter.identity <= self.lost_up_to
            if letter.is_accepted and not is_excused and not any(copy.is_ending for copy in copies):
                raise Violation(f"{letter!r} was accepted, and is lost")
