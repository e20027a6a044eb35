"""What was promised of messages that were sent to a partitioned queue, seen from outside of it.

Owns: that what was accepted is received until it is completed, and not after that; that nobody gets what another has;
that the messages of a key come in order; that whoever asks is answered once. Where a message lies is its own affair:
one without a key that was on its way to a store that failed, or was silent, may lie in two fragments.
"""

from __future__ import annotations

from tests.simulation.ledger import Violation
from tests.simulation.sendings import Letter as Sent
from tests.simulation.sendings import Sendings


class Letter(Sent):
    """One message."""

    def __init__(self, identity: int, key: str | None) -> None:
        super().__init__(identity, key)
        self.copies: dict[int, Copy] = {}
        """By sequence number, those that were seen."""


class Copy:
    """A message where it lies."""

    def __init__(self, letter: Letter, sequence: int) -> None:
        self.letter = letter
        self.sequence = sequence
        self.lock: Lock | None = None
        self.is_ending = False
        """Someone has asked to delete it: where that fails it may be there, or not."""
        self.is_gone = False
        """It was answered that it is deleted."""


class Lock:
    """What someone was given."""

    def __init__(self, copy: Copy, tag: bytes, deadline_s: float) -> None:
        self.copy = copy
        self.tag = tag
        self.deadline_s = deadline_s


class Ledger(Sendings[Letter]):
    def __init__(self, stores: int) -> None:
        super().__init__(Letter, stores)
        self._highest: dict[str, tuple[int, int]] = {}
        """Of each key, what was received last for the first time: its sequence number, and its identity."""

    # --- receiving ----------------------------------------------------------------------------------------------------

    def deliver(self, identity: int, sequence: int, tag: bytes, now_s: float, deadline_s: float) -> Lock:
        letter = self.letters[identity]
        copy = letter.copies.get(sequence)
        if copy is None:
            copy = letter.copies[sequence] = Copy(letter, sequence)
            self._check_first(letter, sequence)
        if copy.is_gone:
            raise Violation(f"message {identity} was completed, and comes again")
        if copy.lock is not None and copy.lock.deadline_s > now_s:
            raise Violation(f"message {identity} is locked until {copy.lock.deadline_s}, and is given to another")
        copy.lock = Lock(copy, tag, deadline_s)
        return copy.lock

    def _check_first(self, letter: Letter, sequence: int) -> None:
        if letter.key is None:
            may_be_twice = self.troubles != letter.sending.troubles
            if len(letter.copies) > 1 and not may_be_twice:
                raise Violation(f"message {letter.identity} is there twice, and no store had trouble")
            return
        if len(letter.copies) > 1:
            raise Violation(f"message {letter.identity} has a key, and is there twice")
        before = self._highest.get(letter.key)
        if before is not None and (before[0] >> 48 != sequence >> 48 or before[1] > letter.identity):
            raise Violation(f"message {letter.identity} of {letter.key} comes after {before[1]}")
        self._highest[letter.key] = sequence, letter.identity

    # --- failures -----------------------------------------------------------------------------------------------------

    def lose(self, store: int, stores: int) -> None:
        """All locks of a store are void."""
        self.troubles[store] += 1
        for letter in self.letters.values():
            for copy in letter.copies.values():
                if (copy.sequence >> 48) % stores == store:
                    copy.lock = None

    def lose_process(self) -> None:
        for sending in self.sendings:
            sending.is_void = sending.is_void or not sending.is_answered

    # --- the end ------------------------------------------------------------------------------------------------------

    def check_all_received(self) -> None:
        for letter in self.letters.values():
            if letter.is_accepted and not any(copy.is_ending for copy in letter.copies.values()):
                raise Violation(f"message {letter.identity} ({letter.key}) was accepted, and is lost")
