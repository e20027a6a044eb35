"""The kinds of outage, and a plan of which one happens when.

Owns: names and chances: a seed makes the same plan each time. How an outage is made is in `making`.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Kind(Enum):
    """What can happen."""

    KILLED = "killed, and started again"
    STOPPED = "stopped (SIGSTOP, SIGCONT)"
    SILENT = "network silent"
    CUT = "network cut"
    REFUSED = "new connections refused"
    RESPONSES_LOST = "responses lost"
    REQUESTS_LOST = "requests lost"
    DELAYED = "network slow"
    CLIENT_CLOSED = "half-open: closed to the client, the server is not told"
    SERVER_CLOSED = "half-open: closed to the server, the client is not told"
    RESET = "connections reset after a request"
    KEY_ROTATED = "key rotated or revoked, and valid again"
    DISABLED = "entities disabled, and enabled again"
    DELETED = "queue deleted, and created again"
    CLOCK_AHEAD = "clock ahead"
    CLOCK_BEHIND = "clock behind"
    WORKER_KILLED = "a worker killed"
    STORE_FAILED = "a store failed"
    STORE_STUCK = "a store stuck"
    SENDER_KILLED = "killed, and started later"
    SENDER_FROZEN = "frozen (SIGSTOP, SIGCONT)"
    SENDER_CLOCK = "clock moved"
    SYPHON_FROZEN = "silent (SIGSTOP, SIGCONT)"
    SYPHON_CLOCK = "clock ahead or behind"


OF_NETWORKS: Final = (
    Kind.SILENT,
    Kind.CUT,
    Kind.REFUSED,
    Kind.RESPONSES_LOST,
    Kind.REQUESTS_LOST,
    Kind.DELAYED,
    Kind.CLIENT_CLOSED,
    Kind.SERVER_CLOSED,
    Kind.RESET,
)
OF_EITHER: Final = (
    *OF_NETWORKS,
    Kind.KILLED,
    Kind.STOPPED,
    Kind.KEY_ROTATED,
    Kind.CLOCK_AHEAD,
    Kind.CLOCK_BEHIND,
)
"""Outages of the primary or the secondary."""
OF_STORES: Final = (Kind.STORE_FAILED, Kind.STORE_STUCK)
"""Where entities are partitioned: the rest of the entity goes on."""
OF_WORKERS: Final = (Kind.WORKER_KILLED,)
"""Where a namespace is served by several processes."""
OF_SENDERS: Final = (Kind.SENDER_KILLED, Kind.SENDER_FROZEN, Kind.SENDER_CLOCK)
OF_SYPHONS: Final = (Kind.SYPHON_FROZEN, Kind.SYPHON_CLOCK)
OF_PROCESSES_AND_PATHS: Final = (Kind.KILLED, Kind.STOPPED, Kind.SILENT, Kind.CUT)
"""Outages that an audit of journals understands: clocks are right, and no queue is deleted."""
SECONDARY_EACH: Final = 3
"""Every third outage of a kind is of the secondary."""
OVERLAPPING: Final = 0.4
"""So many outages begin while the one before is not over."""
FROZEN_LONGER: Final = 3.0
"""A syphon is silent for so many times the length of another outage: takeover has 10 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a campaign consists of."""

    seed: int
    outages: int
    length_s: tuple[float, float] = (0.5, 5.0)
    peace_s: tuple[float, float] = (0.3, 2.5)
    """Between the end of an outage, or its beginning if they overlap, and the next one."""
    syphon_life_s: tuple[float, float] = (3.0, 15.0)
    """How often one of the syphons is killed."""
    partitioned: bool = False
    """The entities of the primary are partitioned, and single stores fail, too."""
    workers: int = 1
    """Processes of each namespace; if there are several, single ones are killed, too."""
    kinds: tuple[Kind, ...] | None = None
    """Only these kinds; None: all that there can be."""
    journals: Path | None = None
    """The folder where all programs, and the receiver at the end, keep journals."""

    @property
    def impossible(self) -> set[Kind]:
        """Kinds that there cannot be."""
        return set(() if self.partitioned else OF_STORES) | set(() if self.workers > 1 else OF_WORKERS)

    def outages_of(self, rng: random.Random) -> list[Planned]:
        """All outages, in order."""
        kinds = self.kinds or tuple(kind for kind in Kind if kind not in self.impossible)
        seen: Counter[Kind] = Counter()
        found = []
        for kind in in_turn(rng, self.outages, kinds):
            seen[kind] += 1
            found.append(
                Planned(
                    kind=kind,
                    side=int(kind in (*OF_EITHER, *OF_WORKERS) and seen[kind] % SECONDARY_EACH == 0),
                    length_s=rng.uniform(*self.length_s) * (FROZEN_LONGER if kind is Kind.SYPHON_FROZEN else 1),
                    pause_s=rng.uniform(*self.peace_s),
                    overlaps=rng.random() < OVERLAPPING,
                    seed=rng.getrandbits(32),
                )
            )
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One outage to come."""

    kind: Kind
    side: int
    """0: the primary, 1: the secondary."""
    length_s: float
    pause_s: float
    overlaps: bool
    seed: int
    """Of everything else that is left to chance in it."""

    @property
    def rng(self) -> random.Random:
        return random.Random(self.seed)


def in_turn(rng: random.Random, count: int, kinds: Sequence[Kind]) -> list[Kind]:
    """So many of these kinds, each about as often as the others, in any order."""
    chosen = [kinds[number % len(kinds)] for number in range(count)]
    rng.shuffle(chosen)
    return chosen
