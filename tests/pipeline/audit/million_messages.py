"""The command: python -m tests.pipeline.audit.million_messages [--messages N]...

Journals of N messages (100,000 and 1,000,000) through a pair, written by the journal's own files: a tenth of them
parked and brought back, all received. One was deleted behind the broker's back, and one came twice: the audit has to
name both, and nothing else. Shows how long that takes, and how much memory.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.campaigns.outages.__main__ import print_line
from tests.support.server_process import run_server
from twinbus.client import NamespaceManager
from twinbus.client.clock import SystemClock
from twinbus.client.journal_file import JournalFiles
from twinbus.pipeline.audit.contents import NamespaceAccess
from twinbus.pipeline.audit.job import AuditSettings, run_audit
from twinbus.pipeline.audit.verdicts import Verdict
from twinbus.pipeline.spark import session

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.support.server_process import ServerProcess
    from twinbus.client.journal_file import Row
    from twinbus.pipeline.audit.report import AuditResult

BATCH: Final = 10_000
PARKED_EACH: Final = 10
BACKLOG: Final = "contoso/x-servicebus-transfer/{}"
QUEUES: Final = 10
ENTITY: Final = "orders"
WHERE: Final = ("127.0.0.1:5672", "generated")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is in the journals."""

    messages: int
    deleted: int
    doubled: int

    def name(self, number: int) -> str:
        return f"order-{number:09d}"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.pipeline.audit.million_messages", description="Looks for one message among very many."
    )
    parser.add_argument("--messages", type=int, action="append", metavar="N", help="how many; repeatable")
    parser.add_argument("--master", default=None, help="where Spark runs")
    options = parser.parse_args()
    problems = []
    print_line("| messages | rows of journals | MB of journals | audit | messages a second | memory of Spark |")
    print_line("|---|---|---|---|---|---|")
    for messages in options.messages or [100_000, 1_000_000]:
        with tempfile.TemporaryDirectory(prefix="twinbus-million-") as folder:
            problems += run(messages, Path(folder), options.master)
    for problem in problems:
        print_line(f"PROBLEM: {problem}")
    return 1 if problems else 0


def run(messages: int, folder: Path, master: str | None) -> list[str]:
    """One line of the table; what is wrong."""
    chosen = random.Random(messages).sample(range(messages), 2)
    plan = Plan(messages, *chosen)
    for name in ("a", "b"):
        (folder / name).mkdir()
    with run_server(folder / "a") as primary, run_server(folder / "b", name="contoso-backup") as secondary:
        asyncio.run(make_queues(primary, secondary))
        rows = write(plan, folder / "journals")
        settings = AuditSettings(
            journals=[folder / "journals"],
            primary=NamespaceAccess(primary.connection_string),
            primary_admin=NamespaceAccess(admin(primary)),
            secondary=NamespaceAccess(secondary.connection_string),
            covered_entities=["*"],
            max_clock_skew_s=0.0,
            report_folder=str(folder / "report"),
        )
        with session("twinbus audit", master=master) as spark:
            spark.range(1).count()  # what starts with the first job is Spark's affair
            began_s = time.monotonic()
            outcome = run_audit(spark, settings)
            took_s = time.monotonic() - began_s
            memory = peak_megabytes()
    size = sum(path.stat().st_size for path in (folder / "journals").iterdir()) / 1e6
    print_line(f"| {messages:,} | {rows:,} | {size:,.0f} | {took_s:.1f} s | {messages / took_s:,.0f} | {memory:,} MB |")
    return find_errors(outcome, plan)


def find_errors(outcome: AuditResult, plan: Plan) -> list[str]:
    """What the audit did not find, or should not have."""
    lost, doubled = [one.message_id for one in outcome.lost], [one.message_id for one in outcome.duplicated]
    expected = {Verdict.DELIVERED: plan.messages - 1, Verdict.LOST: 1, Verdict.UNKNOWN: 0}
    problems = [
        f"{plan.messages:,} messages: {outcome.count(verdict):,} are {verdict.value}, not {count:,}"
        for verdict, count in expected.items()
        if outcome.count(verdict) != count
    ]
    if lost != [plan.name(plan.deleted)]:
        problems.append(f"lost is {lost}, and should be {plan.name(plan.deleted)}")
    if doubled != [plan.name(plan.doubled)] or outcome.duplicated_count != 1:
        problems.append(f"doubled is {doubled}, and should be {plan.name(plan.doubled)}")
    return problems


