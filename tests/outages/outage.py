"""An outage of one of the two namespaces: how it begins, how long it lasts, and how it ends.

Owns: the kinds, and one namespace with the network before it, to which they happen.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from tests.outages.ledger import Span

if TYPE_CHECKING:
    from random import Random

    from tests.relay import Relay
    from tests.served import Served


class Kind(Enum):
    """What can happen."""

    KILLED = "killed, and started again"
    STOPPED = "stopped (SIGSTOP, SIGCONT)"
    SILENT = "the network silent"
    CUT = "the network cut"


@dataclass(frozen=True, slots=True)
class Outage:
    """One that has happened."""

    kind: Kind
    whose: str
    span: Span


@dataclass(frozen=True, slots=True)
class Side:
    """A namespace, and the network before it."""

    name: str
    server: Served
    relay: Relay

    async def suffer(self, kind: Kind, length_s: float) -> Outage:
        """Be out for so long, and be back."""
        began_s = time.monotonic()
        if kind is Kind.KILLED:
            self.server.kill()
        elif kind is Kind.STOPPED:
            self.server.pause()
        elif kind is Kind.SILENT:
            self.relay.fall_silent()
        else:
            self.relay.cut()
        await asyncio.sleep(length_s)
        if kind is Kind.KILLED:
            await asyncio.to_thread(self.server.start)
        elif kind is Kind.STOPPED:
            self.server.resume()
        else:
            await self.relay.mend()
        return Outage(kind, self.name, Span(began_s, time.monotonic()))


def in_turn(rng: Random, count: int) -> list[Kind]:
    """So many kinds, each about as often as the others, in any order."""
    kinds = [list(Kind)[number % len(Kind)] for number in range(count)]
    rng.shuffle(kinds)
    return kinds
