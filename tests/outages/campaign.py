"""A campaign: programs that send, programs that host the syphon, outages under them, and the judgement at the end.

    report = await endure(Plan(seed=1, outages=3), folder)
    assert report.problems == []

Owns: the order of events. The messages are in `scene`, the processes in `scenery`, the outages in `kinds` and
`making`, the promises in `tests.ledger.pair`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

from tests.outages import sending
from tests.outages.arrivals import look_at_dead_letters, receive_everything, until_drained
from tests.outages.kinds import OF_SENDERS, OF_SYPHONS, Plan
from tests.outages.ledger import Span, judge
from tests.outages.making import make
from tests.outages.program import ProgramFailed
from tests.outages.report import Outage, Report
from tests.outages.scene import DELETED
from tests.outages.scenery import Scenery, prepare
from tests.outages.syphoning import events_in
from tests.served import ServerFailed
from twinbus.client.journal import Journal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from tests.outages.kinds import Planned
    from tests.outages.program import Program
    from twinbus.client import MessagingFactory

DRAIN_S: Final = 180.0
AT_ONCE: Final = 3
"""So many outages may overlap."""


async def endure(
    plan: Plan,
    folder: Path,
    say: Callable[[str], None] = lambda _line: None,
    inspect: Callable[[Scenery], Awaitable[None]] | None = None,
) -> Report:
    """Carry out a plan. A process that does not do what it has to is a problem as well.

    `inspect` is called at the end, while both namespaces still serve.
    """
    report, scenery, started_s = Report(plan.seed), Scenery(folder, plan.partitioned), time.monotonic()
    async with AsyncExitStack() as stack:
        try:
            await prepare(plan, scenery, stack)
            await _live(plan, scenery, report, say)
            await _reckon(plan, scenery, report, say)
            if inspect is not None:
                await inspect(scenery)
            for side in scenery.sides:
                await asyncio.to_thread(side.server.stop)
        except (ServerFailed, ProgramFailed, TimeoutError) as failure:
            report.failures.append(f"{type(failure).__name__}: {failure}")
        finally:
            for side in scenery.sides:
                side.server.kill()
    report.syphon_kills, report.seconds = scenery.syphon_kills, time.monotonic() - started_s
    return report


# --- outages ----------------------------------------------------------------------------------------------------------


async def _live(plan: Plan, scenery: Scenery, report: Report, say: Callable[[str], None]) -> None:
    """Make outage after outage, some at the same time, while syphons are killed and started again."""
    rng, began_s = random.Random(plan.seed), time.monotonic()
    killing = asyncio.ensure_future(_kill_syphons(plan, scenery, random.Random(rng.random())))
    running: set[asyncio.Task[None]] = set()

    async def run(number: int, planned: Planned) -> None:
        outage = await _suffer(planned, scenery)
        report.outages.append(outage)
        say(f"{time.monotonic() - began_s:5.0f} s: outage {number} of {plan.outages}: {outage}")

    try:
        for number, planned in enumerate(plan.outages_of(rng), start=1):
            await _until(running, most=AT_ONCE - 1 if planned.overlaps else 0)
            await asyncio.sleep(planned.pause_s)
            for program in scenery.senders:
                program.check()
            running.add(asyncio.ensure_future(run(number, planned)))
        await _until(running, most=0)
        await asyncio.sleep(plan.peace_s[1])
    finally:
        for task in (killing, *running):
            task.cancel()
        await asyncio.wait([killing, *running])
    if not killing.cancelled() and (failure := killing.exception()) is not None:
        raise failure


async def _until(running: set[asyncio.Task[None]], *, most: int) -> None:
    """Wait until at most so many outages go on; raise what made one of them fail."""
    while True:
        for task in [task for task in running if task.done()]:
            running.discard(task)
            task.result()
        if len(running) <= most:
            return
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)


async def _suffer(planned: Planned, scenery: Scenery) -> Outage:
    async with make(planned, scenery) as detail:
        began_s = time.monotonic()
        await asyncio.sleep(planned.length_s)
    whose = scenery.sides[planned.side].name
    if planned.kind in OF_SENDERS:
        whose = "sender"
    elif planned.kind in OF_SYPHONS:
        whose = "syphon"
    return Outage(planned.kind, whose, Span(began_s, time.monotonic()), detail)


async def _kill_syphons(plan: Plan, scenery: Scenery, rng: random.Random) -> None:
    while True:
        await asyncio.sleep(rng.uniform(*plan.syphon_life_s))
        syphon = rng.choice(scenery.syphons)
        syphon.check()
        # Never interrupted in between: one syphon would be missing at the end.
        await asyncio.shield(asyncio.ensure_future(_start_anew(syphon)))
        scenery.syphon_kills += 1


async def _start_anew(syphon: Program) -> None:
    async with syphon.in_use:
        await syphon.kill()
        await syphon.start()


# --- the end ----------------------------------------------------------------------------------------------------------


async def _reckon(plan: Plan, scenery: Scenery, report: Report, say: Callable[[str], None]) -> None:
    """End all programs, receive everything, and judge."""
    primary, secondary = scenery.sides
    await asyncio.gather(*[program.stop() for program in scenery.senders])
    report.sends = [send for ledger in scenery.ledgers() for send in sending.read(ledger)]
    report.failures += _spool_problems(scenery)
    say(f"{len(report.sends):,} sends are over")
    before_s = time.monotonic()
    async with secondary.manager() as manager:
        report.failures += await until_drained(manager, DRAIN_S)
    report.drained_s = time.monotonic() - before_s
    say(f"drained {report.drained_s:.1f} s later")
    await asyncio.gather(*[program.stop() for program in scenery.syphons])
    report.events = events_in(program.log for program in scenery.syphons)
    async with primary.factory() as factory, _journal(plan, factory):
        found = await receive_everything(factory)
        report.arrivals = scenery.early_arrivals + [
            dataclasses.replace(one, incarnation=scenery.deletions * (one.destination == DELETED)) for one in found
        ]
    async with secondary.factory() as factory:
        report.dead_letters = await look_at_dead_letters(factory)
    for name, rows in (("arrivals", report.arrivals), ("dead-letters", report.dead_letters)):
        lines = [json.dumps(dataclasses.astuple(row)) + "\n" for row in rows]
        (scenery.folder / f"{name}.json").write_text("".join(lines))
    report.verdict = judge(report.sends, report.arrivals, report.dead_letters)


def _spool_problems(scenery: Scenery) -> list[str]:
    """Messages that stayed in a spool, or were refused from it: none of those that are spooled has a fault."""
    found = [
        f"not sent from the spool: {count:,}"
        for ledger in scenery.ledgers()
        if (count := sending.left_in_spool(ledger))
    ]
    return found + [
        f"refused from the spool: {reason.name}: {reason.read_text()[:200]}"
        for reason in sorted(scenery.spools().rglob("refused/*.txt"))
    ]


@asynccontextmanager
async def _journal(plan: Plan, factory: MessagingFactory) -> AsyncIterator[None]:
    """Keep a journal of what is received, if journals are kept."""
    journal = None if plan.journals is None else Journal(plan.journals)
    if journal is not None:
        journal.attach(factory)
    try:
        yield
    finally:
        if journal is not None:
            await journal.close()
