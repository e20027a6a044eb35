"""What was reported to have been sent, what arrived, and whether that is what was promised.

Owns: the reckoning. Nothing that was reported sent is missing (R002, Q02); every message arrives as it was sent (Q06);
twice only where that is allowed (Q04, Q17), and where duplicates are detected never; within one session, one
destination and one backlog queue in order (Q18). Knows nothing of processes or networks but when they had an outage.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from tests.outages.scene import ONCE, STREAMS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PROBLEMS_MAX: Final = 40
AFTERMATH_S: Final = 3.0
"""A send that begins so soon after an outage may still meet what that left behind: a connection that is lost."""


@dataclass(frozen=True, slots=True)
class Send:
    """One send, as its program saw it. Times are of the machine's monotonic clock."""

    stream: str
    number: int
    began_s: float
    ended_s: float
    failure: str | None
    """The error's name; None: it was reported sent."""
    backlog_queue: str | None
    """Where it was parked."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One message, as it was received at its destination."""

    destination: str
    stream: str
    number: int
    sequence_number: int
    parked_at_ms: int | None
    """None: it came straight."""
    is_possible_duplicate: bool
    differences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Span:
    """When something was out."""

    began_s: float
    ended_s: float


@dataclass
class Verdict:
    """What came of it."""

    problems: list[str] = field(default_factory=list)
    duplicates: Counter[str] = field(default_factory=Counter)
    """By what allows them."""
    ordered: int = 0
    """Parked messages of sessions whose order was compared with that of another."""

    def tell(self, problem: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)


def judge(sends: Sequence[Send], arrivals: Sequence[Arrival], outages: Iterable[Span]) -> Verdict:
    """All of it."""
    verdict, spans = Verdict(), list(outages)
    by_message = {(send.stream, send.number): send for send in sends}
    copies: dict[tuple[str, str, int], list[Arrival]] = defaultdict(list)
    for arrival in arrivals:
        if (arrival.stream, arrival.number) not in by_message:
            verdict.tell(f"strange: {_name(arrival)} was never sent")
            continue
        copies[arrival.destination, arrival.stream, arrival.number].append(arrival)
        for difference in arrival.differences:
            verdict.tell(f"changed: {_name(arrival)}: {difference}")
    _judge_losses(sends, copies.keys(), verdict)
    for (destination, stream, number), found in copies.items():
        if len(found) > 1:
            _judge_copies(by_message[stream, number], destination, found, spans, verdict)
    _judge_order(by_message, copies, verdict)
    return verdict


def _judge_losses(sends: Iterable[Send], arrived: Iterable[tuple[str, str, int]], verdict: Verdict) -> None:
    there = set(arrived)
    for send in sends:
        for destination in STREAMS[send.stream].arrives_at:
            if send.failure is None and (destination, send.stream, send.number) not in there:
                where = f"parked in {send.backlog_queue}" if send.backlog_queue else "sent to the primary"
                verdict.tell(f"lost: {send.stream}/{send.number} is not at {destination}, and was {where}")


def _judge_copies(
    send: Send, destination: str, found: Sequence[Arrival], outages: Iterable[Span], verdict: Verdict
) -> None:
    """A message that is there several times."""
    name = f"{send.stream}/{send.number} is at {destination} {len(found)} times"
    if STREAMS[send.stream].path in ONCE:
        verdict.tell(f"doubled: {name}, where duplicates are detected")
        return
    straight = sum(arrival.parked_at_ms is None for arrival in found)
    parkings = {arrival.parked_at_ms for arrival in found} - {None}
    if straight > 1:
        verdict.duplicates["twice without having been parked"] += straight - 1
        if not any(_overlap(send, outage) for outage in outages):
            verdict.tell(f"doubled: {name}, {straight} of them not parked, and there was no outage")
    if len(parkings) + (straight > 0) > 1:
        verdict.duplicates["marked as possible duplicates"] += len(parkings) + (straight > 0) - 1
        if not any(arrival.is_possible_duplicate for arrival in found):
            verdict.tell(f"doubled: {name}, and none is marked as a possible duplicate")
    moved_again = len(found) - straight - len(parkings)
    if moved_again:
        verdict.duplicates["moved again"] += moved_again


def _judge_order(
    sends: dict[tuple[str, int], Send], copies: dict[tuple[str, str, int], list[Arrival]], verdict: Verdict
) -> None:
    """Parked messages of a session that went through one backlog queue: as they were sent, so they arrived."""
    lines: dict[tuple[str, str, str], list[tuple[int, int]]] = defaultdict(list)
    for (destination, stream, number), found in copies.items():
        queue = sends[stream, number].backlog_queue
        parked = [arrival for arrival in found if arrival.parked_at_ms is not None]
        # One that was parked twice may have come from the other backlog queue.
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


def _overlap(send: Send, outage: Span) -> bool:
    return send.began_s <= outage.ended_s + AFTERMATH_S and outage.began_s <= send.ended_s


def _name(arrival: Arrival) -> str:
    return f"{arrival.stream}/{arrival.number} at {arrival.destination}"
