"""An outage of one of the two namespaces: how it begins, how long it lasts, and how it ends.

Owns: the kinds, and one namespace with the network before it and the disk behind it, to which they happen.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from tests.faults.shim import Action
from tests.outages.ledger import Span

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from tests.faults.shim import Shim
    from tests.relay import Relay
    from tests.served import Served

REOPENED_S: Final = 1.0
"""A store that failed is opened again within that time."""


class Kind(Enum):
    """What can happen."""

    KILLED = "killed, and started again"
    STOPPED = "stopped (SIGSTOP, SIGCONT)"
    SILENT = "the network silent"
    CUT = "the network cut"
    STORE_FAILED = "a store failed"
    STORE_STUCK = "a store stuck"


OF_ALL: Final = (Kind.KILLED, Kind.STOPPED, Kind.SILENT, Kind.CUT)
OF_STORES: Final = (Kind.STORE_FAILED, Kind.STORE_STUCK)
"""Where entities are partitioned: the rest of them goes on."""


@dataclass(frozen=True, slots=True)
class Outage:
    """One that has happened."""

    kind: Kind
    whose: str
    span: Span


@dataclass(frozen=True, slots=True)
class Side:
    """A namespace, and the network before it; and the disk behind it, where that can fail."""

    name: str
    server: Served
    relay: Relay
    shim: Shim | None = None

    async def suffer(self, kind: Kind, length_s: float, store: int) -> Outage:
        """Be out for so long, and be back. `store` is the number of the one that fails, if one does."""
        began_s = time.monotonic()
        if kind in OF_STORES:
            await self._suffer_store(kind, length_s, store)
            return Outage(kind, self.name, Span(began_s, time.monotonic()))
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

    async def _suffer_store(self, kind: Kind, length_s: float, store: int) -> None:
        assert self.shim is not None, "this disk cannot fail"
        action = Action.FAIL_SYNC if kind is Kind.STORE_FAILED else Action.DELAY_SYNC
        with self.shim.rule(action, self.shim.root / "stores" / f"{store}", delay_ms=round(length_s * 1000)):
            await asyncio.sleep(length_s)
        if kind is Kind.STORE_STUCK:
            await asyncio.sleep(length_s)  # a sync that began in the end takes as long
        await asyncio.sleep(REOPENED_S)


def in_turn(rng: Random, count: int, kinds: Sequence[Kind]) -> list[Kind]:
    """So many of these kinds, each about as often as the others, in any order."""
    chosen = [kinds[number % len(kinds)] for number in range(count)]
    rng.shuffle(chosen)
    return chosen
