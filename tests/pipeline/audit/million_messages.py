"""The command: python -m tests.pipeline.audit.million_messages [--messages N]...

Audits the journals of N messages sent through a pair (default: 100,000 and 1,000,000). The real journal classes write
them: a tenth of the messages is parked and moved back, and all are received. One message is deleted without a trace,
and one arrives twice: the audit must name these two and no others. Prints the duration and the memory of Spark.
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
PARKED_INTERVAL: Final = 10
BACKLOG: Final = "contoso/x-servicebus-transfer/{}"
QUEUES: Final = 10
ENTITY: Final = "orders"
CLIENT: Final = ("127.0.0.1:5672", "generated")


@dataclass(frozen=True, slots=True)
class Plan:
    """The number of messages, the deleted one, and the duplicated one."""

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
    """Print one line of the table, and return the problems."""
    special = random.Random(messages).sample(range(messages), 2)
    plan = Plan(messages, *special)
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
            spark.range(1).count()  # start everything that Spark starts with its first job
            began_s = time.monotonic()
            result = run_audit(spark, settings)
            took_s = time.monotonic() - began_s
            memory = peak_megabytes()
    size = sum(path.stat().st_size for path in (folder / "journals").iterdir()) / 1e6
    print_line(f"| {messages:,} | {rows:,} | {size:,.0f} | {took_s:.1f} s | {messages / took_s:,.0f} | {memory:,} MB |")
    return find_errors(result, plan)


def find_errors(result: AuditResult, plan: Plan) -> list[str]:
    """Return the differences between the result of the audit and the plan."""
    lost, doubled = (
        [message.message_id for message in result.lost],
        [message.message_id for message in result.duplicated],
    )
    expected = {Verdict.DELIVERED: plan.messages - 1, Verdict.LOST: 1, Verdict.UNKNOWN: 0}
    problems = [
        f"{plan.messages:,} messages: {result.count(verdict):,} are {verdict.value}, not {count:,}"
        for verdict, count in expected.items()
        if result.count(verdict) != count
    ]
    if lost != [plan.name(plan.deleted)]:
        problems.append(f"lost is {lost}, and should be {plan.name(plan.deleted)}")
    if doubled != [plan.name(plan.doubled)] or result.duplicated_count != 1:
        problems.append(f"doubled is {doubled}, and should be {plan.name(plan.doubled)}")
    return problems


# --- journals ---------------------------------------------------------------------------------------------------------


def write(plan: Plan, folder: Path) -> int:
    """Write the journals of two senders, a syphon and two receivers; return the number of rows."""
    half = plan.messages // 2
    written = _write(folder, _sends(plan, range(half)))
    written += _write(folder, _sends(plan, range(half, plan.messages)))
    written += _write(folder, _moves(plan))
    written += _write(folder, _receipts(plan, 0))
    return written + _write(folder, _receipts(plan, 1))


def _write(folder: Path, rows: Iterable[Row]) -> int:
    files, written = JournalFiles(folder, SystemClock()), 0
    all_rows = itertools.chain([_journal_row("began")], rows, [_journal_row("ended")])
    while batch := list(itertools.islice(all_rows, BATCH)):
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
        queue = None if number % PARKED_INTERVAL else BACKLOG.format(number % QUEUES)
        outcome = "sent" if queue is None else "parked"
        columns = (plan.name(number), ENTITY, None, None, queue)
        yield (_now_ms(), "send", *columns, outcome, None, 1, *CLIENT, None, None)


def _moves(plan: Plan) -> Iterator[Row]:
    for number in range(0, plan.messages, PARKED_INTERVAL):
        columns = (plan.name(number), ENTITY, None, number, BACKLOG.format(number % QUEUES))
        yield (_now_ms(), "event", *columns, "moved back", None, 1, *CLIENT, None, None)


def _receipts(plan: Plan, remainder: int) -> Iterator[Row]:
    """Yield the settlements of every second message."""
    yield (_now_ms(), "receiver", None, ENTITY, None, None, None, "opened", None, 1, *CLIENT, None, None)
    for number in range(remainder, plan.messages, 2):
        if number == plan.deleted:
            continue
        copies = (number + 1, plan.messages + 1) if number == plan.doubled else (number + 1,)
        for sequence_number in copies:
            now_ms = _now_ms()
            columns = (plan.name(number), ENTITY, None, sequence_number, None)
            yield (now_ms, "settlement", *columns, "completed", None, 1, *CLIENT, None, now_ms)


# --- servers and memory -----------------------------------------------------------------------------------------------


def admin(server: ServerProcess) -> str:
    """Return the server's connection string for administration, without TLS."""
    return server.connection_string.replace(f":{server.amqp_port}", f":{server.http_port}")


async def make_queues(primary: ServerProcess, secondary: ServerProcess) -> None:
    """Create empty queues: the messages exist only in the journals."""
    async with NamespaceManager.from_connection_string(admin(primary)) as manager:
        await manager.create_queue(ENTITY)
    async with NamespaceManager.from_connection_string(admin(secondary)) as manager:
        for number in range(QUEUES):
            await manager.create_queue(BACKLOG.format(number))


def peak_megabytes() -> int:
    """Return the peak memory of Spark's Java processes."""
    peaks = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except OSError:  # the process has ended
            continue
        if fields["Name"].strip() == "java" and _is_ours(int(fields["PPid"])):
            peaks.append(int(fields["VmHWM"].split()[0]) // 1_000)
    return max(peaks, default=0)


def _is_ours(parent: int) -> bool:
    """Return whether a process is this process or one of its descendants."""
    while parent > 1:
        if parent == os.getpid():
            return True
        try:
            status = Path(f"/proc/{parent}/status").read_text()
        except OSError:
            return False
        parent = int(status.split("PPid:", 1)[1].split()[0])
    return False


if __name__ == "__main__":
    sys.exit(main())
