"""Messages of a campaign, the received copies of each message, and the states of a copy.

A client does not always learn the outcome of a request: the connection or the server may fail before the response.
Therefore a copy has the state in which it was last seen or confirmed, and also the requested states whose outcome is
unknown: the copy may be in any of these `possible_states`. This table decides which deliveries are correct:

| a copy that is known to be | may be received as active | dead-lettered | deferred |
|---|---|---|---|
| active | yes | if requested, or expired | if requested |
| dead-lettered | no | yes | no |
| deferred | no | no | yes |
| cancelled, completed | no | no | no |

Owns: these classes, and the message bodies that identify messages. The guarantees are in `checker`.
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
"""Message number, and a checksum over number and filler; the filler follows."""
FRAGMENT_SHIFT: Final = 48
"""The bits of a sequence number above this one are the number of the fragment."""


class State(Enum):
    """State of a copy in the queue or subscription where it arrived."""

    ACTIVE = "active"
    DEFERRED = "deferred"
    DEAD_LETTERED = "dead-lettered"
    CANCELLED = "cancelled"
    COMPLETED = "completed"


FINAL_STATES: Final = frozenset({State.CANCELLED, State.COMPLETED})
"""States of copies that need not exist any more."""


@dataclass(slots=True, eq=False)
class Copy:
    """A message at one of its destinations."""

    number: int
    """Number of the message."""
    destination: str
    """Queue or subscription where the copy arrived."""
    sequence_numbers: dict[str, int] = field(default_factory=dict)
    """Sequence numbers by the address of the receiver: a copy gets a new number when it is dead-lettered."""
    state: State = State.ACTIVE
    """State last seen or confirmed."""
    requested_states: Counter[State] = field(default_factory=Counter)
    """Number of requests with unknown outcome, by the state that they request."""
    receipt_count: int = 0
    """How often the copy was received."""

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
        """Record that the broker has confirmed a state."""
        self.state = state
        self.requested_states.clear()

    def record_receipt(self, state: State, cancelled_requests: Iterable[State]) -> None:
        """Record a receipt in a state: requests for the states `cancelled_requests` were not carried out."""
        if self.state is State.COMPLETED:
            self.requested_states[State.COMPLETED] += 1  # the copy came back, and may be completed once more
        self.state = state
        self.receipt_count += 1
        for requested in cancelled_requests:
            self.requested_states.pop(requested, None)


@dataclass(slots=True, eq=False)
class Message:
    """A message, and the outcome of its send as the sender knows it."""

    number: int
    sent_to: str
    """Path of the queue or topic."""
    copies: dict[str, list[Copy]]
    """Copies by destination: every queue or subscription where the message has to arrive."""
    order_key: Hashable | None = None
    """Messages with the same key (a link, a transaction, a partition key) keep their order. None: no order."""
    is_accepted: bool = False
    refusal: str | None = None
    was_received: bool = False
    """Whether it was received, which proves that it was stored."""

    def __str__(self) -> str:
        return f"message {self.number}"

    def all_copies(self) -> list[Copy]:
        return [copy for copies in self.copies.values() for copy in copies]

    def copy_in(self, destination: str) -> Copy:
        """Return the only copy at a destination."""
        copies = self.copies[destination]
        if not copies:
            copies.append(Copy(self.number, destination))
        return copies[0]


def make_body(number: int, filler: bytes) -> bytes:
    return BODY_HEADER.pack(number, _checksum(number, filler)) + filler


def read_message_number(body: bytes) -> int | None:
    """Return the message number in a body, or None if the body was changed."""
    number, checksum = BODY_HEADER.unpack_from(body) if len(body) >= BODY_HEADER.size else (-1, b"")
    return int(number) if checksum and checksum == _checksum(number, body[BODY_HEADER.size :]) else None


def format_sequence_number(sequence_number: int) -> str:
    """Format a sequence number for a problem: in hexadecimal if it contains a fragment number."""
    return f"{sequence_number:#x}" if sequence_number >> FRAGMENT_SHIFT else str(sequence_number)


def _checksum(number: int, filler: bytes) -> bytes:
    return hashlib.blake2b(number.to_bytes(8, "big") + filler, digest_size=16).digest()
