"""A campaign: programs that send and programs that bring back, outages under them, and the reckoning at the end.

    report = await endure(Plan(seed=1, outages=3), folder)
    assert report.problems == []

Owns: the order of events. What is sent is in `scene`, what can happen in `outage`, what was promised in `ledger`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.faults.shim import Shim
from tests.outages import sending
from tests.outages.arrivals import receive_everything, until_drained
from tests.outages.ledger import judge
from tests.outages.outage import OF_ALL, OF_STORES, Kind, Side, in_turn
from tests.outages.place import OPERATION_S, Place
from tests.outages.program import Program, ProgramFailed
from tests.outages.report import Report
from tests.outages.scene import SENDERS, make_entities
from tests.relay import Relay
from tests.served import Served, ServerFailed
from twinbus.client import MessagingFactory
from twinbus.client.journal import Journal
from twinbus.client.management import NamespaceManager

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from tests.outages.outage import Outage

SYPHONS: Final = 2
DRAIN_S: Final = 180.0
START_S: Final = 60.0
LOOK_EVERY_S: Final = 0.05
SECONDARY_SHARE: Final = 0.2
"""So many outages are of the secondary."""
STORES: Final = 4
STORE_TIMEOUT_S: Final = 1.0
"""A store that does not answer is known to be down before a send is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What shall happen."""

    seed: int
    outages: int
    length_s: tuple[float, float] = (0.5, 5.0)
    peace_s: tuple[float, float] = (0.5, 3.5)
    """Between two of them."""
    syphon_life_s: tuple[float, float] = (1.5, 8.0)
    """How often one of the syphons is killed."""
    partitioned: bool = False
    """The entities of the primary are, and single stores of it have outages, too."""
    journals: Path | None = None
    """The folder where all programs, and who receives at the end, keep journals."""


@dataclass
class Scenery:
    """All processes of a campaign."""

    folder: Path
    sides: list[Side] = field(default_factory=list)
    senders: list[Program] = field(default_factory=list)
    syphons: list[Program] = field(default_factory=list)
    syphon_kills: int = 0

    def ledgers(self) -> list[Path]:
        return [self.folder / f"sends-{name}.json" for name in SENDERS]


async def endure(
    plan: Plan,
    folder: Path,
    say: Callable[[str], None] = lambda _line: None,
    inspect: Callable[[Scenery], Awaitable[None]] | None = None,
) -> Report:
    """Go through with a plan. A process that does not do what it has to is a problem as well.

    `inspect` is called when all is over and both namespaces still serve.
    """
    report, scenery, started_s = Report(plan.seed), Scenery(folder), time.monotonic()
    async with AsyncExitStack() as stack:
        try:
            await _prepare(plan, scenery, stack)
            await _live(plan, scenery, report, say)
            await _reckon(plan, scenery, report, say)
            if inspect is not None:
                await inspect(scenery)
            for side in scenery.sides:
                await asyncio.to_thread(side.server.stop)
        except (ServerFailed, ProgramFailed, TimeoutError) as failure:
            report.problems.append(f"{type(failure).__name__}: {failure}")
        finally:
            for side in scenery.sides:
                side.server.kill()
    report.syphon_kills, report.seconds = scenery.syphon_kills, time.monotonic() - started_s
    return report


async def _prepare(plan: Plan, scenery: Scenery, stack: AsyncExitStack) -> None:
    """Both namespaces, the entities, and all programs at work."""
    scenery.sides += [
        await _side("primary", scenery.folder / "contoso", stack, can_disk_fail=plan.partitioned),
        await _side("secondary", scenery.folder / "contoso-backup", stack),
    ]
    primary, secondary = scenery.sides
    async with NamespaceManager.from_connection_string(string_of(primary, primary.server.http_port)) as manager:
        await make_entities(manager, are_partitioned=plan.partitioned)
    place = scenery.folder / "place.json"
    Place(
        string_of(primary, primary.relay.port),
        string_of(secondary, secondary.relay.port),
        string_of(secondary, secondary.server.http_port),
        None if plan.journals is None else str(plan.journals),
    ).write(place)
    for name, ledger in zip(SENDERS, scenery.ledgers(), strict=True):
        program = Program(scenery.folder / f"{name}.log", "tests.outages.sending", str(place), name, str(ledger))
        scenery.senders.append(await stack.enter_async_context(program))
    for number in range(SYPHONS):
        program = Program(scenery.folder / f"syphon-{number}.log", "tests.outages.syphoning", str(place))
        scenery.syphons.append(await stack.enter_async_context(program))
    async with asyncio.timeout(START_S):
        ledgers = scenery.ledgers()
        while not all(ledger.exists() and ledger.stat().st_size for ledger in ledgers):
            for program in scenery.senders:
                program.check()
            await asyncio.sleep(LOOK_EVERY_S)


async def _side(name: str, folder: Path, stack: AsyncExitStack, *, can_disk_fail: bool = False) -> Side:
    folder.mkdir()  # noqa: ASYNC240  # the loop has nothing else to do yet
    shim = stack.enter_context(Shim(folder / "data", folder, traces=False)) if can_disk_fail else None
    environment = None if shim is None else shim.environment()
    options = (f"--stores={STORES}", f"--store-timeout={STORE_TIMEOUT_S}")
    server = Served(folder, name=folder.name, options=options, environment=environment)
    await asyncio.to_thread(server.start)
    relay = await stack.enter_async_context(Relay(server.host, server.amqp_port))
    return Side(name, server, relay, shim)


def string_of(side: Side, port: int) -> str:
    """A connection string for what stands at that port."""
    server = side.server
    return (
        f"Endpoint=sb://{server.host}:{port};SharedAccessKeyName={server.key_name};SharedAccessKey={server.key}"
        ";UseDevelopmentEmulator=true"
    )


async def _live(plan: Plan, scenery: Scenery, report: Report, say: Callable[[str], None]) -> None:
    """Outage after outage, while syphons are killed and started again."""
    rng = random.Random(plan.seed)
    killing = asyncio.ensure_future(_kill_syphons(plan, scenery, random.Random(rng.random())))
    try:
        kinds = (*OF_STORES, *OF_ALL) if plan.partitioned else OF_ALL
        for number, kind in enumerate(in_turn(rng, plan.outages, kinds), start=1):
            await asyncio.sleep(rng.uniform(*plan.peace_s))
            for program in scenery.senders:
                program.check()
            side = scenery.sides[rng.random() < SECONDARY_SHARE and kind in OF_ALL]
            outage = await side.suffer(kind, rng.uniform(*plan.length_s), rng.randrange(STORES))
            report.outages.append(outage)
            say(f"outage {number} of {plan.outages}: {_told(outage)}")
        await asyncio.sleep(plan.peace_s[1])
    finally:
        killing.cancel()
        await asyncio.wait([killing])
    if not killing.cancelled() and (failure := killing.exception()) is not None:
        raise failure


async def _kill_syphons(plan: Plan, scenery: Scenery, rng: random.Random) -> None:
    while True:
        await asyncio.sleep(rng.uniform(*plan.syphon_life_s))
        syphon = rng.choice(scenery.syphons)
        syphon.check()
        # Not to be stopped in between: else one would be missing at the end.
        await asyncio.shield(asyncio.ensure_future(_start_anew(syphon)))
        scenery.syphon_kills += 1


async def _start_anew(syphon: Program) -> None:
    await syphon.kill()
    await syphon.start()


async def _reckon(plan: Plan, scenery: Scenery, report: Report, say: Callable[[str], None]) -> None:
    """All programs end; what is there then must be what was promised."""
    primary, secondary = scenery.sides
    await asyncio.gather(*[program.stop() for program in scenery.senders])
    report.sends = [send for ledger in scenery.ledgers() for send in sending.read(ledger)]
    say(f"{len(report.sends):,} sends are over")
    before_s = time.monotonic()
    async with NamespaceManager.from_connection_string(string_of(secondary, secondary.server.http_port)) as manager:
        report.problems += await until_drained(manager, DRAIN_S)
    report.drained_s = time.monotonic() - before_s
    say(f"drained {report.drained_s:.1f} s later")
    await asyncio.gather(*[program.stop() for program in scenery.syphons])
    async with (
        MessagingFactory.from_connection_string(
            string_of(primary, primary.server.amqp_port), operation_timeout=10 * OPERATION_S
        ) as factory,
        _journal(plan, factory),
    ):
        report.arrivals = await receive_everything(factory)
    (scenery.folder / "arrivals.json").write_text(
        "".join(json.dumps(dataclasses.astuple(arrival)) + "\n" for arrival in report.arrivals)
    )
    report.verdict = judge(report.sends, report.arrivals, [outage.span for outage in report.outages])
    report.problems += report.verdict.problems


@asynccontextmanager
async def _journal(plan: Plan, factory: MessagingFactory) -> AsyncIterator[None]:
    """Of what is received, if journals are kept."""
    journal = None if plan.journals is None else Journal(plan.journals)
    if journal is not None:
        journal.attach(factory)
    try:
        yield
    finally:
        if journal is not None:
            await journal.close()


def _told(outage: Outage) -> str:
    assert isinstance(outage.kind, Kind)
    return f"the {outage.whose}, {outage.kind.value}, for {outage.span.ended_s - outage.span.began_s:.1f} s"
