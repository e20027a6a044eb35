"""Attacks: repeated rounds, their counts, and how often the server refused them.

Owns: the table of attacks (`attack` adds to it), the pace of their rounds, and their outcomes.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tests.campaigns.attacks.raw_peer import PeerRefused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.campaigns.attacks.target_server import TargetServer

    Round = Callable[[TargetServer, "Outcome"], Awaitable[None]]

MAX_PROBLEMS: Final = 5
"""Problems recorded for each attack."""


@dataclass(slots=True)
class Outcome:
    """Outcome of an attack so far."""

    name: str
    rounds: int = 0
    refusals: int = 0
    """Rounds that ended because the server dropped the connection."""
    counts: dict[str, int] = field(default_factory=dict)
    """Number of each event, by names that the attack chooses."""
    problems: list[str] = field(default_factory=list)
    """Requests that the server should have refused or answered, and did not."""

    def count(self, what: str, number: int = 1) -> None:
        """Count an event."""
        self.counts[what] = self.counts.get(what, 0) + number

    def add_problem(self, problem: str) -> None:
        """Record that the server failed to resist."""
        self.count("problems")
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(f"{self.name}: {problem}")

    def as_dict(self) -> dict[str, Any]:
        """Return the outcome for the JSON report."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Attack:
    """A round of an attack, and the pause after it."""

    name: str
    run_round: Round
    pause_s: float

    async def run(self, target: TargetServer, outcome: Outcome) -> None:
        """Attack round after round, until cancelled."""
        while True:
            try:
                await self.run_round(target, outcome)
            except (PeerRefused, OSError):
                outcome.refusals += 1
            outcome.rounds += 1
            await asyncio.sleep(self.pause_s)


ATTACKS: Final[dict[str, Attack]] = {}
"""Attacks by name, in the order of their definition."""


def attack(pause_s: float) -> Callable[[Round], Round]:
    """Add a coroutine function, which attacks once, to the table."""

    def add(run_round: Round) -> Round:
        name = run_round.__name__
        ATTACKS[name] = Attack(name, run_round, pause_s)
        return run_round

    return add
