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


class OutageKind(Enum):
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


NETWORK_KINDS: Final = (
    OutageKind.SILENT,
    OutageKind.CUT,
    OutageKind.REFUSED,
    OutageKind.RESPONSES_LOST,
    OutageKind.REQUESTS_LOST,
    OutageKind.DELAYED,
    OutageKind.CLIENT_CLOSED,
    OutageKind.SERVER_CLOSED,
    OutageKind.RESET,
)
NAMESPACE_KINDS: Final = (
    *NETWORK_KINDS,
    OutageKind.KILLED,
    OutageKind.STOPPED,
    OutageKind.KEY_ROTATED,
    OutageKind.CLOCK_AHEAD,
    OutageKind.CLOCK_BEHIND,
)
"""Outages of the primary or the secondary."""
STORE_KINDS: Final = (OutageKind.STORE_FAILED, OutageKind.STORE_STUCK)
"""Where entities are partitioned: the rest of the entity goes on."""
WORKER_KINDS: Final = (OutageKind.WORKER_KILLED,)
"""Where a namespace is served by several processes."""
SENDER_KINDS: Final = (OutageKind.SENDER_KILLED, OutageKind.SENDER_FROZEN, OutageKind.SENDER_CLOCK)
SYPHON_KINDS: Final = (OutageKind.SYPHON_FROZEN, OutageKind.SYPHON_CLOCK)
AUDITABLE_KINDS: Final = (OutageKind.KILLED, OutageKind.STOPPED, OutageKind.SILENT, OutageKind.CUT)
"""Outages that an audit of journals understands: clocks are right, and no queue is deleted."""
SECONDARY_INTERVAL: Final = 3
"""Every third outage of a kind is of the secondary."""
OVERLAP_PROBABILITY: Final = 0.4
"""So many outages begin while the one before is not over."""
FROZEN_FACTOR: Final = 3.0
"""A syphon is silent for so many times the length of another outage: takeover has 10 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a campaign consists of."""

    seed: int
    outage_count: int
    length_range_s: tuple[float, float] = (0.5, 5.0)
    pause_range_s: tuple[float, float] = (0.3, 2.5)
    """Between the end of an outage, or its beginning if they overlap, and the next one."""
    syphon_uptime_range_s: tuple[float, float] = (3.0, 15.0)
    """How often one of the syphons is killed."""
    partitioned: bool = False
    """The entities of the primary are partitioned, and single stores fail, too."""
    workers: int = 1
    """Processes of each namespace; if there are several, single ones are killed, too."""
    kinds: tuple[OutageKind, ...] | None = None
    """Only these kinds; None: all that there can be."""
    journals: Path | None = None
    """The folder where all programs, and the receiver at the end, keep journals."""

    @property
    def unavailable_kinds(self) -> set[OutageKind]:
        """Kinds that there cannot be."""
        return set(() if self.partitioned else STORE_KINDS) | set(() if self.workers > 1 else WORKER_KINDS)

    def make_outages(self, rng: random.Random) -> list[PlannedOutage]:
        """All outages, in order."""
        kinds = self.kinds or tuple(kind for kind in OutageKind if kind not in self.unavailable_kinds)
        seen: Counter[OutageKind] = Counter()
        found = []
        for kind in shuffled_kinds(rng, self.outage_count, kinds):
            seen[kind] += 1
            found.append(
                PlannedOutage(
                    kind=kind,
                    side=int(kind in (*NAMESPACE_KINDS, *WORKER_KINDS) and seen[kind] % SECONDARY_INTERVAL == 0),
                    length_s=rng.uniform(*self.length_range_s)
                    * (FROZEN_FACTOR if kind is OutageKind.SYPHON_FROZEN else 1),
                    pause_s=rng.uniform(*self.pause_range_s),
                    overlaps=rng.random() < OVERLAP_PROBABILITY,
                    seed=rng.getrandbits(32),
                )
            )
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedOutage:
    """One outage to come."""

    kind: OutageKind
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


def shuffled_kinds(rng: random.Random, count: int, kinds: Sequence[OutageKind]) -> list[OutageKind]:
    """So many of these kinds, each about as often as the others, in any order."""
    chosen = [kinds[number % len(kinds)] for number in range(count)]
    rng.shuffle(chosen)
    return chosen