# --- journals ---------------------------------------------------------------------------------------------------------


def write(plan: Plan, folder: Path) -> int:
    """All journals: of two senders, a syphon, and two receivers; how many rows they have."""
    half = plan.messages // 2
    written = _write(folder, _sends(plan, range(half)))
    written += _write(folder, _sends(plan, range(half, plan.messages)))
    written += _write(folder, _moves(plan))
    written += _write(folder, _receipts(plan, 0))
    return written + _write(folder, _receipts(plan, 1))


def _write(folder: Path, rows: Iterable[Row]) -> int:
    files, written = JournalFiles(folder, SystemClock()), 0
    around = itertools.chain([_journal_row("began")], rows, [_journal_row("ended")])
    while batch := list(itertools.islice(around, BATCH)):
        files.write(batch)
        written += len(batch)
    files.close()
    return written


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _journal_row(outcome: str) -> Row:
    return (_now_ms(), "journal", None, None, None, None, None, outcome, None, 1, None, None, None, None)


def _sends(plan: Plan, numbers: range) -> Iterator[Row]:
    for number in numbers:
        queue = None if number % PARKED_EACH else BACKLOG.format(number % QUEUES)
        outcome = "sent" if queue is None else "parked"
        about = (plan.name(number), ENTITY, None, None, queue)
        yield (_now_ms(), "send", *about, outcome, None, 1, *WHERE, None, None)


def _moves(plan: Plan) -> Iterator[Row]:
    for number in range(0, plan.messages, PARKED_EACH):
        about = (plan.name(number), ENTITY, None, number, BACKLOG.format(number % QUEUES))
        yield (_now_ms(), "event", *about, "moved back", None, 1, *WHERE, None, None)


def _receipts(plan: Plan, which: int) -> Iterator[Row]:
    """Of every other message: as the broker numbers them, in an order of its own."""
    yield (_now_ms(), "receiver", None, ENTITY, None, None, None, "opened", None, 1, *WHERE, None, None)
    for number in range(which, plan.messages, 2):
        if number == plan.deleted:
            continue
        copies = (number + 1, plan.messages + 1) if number == plan.doubled else (number + 1,)
        for copy in copies:
            now_ms = _now_ms()
            about = (plan.name(number), ENTITY, None, copy, None)
            yield (now_ms, "settlement", *about, "completed", None, 1, *WHERE, None, now_ms)


# --- around it --------------------------------------------------------------------------------------------------------


def admin(server: ServerProcess) -> str:
    """Its connection string for administration, without TLS."""
    return server.connection_string.replace(f":{server.amqp_port}", f":{server.http_port}")


async def make_queues(primary: ServerProcess, secondary: ServerProcess) -> None:
    """All of them empty: the messages are nowhere but in journals."""
    async with NamespaceManager.from_connection_string(admin(primary)) as manager:
        await manager.create_queue(ENTITY)
    async with NamespaceManager.from_connection_string(admin(secondary)) as manager:
        for number in range(QUEUES):
            await manager.create_queue(BACKLOG.format(number))


def peak_megabytes() -> int:
    """The most memory that Spark's Java has had."""
    peaks = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            found = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except OSError:  # it has ended
            continue
        if found["Name"].strip() == "java" and _is_ours(int(found["PPid"])):
            peaks.append(int(found["VmHWM"].split()[0]) // 1_000)
    return max(peaks, default=0)


def _is_ours(parent: int) -> bool:
    """A process, or one that it comes from, is this one."""
    while parent > 1:
        if parent == os.getpid():
            return True
        try:
            found = Path(f"/proc/{parent}/status").read_text()
        except OSError:
            return False
        parent = int(found.split("PPid:", 1)[1].split()[0])
    return False


if __name__ == "__main__":
    sys.exit(main())
