"""What a campaign has to tell: a table of its outages, its figures, its problems.

Owns: how it is told. Judges nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.outages.ledger import Verdict
from tests.outages.outage import Kind

if TYPE_CHECKING:
    from tests.outages.ledger import Arrival, Send
    from tests.outages.outage import Outage


@dataclass
class Report:
    """Of one campaign."""

    seed: int
    outages: list[Outage] = field(default_factory=list)
    syphon_kills: int = 0
    sends: list[Send] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)
    verdict: Verdict = field(default_factory=Verdict)
    problems: list[str] = field(default_factory=list)
    drained_s: float = 0.0
    seconds: float = 0.0

    @property
    def sent(self) -> list[Send]:
        """Those that were reported sent."""
        return [send for send in self.sends if send.failure is None]

    @property
    def parked(self) -> list[Send]:
        return [send for send in self.sent if send.backlog_queue is not None]

    def table(self) -> str:
        """A row for each kind of outage: the sends that began in it."""
        rows = ["| outage of | | how many | seconds | sent in it | parked | failed | longest send |"]
        rows.append("|---|---|---|---|---|---|---|---|")
        found = [self._row(whose, kind) for whose in ("primary", "secondary") for kind in Kind]
        return "\n".join(rows + [row for row in found if row is not None])

    def _row(self, whose: str, kind: Kind) -> str | None:
        spans = [outage.span for outage in self.outages if outage.kind is kind and outage.whose == whose]
        if not spans:
            return None
        inside = [send for send in self.sends if any(span.began_s <= send.began_s < span.ended_s for span in spans)]
        took_s = sum(span.ended_s - span.began_s for span in spans)
        sent = sum(send.failure is None for send in inside)
        parked = sum(send.backlog_queue is not None for send in inside)
        longest_s = max((send.ended_s - send.began_s for send in inside), default=0.0)
        return (
            f"| {whose} | {kind.value} | {len(spans)} | {took_s:.0f} | {sent:,} | {parked:,} | {len(inside) - sent:,} "
            f"| {longest_s:.2f} s |"
        )

    def summary(self) -> str:
        failures = Counter(send.failure for send in self.sends if send.failure is not None)
        told = ", ".join(f"{count} {name}" for name, count in failures.most_common()) or "none"
        doubled = ", ".join(f"{count} {why}" for why, count in self.verdict.duplicates.most_common()) or "none"
        return (
            f"seed {self.seed}: {len(self.outages)} outages and {self.syphon_kills} kills of a syphon in"
            f" {self.seconds:.0f} s; {len(self.sent):,} reported sent, {len(self.parked):,} of them parked;"
            f" failed: {told}; drained {self.drained_s:.1f} s after the last send; {len(self.arrivals):,} arrived;"
            f" twice: {doubled}; order compared of {self.verdict.ordered:,}; {len(self.problems)} problems"
        )

    def __str__(self) -> str:
        return "\n".join([*self.problems, self.table(), self.summary()])
