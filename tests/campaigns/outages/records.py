"""Records of sends, arrivals and dead letters, and their check.

Owns: the records, which are also written to files. The guarantees are in `tests.support.delivery_checker.pair_checker`.
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
    """The send of one message, as its program observed it. Times are monotonic."""

    stream: str
    number: int
    began_s: float
    ended_s: float
    failure: str | None = None
    """Name of the error; None: the send succeeded."""
    backlog_queue: str | None = None
    """Backlog queue of a parked message."""
    may_have_happened: bool = False
    """`may_have_happened` of the error."""
    is_spooled: bool = False


@dataclass(frozen=True, slots=True)
class ArrivalRecord:
    """Message that was received at its destination."""

    destination: str
    stream: str
    number: int
    sequence_number: int
    parked_at_ms: int | None
    """None: it was not parked."""
    is_marked_duplicate: bool
    """As a possible duplicate."""
    differences: tuple[str, ...] = ()
    incarnation: int = 0
    """Number of deletions of the destination before; a new queue starts new sequence numbers."""


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
    """Start and end of an outage."""

    began_s: float
    ended_s: float


def check_deliveries(
    sends: Iterable[SendRecord], arrivals: Iterable[ArrivalRecord], dead_letters: Iterable[DeadLetterRecord] = ()
) -> PairDeliveryChecker:
    """Check the records, and return the finished checker."""
    checker = PairDeliveryChecker()
    for send in sends:
        _record(checker, send)
    for arrival in arrivals:
        checker.found_at_destination(
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
        checker.found_dead_lettered(
            name, letter.backlog_queue, letter.reason, is_marked_duplicate=letter.is_marked_duplicate
        )
    checker.finish()
    return checker


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
