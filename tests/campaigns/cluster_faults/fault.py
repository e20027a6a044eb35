"""Faults of a namespace of several processes: kinds, targets, and the times of detection and end.

Owns: the kinds of faults, and how each is injected and ended. The campaign observes the recovery through its clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from bench.support.server_processes import is_alive
from tests.support.fault_injection.shim import UNLIMITED, Action

if TYPE_CHECKING:
    from random import Random

    from tests.campaigns.cluster_faults.restartable_cluster import RestartableCluster
    from tests.support.fault_injection.shim import DiskShim, FaultRule

POLL_INTERVAL_S: Final = 0.005
DETECTION_TIMEOUT_S: Final = 2.0
"""Time after the worker timeout within which the supervisor kills a process that does not respond."""
HIT_TIMEOUT_S: Final = 10.0
"""Time within which a store is written to under load."""


class FaultKind(Enum):
    """Kind of a fault."""

    KILLED = "a process killed (SIGKILL)"
    STOPPED = "a process stopped for good (SIGSTOP)"
    PAUSED = "a process stopped for a while (SIGSTOP, SIGCONT)"
    FAILING = "a disk that fails"
    HANGING = "a disk that hangs"


PROCESS_KINDS: Final = frozenset({FaultKind.KILLED, FaultKind.STOPPED, FaultKind.PAUSED})


@dataclass(frozen=True, slots=True)
class Fault:
    """Fault that was injected. Times are monotonic."""

    kind: FaultKind
    worker: int | None
    """Faulty process; None for a disk fault."""
    stores: frozenset[int]
    """Stores that were unavailable."""
    began_s: float
    detected_s: float
    """When the other processes detected it; pending sends get a response within 1 s after that."""
    ended_s: float
    """When the cause of the fault was removed."""
    recovered_s: float = float("inf")
    """When every fragment accepted messages again, through every process."""

    @property
    def ends_connections(self) -> bool:
        """The fault ends the connections of the faulty process."""
        return self.kind in {FaultKind.KILLED, FaultKind.STOPPED}


class FaultNotDetected(Exception):
    """A fault had no effect, or was not detected."""


class FaultInjector:
    """Injects faults."""

    def __init__(self, server: RestartableCluster, shim: DiskShim, rng: Random) -> None:
        self._server = server
        self._shim = shim
        self._rng = rng

    async def inject(self, kind: FaultKind) -> Fault:
        """Inject a fault; return when its cause is removed, before the recovery."""
        if kind in PROCESS_KINDS:
            return await self._fail_process(kind)
        return await self._fail_disk(kind)

    async def _fail_process(self, kind: FaultKind) -> Fault:
        worker = self._rng.choice(self._server.workers)
        stores = frozenset(self._server.stores_of(worker))
        began_s = time.monotonic()
        if kind is FaultKind.KILLED:
            os.kill(worker, signal.SIGKILL)
            detected_s = began_s
        elif kind is FaultKind.STOPPED:
            os.kill(worker, signal.SIGSTOP)
            detected_s = await self._wait_for_end(worker, began_s)
        else:
            os.kill(worker, signal.SIGSTOP)
            await asyncio.sleep(self._rng.uniform(0.2, 0.5 * self._server.worker_timeout_s))
            os.kill(worker, signal.SIGCONT)
            detected_s = time.monotonic()
        return Fault(kind, worker, stores, began_s, detected_s, detected_s)

    async def _wait_for_end(self, worker: int, began_s: float) -> float:
        """Wait until the supervisor has killed a worker that does not respond; return the time."""
        deadline = began_s + self._server.worker_timeout_s + DETECTION_TIMEOUT_S
        while is_alive(worker):
            if time.monotonic() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGCONT)
                raise FaultNotDetected(
                    f"process {worker} was stopped and lives {time.monotonic() - began_s:.1f} s later"
                )
            await asyncio.sleep(POLL_INTERVAL_S)
        return time.monotonic()

    async def _fail_disk(self, kind: FaultKind) -> Fault:
        store = self._rng.randrange(self._server.stores)
        folder, timeout_s = self._server.data / "stores" / str(store), self._server.store_timeout_s
        began_s = time.monotonic()
        if kind is FaultKind.FAILING:
            action = self._rng.choice([Action.FAIL_SYNC, Action.FAIL_WRITE])
            with self._shim.rule(action, folder, times=UNLIMITED) as rule:
                detected_s = await _first_hit(rule)
                await asyncio.sleep(self._rng.uniform(0.5, 2.5))
        else:
            hangs_s = timeout_s + self._rng.uniform(0.5, 2.0)
            with self._shim.rule(Action.DELAY_SYNC, folder, delay_ms=round(hangs_s * 1000)) as rule:
                detected_s = await _first_hit(rule) + timeout_s
                await asyncio.sleep(hangs_s)
        return Fault(kind, None, frozenset({store}), began_s, detected_s, time.monotonic())


async def _first_hit(rule: FaultRule) -> float:
    """Wait until the disk is used; return the time."""
    deadline = time.monotonic() + HIT_TIMEOUT_S
    while not rule.hit_count:
        if time.monotonic() > deadline:
            raise FaultNotDetected(f"a faulty disk was not used in {HIT_TIMEOUT_S:.0f} s")
        await asyncio.sleep(POLL_INTERVAL_S)
    return time.monotonic()


def shuffled_kinds(rng: Random, count: int, kinds: list[FaultKind]) -> list[FaultKind]:
    """Return `count` kinds in random order, each about as often as the others."""
    chosen = [kinds[number % len(kinds)] for number in range(count)]
    rng.shuffle(chosen)
    return chosen
