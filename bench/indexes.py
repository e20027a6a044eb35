"""Measures every index of a queue when it is full: sessions, schedule, duplicate detection, expiry, deferral.

    python -m bench.indexes [--only sessions,scheduled,duplicates,expiry,dropped,deferred] [--count 1000000]

Each index is filled and used in a separate server, which is also stopped, killed and restarted with the full index. The
server itself measures the pauses of its event loop in each phase (`--measure-pauses`). An own pause does not include
the time in which other programs or the host of a virtual machine (`bench.support.cpu_steal`) had the processor,
whichever is longer. A second, idle server shows how much of such time remains in the figures. The index of duplicate
detection has five times as many entries as the others. Writes docs/benchmarks/indexes.md and indexes.json; exits with 1
if a threshold is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import uvloop

from bench.support.cpu_steal import watch_steal
from bench.support.engine_client import connect_client, sequence_of, write_message
from bench.support.phases import BATCH, BODY, PROBE, QUEUE, TABLE_HEAD, IndexBench, MeasuredServer
from bench.support.results import (
    add_results_option,
    check_thresholds,
    environment_facts,
    environment_lines,
    thresholds_table,
    write,
)
from bench.support.server import run
from twinbus.amqp.outcomes import ACCEPTED, Modified
from twinbus.amqp.types import Array

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator

DUPLICATES_FACTOR: Final = 5
SLOWEST_FILL: Final = 6_000
"""Minimum fill rate in messages per second; due and expiry times are chosen so that they are after such a fill."""
SPARE_S: Final = 10.0
"""Additional time for restarts before messages become due or expire."""
AT_ONCE: Final = 16
DEFERRED: Final = Modified(undeliverable_here=True)
OPTIONS: Final = ("--stores", "1", "--measure-pauses")
DEAD: Final = f"{QUEUE}/$DeadLetterQueue"


# --- the indexes ------------------------------------------------------------------------------------------------------


async def measure_sessions(index_bench: IndexBench) -> None:
    """Measure sessions, with one session for each message."""
    server, some = index_bench.server, max(1, min(1_000, index_bench.count // 20))
    server.create_index_queue(QUEUE, RequiresSession="true", LockDuration="PT5M", MaxSizeInMegabytes=5120)
    await index_bench.fill(lambda number: write_message(f"m-{number}", BODY, session=f"session-{number:07}"))
    seen: list[str] = []
    async with index_bench.phase("accept next session, one at a time", some), connect_client(server) as client:
        for _ in range(some):
            link, session = await client.accept_session(QUEUE)
            seen.append(session)
            await client.drain_session(link, 1)
    index_bench.check_value("order of sessions", seen, [f"session-{number:07}" for number in range(some)])
    await accept_by_several(index_bench, "accept next session, several receivers", some, seen)
    await list_pages(index_bench)
    async with index_bench.phase("accept sessions by id", some), connect_client(server) as client:
        for number in range(index_bench.count // 2, index_bench.count // 2 + some):
            link, session = await client.accept_session(QUEUE, f"session-{number:07}")
            seen.append(session)
            await client.drain_session(link, 1)
    await hold_many(index_bench, min(4_000, index_bench.count // 4))
    index_bench.kill("with full index")
    await accept_by_several(index_bench, "after SIGKILL, accept next session", some, seen)
    index_bench.restart("with full index")
    await accept_by_several(index_bench, "after restart, accept next session", some, seen)
    index_bench.check_value("sessions that were accepted twice", len(seen) - len(set(seen)), 0)
    index_bench.expect_counts(Active=index_bench.count - len(seen))
    await purge(index_bench, QUEUE, index_bench.count - len(seen))


async def accept_by_several(index_bench: IndexBench, name: str, count: int, seen: list[str]) -> None:
    """Accept sessions, receive and complete messages with several receivers, each on its own connection."""
    async with index_bench.phase(name, count), contextlib.AsyncExitStack() as stack:
        todo = iter(range(count))

        async def work() -> None:
            client = await stack.enter_async_context(connect_client(index_bench.server))
            for _ in todo:
                link, session = await client.accept_session(QUEUE)
                seen.append(session)
                await client.drain_session(link, 1)

        await asyncio.gather(*[work() for _ in range(AT_ONCE)])


async def list_pages(index_bench: IndexBench) -> None:
    """List the first pages of sessions, and one page at a high offset."""
    async with connect_client(index_bench.server) as client:
        found: list[str] = []
        async with index_bench.phase("list 20 pages of 100", 2_000):
            for _ in range(20):
                page = await client.request(
                    QUEUE, "com.microsoft:get-message-sessions", {"skip": len(found), "top": 100}
                )
                found.extend(page["sessions-ids"].items if page else [])
        index_bench.check_value(
            "sessions listed", len(set(found)), min(2_000, index_bench.server.counts(QUEUE)["Active"])
        )
        far = index_bench.count // 50
        async with index_bench.phase("list a page at a high offset", far, probes=True):
            await client.request(QUEUE, "com.microsoft:get-message-sessions", {"skip": far, "top": 100})


async def hold_many(index_bench: IndexBench, count: int) -> None:
    """Accept many sessions on one connection, then close the connection."""
    async with connect_client(index_bench.server) as client:
        held: list[str] = []
        async with index_bench.phase("accept many sessions on one connection", count):
            todo = iter(range(count))

            async def work() -> None:
                for _ in todo:
                    _, session = await client.accept_session(QUEUE)
                    held.append(session)

            await asyncio.gather(*[work() for _ in range(AT_ONCE)])
        index_bench.check_value("sessions held", len(set(held)), count)
        async with index_bench.phase("close that connection", count, probes=True):
            client.peer.transport.abort()
            await asyncio.sleep(1)


async def measure_scheduled(index_bench: IndexBench) -> None:
    """Measure scheduled messages that are all due in the same second."""
    server, cancelled = index_bench.server, min(1_000, index_bench.count // 4)
    due_ms = later_ms(index_bench)
    server.create_index_queue(QUEUE, MaxSizeInMegabytes=5120)
    await index_bench.fill(lambda number: write_message(f"m-{number}", BODY, due_ms=due_ms + number % 1_000))
    index_bench.kill("with full index")
    async with index_bench.phase("cancel by sequence number", cancelled), connect_client(server) as client:
        for first in range(1, cancelled + 1, 100):
            numbers = Array(int, [*range(first, min(first + 100, cancelled + 1))])
            await client.request(QUEUE, "com.microsoft:cancel-scheduled-message", {"sequence-numbers": numbers})
    index_bench.restart("with full index")
    left = index_bench.count - cancelled
    index_bench.expect_counts(Scheduled=left, Active=0)
    await sleep_until(index_bench, due_ms)
    async with index_bench.phase("all messages become due", left, probes=True):
        await index_bench.wait_until(lambda counts: counts["Scheduled"] == 0)
    index_bench.expect_counts(Scheduled=0, Active=left)
    await receive_some(index_bench, QUEUE)
    index_bench.kill("with all messages active")
    index_bench.expect_counts(Active=left - some_of(index_bench))
    await purge(index_bench, QUEUE, left - some_of(index_bench))


async def measure_duplicates(index_bench: IndexBench) -> None:
    """Measure duplicate detection with a window that holds all ids, and then expires."""
    server, some = index_bench.server, some_of(index_bench)
    window = {"RequiresDuplicateDetection": "true", "MaxSizeInMegabytes": 5120}
    server.create_index_queue(QUEUE, **window, DuplicateDetectionHistoryTimeWindow="P1D")
    await index_bench.fill(lambda number: write_message(f"id-{number}", b"d"))
    await index_bench.fill(lambda number: write_message(f"id-{number}", b"d"), some, "the first ids again")
    await index_bench.fill(
        lambda number: write_message(f"id-{index_bench.count - some + number}", b"d"), some, "the last ids again"
    )
    index_bench.expect_counts(Active=index_bench.count)
    await index_bench.fill(lambda number: write_message(f"new-{number}", b"d"), some, "new ids")
    index_bench.expect_counts(Active=index_bench.count + some)
    index_bench.kill("with full index")
    every = max(1, index_bench.count // some)
    await index_bench.fill(lambda number: write_message(f"id-{every * number}", b"d"), some, "after SIGKILL, old ids")
    index_bench.expect_counts(Active=index_bench.count + some)
    index_bench.restart("with full index")
    await index_bench.fill(lambda number: write_message(f"id-{every * number}", b"d"), some, "after restart, old ids")
    index_bench.expect_counts(Active=index_bench.count + some)
    server.update_queue(QUEUE, **window, DuplicateDetectionHistoryTimeWindow="PT20S")
    await index_bench.fill(lambda number: write_message(f"next-{number}", b"d"), 1, "start of a new generation")
    await asyncio.sleep(21)
    await index_bench.fill(lambda number: write_message(f"last-{number}", b"d"), some, "new ids after the window")
    await index_bench.fill(lambda number: write_message(f"id-{every * number}", b"d"), some, "old ids after the window")
    index_bench.expect_counts(Active=index_bench.count + 3 * some + 1)
    await purge(index_bench, QUEUE, index_bench.count + 3 * some + 1)


async def measure_expiry(index_bench: IndexBench) -> None:
    """Measure messages that all expire in the same second and are dead-lettered."""
    server, expires_ms = index_bench.server, later_ms(index_bench)
    server.create_index_queue(QUEUE, DeadLetteringOnMessageExpiration="true", MaxSizeInMegabytes=5120)
    await index_bench.fill(lambda number: write_message(f"m-{number}", BODY, expires_ms=expires_ms + number % 1_000))
    index_bench.kill("with full index")
    index_bench.expect_counts(Active=index_bench.count, DeadLetter=0)
    await sleep_until(index_bench, expires_ms)
    async with index_bench.phase("all messages expire", index_bench.count, probes=True):
        await index_bench.wait_until(lambda counts: counts["Active"] == 0)
    index_bench.expect_counts(Active=0, DeadLetter=index_bench.count)
    index_bench.restart("with all messages dead-lettered")
    await receive_some(index_bench, DEAD)
    await purge(index_bench, DEAD, index_bench.count - some_of(index_bench))


async def measure_dropped(index_bench: IndexBench) -> None:
    """Measure messages that all expire in the same second and are dropped, with a kill of the server meanwhile."""
    server, expires_ms = index_bench.server, later_ms(index_bench)
    server.create_index_queue(QUEUE, MaxSizeInMegabytes=5120)
    await index_bench.fill(lambda number: write_message(f"m-{number}", BODY, expires_ms=expires_ms + number % 1_000))
    index_bench.restart("with full index")
    index_bench.expect_counts(Active=index_bench.count)
    await sleep_until(index_bench, expires_ms)
    async with index_bench.phase("half of the messages expire", index_bench.count // 2, probes=True):
        await index_bench.wait_until(lambda counts: counts["Active"] <= index_bench.count // 2)
    index_bench.kill("during expiry")
    async with index_bench.phase("the other half expires", index_bench.count // 2, probes=True):
        await index_bench.wait_until(lambda counts: counts["Active"] == 0)
    index_bench.expect_counts(All=0)
    await index_bench.fill(lambda number: write_message(f"m-{number}", BODY), some_of(index_bench), "send messages")
    await receive_some(index_bench, QUEUE)
    index_bench.expect_counts(All=0)


async def measure_deferred(index_bench: IndexBench) -> None:
    """Measure deferred messages."""
    server, some = index_bench.server, some_of(index_bench)
    server.create_index_queue(QUEUE, LockDuration="PT5M", MaxSizeInMegabytes=5120)
    await index_bench.fill(lambda number: write_message(f"m-{number}", BODY))
    async with index_bench.phase("receive and defer", index_bench.count), connect_client(server) as client:
        numbers = await client.receive(QUEUE, index_bench.count, DEFERRED, credit=4_000)
    index_bench.check_value("messages deferred", sorted(numbers) == [*range(1, index_bench.count + 1)], expected=True)
    index_bench.kill("with full index")
    index_bench.expect_counts(All=index_bench.count, Active=0)
    async with index_bench.phase("receive deferred messages and delete", some), connect_client(server) as client:
        every = max(1, index_bench.count // some)
        wanted = [*range(1, index_bench.count + 1, every)][:some]
        for first in range(0, some, 100):
            asked = {"sequence-numbers": Array(int, [*wanted[first : first + 100]]), "receiver-settle-mode": 0}
            answer = await client.request(QUEUE, "com.microsoft:receive-by-sequence-number", asked)
            index_bench.check_value("received by number", len(answer["messages"]), len(wanted[first : first + 100]))
    index_bench.restart("with full index")
    left = index_bench.count - some
    async with index_bench.phase("peek all messages", left, probes=True), connect_client(server) as client:
        index_bench.check_value("peeked", await peek_through(client.request), left)
    await index_bench.fill(lambda number: write_message(f"n-{number}", BODY), some, "send messages")
    await receive_some(index_bench, QUEUE)
    await purge(index_bench, QUEUE, left, state="deferred")


# --- shared steps -----------------------------------------------------------------------------------------------------


def some_of(index_bench: IndexBench) -> int:
    """Return the number of messages for steps that do not need all of them."""
    return min(10_000, max(1, index_bench.count // 10))


def later_ms(index_bench: IndexBench) -> int:
    """Return a time after the fill and two restarts, at the start of a second."""
    return int(time.time() + index_bench.count / SLOWEST_FILL + SPARE_S) * 1_000


async def sleep_until(index_bench: IndexBench, when_ms: int) -> None:
    """Wait until a time, which must not have passed yet."""
    wait_s = when_ms / 1_000 - time.time()
    index_bench.check_value("was filled in time", wait_s > 0, expected=True)
    async with index_bench.phase("idle"):
        await asyncio.sleep(max(0.0, wait_s))


async def receive_some(index_bench: IndexBench, where: str) -> None:
    """Receive and complete some messages."""
    async with (
        index_bench.phase("receive and complete some messages", some_of(index_bench)),
        connect_client(index_bench.server) as client,
    ):
        numbers = await client.receive(where, some_of(index_bench), ACCEPTED)
    index_bench.check_value("received in order, each once", numbers == sorted(set(numbers)), expected=True)


async def purge(index_bench: IndexBench, where: str, expected: int, state: str = "active") -> None:
    """Delete all remaining messages."""
    async with index_bench.phase("purge", expected, probes=True), connect_client(index_bench.server) as client:
        answer = await client.request(where, "twinbus:purge", {"state": state})
    index_bench.check_value("purged", answer["removed"], expected)
    index_bench.expect_counts(All=0)


async def peek_through(ask: Callable[[str, str, dict[str, object]], Awaitable[dict[str, Any]]]) -> int:
    """Peek all messages page by page, and return their number."""
    seen = start = 0
    while True:
        asked: dict[str, object] = {"from-sequence-number": start, "message-count": 1_000}
        page = (await ask(QUEUE, "com.microsoft:peek-message", asked)).get("messages", [])
        if not page:
            return seen
        seen += len(page)
        start = sequence_of(page[-1]["message"]) + 1


# --- all indexes ------------------------------------------------------------------------------------------------------

INDEXES: Final[dict[str, Callable[[IndexBench], Coroutine[None, None, None]]]] = {
    "sessions": measure_sessions,
    "scheduled": measure_scheduled,
    "duplicates": measure_duplicates,
    "expiry": measure_expiry,
    "dropped": measure_dropped,
    "deferred": measure_deferred,
}


def measure(names: Iterable[str], count: int, folder: Path) -> Iterator[IndexBench]:
    """Measure one index after the other, each in a separate server."""
    with watch_steal() as host, MeasuredServer.started(folder / "idle", *OPTIONS) as idle:
        assert isinstance(idle, MeasuredServer)
        for name in names:
            where = folder / name
            with MeasuredServer.started(where, *OPTIONS) as server:
                assert isinstance(server, MeasuredServer)
                server.create_index_queue(PROBE)
                site = IndexBench(name, server, idle, host, count * (DUPLICATES_FACTOR if name == "duplicates" else 1))
                uvloop.run(INDEXES[name](site))
                site.check_thresholds()
            shutil.rmtree(where)
            yield site


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark, write the results, and return the exit code."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--only", default=",".join(INDEXES), help="comma-separated list of indexes")
    cli.add_argument("--count", type=int, default=1_000_000, help=f"per index; duplicates: {DUPLICATES_FACTOR} x")
    cli.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="folder on the disk to measure")
    add_results_option(cli)
    asked = cli.parse_args(argv)
    names = asked.only.split(",")
    if not INDEXES.keys() >= set(names):
        cli.error(f"--only {asked.only}: use some of {', '.join(INDEXES)}")
    with tempfile.TemporaryDirectory(prefix="twinbus-bench-", dir=asked.folder) as folder:
        sites = list(measure(names, asked.count, Path(folder)))
    bars = [bar for site in sites for bar in site.thresholds]
    phases = [phase for site in sites for phase in site.phases]
    where = environment_facts("uvloop", "rocksdict")
    page = (
        "# Benchmark: full indexes\n\n"
        f"Generated by `python -m bench.indexes`. Each index has {asked.count:,} messages; duplicate detection has\n"
        f"{DUPLICATES_FACTOR} times as many ids. Each index is in a separate server with one store, filled in batches\n"
        f"of {BATCH}. Pauses are those of the server's event loop, as measured by the server. An *own* pause does not\n"
        "include the time in which other programs or the host had the processor, whichever is longer.\n\n"
        f"{thresholds_table(bars)}\n\n{TABLE_HEAD}"
        + "\n".join([phase.row() for phase in phases])
        + f"\n\n{environment_lines(where)}\n"
    )
    measured = {
        "count": asked.count,
        "bars": bars,
        "phases": [asdict(phase) for phase in phases],
        "surroundings": where,
    }
    write(asked.results, "indexes", page, measured)
    return check_thresholds(bars)


if __name__ == "__main__":
    run(main)
