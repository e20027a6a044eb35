"""What was sent in a simulation, and what its senders were told.

Owns: that whoever sends is answered once, and that a message without a key is refused only where nothing takes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from tests.simulation.ledger import Violation
from twinbus.model.errors import PartlyStored

if TYPE_CHECKING:
    from twinbus.model.errors import ServiceBusError


class Sending:
    """Messages that were sent together."""

    def __init__(self, letters: list[Letter], troubles: list[int]) -> None:
        self.letters = letters
        self.troubles = troubles
        """Of each store, how often it had trouble when they were sent."""
        self.is_answered = False
        self.is_void = False
        """The process that was to answer is gone."""

    def __repr__(self) -> str:
        return f"the send of {[letter.identity for letter in self.letters]}"


class Letter:
    """One message."""

    def __init__(self, identity: int, key: str | None) -> None:
        self.identity = identity
        self.key = key
        self.sending: Sending
        self.is_accepted = False


LetterKind = TypeVar("LetterKind", bound=Letter)


class Sendings(Generic[LetterKind]):
    """All that was ever sent."""

    def __init__(self, kind: type[LetterKind], stores: int) -> None:
        self.troubles = [0] * stores
        """How often each store failed, or was silent."""
        self.letters: dict[int, LetterKind] = {}
        self.sendings: list[Sending] = []
        self._kind = kind

    def send(self, keys: list[str | None]) -> Sending:
        letters = [self._kind(len(self.letters) + at, key) for at, key in enumerate(keys)]
        sending = Sending(list(letters), self.troubles.copy())
        for letter in letters:
            letter.sending = sending
            self.letters[letter.identity] = letter
        self.sendings.append(sending)
        return sending

    def sent(self, sending: Sending, error: ServiceBusError | None, working: list[int]) -> None:
        """It was answered, or refused at once, while these stores took messages."""
        if sending.is_answered or sending.is_void:
            raise Violation(f"{sending!r} was answered twice, or by a process that is gone")
        sending.is_answered = True
        stored = error.stored if isinstance(error, PartlyStored) else ()
        for place, letter in enumerate(sending.letters):
            letter.is_accepted = error is None or place in stored
        steady = [store for store in working if self.troubles[store] == sending.troubles[store]]
        if error is not None and steady and all(letter.key is None for letter in sending.letters):
            raise Violation(f"{sending!r} has no key, stores {steady} worked all the time, and it failed: {error}")

    def check_answered(self) -> None:
        for sending in self.sendings:
            if not sending.is_answered and not sending.is_void:
                raise Violation(f"{sending!r} is not answered")
