"""The book of messages that are scheduled, expire, are deferred, sent again or of sessions, and of sessions' states.

To the promises of the plain ledger it adds, in the words of `problems`:

- order: the messages of a session come for the first time in the order of their sequence numbers.
- early: a scheduled message does not come before its time, and nothing expires before it.
- late: no message is handed out when its time is over.
- cancelled: what was cancelled, and that was confirmed, never comes.
- torn: messages that were scheduled together are all there, or none is.
- buried: a message in the dead-letter queue is there because it expired, under one number, and never comes from its
  queue again.
- unasked: a message whose deferral was confirmed comes only to who asks for it by its number; and to him it does come.
- state: a session remembers what it was last told to, as far as that was confirmed or read, or something later.

A message that was sent again, where duplicates are looked for, is the same message: it must not be `doubled`.

Owns: these promises. Knows nothing of servers, links or disks.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.faults.features import letter
from tests.faults.features.kinds import BRIEF_MS, KINDS
from tests.faults.ledger import Ledger

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from tests.faults.features.letter import Received, Terms

EXPIRED: Final = "TTLExpiredException"
ENOUGH: Final = 5
"""Uses of a feature that make a run say something of it."""
UNREAD_MS: Final = 3_000
"""A message may have lain in a socket for so long, on a busy machine."""


@dataclass(slots=True)
class Story:
    """What happened to one message, beside what its entry says."""

    terms: Terms
    scheduled_number: int | None = None
    """By which it can be cancelled."""
    cancels: int = 0
    """So often was that asked for without an answer that says what became of it."""
    is_cancelled: bool = False
    is_deferral_requested: bool = False
    is_deferred: bool = False
    """It was confirmed, or somebody found it among the deferred ones."""
    dead_number: int | None = None
    """In the dead-letter queue, where somebody has seen it."""
    is_seen: bool = False
    """It was received, or found."""


@dataclass(slots=True)
class Memory:
    """All that a session was ever told to remember."""

    told: list[bytes | None] = field(default_factory=lambda: [None])
    sure: int = 0
    """The last that was confirmed or read: nothing before it can come again."""


class FeatureLedger(Ledger):
    """One book for all clients of a run."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.stories: list[Story] = []
        self.set_aside: dict[int, int] = {}
        """Messages that must be among the deferred ones, with their sequence numbers."""
        self.cancellable: dict[int, int] = {}
        """Messages that were scheduled, and nobody has cancelled yet, with the numbers to do it by."""
        self.resends = 0
        self.buried_count = 0
        self._memories: dict[tuple[str, str], Memory] = {}
        self._latest: dict[tuple[str, str], int] = {}
        """By session: the highest sequence number that somebody received."""
        self._together: list[Sequence[int]] = []

    # --- senders ------------------------------------------------------------------------------------------------------

    def write_with(self, queue: str, line: int, filler_bytes: int, terms: Terms) -> tuple[int, bytes]:
        """A new message, which will be sent now: its number and its payload."""
        number, body = self.write(queue, line if terms.due_ms is None else None, filler_bytes)
        self.stories.append(Story(terms))
        return number, letter.write(f"message-{number}", body, terms)

    def sent_again(self, number: int) -> None:
        """It may be taken in now or have been before: it keeps no order."""
        self.resends += 1
        self.entries[number].line = None

    def scheduled_together(self, numbers: Sequence[int]) -> None:
        self._together.append(numbers)

    def scheduled(self, number: int, sequence_number: int) -> None:
        """The broker said that it has it, and by which number it can be cancelled."""
        self.accepted(number)
        self.stories[number].scheduled_number = self.cancellable[number] = sequence_number

    def cancel_requested(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.stories[number].cancels += 1
            self.cancellable.pop(number, None)
            self.waiting.discard(number)

    def cancel_confirmed(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.stories[number].is_cancelled = True
            if self.entries[number].sequence_number is not None:
                self._tell(f"cancelled: message {number}, which somebody had received before")

    def cancel_refused(self, numbers: Sequence[int]) -> None:
        """The broker does not know one of them any more, and has cancelled none."""
        now_ms = _now_ms()
        if all(self._is_surely_scheduled(number, now_ms) for number in numbers):
            self._tell(f"lost: one of the scheduled messages {list(numbers)}, which were not due, cannot be cancelled")
        for number in numbers:
            self.stories[number].cancels = max(0, self.stories[number].cancels - 1)
            self._must_be_there(number)

    def cancel_unanswered(self, numbers: Sequence[int]) -> None:
        """They may be cancelled or not: it can be tried again."""
        for number in numbers:
            sequence_number = self.stories[number].scheduled_number
            if sequence_number is not None and self.entries[number].sequence_number is None:
                self.cancellable[number] = sequence_number

    def _is_surely_scheduled(self, number: int, now_ms: int) -> bool:
        story = self.stories[number]
        is_due = story.terms.due_ms is None or story.terms.due_ms <= now_ms
        return not is_due and story.cancels == 1 and not story.is_cancelled

    def _must_be_there(self, number: int) -> None:
        if not self.stories[number].cancels:
            super()._must_be_there(number)

    # --- receivers ----------------------------------------------------------------------------------------------------

    def receive_from(self, queue: str, got: Received) -> int | None:
        """Somebody got a message from a queue: its number, if it is one of ours."""
        number = self.receive(queue, got.sequence_number, got.body)
        if number is None:
            return None
        story, where = self.stories[number], f"from {queue} came, as number {got.sequence_number}, message {number},"
        if story.is_cancelled:
            self._tell(f"cancelled: {where} whose cancellation was confirmed")
        if story.is_deferred:
            self._tell(f"unasked: {where} which is deferred")
        if story.dead_number is not None:
            self._tell(f"buried: {where} which had been dead letter {story.dead_number}")
        self._check_times(where, story.terms, got)
        self._check_session(queue, where, story, got)
        story.cancels, story.is_deferral_requested, story.is_seen = 0, False, True  # whoever asked, it is active
        self.cancellable.pop(number, None)
        self._must_be_there(number)
        return number

    def _check_times(self, where: str, terms: Terms, got: Received) -> None:
        now_ms = _now_ms()
        if terms.due_ms is not None and min(now_ms, got.enqueued_ms) < terms.due_ms:
            self._tell(f"early: {where} which was scheduled for {terms.due_ms - now_ms} ms later")
        if got.ttl_ms != terms.ttl_ms:
            self._tell(f"strange: {where} which lives for {got.ttl_ms} ms, and was to live for {terms.ttl_ms}")
        elif got.expires_ms is not None:
            at_ms = got.handed_out_ms if terms.session is None else now_ms - UNREAD_MS
            if at_ms is not None and at_ms >= got.expires_ms:
                self._tell(f"late: {where} which had expired {at_ms - got.expires_ms} ms before")

    def _check_session(self, queue: str, where: str, story: Story, got: Received) -> None:
        session = story.terms.session
        if got.session != session:
            self._tell(f"strange: {where} of session {got.session}, which was sent to {session}")
        elif session is not None:
            latest = self._latest.get((queue, session), 0)
            if not story.is_seen and got.sequence_number < latest:
                self._tell(f"order: {where} for the first time, and number {latest} of its session was there before")
            self._latest[queue, session] = max(latest, got.sequence_number)

    def bury(self, queue: str, got: Received) -> int | None:
        """Somebody got a message from the dead-letter queue of a queue: its number, if it is one of ours."""
        self.received_count += 1
        where = f"from {queue}'s dead letters came, as number {got.sequence_number},"
        number = self._identify(queue, where, got.body)
        if number is None:
            return None
        self._note_place(f"{queue}'s dead letters", where, got.sequence_number, number)
        story, entry, where = self.stories[number], self.entries[number], f"{where} message {number},"
        if got.reason != EXPIRED or got.ttl_ms != story.terms.ttl_ms:
            self._tell(f"buried: {where} for {got.reason}, with {got.ttl_ms} ms of {story.terms.ttl_ms} to live")
        elif got.expires_ms is None or _now_ms() < got.expires_ms:
            self._tell(f"early: {where} which has not expired yet")
        if story.dead_number not in {None, got.sequence_number}:
            self._tell(f"doubled: {where} which had been number {story.dead_number}")
        if entry.sequence_number not in {None, got.original_number}:
            self._tell(f"doubled: {where} once number {got.original_number}, which was number {entry.sequence_number}")
        if story.is_deferred:
            self._tell(f"unasked: {where} which is deferred")
        self.buried_count += story.dead_number is None
        story.dead_number, entry.sequence_number = got.sequence_number, got.original_number
        story.is_seen = True
        self._must_be_there(number)
        return number

    def peek(self, queue: str, got: Received) -> int | None:
        """Somebody looked at a message: its number, if it is one of ours."""
        number = self._identify(queue, f"in {queue} lies, as number {got.sequence_number},", got.body)
        if number is not None:
            self.stories[number].is_seen = self.stories[number].is_seen or got.state == letter.SCHEDULED
        return number

    # --- deferral -----------------------------------------------------------------------------------------------------

    def deferral_requested(self, number: int) -> None:
        self.stories[number].is_deferral_requested = True

    def deferral_confirmed(self, number: int) -> None:
        sequence_number = self.entries[number].sequence_number
        assert sequence_number is not None
        self.stories[number].is_deferred = True
        self.set_aside[number] = sequence_number

    def completion_requested(self, number: int) -> None:
        super().completion_requested(number)
        self.set_aside.pop(number, None)

    def receive_deferred(self, queue: str, got: Received) -> int | None:
        """Somebody asked for a deferred message, and got it."""
        number = self.receive(queue, got.sequence_number, got.body)
        if number is None:
            return None
        story = self.stories[number]
        if not story.is_deferred and not story.is_deferral_requested:
            self._tell(f"strange: among the deferred ones of {queue} is message {number}, which nobody deferred")
        story.is_deferred = True
        return number

    def deferred_missed(self, queue: str, numbers: Sequence[int], why: str) -> None:
        """Somebody asked for deferred messages, and one of them is said not to be there."""
        if all(number in self.set_aside for number in numbers):
            self._tell(f"lost: one of the deferred messages {list(numbers)} of {queue}: {why}")

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
            self._tell(
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

    # --- the reckoning ------------------------------------------------------------------------------------------------

    def close(self) -> list[str]:
        """All queues were received and completed to the end, long after the last message was sent."""
        for number in list(self.waiting):
            ttl_ms = self.stories[number].terms.ttl_ms
            if not KINDS[self.entries[number].queue].buries_expired and ttl_ms is not None and ttl_ms <= BRIEF_MS[1]:
                self.waiting.discard(number)  # it has expired, and is gone
        for numbers in self._together:
            seen = [number for number in numbers if self.stories[number].is_seen]
            if seen and len(seen) < len(numbers) and not any(self.stories[number].cancels for number in numbers):
                self._tell(f"torn: of {list(numbers)}, which were scheduled together, only {seen} were there")
        return super().close()

    def uses(self) -> dict[str, int]:
        """How often each feature was made use of."""
        stories = self.stories
        return {
            "in sessions": sum(story.terms.session is not None for story in stories),
            "states": sum(len(memory.told) - 1 for memory in self._memories.values()),
            "scheduled": sum(story.terms.due_ms is not None for story in stories),
            "cancelled": sum(story.is_cancelled for story in stories),
            "dead-lettered": self.buried_count,
            "deferred": sum(story.is_deferred for story in stories),
            "sent again": self.resends,
        }

    def unused(self) -> list[str]:
        """What a run says nothing of, because it was hardly used."""
        return [name for name, count in self.uses().items() if count < ENOUGH]

    def figures(self) -> str:
        return f"{super().figures()}; {', '.join(f'{count:,} {name}' for name, count in self.uses().items())}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
