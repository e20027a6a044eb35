"""The ledger of a campaign of strikes: who held which message when, on entities of many fragments.

    number, body = ledger.compose(stream, key, holder)     # a message, before it is sent
    ledger.accepted(number)                                # or refused, or cut_off with its connection
    index = ledger.deliver(destination, sequence_number, body, ...)
    ledger.settling(index, completes=True), ledger.settled(index, ...), ledger.let_go(link)

To the promises of every ledger it adds, in the words of `problems`:

- back: no completion is confirmed to two receivers.
- strange: no message comes from a fragment that is not the one of its key.
- order: accepted messages of a key, so of a session, have growing sequence numbers; no message of a session is handed
  out before an earlier one that is still there.

Three more depend on the time of strikes, and are judged in `answers`: `holds` (receivers of a message that another
receiver holds), `returns` (messages that come again on a link that has later ones of the session) and `doubles`
(messages that are there twice). When an answer came is judged there, too. Owns: the promises.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.campaigns.cluster_faults.scenario import destinations_of, fragment_for, has_sessions
from tests.support.delivery_checker.checker import DeliveryChecker
from tests.support.delivery_checker.messages import FRAGMENT_SHIFT, State

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.campaigns.cluster_faults.scenario import Stream
    from tests.support.delivery_checker.messages import Copy, Message

LOCK_LOST: Final = "lock-lost"


@dataclass(slots=True)
class SendRecord:
    """One send, as its connection saw it. Times are of the monotonic clock."""

    number: int
    stream: Stream
    key: str | None
    fragment: int | None
    process: int
    """The process that held the connection."""
    began_s: float
    ended_s: float | None = None
    """None: there was no answer, and the connection is there."""
    refusal: str | None = None
    is_accepted: bool = False
    is_disconnected: bool = False
    """Its connection ended first."""


@dataclass(slots=True)
class Delivery:
    """A copy that a receiver holds."""

    copy: Copy
    link: int
    process: int
    since_s: float
    until_s: float
    """When the lock expires."""
    is_ended: bool = False
    """Its receiver has settled it, or is gone."""


@dataclass(frozen=True, slots=True)
class DeliveryPair:
    """Two deliveries that must not both be, unless something was struck between them."""

    earlier: Delivery
    later: Delivery


@dataclass(slots=True)
class Link:
    """What one link has received."""

    deliveries: list[Delivery] = field(default_factory=list)
    numbers: set[int] = field(default_factory=set)
    last: Delivery | None = None


class ClusterChecker(DeliveryChecker):
    """One ledger for all clients of a campaign."""

    allows_duplicates = True

    def __init__(self, rng: random.Random, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__(rng)
        self.sends: list[SendRecord] = []
        self.deliveries: list[Delivery] = []
        self.double_locks: list[DeliveryPair] = []
        """Deliveries of a copy that another receiver held."""
        self.session_redeliveries: list[DeliveryPair] = []
        """Deliveries of one session on one link: the later one is of an earlier message."""
        self.last_accepted_s: dict[tuple[str, int | None], float] = {}
        """By stream and fragment: when the last message was sent that was accepted."""
        self._now_s = now_s
        self._completed: set[Copy] = set()
        self._lock_holders: dict[Copy, Delivery] = {}
        self._messages_by_key: dict[tuple[str, str], list[int]] = defaultdict(list)
        """The messages of each key that a path was sent, in order."""
        self._settled_prefix: dict[tuple[str, str], int] = defaultdict(int)
        """How many of the first ones are known to be gone from a destination."""
        self._links: dict[int, Link] = defaultdict(Link)

    # --- senders ------------------------------------------------------------------------------------------------------

    def send_started(self, stream: Stream, key: str | None, process: int, filler_bytes: int) -> tuple[int, bytes]:
        """Record a new message, which is sent now."""
        source = None if key is None else (stream.path, key)
        number, body = self.record_send(stream.path, source, filler_bytes, destinations_of(stream.path))
        self.sends.append(SendRecord(number, stream, key, fragment_for(key), process, self._now_s()))
        if key is not None:
            self._messages_by_key[stream.path, key].append(number)
        return number, body

    def send_accepted(self, number: int) -> None:
        super().send_accepted(number)
        send = self.sends[number]
        send.is_accepted, send.ended_s = True, self._now_s()
        self.last_accepted_s[send.stream.name, send.fragment] = send.began_s

    def send_refused(self, number: int, reason: str) -> None:
        self.sends[number].refusal = reason
        self.sends[number].ended_s = self._now_s()

    def send_disconnected(self, number: int) -> None:
        """Its connection is gone, and with it the answer."""
        self.sends[number].is_disconnected = True
        self.sends[number].ended_s = self._now_s()

    def must_exist(self, message: Message) -> bool:
        """Only accepted messages: others may have lost their place with a struck store."""
        return message.is_accepted

    def is_ordered(self, message: Message) -> bool:
        return message.order_key is not None and message.is_accepted

    # --- receivers ----------------------------------------------------------------------------------------------------

    def message_delivered(
        self, destination: str, sequence_number: int, body: bytes, *, link: int, process: int, until_s: float
    ) -> int | None:
        """Somebody received a message: the number of this delivery, if the message is one of ours."""
        self.received_count += 1
        where = f"from {destination} came, as number {sequence_number:#x},"
        message = self.identify_message(where, body, destination)
        if message is None:
            return None
        send = self.sends[message.number]
        if send.fragment is not None and send.fragment != sequence_number >> FRAGMENT_SHIFT:
            self.report_problem(f"strange: {where} {message} of key {send.key!r}, which leads to {send.fragment}")
        copy = self.record_receipt(where, message, destination, destination, sequence_number)
        delivery = Delivery(copy, link, process, self._now_s(), until_s)
        held = self._lock_holders.get(copy)
        if held is not None and not held.is_ended and held.until_s > delivery.since_s:
            self.double_locks.append(DeliveryPair(held, delivery))
        self._check_session(where, delivery)
        self._lock_holders[copy] = delivery
        self._links[link].deliveries.append(delivery)
        self._links[link].numbers.add(message.number)
        self.deliveries.append(delivery)
        return len(self.deliveries) - 1

    def _check_session(self, where: str, delivery: Delivery) -> None:
        """Compare a message of a session with those that this link had before, and with those that are there."""
        copy = delivery.copy
        if not has_sessions(copy.destination):
            return
        link = self._links[delivery.link]
        if link.last is not None and link.last.copy.sequence_number >= copy.sequence_number:
            self.session_redeliveries.append(DeliveryPair(link.last, delivery))
        link.last = delivery
        for number in self._is_present(copy):
            if number not in link.numbers:
                self.report_problem(f"order: {where} message {copy.number}, before message {number} of its session")

    def _is_present(self, copy: Copy) -> list[int]:
        """Earlier accepted messages of its session that nobody has asked to complete."""
        send = self.sends[copy.number]
        assert send.key is not None
        if not send.is_accepted:  # its place was not promised
            return []
        numbers, place = self._messages_by_key[send.stream.path, send.key], (copy.destination, send.key)
        found = []
        for at in range(self._settled_prefix[place], len(numbers)):
            number = numbers[at]
            if number >= copy.number:
                break
            copies = self.messages[number].copies[copy.destination]
            if at == self._settled_prefix[place] and any(other.state is State.COMPLETED for other in copies):
                self._settled_prefix[place] += 1
            elif self.sends[number].is_accepted and not any(other.may_be_gone for other in copies):
                found.append(number)
        return found

    def settlement_requested(self, index: int, *, completes: bool) -> None:
        """The receiver settles a delivery."""
        delivery = self.deliveries[index]
        delivery.is_ended = True
        delivery.copy.requested_states[State.COMPLETED] += completes
        self.update_pending(self.messages[delivery.copy.number])

    def settlement_ended(self, index: int, *, is_done: bool, reason: str = "") -> None:
        """The broker has answered to a completion."""
        copy = self.deliveries[index].copy
        if is_done:
            if copy in self._completed:
                self.report_problem(
                    f"back: message {copy.number} of {copy.destination} was completed twice, each time confirmed"
                )
            copy.confirm(State.COMPLETED)
            self._completed.add(copy)
            self.completed_count += 1
        elif LOCK_LOST in reason:
            copy.requested_states[State.COMPLETED] -= 1

    def link_ended(self, link: int) -> None:
        """A link is gone, and with it the locks that it held."""
        for delivery in self._links.pop(link, Link()).deliveries:
            delivery.is_ended = True

    # --- the end ------------------------------------------------------------------------------------------------------

    def duplicates(self) -> list[tuple[SendRecord, str]]:
        """Messages that are at a destination more than once, and where."""
        return [
            (self.sends[message.number], home)
            for message in self.messages
            for home, copies in message.copies.items()
            if len(copies) > 1
        ]

    def statistics(self) -> str:
        sends = self.sends
        return (
            f"{len(sends):,} sent, {sum(send.is_accepted for send in sends):,} accepted, "
            f"{sum(send.refusal is not None for send in sends):,} refused, "
            f"{sum(send.is_disconnected for send in sends):,} cut off, "
            f"{self.received_count:,} received, {self.completed_count:,} completed"
        )
