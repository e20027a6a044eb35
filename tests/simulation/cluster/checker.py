"""The guarantees of a queue in several processes, as clients see them.

- An accepted message is received until it is completed, and not afterwards.
- A message is locked by one receiver at a time.
- Messages of a session are delivered in order, and messages sent through one process are stored in order.
- A transaction is done completely or not at all.
- Every operation gets one outcome.

Messages between processes take time: a message may be locked for a receiver that has not got it yet, and a released
message may not be free yet. Therefore the checker uses only the outcomes and deliveries that clients got, and does not
look into the processes.
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
        """`store_of` returns the store of a fragment."""
        self.store_failures = [0] * stores
        """How often each store failed or was silent."""
        self.messages: list[Message] = []
        self.sends: list[SendOperation] = []
        self.now_ms = now_ms
        self.dead_letters_often = False
        """Whether the max delivery count is low, so that messages are dead-lettered without a request."""
        self.is_single_process = False
        """Whether one process owns all fragments, so that there are no messages between processes."""
        self.is_plain = False
        """Whether the queue has a single fragment."""
        self.incidents = 0
        """Number of killed or silent processes and long waits: each may have counted deliveries that no client got."""
        self.deletions = Deletions(self)
        self._store_of = store_of
        self._stored_by_key: dict[tuple[str, int], list[tuple[int, int]]] = {}
        """Identities and sequence numbers of messages, by key and sending process."""
        self._highest_by_session: dict[str, int] = {}
        """Highest sequence number ever received, by session."""
        self._highest_by_key: dict[str, int] = {}
        """Highest sequence number delivered, by key; for a single process only."""
        self.session_holders: dict[str, SessionHolder] = {}

    # --- sending -----------------------------------------------------------------------------------------------------

    def send_started(self, keys: list[str | None], process_life: int) -> SendOperation:
        """Record a send through a process with a unique number."""
        messages = [Message(len(self.messages) + position, key, process_life) for position, key in enumerate(keys)]
        sending = SendOperation(messages, self.store_failures.copy())
        for message in messages:
            message.sending = sending
        self.messages += messages
        self.sends.append(sending)
        return sending

    def send_answered(self, sending: SendOperation, error: ServiceBusError | None, working: list[int]) -> None:
        """Check the outcome of a send. The stores `working` accepted messages when it was sent, and do so now."""
        if sending.is_answered or sending.is_void:
            raise Violation(f"{sending!r} was answered twice, or by a process that is gone")
        sending.is_answered = True
        stored = error.stored if isinstance(error, PartlyStored) else ()
        for position, message in enumerate(sending.messages):
            message.is_accepted = error is None or position in stored
        steady = [store for store in working if self.store_failures[store] == sending.store_failures[store]]
        if error is not None and steady and all(message.key is None for message in sending.messages):
            raise Violation(f"{sending!r} has no key, stores {steady} worked all the time, and it failed: {error}")

    def check_answered(self) -> None:
        for sending in self.sends:
            if not sending.is_answered and not sending.is_void:
                raise Violation(f"{sending!r} is not answered")

    # --- receiving ---------------------------------------------------------------------------------------------------

    def message_locked(self, receiver: SimulatedReceiver, payload: bytes, tag: bytes) -> Lock:
        """Check and record a delivery under a lock."""
        until_ms = read_locked_until(payload)
        if until_ms < self.now_ms():
            return self._message_locked_late(receiver, payload, tag, until_ms)
        copy = self._check_delivery(receiver, read_delivery(payload))
        if self.is_single_process:
            self._check_first(copy)
        copy.locks.append(Lock(copy, tag, until_ms, receiver))
        return copy.locks[-1]

    def _message_locked_late(self, receiver: SimulatedReceiver, payload: bytes, tag: bytes, until_ms: int) -> Lock:
        """Record a delivery whose lock had already expired: others may have received the message since."""
        delivery = read_delivery(payload)
        message = self.messages[delivery.identity]
        copies = message.dead_letters if receiver.is_for_dead_letters else message.copies
        copy = copies.get(delivery.sequence) or Copy(message, delivery.sequence, is_dead=receiver.is_for_dead_letters)
        lock = Lock(copy, tag, until_ms, receiver)
        lock.is_late = True
        return lock

    def message_deleted(self, receiver: SimulatedReceiver, payload: bytes) -> Copy:
        """Check and record a delivery in receive-and-delete mode."""
        copy = self._check_delivery(receiver, read_delivery(payload))
        copy.state = State.COMPLETED
        self.deletions.deliver(copy.sequence)
        return copy

    def deferred_received(self, delivery: DeliveryFields, *, is_dead: bool, is_done: bool) -> None:
        """Record a deferred message that was received and deleted by its sequence number, if that `is_done`."""
        message = self.messages[delivery.identity]
        copy = (message.dead_letters if is_dead else message.copies).get(delivery.sequence)
        if copy is None or copy.state in {State.COMPLETED, State.DEAD_LETTERED}:
            raise Violation(f"{message!r} is deferred, and was not received before, or is gone")
        copy.requested_states[State.COMPLETED] += 1
        if is_done:
            copy.state = State.COMPLETED

    def _check_delivery(self, receiver: SimulatedReceiver, delivery: DeliveryFields) -> Copy:
        message = self.messages[delivery.identity]
        copy = self._find(message, delivery, is_dead=receiver.is_for_dead_letters)
        self._check_transactions(copy)
        copy.check_free(self.now_ms())
        self._check_count(copy, delivery.delivered)
        if not copy.is_dead and isinstance(receiver.session, str):
            self._check_session(receiver, copy)
        return copy

    def _find(self, message: Message, delivery: DeliveryFields, *, is_dead: bool) -> Copy:
        copies = message.dead_letters if is_dead else message.copies
        copy = copies.get(delivery.sequence)
        if copy is None:
            copy = copies[delivery.sequence] = Copy(message, delivery.sequence, is_dead=is_dead)
            if is_dead:
                self._check_dead_lettering(copy)
            else:
                self._check_arrival(copy)
        return copy

    def _check_arrival(self, copy: Copy) -> None:
        """Check a message that is received for the first time, or with another sequence number."""
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
        """Check that messages sent through one process are stored in the order of their sends."""
        stored = self._stored_by_key.setdefault((key, message.process_life), [])
        position = bisect_left(stored, (message.identity, 0))
        stored.insert(position, (message.identity, sequence))
        numbers = [number for _, number in stored[max(0, position - 1) : position + 2]]
        if numbers != sorted(numbers):
            raise Violation(f"{message!r} was stored out of turn: {stored}")

    def _check_dead_lettering(self, copy: Copy) -> None:
        """Check a dead letter that is received for the first time."""
        fragment, message = copy.sequence >> FRAGMENT_SHIFT, copy.message
        sources = [other for other in message.copies.values() if other.sequence >> FRAGMENT_SHIFT == fragment]
        source = next(
            (other for other in sources if State.DEAD_LETTERED in other.possible_states and not other.has_dead_letter),
            None,
        )
        if source is not None:
            source.state, source.has_dead_letter = State.DEAD_LETTERED, True
            copy.max_delivery_count = source.max_delivery_count
        elif not self.dead_letters_often:
            raise Violation(f"{message!r} is a dead message, and nobody asked for that")

    def _check_first(self, copy: Copy) -> None:
        """Check that a single process delivers messages of a key for the first time in order.

        A message that was deleted for a receiver that did not get it may come back late.
        """
        key = copy.message.key
        if key is None or copy.is_dead or copy.was_handed_out or copy.message.was_deleted:
            return
        copy.was_handed_out = True
        if copy.sequence < self._highest_by_key.get(key, 0):
            raise Violation(f"{copy!r} comes after {self._highest_by_key[key]}")
        self._highest_by_key[key] = copy.sequence

    def _check_transactions(self, copy: Copy) -> None:
        for transaction in copy.transactions:
            transaction.message_redelivered(copy)

    def _check_count(self, copy: Copy, delivered: int) -> None:
        lock = copy.lock
        if lock is not None and not lock.is_counted and lock.until_ms <= self.now_ms() + 1:
            lock.is_counted = True
            copy.max_delivery_count += 1
        if delivered > copy.max_delivery_count + self.incidents and not self.dead_letters_often:
            raise Violation(
                f"{copy!r} was delivered {delivered} times, as it says, and only {copy.max_delivery_count} count"
            )

    # --- sessions ----------------------------------------------------------------------------------------------------

    def session_accepted(self, receiver: SimulatedSessionReceiver, session: str, until_ms: int) -> None:
        before = self.session_holders.get(session)
        if before is not None and before.until_ms > self.now_ms() + 1:
            raise Violation(
                f"the session {session} is {before.receiver!r}'s until {before.until_ms}, and is {receiver!r}'s"
            )
        if before is not None:
            self.deletions.mark_overtaken(session)
        self.session_holders[session] = SessionHolder(receiver, until_ms)

    def session_ended(self, receiver: SimulatedSessionReceiver) -> None:
        """Record that a receiver was detached or has lost its session: its locks are void."""
        holder = self.session_holders.get(receiver.session) if receiver.session is not None else None
        if holder is not None and holder.receiver is receiver:
            del self.session_holders[holder.receiver.session or ""]
        for lock in self._locks(lambda lock: lock.receiver is receiver):
            lock.is_void = lock.copy.was_returned = True

    def _check_session(self, receiver: SimulatedReceiver, copy: Copy) -> None:
        session, sequence = receiver.session, copy.sequence
        assert session is not None
        if copy.message.key != session:
            raise Violation(f"{copy!r} was given to {receiver!r}")
        highest = self._highest_by_session.get(session, 0)
        if not copy.was_seen and sequence < highest and not copy.message.was_overtaken:
            raise Violation(f"{copy!r} of {session} comes after {highest}")
        if sequence <= receiver.last_sequence and not copy.was_returned:
            raise Violation(f"{copy!r} comes to {receiver!r} after {receiver.last_sequence}")
        receiver.last_sequence = max(receiver.last_sequence, sequence)
        self._highest_by_session[session] = max(highest, sequence)
        copy.was_seen, copy.was_returned = True, False

    # --- failures ----------------------------------------------------------------------------------------------------

    def store_lost(self, store: int) -> None:
        """Record the failure of a store: its locks are void."""
        self.store_failures[store] += 1
        for lock in self._locks(lambda lock: self._store_of(lock.copy.sequence >> FRAGMENT_SHIFT) == store):
            lock.is_void = lock.is_lost = lock.copy.was_returned = True

    def owner_lost(self, stores: list[int]) -> None:
        """Record the loss of the process that owns these stores: their locks and sessions are void."""
        for store in stores:
            self.store_lost(store)
        for session in list(self.session_holders):
            if self._store_of(0 if self.is_plain else fragment_of(session.encode())) in stores:
                del self.session_holders[session]

    def _locks(self, condition: Callable[[Lock], bool]) -> list[Lock]:
        return [lock for copy in self.copies() for lock in copy.locks if condition(lock)]

    def process_lost(self, process_life: int) -> None:
        """Record the loss of a process: its pending sends get no outcome."""
        for message in self.messages:
            sending = message.sending
            if message.process_life == process_life and not sending.is_answered:
                sending.is_void = True

    # --- final check -------------------------------------------------------------------------------------------------

    def copies(self) -> list[Copy]:
        return [
            copy for message in self.messages for copy in (*message.copies.values(), *message.dead_letters.values())
        ]

    def check_all_received(self) -> None:
        for message in self.messages:
            copies = (*message.copies.values(), *message.dead_letters.values())
            if message.is_accepted and not message.lost and not any(copy.may_be_gone for copy in copies):
                raise Violation(f"{message!r} was accepted, and is lost")
