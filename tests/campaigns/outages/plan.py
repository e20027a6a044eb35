"""Kinds of outages, and the plan of a campaign.

Owns: names and probabilities; a seed always gives the same plan. `fault_injection` injects the outages.
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
    """Kind of an outage."""

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
"""Outages of single stores, if entities are partitioned: their other fragments stay available."""
WORKER_KINDS: Final = (OutageKind.WORKER_KILLED,)
"""Outages of single processes, if a namespace has several."""
SENDER_KINDS: Final = (OutageKind.SENDER_KILLED, OutageKind.SENDER_FROZEN, OutageKind.SENDER_CLOCK)
SYPHON_KINDS: Final = (OutageKind.SYPHON_FROZEN, OutageKind.SYPHON_CLOCK)
AUDITABLE_KINDS: Final = (OutageKind.KILLED, OutageKind.STOPPED, OutageKind.SILENT, OutageKind.CUT)
"""Outages that an audit of journals supports: without wrong clocks and deleted queues."""
SECONDARY_INTERVAL: Final = 3
"""Every third outage of a kind affects the secondary."""
OVERLAP_PROBABILITY: Final = 0.4
"""Probability that an outage begins before the previous one ends."""
FROZEN_FACTOR: Final = 3.0
"""Factor for the length of an outage of a syphon, so that it can exceed the 10 s of a takeover."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Parameters of a campaign."""

    seed: int
    outage_count: int
    length_range_s: tuple[float, float] = (0.5, 5.0)
    pause_range_s: tuple[float, float] = (0.3, 2.5)
    """Pause between the end of an outage (or its beginning, if they overlap) and the next one."""
    syphon_uptime_range_s: tuple[float, float] = (3.0, 15.0)
    """Time between two kills of a syphon."""
    partitioned: bool = False
    """The entities of the primary are partitioned, and single stores fail, too."""
    workers: int = 1
    """Processes of each namespace; if there are several, single ones are killed, too."""
    kinds: tuple[OutageKind, ...] | None = None
    """Kinds of outages; None: all available kinds."""
    journals: Path | None = None
    """Folder for the journals of all programs and of the final receiver."""

    @property
    def unavailable_kinds(self) -> set[OutageKind]:
        """Kinds that this plan cannot have."""
        return set(() if self.partitioned else STORE_KINDS) | set(() if self.workers > 1 else WORKER_KINDS)

    def make_outages(self, rng: random.Random) -> list[PlannedOutage]:
        """Return all outages, in order."""
        kinds = self.kinds or tuple(kind for kind in OutageKind if kind not in self.unavailable_kinds)
        counts: Counter[OutageKind] = Counter()
        outages = []
        for kind in shuffled_kinds(rng, self.outage_count, kinds):
            counts[kind] += 1
            outages.append(
                PlannedOutage(
                    kind=kind,
                    side=int(kind in (*NAMESPACE_KINDS, *WORKER_KINDS) and counts[kind] % SECONDARY_INTERVAL == 0),
                    length_s=rng.uniform(*self.length_range_s)
                    * (FROZEN_FACTOR if kind is OutageKind.SYPHON_FROZEN else 1),
                    pause_s=rng.uniform(*self.pause_range_s),
                    overlaps=rng.random() < OVERLAP_PROBABILITY,
                    seed=rng.getrandbits(32),
                )
            )
        return outages


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedOutage:
    """One planned outage."""

    kind: OutageKind
    side: int
    """0: the primary, 1: the secondary."""
    length_s: float
    pause_s: float
    overlaps: bool
    seed: int
    """Seed of all other random choices in the outage."""

    @property
    def rng(self) -> random.Random:
        return random.Random(self.seed)


def shuffled_kinds(rng: random.Random, count: int, kinds: Sequence[OutageKind]) -> list[OutageKind]:
    """Return `count` of these kinds in random order, each about as often as the others."""
    chosen = [kinds[number % len(kinds)] for number in range(count)]
    rng.shuffle(chosen)
    return chosen
