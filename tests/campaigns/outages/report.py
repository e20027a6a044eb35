"""Report of a campaign: a table of its outages, its figures and its problems.

Owns the text. It checks nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.campaigns.outages.plan import OutageKind
from tests.support.delivery_checker.pair_checker import PairDeliveryChecker
from twinbus.client.pairing import EventKind

if TYPE_CHECKING:
    from tests.campaigns.outages.records import ArrivalRecord, DeadLetterRecord, SendRecord, TimeSpan

TARGETS: Final = ("primary", "secondary", "sender", "syphon")


@dataclass(frozen=True, slots=True)
class OutageRecord:
    """An outage that has happened."""

    kind: OutageKind
    target: str
    span: TimeSpan
    detail: str = ""

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.target}, {self.kind.value}{detail}, for {self.span.ended_s - self.span.began_s:.1f} s"


@dataclass
class Report:
    """Report of one campaign."""

    seed: int
    outages: list[OutageRecord] = field(default_factory=list)
    syphon_kills: int = 0
    sends: list[SendRecord] = field(default_factory=list)
    arrivals: list[ArrivalRecord] = field(default_factory=list)
    dead_letters: list[DeadLetterRecord] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)
    """Events of the syphons, by kind."""
    checker: PairDeliveryChecker = field(default_factory=PairDeliveryChecker)
    failures: list[str] = field(default_factory=list)
    """Processes that failed, and messages that did not reach their destination."""
    drained_s: float = 0.0
    seconds: float = 0.0

    @property
    def problems(self) -> list[str]:
        """All problems; of each kind only the first few."""
        return self.failures + self.checker.problems

    @property
    def problem_count(self) -> int:
        return len(self.failures) + self.checker.problem_counts.total()

    @property
    def sent(self) -> list[SendRecord]:
        """Sends that were reported to have succeeded."""
        return [send for send in self.sends if send.failure is None]

    @property
    def parked(self) -> list[SendRecord]:
        return [send for send in self.sent if send.backlog_queue is not None]

    def table(self) -> str:
        """Return a table with a row for each kind of outage, with the sends that started in it."""
        rows = ["| target | outage | count | seconds | sent | parked | spooled | failed | longest send |"]
        rows.append("|---|---|---|---|---|---|---|---|---|")
        found = [self._row(whose, kind) for whose in TARGETS for kind in OutageKind]
        return "\n".join(rows + [row for row in found if row is not None])

    def _row(self, target: str, kind: OutageKind) -> str | None:
        spans = [outage.span for outage in self.outages if outage.kind is kind and outage.target == target]
        if not spans:
            return None
        inside = [send for send in self.sends if any(span.began_s <= send.began_s < span.ended_s for span in spans)]
        took_s = sum(span.ended_s - span.began_s for span in spans)
        sent = sum(send.failure is None for send in inside)
        parked = sum(send.backlog_queue is not None for send in inside)
        spooled = sum(send.is_spooled for send in inside)
        longest_s = max((send.ended_s - send.began_s for send in inside), default=0.0)
        return (
            f"| {target} | {kind.value} | {len(spans)} | {took_s:.0f} | {sent:,} | {parked:,} | {spooled:,}"
            f" | {len(inside) - sent:,} | {longest_s:.2f} s |"
        )

    def statistics(self) -> str:
        """Return the outcome of all messages, one figure per line."""
        verdict, failures = self.checker, Counter(send.failure for send in self.sends if send.failure is not None)
        lines = {
            "reported sent": f"{len(self.sent):,}",
            "failed": _format_counts(failures),
            "parked": f"{len(self.parked):,}",
            "spooled": f"{sum(send.is_spooled for send in self.sends):,}",
            "deferred by a syphon": f"{self.events[EventKind.DEFERRED.value]:,}",
            "moved by a syphon": f"{self.events[EventKind.MOVED.value]:,}",
            "dead-lettered": (
                f"{len(self.dead_letters):,} ({verdict.problem_counts['dead-lettered']:,} without a reason)"
            ),
            "arrived": f"{len(self.arrivals):,}",
            "marked as possible duplicates": (
                f"{verdict.marked_count:,} ({verdict.marked_single_count:,} are the only copy)"
            ),
            "extra copies": _format_counts(verdict.duplicates),
            "order checked": f"{verdict.order_checks:,}",
            "drained after the last send": f"{self.drained_s:.1f} s",
        }
        width = max(map(len, lines))
        return "\n".join(f"{name:<{width}}  {value}" for name, value in lines.items())

    def summary(self) -> str:
        told = f" ({_format_counts(self.checker.problem_counts)})" if self.checker.problem_counts else ""
        return (
            f"seed {self.seed}: {len(self.outages)} outages and {self.syphon_kills} kills of a syphon in"
            f" {self.seconds:.0f} s; {self.problem_count:,} problems{told}"
        )

    def __str__(self) -> str:
        return "\n".join([*self.problems, self.table(), self.statistics(), self.summary()])


def _format_counts(counts: Counter[str]) -> str:
    """Return the counts as text, the largest first."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.most_common() if count) or "none"
