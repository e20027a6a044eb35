"""Report of a campaign: a table of its faults, its figures and its problems.

Owns: the text. It checks nothing.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.campaigns.cluster_faults.fault import FaultKind
from tests.campaigns.cluster_faults.response_checker import ResponseReport, SendClass, SendStatistics

if TYPE_CHECKING:
    from tests.campaigns.cluster_faults.fault import Fault

COLUMNS: Final = (
    "fault",
    "count",
    "detected after",
    "recovered after",
    "without a key",
    "longest",
    "other fragments",
    "longest",
    "affected fragments: accepted",
    "refused",
    "longest",
    "connections dropped",
)


@dataclass
class Report:
    """Report of one campaign."""

    seed: int
    workers: int
    faults: list[Fault] = field(default_factory=list)
    responses: ResponseReport = field(default_factory=ResponseReport)
    problems: list[str] = field(default_factory=list)
    messages: str = "nothing sent"
    accepted: int = 0
    duplicates: int = 0
    connections: int = 0
    shares: list[float] = field(default_factory=list)
    """Share of the senders' connections that each process held when a fault was injected."""
    lag_s: float = 0.0
    disk_s: float = 0.0
    """Longest time in which the machine's disk did not respond."""
    seconds: float = 0.0

    def table(self) -> str:
        """Return a table with a row for each kind of fault, with the sends that overlapped it."""
        rows = [self._row(kind) for kind in FaultKind]
        return "\n".join([f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}", *filter(None, rows)])

    def _row(self, kind: FaultKind) -> str:
        faults = [fault for fault in self.faults if fault.kind is kind]
        if not faults:
            return ""
        known_s = max(fault.detected_s - fault.began_s for fault in faults)
        recoveries_s = [fault.recovered_s - fault.ended_s for fault in faults]
        keyless, other, affected = [
            self.responses.figures.get((kind, send_class), SendStatistics())
            for send_class in (SendClass.KEYLESS, SendClass.OTHER_FRAGMENT, SendClass.FAULTY_FRAGMENT)
        ]
        cells = [
            kind.value,
            str(len(faults)),
            f"{known_s:.1f} s at most",
            f"{statistics.median(recoveries_s):.1f} s, {max(recoveries_s):.1f} at most",
            f"{keyless.accepted:,}",
            f"{keyless.longest_s:.2f} s",
            f"{other.accepted:,}",
            f"{other.longest_s:.2f} s",
            f"{affected.accepted:,}",
            f"{affected.refused:,}",
            f"{affected.longest_s:.2f} s",
            f"{self.responses.drops[kind]:,}",
        ]
        return f"| {' | '.join(cells)} |"

    def summary(self) -> str:
        shares = sorted(self.shares) or [0.0]
        held = f"{min(shares):.0%} to {max(shares):.0%}, {statistics.median(shares):.0%} in the median"
        verdict = self.responses
        return (
            f"seed {self.seed}: {len(self.faults)} faults in {self.workers} processes in {self.seconds:.0f} s; "
            f"{self.messages}; {self.duplicates} duplicates; {self.connections:,} connections, of which a process "
            f"held {held}; those of a faulty process ended at most {verdict.longest_drop_s:.2f} s after the detection, "
            f"senders reconnected at most {verdict.longest_reconnection_s:.2f} s later; the longest pause of receivers "
            f"was {verdict.longest_pause_s:.2f} s; this program was blocked for at most {self.lag_s:.2f} s, "
            f"the machine's disk for {self.disk_s:.2f} s ({verdict.disk_timeouts} sends refused because of it); "
            f"{len(self.problems)} problems"
        )

    def __str__(self) -> str:
        return "\n".join([*self.problems, self.table(), self.summary()])
