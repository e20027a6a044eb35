"""What was sent, answered, delivered and settled in a campaign, and what must be true of it whatever was struck.

    number, body = ledger.compose(stream, key, holder)     # a message, before it is sent
    ledger.accepted(number)                                # or refused, or cut_off with its connection
    index = ledger.deliver(destination, sequence_number, body, ...)
    ledger.settling(index, completes=True), ledger.settled(index, ...), ledger.let_go(link)

The promises, in the words of `problems`:

- lost: an accepted message is at every destination until its completion is asked for.
- back: a message whose completion was confirmed never comes again; nor is it confirmed to two.
- strange: nothing comes that was not sent, nor changed, nor elsewhere, nor from a fragment that is not its key's.
- order: accepted messages of a key, so of a session, have growing sequence numbers; no message of a session is handed
  out before an earlier one that is still there.

Three more need to know when what was struck, and are told by `holds`, `returns` and `doubles`: who got a message that
another holds, what came again on a link that has later ones of the session, and which messages are there twice. When an
answer came is for `answers` to judge. Owns: the promises.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.faults.ledger import Ledger
from tests.strikes.scene import destinations_of, fragment_for, has_sessions

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.strikes.scene import Stream

FRAGMENT_SHIFT: Final = 48
LOCK_LOST: Final = "lock-lost"


@dataclass(slots=True)
class Send:
    """One send, as its connection saw it. Times are of the monotonic clock."""

    number: int
    stream: Stream
    key: str | None
    fragment: int | None
    holder: int
    """The process that held the connection."""
    began_s: float
    ended_s: float | None = None
    """None: there was no answer, and the connection is there."""
    refusal: str | None = None
    is_accepted: bool = False
    is_cut_off: bool = False
    """Its connection ended first."""


@dataclass(slots=True)
class Copy:
    """A message in one place: a destination and a sequence number."""

    number: int
    destination: str
    sequence_number: int
    is_completed: bool = False
    doubts: int = 0
    """Completions that were asked for, and of which nobody knows what became."""
    held: Delivery | None = None

    @property
    def fragment(self) -> int:
        return self.sequence_number >> FRAGMENT_SHIFT

    @property
    def may_be_gone(self) -> bool:
        return self.is_completed or self.doubts > 0


@dataclass(slots=True)
class Delivery:
    """A copy in somebody's hands."""

    copy: Copy
    link: int
    holder: int
    since_s: float
    until_s: float
    """When the lock expires."""
    is_over: bool = False
    """Whoever had it has settled it, or is gone."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two deliveries that should not both be, unless something was struck between them."""

    earlier: Delivery
    later: Delivery


@dataclass(slots=True)
class Hands:
    """What one link has had."""

    deliveries: list[Delivery] = field(default_factory=list)
    numbers: set[int] = field(default_factory=set)
    last: Delivery | None = None


