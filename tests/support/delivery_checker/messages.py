"""Messages of a campaign, the copies of them that were received, and the states that a copy can be in.

A client does not always learn what became of its request: the connection or the server may be gone before the answer
is. So a copy has the state in which it was last seen or confirmed, and beside it the states that were asked for without
a known outcome: it `may_be` in any of them. The whole judgement of deliveries is this table:

| a copy that is known to be | may be received as active | dead-lettered | deferred |
|---|---|---|---|
| active | yes | if asked for, or expired | if asked for |
| dead-lettered | no | yes | no |
| deferred | no | no | yes |
| cancelled, completed | no | no | no |

Owns: these nouns, and the bodies by which messages are told apart. The promises are in `checker`.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

BODY_HEADER: Final = struct.Struct(">Q16s")
"""The number of a message, and a checksum over number and filler; the filler follows."""
FRAGMENT_SHIFT: Final = 48
"""The bits of a sequence number above these are the number of the fragment."""


class State(Enum):
    """Where a copy can be in the entity that it has arrived in."""

    ACTIVE = "active"
    DEFERRED = "deferred"
    DEAD_LETTERED = "dead-lettered"
    CANCELLED = "cancelled"
    COMPLETED = "completed"


FINAL_STATES: Final = frozenset({State.CANCELLED, State.COMPLETED})
"""Nothing has to be there any more."""


@dataclass(slots=True, eq=False)
class Copy:
    """A message in one of the places where it has to arrive."""

    number: int
    """Of the message."""
    destination: str
    """The queue or subscription that it has arrived in."""
    sequence_numbers: dict[str, int] = field(default_factory=dict)
    """Its sequence numbers, by the address from which it was received: those of dead letters are others."""
    state: State = State.ACTIVE
    """As it was last seen, or confirmed."""
    requested_states: Counter[State] = field(default_factory=Counter)
    """Requests whose outcome is not known, by the state that they lead to."""
    receipt_count: int = 0
    """How often it was received."""

    @property
    def sequence_number(self) -> int:
        return self.sequence_numbers[self.destination]

    @property
    def fragment(self) -> int:
        return self.sequence_number >> FRAGMENT_SHIFT

    @property
    def possible_states(self) -> set[State]:
        return {self.state, *(+self.requested_states)}

    @property
    def may_be_gone(self) -> bool:
        return not self.possible_states.isdisjoint(FINAL_STATES)

    @property
    def possible_states_text(self) -> str:
        return " or ".join(sorted(state.value for state in self.possible_states))

    def confirm(self, state: State) -> None:
        """The broker has answered that it is so."""
        self.state = state
        self.requested_states.clear()

    def record_receipt(self, state: State, cancelled_requests: Iterable[State]) -> None:
        """It was received in this state: requests for the `forgotten` states were not carried out."""
        if self.state is State.COMPLETED:
            self.requested_states[State.COMPLETED] += 1  # it is back, and may go once more
        self.state = state
        self.receipt_count += 1
        for one in cancelled_requests:
            self.requested_states.pop(one, None)


@dataclass(slots=True, eq=False)
class Message:
    """One message, and what its sender was told."""

    number: int
    sent_to: str
    """Where it was sent to."""
    copies: dict[str, list[Copy]]
    """By home: every queue or subscription where it has to arrive."""
    order_key: Hashable | None = None
    """What keeps its messages in order: a link, a transaction, a key. None: this message has no place in an order."""
    is_accepted: bool = False
    refusal: str | None = None
    was_received: bool = False
    """Somebody received it, so it was stored."""

    def __str__(self) -> str:
        return f"message {self.number}"

    def all_copies(self) -> list[Copy]:
        return [copy for copies in self.copies.values() for copy in copies]

    def copy_in(self, destination: str) -> Copy:
        """The copy at one home, of which there is one only."""
        copies = self.copies[destination]
        if not copies:
            copies.append(Copy(self.number, destination))
        return copies[0]


def make_body(number: int, filler: bytes) -> bytes:
    return BODY_HEADER.pack(number, _checksum(number, filler)) + filler


def read_message_number(body: bytes) -> int | None:
    """The number of the message that has this body; None if a single bit of it was changed."""
    number, checksum = BODY_HEADER.unpack_from(body) if len(body) >= BODY_HEADER.size else (-1, b"")
    return int(number) if checksum and checksum == _checksum(number, body[BODY_HEADER.size :]) else None


def format_sequence_number(sequence_number: int) -> str:
    """A sequence number as problems show it: in hexadecimal if it names a fragment."""
    return f"{sequence_number:#x}" if sequence_number >> FRAGMENT_SHIFT else str(sequence_number)


def _checksum(number: int, filler: bytes) -> bytes:
    return hashlib.blake2b(number.to_bytes(8, "big") + filler, digest_size=16).digest()
