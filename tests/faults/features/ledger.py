"""The ledger of messages that are scheduled, expire, are deferred, sent again or of sessions, and of sessions' states.

To the promises of every ledger it adds, in the words of `problems`:

- back: a message whose deferral was confirmed comes only to a receiver that asks for it by its number, and one whose
  cancellation was confirmed to nobody; a dead letter never comes from its queue again.
- order: the messages of a session come for the first time in the order of their sequence numbers.
- early: no scheduled message comes before it is due, and no message expires before its time.
- late: no message is handed out after it has expired.
- cancelled: no message is cancelled that somebody has received.
- torn: messages that were scheduled together are all there, or none is.
- dead-lettered: a message is in the dead-letter queue because it expired.
- state: a session has the state that was last set, as far as that was confirmed or read, or a later one.

A message that was sent again, to a queue that detects duplicates, is the same message: it must not be `doubled`.

Owns: these promises. Knows nothing of servers, links or disks.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.faults.features import letter
from tests.faults.features.kinds import BRIEF_MS, KINDS
from tests.ledger.ledger import Ledger
from tests.ledger.messages import State

if TYPE_CHECKING:
    import random
    from collections.abc import Hashable, Sequence

    from tests.faults.features.letter import Received, Terms
    from tests.ledger.messages import Copy

EXPIRED: Final = "TTLExpiredException"
ENOUGH: Final = 5
"""Uses of a feature that make a run say something of it."""
UNREAD_MS: Final = 3_000
"""A message may have lain in a socket for so long, on a busy machine."""


@dataclass(slots=True)
class Story:
    """What a message was sent with, and what was found of it beside its copies."""

    terms: Terms
    scheduled_number: int | None = None
    """The number to cancel it by."""
    is_found: bool = False
    """It was seen among the scheduled messages."""


@dataclass(slots=True)
class Memory:
    """All that a session was ever told to remember."""

    told: list[bytes | None] = field(default_factory=lambda: [None])
    sure: int = 0
    """The last that was confirmed or read: nothing before it can come again."""


class FeatureLedger(Ledger):
    """One ledger for all clients of a run."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.stories: list[Story] = []
        self.set_aside: dict[int, int] = {}
        """Messages that must be among the deferred ones, with their sequence numbers."""
        self.cancellable: dict[int, int] = {}
        """Messages that were scheduled, and nobody has cancelled yet, with the numbers to do it by."""
        self.resends = 0
        self.dead_count = 0
        self._deferred: set[int] = set()
        """Messages that were ever deferred."""
        self._memories: dict[tuple[str, str], Memory] = {}
        self._latest: dict[tuple[str, str], int] = {}
        """By session: the highest sequence number that somebody received."""
        self._together: list[Sequence[int]] = []

    # --- senders ------------------------------------------------------------------------------------------------------

    def write_with(self, queue: str, source: Hashable | None, filler_bytes: int, terms: Terms) -> tuple[int, bytes]:
        """Record a new message, which will be sent now: its number and its payload."""
        number, body = self.write(queue, source if terms.due_ms is None else None, filler_bytes)
        self.stories.append(Story(terms))
        return number, letter.write(f"message-{number}", body, terms)

    def sent_again(self, number: int) -> None:
        """It may be stored now or have been before: it has no place in an order."""
        self.resends += 1
        self.messages[number].source = None

    def scheduled_together(self, numbers: Sequence[int]) -> None:
        self._together.append(numbers)

    def scheduled(self, number: int, sequence_number: int) -> None:
        """The broker has accepted it, and said by which number it can be cancelled."""
        self.accepted(number)
        self.stories[number].scheduled_number = self.cancellable[number] = sequence_number

    def is_cancelled(self, number: int) -> bool:
        return self._only_copy(number).state is State.CANCELLED

    def cancel_requested(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._only_copy(number).asked[State.CANCELLED] += 1
            self.cancellable.pop(number, None)
            self.look(self.messages[number])

    def cancel_confirmed(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            copy = self._only_copy(number)
            if copy.numbers:
                self.tell(f"cancelled: message {number}, which somebody had received before")
            copy.confirm(State.CANCELLED)

    def cancel_refused(self, numbers: Sequence[int]) -> None:
        """The broker does not know one of them any more, and has cancelled none."""
        now_ms = _now_ms()
        if all(self._is_surely_scheduled(number, now_ms) for number in numbers):
            self.tell(f"lost: one of the scheduled messages {list(numbers)}, which were not due, cannot be cancelled")
        for number in numbers:
            asked = self._only_copy(number).asked
            asked[State.CANCELLED] = max(0, asked[State.CANCELLED] - 1)
            self.look(self.messages[number])

    def cancel_unanswered(self, numbers: Sequence[int]) -> None:
        """They may be cancelled or not: it can be tried again."""
        for number in numbers:
            sequence_number = self.stories[number].scheduled_number
            if sequence_number is not None and not self._only_copy(number).numbers:
                self.cancellable[number] = sequence_number

    def _is_surely_scheduled(self, number: int, now_ms: int) -> bool:
        due_ms, copy = self.stories[number].terms.due_ms, self._only_copy(number)
        is_due = due_ms is None or due_ms <= now_ms
        return not is_due and copy.asked[State.CANCELLED] == 1 and copy.state is not State.CANCELLED

    # --- receivers ----------------------------------------------------------------------------------------------------

    def receive_from(self, queue: str, got: Received) -> int | None:
        """Somebody received a message from a queue: its number, if it is one of ours."""
        self.received_count += 1
        where = f"from {queue} came, as number {got.sequence_number},"
        message = self.identify(where, got.body, queue)
        if message is None:
            return None
        story, was_seen = self.stories[message.number], message.is_seen
        self.arrive(where, message, queue, queue, got.sequence_number)
        self.cancellable.pop(message.number, None)
        where = f"{where} {message},"
        self._check_times(where, story.terms, got)
        self._check_session(queue, where, story, got, was_seen=was_seen or story.is_found)
        return message.number

    def _check_times(self, where: str, terms: Terms, got: Received) -> None:
        now_ms = _now_ms()
        if terms.due_ms is not None and min(now_ms, got.enqueued_ms) < terms.due_ms:
            self.tell(f"early: {where} which was scheduled for {terms.due_ms - now_ms} ms later")
        if got.ttl_ms != terms.ttl_ms:
            self.tell(f"strange: {where} which lives for {got.ttl_ms} ms, and was to live for {terms.ttl_ms}")
        elif got.expires_ms is not None:
            at_ms = got.handed_out_ms if terms.session is None else now_ms - UNREAD_MS
            if at_ms is not None and at_ms >= got.expires_ms:
                self.tell(f"late: {where} which had expired {at_ms - got.expires_ms} ms before")

    def _check_session(self, queue: str, where: str, story: Story, got: Received, *, was_seen: bool) -> None:
        session = story.terms.session
        if got.session != session:
            self.tell(f"strange: {where} of session {got.session}, which was sent to {session}")
        elif session is not None:
            latest = self._latest.get((queue, session), 0)
            if not was_seen and got.sequence_number < latest:
                self.tell(f"order: {where} for the first time, and number {latest} of its session was there before")
            self._latest[queue, session] = max(latest, got.sequence_number)

    def receive_dead(self, queue: str, got: Received) -> int | None:
        """Somebody received a message from the dead-letter queue of a queue: its number, if it is one of ours."""
        self.received_count += 1
        address = f"{queue}'s dead letters"
        where = f"from {address} came, as number {got.sequence_number},"
        message = self.identify(where, got.body, queue)
        if message is None:
            return None
        ttl_ms, copy = self.stories[message.number].terms.ttl_ms, message.copy_at(queue)
        self.dead_count += address not in copy.numbers
        self.arrive(where, message, queue, address, got.sequence_number, State.DEAD)
        where = f"{where} {message},"
        if got.reason != EXPIRED or got.ttl_ms != ttl_ms:
            self.tell(f"dead-lettered: {where} for {got.reason}, with {got.ttl_ms} ms of {ttl_ms} to live")
        elif got.expires_ms is None or _now_ms() < got.expires_ms:
            self.tell(f"early: {where} which has not expired yet")
        if got.original_number is not None:
            known = copy.numbers.setdefault(queue, got.original_number)
            if known != got.original_number:
                self.tell(f"doubled: {where} once number {got.original_number}, which was number {known}")
        return message.number

    def may_become(self, copy: Copy, state: State) -> bool:
        """An active message that expires is dead-lettered."""
        return state is State.DEAD and copy.state is State.ACTIVE

    def peek(self, queue: str, got: Received) -> int | None:
        """Somebody peeked a message: its number, if it is one of ours."""
        where = f"in {queue} lies, as number {got.sequence_number},"
        message = self.identify(where, got.body, queue)
        if message is None:
            return None
        if message.copy_at(queue).state is State.GONE:
            self.tell(f"back: {where} {message}, which is {State.GONE.value}")
        story = self.stories[message.number]
        story.is_found = story.is_found or got.state == letter.SCHEDULED
        return message.number

    # --- deferral -----------------------------------------------------------------------------------------------------

    def deferral_requested(self, number: int) -> None:
        self._only_copy(number).asked[State.DEFERRED] += 1

    def deferral_confirmed(self, number: int) -> None:
        copy = self._only_copy(number)
        copy.state = State.DEFERRED
        self.set_aside[number] = copy.sequence_number
        self._deferred.add(number)

    def completion_requested(self, number: int) -> None:
        super().completion_requested(number)
        self.set_aside.pop(number, None)

    def receive_deferred(self, queue: str, got: Received) -> int | None:
        """Somebody asked for a deferred message, and received it."""
        self.received_count += 1
        where = f"from the deferred messages of {queue} came, as number {got.sequence_number},"
        message = self.identify(where, got.body, queue)
        if message is None:
            return None
        self.arrive(where, message, queue, queue, got.sequence_number, State.DEFERRED)
        self._deferred.add(message.number)
        return message.number

    def deferred_missed(self, queue: str, numbers: Sequence[int], why: str) -> None:
        """Somebody asked for deferred messages, and the broker said that one of them is not there."""
        if all(number in self.set_aside for number in numbers):
            self.tell(f"lost: one of the deferred messages {list(numbers)} of {queue}: {why}")

    # --- what sessions remember ---------------------------------------------------------------------------------------

    def state_requested(self, queue: str, session: str, state: bytes | None) -> int:
        """A session is to remember something, or, with None, nothing: which one this is."""
        told = self._memories.setdefault((queue, session), Memory()).told
        told.append(state)
        return len(told) - 1

    def state_confirmed(self, queue: str, session: str, place: int) -> None:
        memory = self._memories[queue, session]
        memory.sure = max(memory.sure, place)

    def state_read(self, queue: str, session: str, state: bytes | None) -> None:
        memory = self._memories.setdefault((queue, session), Memory())
        possible = memory.told[memory.sure :]
        if state in possible:
            memory.sure += possible.index(state)
        else:
            self.tell(
                f"state: session {session} of {queue} remembers {state!r:.60}, which is none of the "
                f"{len(possible)} that it can be since {possible[0]!r:.60}"
            )

    def remembering(self, queue: str) -> set[str]:
        """Sessions that must remember something."""
        return {
            session
            for (place, session), memory in self._memories.items()
            if place == queue and all(state is not None for state in memory.told[memory.sure :])
        }

    def perhaps_remembering(self, queue: str) -> set[str]:
        """... and those that may."""
        return {
            session
            for (place, session), memory in self._memories.items()
            if place == queue and any(state is not None for state in memory.told[memory.sure :])
        }

    # --- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> list[str]:
        """All queues were received and completed to the end, long after the last message was sent."""
        for number in self.waiting:
            ttl_ms, queue = self.stories[number].terms.ttl_ms, self.messages[number].path
            if not KINDS[queue].buries_expired and ttl_ms is not None and ttl_ms <= BRIEF_MS[1]:
                self._only_copy(number).asked[State.GONE] += 1  # it has expired
        for numbers in self._together:
            seen = [number for number in numbers if self.stories[number].is_found or self.messages[number].is_seen]
            is_cancelled = any(State.CANCELLED in self._only_copy(number).may_be for number in numbers)
            if seen and len(seen) < len(numbers) and not is_cancelled:
                self.tell(f"torn: of {list(numbers)}, which were scheduled together, only {seen} were there")
        return super().close()

    def uses(self) -> dict[str, int]:
        """How often each feature was made use of."""
        terms = [story.terms for story in self.stories]
        return {
            "in sessions": sum(one.session is not None for one in terms),
            "states": sum(len(memory.told) - 1 for memory in self._memories.values()),
            "scheduled": sum(one.due_ms is not None for one in terms),
            "cancelled": sum(self.is_cancelled(number) for number in range(len(terms))),
            "dead-lettered": self.dead_count,
            "deferred": len(self._deferred),
            "sent again": self.resends,
        }

    def unused(self) -> list[str]:
        """What a run says nothing of, because it was hardly used."""
        return [name for name, count in self.uses().items() if count < ENOUGH]

    def figures(self) -> str:
        return f"{super().figures()}; {', '.join(f'{count:,} {name}' for name, count in self.uses().items())}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