class StrikeLedger(Ledger):
    """One book for all clients of a campaign."""

    def __init__(self, rng: random.Random, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__(rng)
        self.sends: list[Send] = []
        self.deliveries: list[Delivery] = []
        self.holds: list[Pair] = []
        """Of one copy, which somebody has that another had."""
        self.returns: list[Pair] = []
        """Of one session, on one link: the later one is of an earlier message."""
        self.completed = 0
        self.taken_s: dict[tuple[str, int | None], float] = {}
        """By stream and fragment: when the last message was sent that was accepted."""
        self.copies: dict[tuple[str, int], Copy] = {}
        """By destination and sequence number."""
        self._now_s = now_s
        self._of_message: dict[tuple[str, int], list[Copy]] = defaultdict(list)
        self._of_key: dict[tuple[str, str], list[int]] = defaultdict(list)
        """The messages of each key that a path was sent, in order."""
        self._in_order: dict[tuple[str, str], int] = defaultdict(int)
        """How many of the first ones are known to be gone from a destination."""
        self._hands: dict[int, Hands] = defaultdict(Hands)

    # --- senders ------------------------------------------------------------------------------------------------------

    def compose(self, stream: Stream, key: str | None, holder: int, filler_bytes: int) -> tuple[int, bytes]:
        """A new message, which is sent now."""
        number, body = self.write(stream.path, None, filler_bytes)
        self.sends.append(Send(number, stream, key, fragment_for(key), holder, self._now_s()))
        if key is not None:
            self._of_key[stream.path, key].append(number)
        return number, body

    def accepted(self, number: int) -> None:
        send = self.sends[number]
        send.is_accepted, send.ended_s = True, self._now_s()
        self.taken_s[send.stream.name, send.fragment] = send.began_s

    def refused(self, number: int, why: str) -> None:
        self.sends[number].refusal = why
        self.sends[number].ended_s = self._now_s()

    def cut_off(self, number: int) -> None:
        """Its connection is gone, and with it the answer."""
        self.sends[number].is_cut_off = True
        self.sends[number].ended_s = self._now_s()

    # --- receivers ----------------------------------------------------------------------------------------------------

    def deliver(
        self, destination: str, sequence_number: int, body: bytes, *, link: int, holder: int, until_s: float
    ) -> int | None:
        """Somebody got a message: the number of this delivery, if it is one of ours."""
        self.received_count += 1
        where = f"from {destination} came, as number {sequence_number:#x},"
        number = self.number_in(where, body)
        if number is None:
            return None
        copy = self._place(where, destination, sequence_number, number)
        delivery = Delivery(copy, link, holder, self._now_s(), until_s)
        self._check_hold(where, delivery)
        self._check_session(where, delivery)
        copy.held = delivery
        self._hands[link].deliveries.append(delivery)
        self._hands[link].numbers.add(number)
        self.deliveries.append(delivery)
        return len(self.deliveries) - 1

    def _place(self, where: str, destination: str, sequence_number: int, number: int) -> Copy:
        """Which copy of the message it is: maybe a new one."""
        send = self.sends[number]
        copy = self.copies.get((destination, sequence_number))
        if copy is None:
            copy = self.copies[destination, sequence_number] = Copy(number, destination, sequence_number)
            self._of_message[destination, number].append(copy)
        elif copy.number != number:
            self._tell(f"strange: {where} message {number}, where message {copy.number} had been")
        if destination not in destinations_of(send.stream.path):
            self._tell(f"strange: {where} message {number}, which was sent to {send.stream.path}")
        if send.fragment is not None and send.fragment != copy.fragment:
            self._tell(f"strange: {where} message {number} of key {send.key!r}, which leads to {send.fragment}")
        return copy

    def _check_hold(self, where: str, delivery: Delivery) -> None:
        copy, held = delivery.copy, delivery.copy.held
        if copy.is_completed:
            self._tell(f"back: {where} message {copy.number}, whose completion was confirmed")
        if held is not None and not held.is_over and held.until_s > delivery.since_s:
            self.holds.append(Pair(held, delivery))

    def _check_session(self, where: str, delivery: Delivery) -> None:
        """Of a session: what came before it on this link, or was there before it."""
        copy = delivery.copy
        if not has_sessions(copy.destination):
            return
        hands = self._hands[delivery.link]
        if hands.last is not None and hands.last.copy.sequence_number >= copy.sequence_number:
            self.returns.append(Pair(hands.last, delivery))
        hands.last = delivery
        for number in self._still_there(copy):
            if number not in hands.numbers:
                self._tell(f"order: {where} message {copy.number}, before message {number} of its session")

    def _still_there(self, copy: Copy) -> list[int]:
        """Earlier accepted messages of its session that nobody has asked to complete."""
        send = self.sends[copy.number]
        assert send.key is not None
        if not send.is_accepted:  # nobody has promised it a place
            return []
        numbers, place = self._of_key[send.stream.path, send.key], (copy.destination, send.key)
        found = []
        for at in range(self._in_order[place], len(numbers)):
            number = numbers[at]
            if number >= copy.number:
                break
            copies = self._of_message[copy.destination, number]
            if at == self._in_order[place] and any(other.is_completed for other in copies):
                self._in_order[place] += 1
            elif self.sends[number].is_accepted and not any(other.may_be_gone for other in copies):
                found.append(number)
        return found

    def settling(self, index: int, *, completes: bool) -> None:
        """Whoever has it gives it up."""
        delivery = self.deliveries[index]
        delivery.is_over = True
        delivery.copy.doubts += completes

    def settled(self, index: int, *, is_done: bool, why: str = "") -> None:
        """The broker has answered to a completion."""
        copy = self.deliveries[index].copy
        if is_done:
            if copy.is_completed:
                self._tell(
                    f"back: message {copy.number} of {copy.destination} was completed twice, each time confirmed"
                )
            copy.is_completed = True
            self.completed += 1
        elif LOCK_LOST in why:
            copy.doubts -= 1

    def let_go(self, link: int) -> None:
        """A link is gone, and with it what it held."""
        for delivery in self._hands.pop(link, Hands()).deliveries:
            delivery.is_over = True

    # --- the reckoning ------------------------------------------------------------------------------------------------

    def doubles(self) -> list[tuple[Send, str]]:
        """Messages that are at a destination more than once, and where."""
        return [
            (self.sends[number], destination)
            for (destination, number), copies in self._of_message.items()
            if len(copies) > 1
        ]

    def close(self) -> list[str]:
        """All was received and completed to the end: what was wrong, all in all."""
        for send in self.sends:
            for destination in destinations_of(send.stream.path):
                copies = self._of_message.get((destination, send.number), [])
                if send.is_accepted and not any(copy.may_be_gone for copy in copies):
                    self._tell(f"lost: message {send.number} of {send.stream.name}, at {destination}")
        for (path, key), numbers in self._of_key.items():
            for destination in destinations_of(path):
                self._check_numbers(destination, key, numbers)
        return self.problems

    def _check_numbers(self, destination: str, key: str, numbers: list[int]) -> None:
        last = -1
        for number in numbers:
            copies = self._of_message.get((destination, number), [])
            if not self.sends[number].is_accepted or not copies:
                continue
            first = min(copy.sequence_number for copy in copies)
            if first < last:
                self._tell(
                    f"order: message {number} of {key!r} at {destination} has number {first:#x}, below {last:#x}"
                )
            last = first

    def figures(self) -> str:
        sends = self.sends
        return (
            f"{len(sends):,} sent, {sum(send.is_accepted for send in sends):,} accepted, "
            f"{sum(send.refusal is not None for send in sends):,} refused, "
            f"{sum(send.is_cut_off for send in sends):,} cut off, "
            f"{self.received_count:,} received, {self.completed:,} completed"
        )
