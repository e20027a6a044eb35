"""Measures every index of a queue, full: sessions, scheduled messages, ids of duplicates, expiry, deferred messages.

    python -m bench.indexes [--only sessions,scheduled,duplicates,expiry,dropped,deferred] [--count 1000000]

Each index is filled in a server of its own, used, and the server is stopped, killed and started again with it. How long
the server's loop could not do anything is measured inside the server, phase by phase (`--measure-pauses`). A pause of
its own is one without the time in which other programs had the processor, or the host of a virtual machine had one
(`bench.support.cpu_steal`), whichever is longer; a second server, which has nothing to do, shows what is left of these.
The duplicates are five times as many as the others. Writes docs/benchmarks/indexes.md and indexes.json; exits 1 if a
bar is missed.
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
"""Messages a second: what has a time is given one that comes after the fill even so."""
SPARE_S: Final = 10.0
"""... and after a restart."""
AT_ONCE: Final = 16
DEFERRED: Final = Modified(undeliverable_here=True)
OPTIONS: Final = ("--stores", "1", "--measure-pauses")
DEAD: Final = f"{QUEUE}/$DeadLetterQueue"


# --- the indexes ------------------------------------------------------------------------------------------------------


async def measure_sessions(index_bench: IndexBench) -> None:
    """A session for each message."""
    server, some = index_bench.server, max(1, min(1_000, index_bench.count // 20))
    server.create_index_queue(QUEUE, RequiresSession="true", LockDuration="PT5M", MaxSizeInMegabytes=5120)
    await index_bench.fill(lambda number: write_message(f"m-{number}", BODY, session=f"session-{number:07}"))
    seen: list[str] = []
    async with index_bench.phase("accept the next, one after the other", some), connect_client(server) as client:
        for _ in range(some):
            link, session = await client.accept_session(QUEUE)
            seen.append(session)
            await client.drain_session(link, 1)
    index_bench.check_value("order of sessions", seen, [f"session-{number:07}" for number in range(some)])
    await accept_by_several(index_bench, "accept the next, by several at once", some, seen)
    await list_pages(index_bench)
    async with index_bench.phase("accept by name, in the midst of all", some), connect_client(server) as client:
        for number in range(index_bench.count // 2, index_bench.count // 2 + some):
            link, session = await client.accept_session(QUEUE, f"session-{number:07}")
            seen.append(session)
            await client.drain_session(link, 1)
    await hold_many(index_bench, min(4_000, index_bench.count // 4))
    index_bench.kill("with all of them")
    await accept_by_several(index_bench, "after SIGKILL, accept the next", some, seen)
    index_bench.restart("with all of them")
    await accept_by_several(index_bench, "after a restart, accept the next", some, seen)
    index_bench.check_value("sessions that were given twice", len(seen) - len(set(seen)), 0)
    index_bench.expect_counts(Active=index_bench.count - len(seen))
    await purge(index_bench, QUEUE, index_bench.count - len(seen))


async def accept_by_several(index_bench: IndexBench, name: str, count: int, seen: list[str]) -> None:
    """Some receivers on a connection each, which accept, receive and complete."""
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
    """The first pages of the sessions, one after the other, and one far behind."""
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
        async with index_bench.phase("list a page far behind", far, probes=True):
            await client.request(QUEUE, "com.microsoft:get-message-sessions", {"skip": far, "top": 100})


async def hold_many(index_bench: IndexBench, count: int) -> None:
    """Many sessions that one connection has at a time; then the connection is gone."""
    async with connect_client(index_bench.server) as client:
        held: list[str] = []
        async with index_bench.phase("hold many at a time", count):
            todo = iter(range(count))

            async def work() -> None:
                for _ in todo:
                    _, session = await client.accept_session(QUEUE)
                    held.append(session)

            await asyncio.gather(*[work() for _ in range(AT_ONCE)])
        index_bench.check_value("sessions held", len(set(held)), count)
        async with index_bench.phase("... and lose them with the connection", count, probes=True):
            client.peer.transport.abort()
            await asyncio.sleep(1)


async def measure_scheduled(index_bench: IndexBench) -> None:
    """All for the same second."""
    server, cancelled = index_bench.server, min(1_000, index_bench.count // 4)
    due_ms = later_ms(index_bench)
    server.create_index_queue(QUEUE, MaxSizeInMegabytes=5120)
    await index_bench.fill(lambda number: write_message(f"m-{number}", BODY, due_ms=due_ms + number % 1_000))
    index_bench.kill("with all of them")
    async with index_bench.phase("cancel by number", cancelled), connect_client(server) as client:
        for first in range(1, cancelled + 1, 100):
            numbers = Array(int, [*range(first, min(first + 100, cancelled + 1))])
            await client.request(QUEUE, "com.microsoft:cancel-scheduled-message", {"sequence-numbers": numbers})
    index_bench.restart("with all of them")
    left = index_bench.count - cancelled
    index_bench.expect_counts(Scheduled=left, Active=0)
    await sleep_until(index_bench, due_ms)
    async with index_bench.phase("all are due", left, probes=True):
        await index_bench.wait_until(lambda counts: counts["Scheduled"] == 0)
    index_bench.expect_counts(Scheduled=0, Active=left)
    await receive_some(index_bench, QUEUE)
    index_bench.kill("when all are active")
    index_bench.expect_counts(Active=left - some_of(index_bench))
    await purge(index_bench, QUEUE, left - some_of(index_bench))


async def measure_duplicates(index_bench: IndexBench) -> None:
    """A window that holds all ids, which then passes."""
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
    index_bench.kill("with all of them")
    every = max(1, index_bench.count // some)
    await index_bench.fill(lambda number: write_message(f"id-{every * number}", b"d"), some, "after SIGKILL, old ids")
    index_bench.expect_counts(Active=index_bench.count + some)
    index_bench.restart("with all of them")
    await index_bench.fill(lambda number: write_message(f"id-{every * number}", b"d"), some, "after a restart, old ids")
    index_bench.expect_counts(Active=index_bench.count + some)
    server.update_queue(QUEUE, **window, DuplicateDetectionHistoryTimeWindow="PT20S")
    await index_bench.fill(lambda number: write_message(f"next-{number}", b"d"), 1, "another generation begins")
    await asyncio.sleep(21)
    await index_bench.fill(
        lambda number: write_message(f"last-{number}", b"d"), some, "the ids are forgotten; new ones"
    )
    await index_bench.fill(lambda number: write_message(f"id-{every * number}", b"d"), some, "ids that were forgotten")
    index_bench.expect_counts(Active=index_bench.count + 3 * some + 1)
    await purge(index_bench, QUEUE, index_bench.count + 3 * some + 1)


async def measure_expiry(index_bench: IndexBench) -> None:
    """All expire in the same second, and are dead-lettered."""
    server, expires_ms = index_bench.server, later_ms(index_bench)
    server.create_index_queue(QUEUE, DeadLetteringOnMessageExpiration="true", MaxSizeInMegabytes=5120)
    await index_bench.fill(lambda number: write_message(f"m-{number}", BODY, expires_ms=expires_ms + number % 1_000))
    index_bench.kill("with all of them")
    index_bench.expect_counts(Active=index_bench.count, DeadLetter=0)
    await sleep_until(index_bench, expires_ms)
    async with index_bench.phase("all expire", index_bench.count, probes=True):
        await index_bench.wait_until(lambda counts: counts["Active"] == 0)
    index_bench.expect_counts(Active=0, DeadLetter=index_bench.count)
    index_bench.restart("when all are dead letters")
    await receive_some(index_bench, DEAD)
    await purge(index_bench, DEAD, index_bench.count - some_of(index_bench))


async def measure_dropped(index_bench: IndexBench) -> None:
    """All expire in the same second, and are dropped; the server is killed in the midst of it."""
    server, expires_ms = index_bench.server, later_ms(index_bench)
    server.create_index_queue(QUEUE, MaxSizeInMegabytes=5120)
    await index_bench.fill(lambda number: write_message(f"m-{number}", BODY, expires_ms=expires_ms + number % 1_000))
    index_bench.restart("with all of them")
    index_bench.expect_counts(Active=index_bench.count)
    await sleep_until(index_bench, expires_ms)
    async with index_bench.phase("half of them expire", index_bench.count // 2, probes=True):
        await index_bench.wait_until(lambda counts: counts["Active"] <= index_bench.count // 2)
    index_bench.kill("in the midst of it")
    async with index_bench.phase("the others expire", index_bench.count // 2, probes=True):
        await index_bench.wait_until(lambda counts: counts["Active"] == 0)
    index_bench.expect_counts(All=0)
    await index_bench.fill(lambda number: write_message(f"m-{number}", BODY), some_of(index_bench), "then send some")
    await receive_some(index_bench, QUEUE)
    index_bench.expect_counts(All=0)


async def measure_deferred(index_bench: IndexBench) -> None:
    """Received, and set aside."""
    server, some = index_bench.server, some_of(index_bench)
    server.create_index_queue(QUEUE, LockDuration="PT5M", MaxSizeInMegabytes=5120)
    await index_bench.fill(lambda number: write_message(f"m-{number}", BODY))
    async with index_bench.phase("receive and defer", index_bench.count), connect_client(server) as client:
        numbers = await client.receive(QUEUE, index_bench.count, DEFERRED, credit=4_000)
    index_bench.check_value("messages deferred", sorted(numbers) == [*range(1, index_bench.count + 1)], expected=True)
    index_bench.kill("with all of them")
    index_bench.expect_counts(All=index_bench.count, Active=0)
    async with index_bench.phase("receive by number, and delete", some), connect_client(server) as client:
        every = max(1, index_bench.count // some)
        wanted = [*range(1, index_bench.count + 1, every)][:some]
        for first in range(0, some, 100):
            asked = {"sequence-numbers": Array(int, [*wanted[first : first + 100]]), "receiver-settle-mode": 0}
            answer = await client.request(QUEUE, "com.microsoft:receive-by-sequence-number", asked)
            index_bench.check_value("received by number", len(answer["messages"]), len(wanted[first : first + 100]))
    index_bench.restart("with all of them")
    left = index_bench.count - some
    async with index_bench.phase("peek through all", left, probes=True), connect_client(server) as client:
        index_bench.check_value("peeked", await peek_through(client.request), left)
    await index_bench.fill(lambda number: write_message(f"n-{number}", BODY), some, "send some")
    await receive_some(index_bench, QUEUE)
    await purge(index_bench, QUEUE, left, state="deferred")


# --- what several of them do ------------------------------------------------------------------------------------------


def some_of(index_bench: IndexBench) -> int:
    """As many as are tried where not all need be."""
    return min(10_000, max(1, index_bench.count // 10))


def later_ms(index_bench: IndexBench) -> int:
    """A time after the fill and two restarts, at the beginning of a second."""
    return int(time.time() + index_bench.count / SLOWEST_FILL + SPARE_S) * 1_000


async def sleep_until(index_bench: IndexBench, when_ms: int) -> None:
    """Nothing is done until then; what was filled in must have been so by now."""
    wait_s = when_ms / 1_000 - time.time()
    index_bench.check_value("was filled in time", wait_s > 0, expected=True)
    async with index_bench.phase("nothing"):
        await asyncio.sleep(max(0.0, wait_s))


async def receive_some(index_bench: IndexBench, where: str) -> None:
    """Receive and complete."""
    async with (
        index_bench.phase("receive and complete some", some_of(index_bench)),
        connect_client(index_bench.server) as client,
    ):
        numbers = await client.receive(where, some_of(index_bench), ACCEPTED)
    index_bench.check_value("received in order, each once", numbers == sorted(set(numbers)), expected=True)


async def purge(index_bench: IndexBench, where: str, expected: int, state: str = "active") -> None:
    """Delete all that is left."""
    async with index_bench.phase("purge", expected, probes=True), connect_client(index_bench.server) as client:
        answer = await client.request(where, "twinbus:purge", {"state": state})
    index_bench.check_value("purged", answer["removed"], expected)
    index_bench.expect_counts(All=0)


async def peek_through(ask: Callable[[str, str, dict[str, object]], Awaitable[dict[str, Any]]]) -> int:
    """How many messages are seen, page by page."""
    seen = start = 0
    while True:
        asked: dict[str, object] = {"from-sequence-number": start, "message-count": 1_000}
        page = (await ask(QUEUE, "com.microsoft:peek-message", asked)).get("messages", [])
        if not page:
            return seen
        seen += len(page)
        start = sequence_of(page[-1]["message"]) + 1


# --- all of them ------------------------------------------------------------------------------------------------------

INDEXES: Final[dict[str, Callable[[IndexBench], Coroutine[None, None, None]]]] = {
    "sessions": measure_sessions,
    "scheduled": measure_scheduled,
    "duplicates": measure_duplicates,
    "expiry": measure_expiry,
    "dropped": measure_dropped,
    "deferred": measure_deferred,
}


def measure(names: Iterable[str], count: int, folder: Path) -> Iterator[IndexBench]:
    """One index after the other, each in a server of its own."""
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
    """Measure, write, judge."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--only", default=",".join(INDEXES), help="indexes, with commas between them")
    cli.add_argument("--count", type=int, default=1_000_000, help=f"in each index; duplicates: {DUPLICATES_FACTOR} x")
    cli.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to be measured")
    add_results_option(cli)
    asked = cli.parse_args(argv)
    names = asked.only.split(",")
    if not INDEXES.keys() >= set(names):
        cli.error(f"--only {asked.only}: there are {', '.join(INDEXES)}")
    with tempfile.TemporaryDirectory(prefix="twinbus-bench-", dir=asked.folder) as folder:
        sites = list(measure(names, asked.count, Path(folder)))
    bars = [bar for site in sites for bar in site.thresholds]
    phases = [phase for site in sites for phase in site.phases]
    where = environment_facts("uvloop", "rocksdict")
    page = (
        "# Full indexes, measured\n\n"
        f"Made by `python -m bench.indexes`: {asked.count:,} messages in each index, and {DUPLICATES_FACTOR} times as\n"
        f"many ids of duplicates, each index in a server of its own with one store, filled in batches of {BATCH}.\n"
        "Pauses are those of the server's loop, measured inside it; those of its own are without the time in which\n"
        "other programs had the processor, or the host had it, whichever is longer.\n\n"
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
