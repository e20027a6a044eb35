"""Campaign: programs that send, programs that host the syphon, injected outages, and the final checks.

    report = await run_campaign(Plan(seed=1, outage_count=3), folder)
    assert report.problems == []

Owns: the order of events. The messages are in `streams`, the processes in `environment`, the outages in `plan` and
`fault_injection`, the guarantees in `tests.support.delivery_checker.pair_checker`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

from tests.campaigns.outages import sender_program
from tests.campaigns.outages.arrivals import peek_dead_letters, receive_all_destinations, wait_until_drained
from tests.campaigns.outages.environment import Environment, start_environment
from tests.campaigns.outages.fault_injection import inject_outage
from tests.campaigns.outages.plan import SENDER_KINDS, SYPHON_KINDS, Plan
from tests.campaigns.outages.program_process import ProgramFailed
from tests.campaigns.outages.records import TimeSpan, check_deliveries
from tests.campaigns.outages.report import OutageRecord, Report
from tests.campaigns.outages.streams import RECREATED_QUEUE
from tests.campaigns.outages.syphon_program import count_events
from tests.support.server_process import ServerFailed
from twinbus.client.journal import Journal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from tests.campaigns.outages.plan import PlannedOutage
    from tests.campaigns.outages.program_process import ProgramProcess
    from twinbus.client import MessagingFactory

DRAIN_TIMEOUT_S: Final = 180.0
MAX_OVERLAPPING: Final = 3
"""Maximum number of overlapping outages."""


async def run_campaign(
    plan: Plan,
    folder: Path,
    on_progress: Callable[[str], None] = lambda _line: None,
    on_finished: Callable[[Environment], Awaitable[None]] | None = None,
) -> Report:
    """Run a campaign. A process that fails is reported as a problem.

    `on_finished` is called at the end, while both namespaces are running.
    """
    report, environment, started_s = Report(plan.seed), Environment(folder, plan.partitioned), time.monotonic()
    async with AsyncExitStack() as stack:
        try:
            await start_environment(plan, environment, stack)
            await _run_outages(plan, environment, report, on_progress)
            await _verify(plan, environment, report, on_progress)
            if on_finished is not None:
                await on_finished(environment)
            for namespace in environment.namespaces:
                await asyncio.to_thread(namespace.server.stop)
        except (ServerFailed, ProgramFailed, TimeoutError) as failure:
            report.failures.append(f"{type(failure).__name__}: {failure}")
        finally:
            for namespace in environment.namespaces:
                namespace.server.kill()
    report.syphon_kills, report.seconds = environment.syphon_kills, time.monotonic() - started_s
    return report


# --- outages ----------------------------------------------------------------------------------------------------------


async def _run_outages(
    plan: Plan, environment: Environment, report: Report, on_progress: Callable[[str], None]
) -> None:
    """Inject the outages, some at the same time, while syphons are killed and restarted."""
    rng, began_s = random.Random(plan.seed), time.monotonic()
    killing = asyncio.ensure_future(_kill_syphons(plan, environment, random.Random(rng.random())))
    running: set[asyncio.Task[None]] = set()

    async def run(number: int, planned: PlannedOutage) -> None:
        outage = await _run_outage(planned, environment)
        report.outages.append(outage)
        on_progress(f"{time.monotonic() - began_s:5.0f} s: outage {number} of {plan.outage_count}: {outage}")

    try:
        for number, planned in enumerate(plan.make_outages(rng), start=1):
            await _wait_for_slots(running, max_running=MAX_OVERLAPPING - 1 if planned.overlaps else 0)
            await asyncio.sleep(planned.pause_s)
            for program in environment.senders:
                program.check_running()
            running.add(asyncio.ensure_future(run(number, planned)))
        await _wait_for_slots(running, max_running=0)
        await asyncio.sleep(plan.pause_range_s[1])
    finally:
        for task in (killing, *running):
            task.cancel()
        await asyncio.wait([killing, *running])
    if not killing.cancelled() and (failure := killing.exception()) is not None:
        raise failure


async def _wait_for_slots(running: set[asyncio.Task[None]], *, max_running: int) -> None:
    """Wait until at most `max_running` outages are active; raise the error of a failed one."""
    while True:
        for task in [task for task in running if task.done()]:
            running.discard(task)
            task.result()
        if len(running) <= max_running:
            return
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)


async def _run_outage(planned: PlannedOutage, environment: Environment) -> OutageRecord:
    async with inject_outage(planned, environment) as detail:
        began_s = time.monotonic()
        await asyncio.sleep(planned.length_s)
    target = environment.namespaces[planned.side].name
    if planned.kind in SENDER_KINDS:
        target = "sender"
    elif planned.kind in SYPHON_KINDS:
        target = "syphon"
    return OutageRecord(planned.kind, target, TimeSpan(began_s, time.monotonic()), detail)


async def _kill_syphons(plan: Plan, environment: Environment, rng: random.Random) -> None:
    while True:
        await asyncio.sleep(rng.uniform(*plan.syphon_uptime_range_s))
        syphon = rng.choice(environment.syphons)
        syphon.check_running()
        # Shielded: an interrupted restart would leave the campaign without this syphon.
        await asyncio.shield(asyncio.ensure_future(_restart(syphon)))
        environment.syphon_kills += 1


async def _restart(syphon: ProgramProcess) -> None:
    async with syphon.lock:
        await syphon.kill()
        await syphon.start()


# --- the end ----------------------------------------------------------------------------------------------------------


async def _verify(plan: Plan, environment: Environment, report: Report, on_progress: Callable[[str], None]) -> None:
    """Stop all programs, receive all messages, and check them."""
    primary, secondary = environment.namespaces
    await asyncio.gather(*[program.stop() for program in environment.senders])
    report.sends = [send for send_log in environment.send_logs() for send in sender_program.read_send_log(send_log)]
    report.failures += _spool_problems(environment)
    on_progress(f"{len(report.sends):,} sends are over")
    before_s = time.monotonic()
    async with secondary.manager() as manager:
        report.failures += await wait_until_drained(manager, DRAIN_TIMEOUT_S)
    report.drained_s = time.monotonic() - before_s
    on_progress(f"drained {report.drained_s:.1f} s later")
    await asyncio.gather(*[program.stop() for program in environment.syphons])
    report.events = count_events(program.log for program in environment.syphons)
    async with primary.factory() as factory, _journal_if_enabled(plan, factory):
        records = await receive_all_destinations(factory)
        report.arrivals = environment.early_arrivals + [
            dataclasses.replace(record, incarnation=environment.deletions * (record.destination == RECREATED_QUEUE))
            for record in records
        ]
    async with secondary.factory() as factory:
        report.dead_letters = await peek_dead_letters(factory)
    for name, rows in (("arrivals", report.arrivals), ("dead-letters", report.dead_letters)):
        lines = [json.dumps(dataclasses.astuple(row)) + "\n" for row in rows]
        (environment.folder / f"{name}.json").write_text("".join(lines))
    report.checker = check_deliveries(report.sends, report.arrivals, report.dead_letters)


def _spool_problems(environment: Environment) -> list[str]:
    """Return problems for messages that stayed in a spool or were refused from it; all of them are valid."""
    problems = [
        f"not sent from the spool: {count:,}"
        for send_log in environment.send_logs()
        if (count := sender_program.left_in_spool(send_log))
    ]
    return problems + [
        f"refused from the spool: {reason.name}: {reason.read_text()[:200]}"
        for reason in sorted(environment.spool_folder().rglob("refused/*.txt"))
    ]


@asynccontextmanager
async def _journal_if_enabled(plan: Plan, factory: MessagingFactory) -> AsyncIterator[None]:
    """Write a journal of the received messages, if journals are enabled."""
    journal = None if plan.journals is None else Journal(plan.journals)
    if journal is not None:
        journal.attach(factory)
    try:
        yield
    finally:
        if journal is not None:
            await journal.close()
