"""A campaign: clients at work on partitioned entities, strikes at the processes and disks below, and the reckoning.

    report = await endure(Plan(seed=1, strikes=3), folder)
    assert report.problems == []

Each strike is healed before the next: all processes are there, and every fragment that was struck has taken a message
from every sender whose keys lead to it. At the end all clients stop, everything is received and completed, and the
ledgers are compared. Owns: the order of events.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.faults import management
from tests.faults.shim import Shim
from tests.served import ServerFailed
from tests.strikes.answers import LATE_S, Judge
from tests.strikes.disk import DiskWatch
from tests.strikes.lag import Lag
from tests.strikes.ledger import StrikeLedger
from tests.strikes.load import Load, drain
from tests.strikes.report import Report
from tests.strikes.scene import EVERYTHING, destinations_of, make_entities
from tests.strikes.several import Several
from tests.strikes.strike import OF_PROCESSES, Kind, NotNoticed, Striker, in_turn
from twinbus.client.management import NamespaceManager

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.strikes.scene import Scene
    from tests.strikes.strike import Strike

LOG_CHARACTERS: Final = 3_000
"""As much of the log is shown if a campaign fails."""
HEAL_S: Final = 30.0
LOOK_EVERY_S: Final = 0.1
NOTHING_COMES_S: Final = 20.0
"""From a destination that is said to hold messages: then it has none, and its count is wrong."""
BEGIN_S: Final = 30.0


class NotHealed(Exception):
    """A strike is over, and what was struck has not come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What shall happen."""

    seed: int
    strikes: int
    workers: int = 4
    stores: int = 4
    scene: Scene = EVERYTHING
    peace_s: tuple[float, float] = (0.3, 2.0)
    """Between the healing of one strike and the next."""
    kinds: tuple[Kind, ...] = tuple(Kind)
    lock_ms: int = 10_000
    worker_timeout_s: float = 5.0
    late_s: float = LATE_S
    """So long after the detection an answer may come."""

    @property
    def possible(self) -> list[Kind]:
        """One process alone is the server: if that is struck, nobody survives."""
        return [kind for kind in self.kinds if self.workers > 1 or kind not in OF_PROCESSES]


async def endure(plan: Plan, folder: Path, say: Callable[[str], None] = lambda _line: None) -> Report:
    """Go through with a plan. A process that does not do what it has to is a problem as well."""
    report, started_s = Report(plan.seed, plan.workers), time.monotonic()
    (folder / "data").mkdir()
    with Shim(folder / "data", folder, traces=False) as shim:
        timeout_s = plan.worker_timeout_s
        server = Several(folder, shim, workers=plan.workers, stores=plan.stores, worker_timeout_s=timeout_s)
        try:
            await server.start()
            with DiskWatch(folder) as disk:
                await Campaign(plan, server, shim, report, say, disk).run()
        except (ServerFailed, NotNoticed, NotHealed) as failure:
            report.problems.append(f"{type(failure).__name__}: {failure}\n{server.served.log[-LOG_CHARACTERS:]}")
        finally:
            await server.kill()
    report.seconds = time.monotonic() - started_s
    return report


class Campaign:
    """One, on a server that serves."""

    def __init__(
        self,
        plan: Plan,
        server: Several,
        shim: Shim,
        report: Report,
        say: Callable[[str], None],
        disk: DiskWatch,
    ) -> None:
        self._disk = disk
        self._rng = random.Random(plan.seed)
        self._plan = plan
        self._server = server
        self._ledger = StrikeLedger(random.Random(self._rng.random()))
        self._load = Load(server, plan.scene, self._ledger, random.Random(self._rng.random()))
        self._striker = Striker(server, shim, self._rng)
        self._report = report
        self._say = say

    async def run(self) -> None:
        """All of it; what is found is in the report."""
        async with NamespaceManager.from_connection_string(_management_string(self._server)) as manager:
            await make_entities(manager, self._plan.scene, self._plan.lock_ms)
        async with Lag() as lag:
            try:
                async with self._load:
                    await self._until_all_send()
                    await self._strike_again_and_again()
            finally:
                self._tell(lag)
        await self._reckon(lag)

    async def _until_all_send(self) -> None:
        async with asyncio.timeout(BEGIN_S):
            while len(self._load.lines) < len(self._plan.scene.streams):  # noqa: ASYNC110  # each in its own time
                await asyncio.sleep(LOOK_EVERY_S)

    # --- strikes ------------------------------------------------------------------------------------------------------

    async def _strike_again_and_again(self) -> None:
        plan, rng = self._plan, self._rng
        for number, kind in enumerate(in_turn(rng, plan.strikes, plan.possible), start=1):
            await asyncio.sleep(rng.uniform(*plan.peace_s))
            if self._load.has_failed:
                break
            self._report.shares += self._load.shares(self._server.workers)
            strike = await self._striker.strike(kind)
            self._report.strikes.append(strike)
            healed_s = await self._healed(strike)
            self._report.strikes[-1] = dataclasses.replace(strike, healed_s=healed_s)
            known_s, well_s = strike.detected_s - strike.began_s, healed_s - strike.lifted_s
            told = f"{kind.value}; known after {known_s:.2f} s, well again {well_s:.2f} s later"
            self._say(f"strike {number} of {plan.strikes}: {told}")
        await asyncio.sleep(plan.peace_s[1])

    async def _healed(self, strike: Strike) -> float:
        """When all is there, and every sender was accepted by every fragment that was struck, since it was lifted."""
        deadline = strike.lifted_s + HEAL_S
        while True:
            missing = self._missing(strike)
            if missing is None and self._server.is_complete:
                return time.monotonic()
            if time.monotonic() > deadline:
                raise NotHealed(f"{strike.kind.value}: {HEAL_S:.0f} s later {missing or 'a process'} is not back")
            await asyncio.sleep(LOOK_EVERY_S)

    def _missing(self, strike: Strike) -> str | None:
        """What nobody has seen well yet."""
        for stream in self._plan.scene.streams:
            for fragment in stream.by_fragment:
                is_struck = fragment % self._plan.stores in strike.stores
                if is_struck and self._ledger.taken_s.get((stream.name, fragment), 0.0) < strike.lifted_s:
                    return f"fragment {fragment} for {stream.name}"
        return None

    # --- the end ------------------------------------------------------------------------------------------------------

    def _tell(self, lag: Lag) -> None:
        """What is known now, also if it goes no further."""
        report, ledger = self._report, self._ledger
        report.messages, report.lag_s, report.disk_s = ledger.figures(), lag.longest_s, self._disk.longest_s
        report.accepted = sum(send.is_accepted for send in ledger.sends)
        report.connections, report.doubles = self._load.connections, len(ledger.doubles())

    async def _reckon(self, lag: Lag) -> None:
        report, ledger = self._report, self._ledger
        report.problems += await _empty(self._server, ledger, self._plan.scene)
        report.problems += ledger.close()
        judge = Judge(report.strikes, self._plan.stores, lag, self._plan.late_s, self._disk)
        report.verdict = judge.judge(ledger, self._load.drops, self._load.returns)
        report.problems += report.verdict.problems
        self._tell(lag)
        await self._server.stop()
        if self._server.tracebacks:
            report.problems.append(f"the server has logged {self._server.tracebacks} tracebacks")


async def _empty(server: Several, ledger: StrikeLedger, scene: Scene) -> list[str]:
    """Receive and complete all that is left."""
    found = []
    for destination in [one for path in scene.paths for one in destinations_of(path)]:
        last_s, completed = time.monotonic(), ledger.completed
        while (left := await management.counts(server.endpoint, destination)).active:
            await drain(server, ledger, destination)
            if ledger.completed > completed:
                last_s, completed = time.monotonic(), ledger.completed
            if time.monotonic() > last_s + NOTHING_COMES_S:
                found.append(f"count: {destination} is said to hold {left.active} messages, and none comes")
                break
        if left.dead:
            found.append(f"count: {left.dead} messages of {destination} are dead-lettered")
    return found


def _management_string(server: Several) -> str:
    endpoint = server.endpoint
    return (
        f"Endpoint=sb://127.0.0.1:{endpoint.http_port};SharedAccessKeyName={endpoint.key_name};"
        f"SharedAccessKey={endpoint.key};UseDevelopmentEmulator=true"
    )
