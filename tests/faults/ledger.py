"""What was sent, answered, received and settled, written down as it happened, and what must be true of it.

    number, body = ledger.write(queue, line)     # a message, before it is sent
    ledger.accepted(number)                      # the broker said that it has it
    ledger.receive(queue, sequence_number, body) # somebody got it; its number
    ledger.completion_requested(number), ledger.completion_confirmed(number)

The promises, in the words of `problems`:

- lost: a message that was accepted, or that somebody received, stays until its completion is asked for.
- back: a message whose completion was confirmed never comes again.
- strange: nothing comes that was not sent, and nothing comes changed, or from another queue.
- doubled: a message has one sequence number, and a sequence number one message, for ever.
- order: messages of one link have growing sequence numbers, but in a partitioned queue, which has more than one row.

A message without an answer, or with an error, may be there or not: the sender has to send it again.

Owns: the promises. Knows nothing of servers, links or disks.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random

HEAD: Final = struct.Struct(">Q16s")
"""A body: its number, a checksum over number and filler, and the filler."""
PARTITIONED: Final = "partitioned-"
"""How the names of partitioned queues begin."""
PROBLEMS_MAX: Final = 50
COMPLETIONS_ENOUGH: Final = 300


@dataclass(slots=True)
class Entry:
    """All that is known of one message."""

    queue: str
    line: int | None
    """Of which link it is: one number for each life of a sender. None: it keeps no order with any other."""
    is_accepted: bool = False
    refusal: str | None = None
    sequence_number: int | None = None
    """Known since somebody received it."""
    is_completion_requested: bool = False
    is_completion_confirmed: bool = False


class Ledger:
    """One book for all senders and receivers of a run."""

    def __init__(self, rng: random.Random) -> None:
        self.entries: list[Entry] = []
        self.problems: list[str] = []
        self.received_count = 0
        self.waiting: set[int] = set()
        """Messages that must be there: accepted or received, and nobody has asked to complete them."""
        self._rng = rng
        self._by_sequence: dict[tuple[str, int], int] = {}

    # --- senders ------------------------------------------------------------------------------------------------------

    def write(self, queue: str, line: int | None, filler_bytes: int) -> tuple[int, bytes]:
        """A new message, which will be sent now."""
        number, filler = len(self.entries), self._rng.randbytes(filler_bytes)
        self.entries.append(Entry(queue, line if not queue.startswith(PARTITIONED) else None))
        return number, HEAD.pack(number, _checksum(number, filler)) + filler

    def accepted(self, number: int) -> None:
        self.entries[number].is_accepted = True
        self._must_be_there(number)

    def refused(self, number: int, why: str) -> None:
        self.entries[number].refusal = why

    # --- receivers ----------------------------------------------------------------------------------------------------

    def receive(self, queue: str, sequence_number: int, body: bytes) -> int | None:
        """Somebody got a message: its number, if it is one of ours."""
        self.received_count += 1
        where = f"from {queue} came, as number {sequence_number},"
        number = self._identify(queue, where, body)
        if number is None:
            return None
        entry = self.entries[number]
        if entry.sequence_number not in {None, sequence_number}:
            self._tell(f"doubled: {where} message {number}, which had been number {entry.sequence_number}")
        self._note_place(queue, where, sequence_number, number)
        entry.sequence_number = sequence_number
        self._must_be_there(number)
        return number

    def _identify(self, queue: str, where: str, body: bytes) -> int | None:
        """Which message it is, of those that were sent to a queue and may be there."""
        number = self.number_in(where, body)
        if number is None:
            return None
        entry = self.entries[number]
        if entry.queue != queue:
            self._tell(f"strange: {where} message {number}, which was sent to {entry.queue}")
            return None
        if entry.is_completion_confirmed:
            self._tell(f"back: {where} message {number}, whose completion was confirmed")
        return number

    def number_in(self, where: str, body: bytes) -> int | None:
        """Which message it is, of all that were written."""
        number, checksum = HEAD.unpack_from(body) if len(body) >= HEAD.size else (-1, b"")
        if not 0 <= number < len(self.entries) or checksum != _checksum(number, body[HEAD.size :]):
            self._tell(f"strange: {where} {len(body)} bytes that nobody sent")
            return None
        return int(number)

    def _note_place(self, place: str, where: str, sequence_number: int, number: int) -> None:
        other = self._by_sequence.setdefault((place, sequence_number), number)
        if other != number:
            self._tell(f"doubled: {where} message {number}, where message {other} had been")

    def _must_be_there(self, number: int) -> None:
        if not self.entries[number].is_completion_requested:
            self.waiting.add(number)

    def completion_requested(self, number: int) -> None:
        self.entries[number].is_completion_requested = True
        self.waiting.discard(number)

    def completion_confirmed(self, number: int) -> None:
        self.entries[number].is_completion_confirmed = True

    # --- the reckoning ------------------------------------------------------------------------------------------------

    def unused(self) -> list[str]:
        """What a run says nothing of, because it was hardly used."""
        completions = sum(entry.is_completion_confirmed for entry in self.entries)
        return ["completions"] if completions < COMPLETIONS_ENOUGH else []

    def close(self) -> list[str]:
        """All queues were received and completed to the end: what was wrong, all in all."""
        for number in sorted(self.waiting):
            entry = self.entries[number]
            known = "accepted" if entry.is_accepted else f"received as number {entry.sequence_number}"
            self._tell(f"lost: message {number} of {entry.queue}, which was {known}")
        self._check_order()
        return self.problems

    def _check_order(self) -> None:
        last: dict[int, tuple[int, int]] = {}
        for number, entry in enumerate(self.entries):
            if entry.sequence_number is None or entry.line is None:
                continue
            before, sequence_number = last.get(entry.line, (-1, -1))
            if sequence_number > entry.sequence_number:
                self._tell(
                    f"order: on one link to {entry.queue}, message {before} got number {sequence_number} "
                    f"and message {number} after it {entry.sequence_number}"
                )
            last[entry.line] = (number, entry.sequence_number)

    def figures(self) -> str:
        entries = self.entries
        return (
            f"{len(entries):,} sent, {sum(entry.is_accepted for entry in entries):,} accepted, "
            f"{self.received_count:,} received, {sum(entry.is_completion_confirmed for entry in entries):,} completed, "
            f"{sum(not entry.is_accepted and entry.refusal is None for entry in entries):,} sends without an answer, "
            f"{sum(entry.refusal is not None for entry in entries):,} refused"
        )

    def _tell(self, problem: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)


def _checksum(number: int, filler: bytes) -> bytes:
    return hashlib.blake2b(number.to_bytes(8, "big") + filler, digest_size=16).digest()
