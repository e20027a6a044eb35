"""The sends that a campaign reported, the messages that arrived, and whether that is what a pair promises.

Owns: the rules.

- Nothing that was reported sent, parked or spooled is missing (R002, Q02).
- An error that says "it did not happen" is true: such a message never arrives.
- Of several copies of a message at most one is without the mark `x-ms-possible-duplicate` (Q04, Q17); where duplicates
  are detected there is one copy.
- Parked messages of one session and one destination that went through one backlog queue arrive in order (Q18).
- Only messages with a fault of their own are dead-lettered in backlog queues (Q19).
- Every message arrives as it was sent (Q06).

Knows nothing of processes, networks and outages: the promises do not depend on them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from tests.ledger.problems import Problems
from tests.outages.scene import ONCE, STREAMS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Copies = dict[tuple[str, str, int], list["Arrival"]]
"""By destination, stream and number."""


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


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message in the dead-letter queue of a backlog queue."""

    backlog_queue: str
    stream: str
    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class Span:
    """When an outage began and ended."""

    began_s: float
    ended_s: float


@dataclass
class Verdict(Problems):
    """The result."""

    duplicates: Counter[str] = field(default_factory=Counter)
    """Extra copies, by the way they came about."""
    marked: int = 0
    """Arrivals with the mark."""
    marked_alone: int = 0
    """... that are the only copy."""
    ordered: int = 0
    """Parked messages of sessions whose order was compared with that of another."""


def judge(sends: Sequence[Send], arrivals: Sequence[Arrival], dead_letters: Sequence[DeadLetter] = ()) -> Verdict:
    """Compare what was promised with what is there."""
    verdict = Verdict()
    by_message = {(send.stream, send.number): send for send in sends}
    copies: Copies = defaultdict(list)
    for arrival in arrivals:
        if (arrival.stream, arrival.number) not in by_message:
            verdict.tell(f"strange: {_name(arrival)} was never sent")
            continue
        copies[arrival.destination, arrival.stream, arrival.number].append(arrival)
        for difference in arrival.differences:
            verdict.tell(f"changed: {_name(arrival)}: {difference}")
    dead = {(letter.stream, letter.number) for letter in dead_letters}
    _judge_losses(sends, copies.keys(), dead, verdict)
    _judge_dead_letters(dead_letters, verdict)
    _judge_errors(by_message, copies.keys(), verdict)
    for (destination, stream, number), found in copies.items():
        _judge_copies(by_message[stream, number], destination, found, verdict)
    _judge_order(by_message, copies, verdict)
    return verdict


def _judge_losses(
    sends: Iterable[Send], arrived: Iterable[tuple[str, str, int]], dead: set[tuple[str, int]], verdict: Verdict
) -> None:
    there = set(arrived)
    for send in sends:
        if send.failure is not None:
            continue
        where = f"parked in {send.backlog_queue}" if send.backlog_queue else "sent to the primary"
        where = f"spooled, and {where}" if send.is_spooled else where
        stream = STREAMS[send.stream]
        if stream.has_fault and (send.stream, send.number) not in dead:
            verdict.tell(f"lost: {send.stream}/{send.number} is in no dead-letter queue, and was {where}")
        for destination in stream.arrives_at:
            if (destination, send.stream, send.number) not in there:
                fate = "was dead-lettered" if (send.stream, send.number) in dead else f"was {where}"
                verdict.tell(f"lost: {send.stream}/{send.number} is not at {destination}, and {fate}")


def _judge_dead_letters(dead_letters: Iterable[DeadLetter], verdict: Verdict) -> None:
    for letter in dead_letters:
        stream = STREAMS.get(letter.stream)
        if stream is None or not stream.has_fault:
            name = f"{letter.stream}/{letter.number}"
            verdict.tell(f"dead-lettered: {name}, which has no fault, in {letter.backlog_queue}: {letter.reason}")


def _judge_errors(
    sends: Mapping[tuple[str, int], Send], arrived: Iterable[tuple[str, str, int]], verdict: Verdict
) -> None:
    for destination, stream, number in arrived:
        send = sends[stream, number]
        if send.failure is not None and not send.may_have_happened:
            verdict.tell(
                f"untruthful: {stream}/{number} failed with {send.failure}, which says that nothing was sent,"
                f" and is at {destination}"
            )


def _judge_copies(send: Send, destination: str, found: Sequence[Arrival], verdict: Verdict) -> None:
    marked = sum(arrival.is_marked for arrival in found)
    verdict.marked += marked
    if len(found) == 1:
        verdict.marked_alone += marked
        return
    name = f"{send.stream}/{send.number} is at {destination} {len(found)} times"
    direct = sum(arrival.parked_at_ms is None for arrival in found)
    parkings = {arrival.parked_at_ms for arrival in found} - {None}
    ways = {
        "sent twice": max(0, direct - 1),
        "parked again": len(parkings) - 1 + (direct > 0) if parkings else 0,
        "moved again": len(found) - direct - len(parkings),
    }
    verdict.duplicates += Counter(ways)
    if STREAMS[send.stream].path in ONCE:
        verdict.tell(f"doubled: {name}, where duplicates are detected")
    elif len(found) - marked > 1:
        told = ", ".join(f"{way} {count}" for way, count in ways.items() if count)
        verdict.tell(f"unmarked: {name}, {len(found) - marked} of them unmarked ({told})")


def _judge_order(sends: Mapping[tuple[str, int], Send], copies: Copies, verdict: Verdict) -> None:
    """Compare parked messages of a session that went through one backlog queue with the order of their sends."""
    lines: dict[tuple[str, str, str], list[tuple[int, int]]] = defaultdict(list)
    for (destination, stream, number), found in copies.items():
        queue = sends[stream, number].backlog_queue
        parked = [arrival for arrival in found if arrival.parked_at_ms is not None]
        # A message that was parked twice may have come from the other backlog queue.
        if queue is None or STREAMS[stream].session_id is None or len({one.parked_at_ms for one in parked}) != 1:
            continue
        first = min(arrival.sequence_number for arrival in parked)
        lines[destination, stream, queue].append((first, number))
    for (destination, stream, queue), line in lines.items():
        numbers = [number for _, number in sorted(line)]
        verdict.ordered += max(0, len(numbers) - 1)
        for before, after in pairwise(numbers):
            if before > after:
                verdict.tell(f"order: at {destination}, {stream}/{after} came after {stream}/{before}, through {queue}")


def _name(arrival: Arrival) -> str:
    return f"{arrival.stream}/{arrival.number} at {arrival.destination}"
