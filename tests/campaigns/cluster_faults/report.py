"""What a campaign has to tell: a table of its strikes, its figures, its problems.

Owns: how it is told. Judges nothing.
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
    "what was struck",
    "how many",
    "known after",
    "well again after",
    "without a key",
    "longest",
    "keys elsewhere",
    "longest",
    "keys struck: accepted",
    "refused",
    "longest",
    "connections dropped",
)


@dataclass
class Report:
    """Of one campaign."""

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
    """Of the senders' connections: what each process held when something was struck."""
    lag_s: float = 0.0
    disk_s: float = 0.0
    """For how long the machine's disk did not answer, at most."""
    seconds: float = 0.0

    def table(self) -> str:
        """A row for each kind of strike: the sends that met one."""
        rows = [self._row(kind) for kind in FaultKind]
        return "\n".join([f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}", *filter(None, rows)])

    def _row(self, kind: FaultKind) -> str:
        strikes = [strike for strike in self.faults if strike.kind is kind]
        if not strikes:
            return ""
        known_s = max(strike.detected_s - strike.began_s for strike in strikes)
        well = [strike.recovered_s - strike.ended_s for strike in strikes]
        keyless, live, struck = [
            self.responses.figures.get((kind, one), SendStatistics())
            for one in (SendClass.KEYLESS, SendClass.OTHER_FRAGMENT, SendClass.FAULTY_FRAGMENT)
        ]
        cells = [
            kind.value,
            str(len(strikes)),
            f"{known_s:.1f} s at most",
            f"{statistics.median(well):.1f} s, {max(well):.1f} at most",
            f"{keyless.accepted:,}",
            f"{keyless.longest_s:.2f} s",
            f"{live.accepted:,}",
            f"{live.longest_s:.2f} s",
            f"{struck.accepted:,}",
            f"{struck.refused:,}",
            f"{struck.longest_s:.2f} s",
            f"{self.responses.drops[kind]:,}",
        ]
        return f"| {' | '.join(cells)} |"

    def summary(self) -> str:
        shares = sorted(self.shares) or [0.0]
        held = f"{min(shares):.0%} to {max(shares):.0%}, {statistics.median(shares):.0%} in the median"
        verdict = self.responses
        return (
            f"seed {self.seed}: {len(self.faults)} strikes at {self.workers} processes in {self.seconds:.0f} s; "
            f"{self.messages}; {self.duplicates} there twice; {self.connections:,} connections, of which a process "
            f"held {held}; those of a struck process ended {verdict.longest_drop_s:.2f} s after it was known at most, "
            f"senders had another {verdict.longest_reconnection_s:.2f} s later at most; nothing was received for "
            f"{verdict.longest_pause_s:.2f} s at most; this program stood still for {self.lag_s:.2f} s at most, "
            f"the machine's disk for {self.disk_s:.2f} s ({verdict.disk_timeouts} sends refused for that); "
            f"{len(self.problems)} problems"
        )

    def __str__(self) -> str:
        return "\n".join([*self.problems, self.table(), self.summary()])
