"""One kind of attack: repeated rounds, what they achieved, and how the server refused them.

Owns: the table of attacks (`attack` adds to it), the pace of their rounds, and what is reported of them.
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
"""Problems that are kept of each attack."""


@dataclass(slots=True)
class Outcome:
    """What became of an attack so far."""

    name: str
    rounds: int = 0
    refusals: int = 0
    """Rounds that ended because the server dropped the connection."""
    counts: dict[str, int] = field(default_factory=dict)
    """What happened how often, in the attack's own words."""
    problems: list[str] = field(default_factory=list)
    """What the server should have refused, or should have done."""

    def count(self, what: str, number: int = 1) -> None:
        """Something has happened."""
        self.counts[what] = self.counts.get(what, 0) + number

    def add_problem(self, problem: str) -> None:
        """The server did what it should not."""
        self.count("problems")
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(f"{self.name}: {problem}")

    def as_dict(self) -> dict[str, Any]:
        """For the report, as JSON."""
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
"""By name, in the order of their definition."""


def attack(pause_s: float) -> Callable[[Round], Round]:
    """Add a coroutine function, which attacks once, to the table."""

    def add(made: Round) -> Round:
        name = made.__name__
        ATTACKS[name] = Attack(name, made, pause_s)
        return made

    return add
