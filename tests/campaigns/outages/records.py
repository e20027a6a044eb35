"""What programs report of their sends, and what is found in the end: rows, and the judgement of them.

Owns: the rows, which are also kept as files. The promises are in `tests.support.delivery_checker.pair_checker`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.campaigns.outages.streams import DUPLICATE_DETECTING, STREAMS
from tests.support.delivery_checker.pair_checker import PairDeliveryChecker

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class SendRecord:
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
class ArrivalRecord:
    """One message, as it was received at its destination."""

    destination: str
    stream: str
    number: int
    sequence_number: int
    parked_at_ms: int | None
    """None: it came directly."""
    is_marked_duplicate: bool
    """As a possible duplicate."""
    differences: tuple[str, ...] = ()
    incarnation: int = 0
    """Of a destination that is deleted and created again: its sequence numbers begin anew."""


@dataclass(frozen=True, slots=True)
class DeadLetterRecord:
    """A message in the dead-letter queue of a backlog queue."""

    backlog_queue: str
    stream: str
    number: int
    reason: str
    is_marked_duplicate: bool = False
    """As a possible duplicate."""


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """When an outage began and ended."""

    began_s: float
    ended_s: float


def check_deliveries(
    sends: Iterable[SendRecord], arrivals: Iterable[ArrivalRecord], dead_letters: Iterable[DeadLetterRecord] = ()
) -> PairDeliveryChecker:
    """Compare what was promised with what is there: a ledger that is closed."""
    ledger = PairDeliveryChecker()
    for send in sends:
        _record(ledger, send)
    for arrival in arrivals:
        ledger.found_at_destination(
            f"{arrival.stream}/{arrival.number}",
            arrival.destination,
            arrival.sequence_number,
            is_marked_duplicate=arrival.is_marked_duplicate,
            parked_at_ms=arrival.parked_at_ms,
            incarnation=arrival.incarnation,
            differences=arrival.differences,
        )
    for letter in dead_letters:
        name = f"{letter.stream}/{letter.number}"
        ledger.found_dead_lettered(
            name, letter.backlog_queue, letter.reason, is_marked_duplicate=letter.is_marked_duplicate
        )
    ledger.finish()
    return ledger


def _record(checker: PairDeliveryChecker, send: SendRecord) -> None:
    stream = STREAMS[send.stream]
    message = checker.send_started(
        f"{send.stream}/{send.number}",
        stream.path,
        stream.destinations,
        stream.session_id,
        has_fault=stream.has_fault,
        detects_duplicates=stream.path in DUPLICATE_DETECTING,
    )
    message.parked_in += [send.backlog_queue] if send.backlog_queue is not None else []
    message.is_spooled = send.is_spooled
    message.is_confirmed_by_primary = send.failure is None and send.backlog_queue is None and not send.is_spooled
    checker.send_ended(message, send.failure, may_have_happened=send.may_have_happened)
