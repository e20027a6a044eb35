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

from tests.simulation.broker.payloads import read_delivery, read_locked_until
from tests.simulation.cluster.deletions import Deletions
from tests.simulation.cluster.message_copies import Copy, Lock, Message, SendOperation, SessionHolder
from tests.support.delivery_checker.messages import FRAGMENT_SHIFT, State
from tests.support.delivery_checker.problems import Violation
from twinbus.model.errors import PartlyStored
from twinbus.model.partition_key import fragment_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.broker.payloads import DeliveryFields
    from tests.simulation.cluster.receivers import SimulatedReceiver, SimulatedSessionReceiver
    from twinbus.model.errors import ServiceBusError


class ClusterChecker:
    """All messages that were sent in one run, and the copies that were received."""

    def __init__(self, stores: int, now_ms: Callable[[], int], store_of: Callable[[int], int]) -> None:
        """`store_of` says where a fragment lies."""
        self.store_failures = [0] * stores
        """How often each store failed, or was silent."""
        self.messages: list[Message] = []
        self.sends: list[SendOperation] = []
        self.now_ms = now_ms
        self.dead_letters_often = False
        """Few deliveries are enough for a message to be a dead message."""
        self.is_single_process = False
        """One process has all fragments: nothing is on its way between two of them."""
        self.is_plain = False
        """The queue has one fragment, which all keys lead to."""
        self.incidents = 0
        """Processes that died or were silent, and long waits: what was on its way then may be counted as delivered."""
        self.deletions = Deletions(self)
        self._store_of = store_of
        self._stored_by_key: dict[tuple[str, int], list[tuple[int, int]]] = {}
        """Of each key and the way its messages came: which there were, and under which sequence numbers."""
        self._highest_by_session: dict[str, int] = {}
        """Of each session, the highest sequence number that was ever received."""
        self._highest_by_key: dict[str, int] = {}
        """Of each key, the highest sequence number that one process has handed out."""
        self.session_holders: dict[str, SessionHolder] = {}

    # --- sending ------------------------------------------------------------------------------------------------------

    def send_started(self, keys: list[str | None], process_life: int) -> SendOperation:
        """Record a send through a process, which is known by a number that no other one has had."""
        messages = [Message(len(self.messages) + at, key, process_life) for at, key in enumerate(keys)]
        sending = SendOperation(messages, self.store_failures.copy())
        for message in messages:
            message.sending = sending
        self.messages += messages
        self.sends.append(sending)
        return sending

    def send_answered(self, sending: SendOperation, error: ServiceBusError | None, working: list[int]) -> None:
        """It was answered, or refused at once. These stores took messages when it was sent, and do so now."""
        if sending.is_answered or sending.is_void:
            raise Violation(f"{sending!r} was answered twice, or by a process that is gone")
        sending.is_answered = True
        stored = error.stored if isinstance(error, PartlyStored) else ()
        for place, message in enumerate(sending.messages):
            message.is_accepted = error is None or place in stored
        steady = [store for store in working if self.store_failures[store] == sending.store_failures[store]]
        if error is not None and steady and all(message.key is None for message in sending.messages):
            raise Violation(f"{sending!r} has no key, stores {steady} worked all the time, and it failed: {error}")

    def check_answered(self) -> None:
        for sending in self.sends:
            if not sending.is_answered and not sending.is_void:
                raise Violation(f"{sending!r} is not answered")

    # --- receiving ----------------------------------------------------------------------------------------------------

    def message_locked(self, receiver: SimulatedReceiver, payload: bytes, tag: bytes) -> Lock:
        """Someone was given a message under a lock."""
        until_ms = read_locked_until(payload)
        if until_ms < self.now_ms():
            return self._message_locked_late(receiver, payload, tag, until_ms)
        copy = self._check_delivery(receiver, read_delivery(payload))
        if self.is_single_process:
            self._check_first(copy)
        copy.locks.append(Lock(copy, tag, until_ms, receiver))
        return copy.locks[-1]

    def _message_locked_late(self, receiver: SimulatedReceiver, payload: bytes, tag: bytes, until_ms: int) -> Lock:
        """The lock was over when the message came: it is worth nothing, and others may have had the message since."""
        reading = read_delivery(payload)
        message = self.messages[reading.identity]
        copies = message.dead_letters if receiver.is_for_dead_letters else message.copies
        copy = copies.get(reading.sequence) or Copy(message, reading.sequence, is_dead=receiver.is_for_dead_letters)
        lock = Lock(copy, tag, until_ms, receiver)
        lock.is_late = True
        return lock

    def message_deleted(self, receiver: SimulatedReceiver, payload: bytes) -> Copy:
        """Someone was given a message for good."""
        copy = self._check_delivery(receiver, read_delivery(payload))
        copy.state = State.COMPLETED
        self.deletions.deliver(copy.sequence)
        return copy

    def deferred_received(self, reading: DeliveryFields, *, is_dead: bool, is_done: bool) -> None:
        """A deferred message was received by its number, for good, if that `is_done`."""
        message = self.messages[reading.identity]
        copy = (message.dead_letters if is_dead else message.copies).get(reading.sequence)
        if copy is None or copy.state in {State.COMPLETED, State.DEAD_LETTERED}:
            raise Violation(f"{message!r} is deferred, and was not received before, or is gone")
        copy.requested_states[State.COMPLETED] += 1
        if is_done:
            copy.state = State.COMPLETED

    def _check_delivery(self, receiver: SimulatedReceiver, reading: DeliveryFields) -> Copy:
        message = self.messages[reading.identity]
        copy = self._find(message, reading, is_dead=receiver.is_for_dead_letters)
        self._check_transactions(copy)
        copy.check_free(self.now_ms())
        self._check_count(copy, reading.delivered)
        if not copy.is_dead and isinstance(receiver.session, str):
            self._check_session(receiver, copy)
        return copy

    def _find(self, message: Message, reading: DeliveryFields, *, is_dead: bool) -> Copy:
        copies = message.dead_letters if is_dead else message.copies
        copy = copies.get(reading.sequence)
        if copy is None:
            copy = copies[reading.sequence] = Copy(message, reading.sequence, is_dead=is_dead)
            if is_dead:
                self._check_dead_lettering(copy)
            else:
                self._check_arrival(copy)
        return copy

    def _check_arrival(self, copy: Copy) -> None:
        """A message is seen for the first time, or at another place."""
        message, sequence = copy.message, copy.sequence
        if message.transaction is not None:
            message.transaction.message_appeared(message)
        if message.key is None:
            if len(message.copies) > 1 and self.store_failures == message.sending.store_failures:
                raise Violation(f"{message!r} is there twice, and no store had trouble")
            return
        if len(message.copies) > 1:
            raise Violation(f"{message!r} has a key, and is there twice")
        if not self.is_plain and sequence >> FRAGMENT_SHIFT != fragment_of(message.key.encode()):
            raise Violation(f"{message!r} is in fragment {sequence >> FRAGMENT_SHIFT}")
        if message.transaction is None:
            self._check_order(message, message.key, sequence)

    def _check_order(self, message: Message, key: str, sequence: int) -> None:
        """What came one way is stored in the order in which it came."""
        stored = self._stored_by_key.setdefault((key, message.process_life), [])
        place = bisect_left(stored, (message.identity, 0))
        stored.insert(place, (message.identity, sequence))
        numbers = [number for _, number in stored[max(0, place - 1) : place + 2]]
        if numbers != sorted(numbers):
            raise Violation(f"{message!r} was stored out of turn: {stored}")

    def _check_dead_lettering(self, copy: Copy) -> None:
        """A dead message is seen for the first time."""
        fragment, message = copy.sequence >> FRAGMENT_SHIFT, copy.message
        sources = [one for one in message.copies.values() if one.sequence >> FRAGMENT_SHIFT == fragment]
        source = next(
            (one for one in sources if State.DEAD_LETTERED in one.possible_states and not one.has_dead_letter), None
        )
        if source is not None:
            source.state, source.has_dead_letter = State.DEAD_LETTERED, True
            copy.max_delivery_count = source.max_delivery_count
        elif not self.dead_letters_often:
            raise Violation(f"{message!r} is a dead message, and nobody asked for that")

    def _check_first(self, copy: Copy) -> None:
        """In one process, messages of a key are handed out for the first time in the order of their numbers.

        A message that was deleted for a receiver who has not got it comes back late.
        """
        key = copy.message.key
        if key is None or copy.is_dead or copy.was_handed_out or copy.message.was_deleted:
            return
        copy.was_handed_out = True
        if copy.sequence < self._highest_by_key.get(key, 0):
            raise Violation(f"{copy!r} comes after {self._highest_by_key[key]}")
        self._highest_by_key[key] = copy.sequence

    def _check_transactions(self, copy: Copy) -> None:
        for deal in copy.transactions:
            deal.message_redelivered(copy)

    def _check_count(self, copy: Copy, delivered: int) -> None:
        lock = copy.lock
        if lock is not None and not lock.is_counted and lock.until_ms <= self.now_ms() + 1:
            lock.is_counted = True
            copy.max_delivery_count += 1
        if delivered > copy.max_delivery_count + self.incidents and not self.dead_letters_often:
            raise Violation(
                f"{copy!r} was delivered {delivered} times, as it says, and only {copy.max_delivery_count} count"
            )

    # --- sessions -----------------------------------------------------------------------------------------------------

    def session_accepted(self, receiver: SimulatedSessionReceiver, session: str, until_ms: int) -> None:
        before = self.session_holders.get(session)
        if before is not None and before.until_ms > self.now_ms() + 1:
            raise Violation(
                f"the session {session} is {before.receiver!r}'s until {before.until_ms}, and is {receiver!r}'s"
            )
        self.session_holders[session] = SessionHolder(receiver, until_ms)

    def session_ended(self, receiver: SimulatedSessionReceiver) -> None:
        """Someone has left, or was told that the session is not his any more: what he had is free."""
        holding = self.session_holders.get(receiver.session) if receiver.session is not None else None
        if holding is not None and holding.receiver is receiver:
            del self.session_holders[holding.receiver.session or ""]
        for lock in self._locks(lambda lock: lock.receiver is receiver):
            lock.is_void = lock.copy.was_returned = True

    def _check_session(self, receiver: SimulatedReceiver, copy: Copy) -> None:
        session, sequence = receiver.session, copy.sequence
        assert session is not None
        if copy.message.key != session:
            raise Violation(f"{copy!r} was given to {receiver!r}")
        highest = self._highest_by_session.get(session, 0)
        if not copy.was_seen and sequence < highest:
            raise Violation(f"{copy!r} of {session} comes after {highest}")
        if sequence <= receiver.last_sequence and not copy.was_returned:
            raise Violation(f"{copy!r} comes to {receiver!r} after {receiver.last_sequence}")
        receiver.last_sequence = max(receiver.last_sequence, sequence)
        self._highest_by_session[session] = max(highest, sequence)
        copy.was_seen, copy.was_returned = True, False

    # --- failures -----------------------------------------------------------------------------------------------------

    def store_lost(self, store: int) -> None:
        """All locks of a store are void."""
        self.store_failures[store] += 1
        for lock in self._locks(lambda lock: self._store_of(lock.copy.sequence >> FRAGMENT_SHIFT) == store):
            lock.is_void = lock.is_lost = lock.copy.was_returned = True

    def owner_lost(self, stores: list[int]) -> None:
        """The process that has these stores is no more: nobody has a session of it."""
        for store in stores:
            self.store_lost(store)
        for session in list(self.session_holders):
            if self._store_of(0 if self.is_plain else fragment_of(session.encode())) in stores:
                del self.session_holders[session]

    def _locks(self, is_meant: Callable[[Lock], bool]) -> list[Lock]:
        return [lock for copy in self.copies() for lock in copy.locks if is_meant(lock)]

    def process_lost(self, process_life: int) -> None:
        """Nobody is answered any more who was to be answered by a process."""
        for message in self.messages:
            sending = message.sending
            if message.process_life == process_life and not sending.is_answered:
                sending.is_void = True

    # --- the end ------------------------------------------------------------------------------------------------------

    def copies(self) -> list[Copy]:
        return [
            copy for message in self.messages for copy in (*message.copies.values(), *message.dead_letters.values())
        ]

    def check_all_received(self) -> None:
        for message in self.messages:
            copies = (*message.copies.values(), *message.dead_letters.values())
            if message.is_accepted and not message.lost and not any(copy.may_be_gone for copy in copies):
                raise Violation(f"{message!r} was accepted, and is lost")
