"""Checker of the cluster faults: which receiver held which message when, on partitioned entities.

    number, body = checker.send_started(stream, key, process, filler_bytes)
    checker.send_accepted(number)                          # or send_refused, or send_disconnected
    index = checker.message_delivered(destination, sequence_number, body, ...)
    checker.settlement_requested(index, completes=True), checker.settlement_ended(index, ...), checker.link_ended(link)

It adds these guarantees to those of every checker; each problem starts with its word:

- back: no completion is confirmed to two receivers.
- strange: no message is received from a fragment other than that of its key.
- order: accepted messages of a key, and so of a session, have increasing sequence numbers; no message of a session is
  delivered before an earlier one that still exists.

Three more depend on the times of faults, and are checked in `response_checker`: `double_locks` (deliveries of a message
that another receiver holds), `session_redeliveries` (messages that are redelivered on a link that has later ones of the
session) and `duplicates` (messages that exist twice). Owns: the guarantees.
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
    """One send, as its connection observed it. Times are monotonic."""

    number: int
    stream: Stream
    key: str | None
    fragment: int | None
    process: int
    """The process that held the connection."""
    began_s: float
    ended_s: float | None = None
    """None: there is no response yet, and the connection is open."""
    refusal: str | None = None
    is_accepted: bool = False
    is_disconnected: bool = False
    """The connection ended before the response."""


@dataclass(slots=True)
class Delivery:
    """Delivery of a copy to a receiver."""

    copy: Copy
    link: int
    process: int
    since_s: float
    until_s: float
    """When the lock expires."""
    is_ended: bool = False
    """The receiver has settled it, or has disconnected."""


@dataclass(frozen=True, slots=True)
class DeliveryPair:
    """Two deliveries that exclude each other, unless there was a fault between them."""

    earlier: Delivery
    later: Delivery


@dataclass(slots=True)
class Link:
    """Deliveries on one link."""

    deliveries: list[Delivery] = field(default_factory=list)
    numbers: set[int] = field(default_factory=set)
    last: Delivery | None = None


class ClusterChecker(DeliveryChecker):
    """Checker for all clients of a campaign."""

    allows_duplicates = True

    def __init__(self, rng: random.Random, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__(rng)
        self.sends: list[SendRecord] = []
        self.deliveries: list[Delivery] = []
        self.double_locks: list[DeliveryPair] = []
        """Deliveries of a copy that another receiver held at that time."""
        self.session_redeliveries: list[DeliveryPair] = []
        """Deliveries of one session on one link, where the later delivery is of an earlier message."""
        self.last_accepted_s: dict[tuple[str, int | None], float] = {}
        """Send time of the last accepted message, by stream and fragment."""
        self._now_s = now_s
        self._completed: set[Copy] = set()
        self._lock_holders: dict[Copy, Delivery] = {}
        self._messages_by_key: dict[tuple[str, str], list[int]] = defaultdict(list)
        """Messages in the order of sending, by path and key."""
        self._settled_prefix: dict[tuple[str, str], int] = defaultdict(int)
        """Number of first messages that are known to be completed, by destination and key."""
        self._links: dict[int, Link] = defaultdict(Link)

    # --- senders ------------------------------------------------------------------------------------------------------

    def send_started(self, stream: Stream, key: str | None, process: int, filler_bytes: int) -> tuple[int, bytes]:
        """Record a new message that is being sent."""
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
        """Record that the connection ended before the response."""
        self.sends[number].is_disconnected = True
        self.sends[number].ended_s = self._now_s()

    def must_exist(self, message: Message) -> bool:
        """Only accepted messages must exist: a store fault may lose others."""
        return message.is_accepted

    def is_ordered(self, message: Message) -> bool:
        return message.order_key is not None and message.is_accepted

    # --- receivers ----------------------------------------------------------------------------------------------------

    def message_delivered(
        self, destination: str, sequence_number: int, body: bytes, *, link: int, process: int, until_s: float
    ) -> int | None:
        """Record a delivery, and return its index if the campaign sent the message."""
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
        holder = self._lock_holders.get(copy)
        if holder is not None and not holder.is_ended and holder.until_s > delivery.since_s:
            self.double_locks.append(DeliveryPair(holder, delivery))
        self._check_session(where, delivery)
        self._lock_holders[copy] = delivery
        self._links[link].deliveries.append(delivery)
        self._links[link].numbers.add(message.number)
        self.deliveries.append(delivery)
        return len(self.deliveries) - 1

    def _check_session(self, where: str, delivery: Delivery) -> None:
        """Compare a message of a session with earlier ones on this link, and with those that still exist."""
        copy = delivery.copy
        if not has_sessions(copy.destination):
            return
        link = self._links[delivery.link]
        if link.last is not None and link.last.copy.sequence_number >= copy.sequence_number:
            self.session_redeliveries.append(DeliveryPair(link.last, delivery))
        link.last = delivery
        for number in self._earlier_messages(copy):
            if number not in link.numbers:
                self.report_problem(f"order: {where} message {copy.number}, before message {number} of its session")

    def _earlier_messages(self, copy: Copy) -> list[int]:
        """Return earlier accepted messages of the session that no receiver has completed."""
        send = self.sends[copy.number]
        assert send.key is not None
        if not send.is_accepted:  # its order is not guaranteed
            return []
        numbers, prefix_key = self._messages_by_key[send.stream.path, send.key], (copy.destination, send.key)
        earlier = []
        for position in range(self._settled_prefix[prefix_key], len(numbers)):
            number = numbers[position]
            if number >= copy.number:
                break
            copies = self.messages[number].copies[copy.destination]
            if position == self._settled_prefix[prefix_key] and any(other.state is State.COMPLETED for other in copies):
                self._settled_prefix[prefix_key] += 1
            elif self.sends[number].is_accepted and not any(other.may_be_gone for other in copies):
                earlier.append(number)
        return earlier

    def settlement_requested(self, index: int, *, completes: bool) -> None:
        """Record that the receiver settles a delivery."""
        delivery = self.deliveries[index]
        delivery.is_ended = True
        delivery.copy.requested_states[State.COMPLETED] += completes
        self.update_pending(self.messages[delivery.copy.number])

    def settlement_ended(self, index: int, *, is_done: bool, reason: str = "") -> None:
        """Record the broker's response to a completion."""
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
        """Record that a link ended; it releases its locks."""
        for delivery in self._links.pop(link, Link()).deliveries:
            delivery.is_ended = True

    # --- the end ------------------------------------------------------------------------------------------------------

    def duplicates(self) -> list[tuple[SendRecord, str]]:
        """Return messages that are at a destination more than once, with the destination."""
        return [
            (self.sends[message.number], destination)
            for message in self.messages
            for destination, copies in message.copies.items()
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
