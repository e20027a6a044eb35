"""What programs report of their sends, and what is found in the end: rows, and the judgement of them.

Owns: the rows, which are also kept as files. The promises are in `tests.ledger.pair`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.ledger.pair import PairLedger
from tests.outages.scene import ONCE, STREAMS

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Send:
    """The send of one message, as its program saw it. Times are of the machine's monotonic clock."""

    stream: str
    number: int
    began_s: float
    ended_s: float
    failure: str | None = None
    """The error's name; None: it was reported sent."""
    backlog_queue: str | None = None
    """Where it was parked."""
    may_have_happened: bool = False
    """What the error says of itself."""
    is_spooled: bool = False


@dataclass(frozen=True, slots=True)
class Arrival:
    """One message, as it was received at its destination."""

    destination: str
    stream: str
    number: int
    sequence_number: int
    parked_at_ms: int | None
    """None: it came directly."""
    is_marked: bool
    """As a possible duplicate."""
    differences: tuple[str, ...] = ()
    incarnation: int = 0
    """Of a destination that is deleted and created again: its sequence numbers begin anew."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message in the dead-letter queue of a backlog queue."""

    backlog_queue: str
    stream: str
    number: int
    reason: str
    is_marked: bool = False
    """As a possible duplicate."""


@dataclass(frozen=True, slots=True)
class Span:
    """When an outage began and ended."""

    began_s: float
    ended_s: float


def judge(sends: Iterable[Send], arrivals: Iterable[Arrival], dead_letters: Iterable[DeadLetter] = ()) -> PairLedger:
    """Compare what was promised with what is there: a ledger that is closed."""
    ledger = PairLedger()
    for send in sends:
        _record(ledger, send)
    for arrival in arrivals:
        ledger.find(
            f"{arrival.stream}/{arrival.number}",
            arrival.destination,
            arrival.sequence_number,
            is_marked=arrival.is_marked,
            parked_at_ms=arrival.parked_at_ms,
            incarnation=arrival.incarnation,
            differences=arrival.differences,
        )
    for letter in dead_letters:
        name = f"{letter.stream}/{letter.number}"
        ledger.find_dead(name, letter.backlog_queue, letter.reason, is_marked=letter.is_marked)
    ledger.close()
    return ledger


def _record(ledger: PairLedger, send: Send) -> None:
    stream = STREAMS[send.stream]
    message = ledger.begin(
        f"{send.stream}/{send.number}",
        stream.path,
        stream.arrives_at,
        stream.session_id,
        has_fault=stream.has_fault,
        is_once=stream.path in ONCE,
    )
    message.parked_in += [send.backlog_queue] if send.backlog_queue is not None else []
    message.is_spooled = send.is_spooled
    message.is_direct = send.failure is None and send.backlog_queue is None and not send.is_spooled
    ledger.end(message, send.failure, may_have_happened=send.may_have_happened)
