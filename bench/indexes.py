"""Measures every index of a queue, full: sessions, scheduled messages, ids of duplicates, expiry, deferred messages.

    python -m bench.indexes [--only sessions,scheduled,duplicates,expiry,dropped,deferred] [--count 1000000]

Each index is filled in a server of its own, used, and the server is stopped, killed and started again with it. How long
the server's loop could not do anything is measured inside the server, phase by phase (`--measure-pauses`). A pause of
its own is one without the time in which other programs had the processor, or the host of a virtual machine had one
(`bench.host`), whichever is longer; a second server, which has nothing to do, shows what is left of these. The
duplicates are five times as many as the others. Writes docs/benchmarks/indexes.md and indexes.json; exits 1 where a bar
is missed.
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

from bench.client import connected, sequence_of, write_message
from bench.host import watching
from bench.phases import BATCH, BODY, HEAD, PROBE, QUEUE, Measured, Site
from bench.record import add_results_option, bars_table, facts, judge, surroundings, write
from bench.serving import run
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


async def measure_sessions(site: Site) -> None:
    """A session for each message."""
    server, some = site.server, max(1, min(1_000, site.count // 20))
    server.make(QUEUE, RequiresSession="true", LockDuration="PT5M", MaxSizeInMegabytes=5120)
    await site.fill(lambda number: write_message(f"m-{number}", BODY, session=f"session-{number:07}"))
    seen: list[str] = []
    async with site.phase("accept the next, one after the other", some), connected(server) as client:
        for _ in range(some):
            link, session = await client.accept_session(QUEUE)
            seen.append(session)
            await client.empty_session(link, 1)
    site.expect("order of sessions", seen, [f"session-{number:07}" for number in range(some)])
    await accept_by_several(site, "accept the next, by several at once", some, seen)
    await list_pages(site)
    async with site.phase("accept by name, in the midst of all", some), connected(server) as client:
        for number in range(site.count // 2, site.count // 2 + some):
            link, session = await client.accept_session(QUEUE, f"session-{number:07}")
            seen.append(session)
            await client.empty_session(link, 1)
    await hold_many(site, min(4_000, site.count // 4))
    site.kill("with all of them")
    await accept_by_several(site, "after SIGKILL, accept the next", some, seen)
    site.restart("with all of them")
    await accept_by_several(site, "after a restart, accept the next", some, seen)
    site.expect("sessions that were given twice", len(seen) - len(set(seen)), 0)
    site.expect_counts(Active=site.count - len(seen))
    await purge(site, QUEUE, site.count - len(seen))


async def accept_by_several(site: Site, name: str, count: int, seen: list[str]) -> None:
    """Some receivers on a connection each, which accept, receive and complete."""
    async with site.phase(name, count), contextlib.AsyncExitStack() as stack:
        todo = iter(range(count))

        async def work() -> None:
            client = await stack.enter_async_context(connected(site.server))
            for _ in todo:
                link, session = await client.accept_session(QUEUE)
                seen.append(session)
                await client.empty_session(link, 1)

        await asyncio.gather(*[work() for _ in range(AT_ONCE)])


async def list_pages(site: Site) -> None:
    """The first pages of the sessions, one after the other, and one far behind."""
    async with connected(site.server) as client:
        found: list[str] = []
        async with site.phase("list 20 pages of 100", 2_000):
            for _ in range(20):
                page = await client.ask(QUEUE, "com.microsoft:get-message-sessions", {"skip": len(found), "top": 100})
                found.extend(page["sessions-ids"].items if page else [])
        site.expect("sessions listed", len(set(found)), min(2_000, site.server.counts(QUEUE)["Active"]))
        far = site.count // 50
        async with site.phase("list a page far behind", far, probes=True):
            await client.ask(QUEUE, "com.microsoft:get-message-sessions", {"skip": far, "top": 100})


async def hold_many(site: Site, count: int) -> None:
    """Many sessions that one connection has at a time; then the connection is gone."""
    async with connected(site.server) as client:
        held: list[str] = []
        async with site.phase("hold many at a time", count):
            todo = iter(range(count))

            async def work() -> None:
                for _ in todo:
                    _, session = await client.accept_session(QUEUE)
                    held.append(session)

            await asyncio.gather(*[work() for _ in range(AT_ONCE)])
        site.expect("sessions held", len(set(held)), count)
        async with site.phase("... and lose them with the connection", count, probes=True):
            client.peer.transport.abort()
            await asyncio.sleep(1)


async def measure_scheduled(site: Site) -> None:
    """All for the same second."""
    server, cancelled = site.server, min(1_000, site.count // 4)
    due_ms = later_ms(site)
    server.make(QUEUE, MaxSizeInMegabytes=5120)
    await site.fill(lambda number: write_message(f"m-{number}", BODY, due_ms=due_ms + number % 1_000))
    site.kill("with all of them")
    async with site.phase("cancel by number", cancelled), connected(server) as client:
        for first in range(1, cancelled + 1, 100):
            numbers = Array(int, [*range(first, min(first + 100, cancelled + 1))])
            await client.ask(QUEUE, "com.microsoft:cancel-scheduled-message", {"sequence-numbers": numbers})
    site.restart("with all of them")
    left = site.count - cancelled
    site.expect_counts(Scheduled=left, Active=0)
    await sleep_until(site, due_ms)
    async with site.phase("all are due", left, probes=True):
        await site.wait_until(lambda counts: counts["Scheduled"] == 0)
    site.expect_counts(Scheduled=0, Active=left)
    await receive_some(site, QUEUE)
    site.kill("when all are active")
    site.expect_counts(Active=left - some_of(site))
    await purge(site, QUEUE, left - some_of(site))


async def measure_duplicates(site: Site) -> None:
    """A window that holds all ids, which then passes."""
    server, some = site.server, some_of(site)
    window = {"RequiresDuplicateDetection": "true", "MaxSizeInMegabytes": 5120}
    server.make(QUEUE, **window, DuplicateDetectionHistoryTimeWindow="P1D")
    await site.fill(lambda number: write_message(f"id-{number}", b"d"))
    await site.fill(lambda number: write_message(f"id-{number}", b"d"), some, "the first ids again")
    await site.fill(lambda number: write_message(f"id-{site.count - some + number}", b"d"), some, "the last ids again")
    site.expect_counts(Active=site.count)
    await site.fill(lambda number: write_message(f"new-{number}", b"d"), some, "new ids")
    site.expect_counts(Active=site.count + some)
    site.kill("with all of them")
    every = max(1, site.count // some)
    await site.fill(lambda number: write_message(f"id-{every * number}", b"d"), some, "after SIGKILL, old ids")
    site.expect_counts(Active=site.count + some)
    site.restart("with all of them")
    await site.fill(lambda number: write_message(f"id-{every * number}", b"d"), some, "after a restart, old ids")
    site.expect_counts(Active=site.count + some)
    server.change(QUEUE, **window, DuplicateDetectionHistoryTimeWindow="PT20S")
    await site.fill(lambda number: write_message(f"next-{number}", b"d"), 1, "another generation begins")
    await asyncio.sleep(21)
    await site.fill(lambda number: write_message(f"last-{number}", b"d"), some, "the ids are forgotten; new ones")
    await site.fill(lambda number: write_message(f"id-{every * number}", b"d"), some, "ids that were forgotten")
    site.expect_counts(Active=site.count + 3 * some + 1)
    await purge(site, QUEUE, site.count + 3 * some + 1)


async def measure_expiry(site: Site) -> None:
    """All expire in the same second, and are dead-lettered."""
    server, expires_ms = site.server, later_ms(site)
    server.make(QUEUE, DeadLetteringOnMessageExpiration="true", MaxSizeInMegabytes=5120)
    await site.fill(lambda number: write_message(f"m-{number}", BODY, expires_ms=expires_ms + number % 1_000))
    site.kill("with all of them")
    site.expect_counts(Active=site.count, DeadLetter=0)
    await sleep_until(site, expires_ms)
    async with site.phase("all expire", site.count, probes=True):
        await site.wait_until(lambda counts: counts["Active"] == 0)
    site.expect_counts(Active=0, DeadLetter=site.count)
    site.restart("when all are dead letters")
    await receive_some(site, DEAD)
    await purge(site, DEAD, site.count - some_of(site))


async def measure_dropped(site: Site) -> None:
    """All expire in the same second, and are dropped; the server is killed in the midst of it."""
    server, expires_ms = site.server, later_ms(site)
    server.make(QUEUE, MaxSizeInMegabytes=5120)
    await site.fill(lambda number: write_message(f"m-{number}", BODY, expires_ms=expires_ms + number % 1_000))
    site.restart("with all of them")
    site.expect_counts(Active=site.count)
    await sleep_until(site, expires_ms)
    async with site.phase("half of them expire", site.count // 2, probes=True):
        await site.wait_until(lambda counts: counts["Active"] <= site.count // 2)
    site.kill("in the midst of it")
    async with site.phase("the others expire", site.count // 2, probes=True):
        await site.wait_until(lambda counts: counts["Active"] == 0)
    site.expect_counts(All=0)
    await site.fill(lambda number: write_message(f"m-{number}", BODY), some_of(site), "then send some")
    await receive_some(site, QUEUE)
    site.expect_counts(All=0)


async def measure_deferred(site: Site) -> None:
    """Received, and set aside."""
    server, some = site.server, some_of(site)
    server.make(QUEUE, LockDuration="PT5M", MaxSizeInMegabytes=5120)
    await site.fill(lambda number: write_message(f"m-{number}", BODY))
    async with site.phase("receive and defer", site.count), connected(server) as client:
        numbers = await client.take(QUEUE, site.count, DEFERRED, credit=4_000)
    site.expect("messages deferred", sorted(numbers) == [*range(1, site.count + 1)], expected=True)
    site.kill("with all of them")
    site.expect_counts(All=site.count, Active=0)
    async with site.phase("receive by number, and delete", some), connected(server) as client:
        every = max(1, site.count // some)
        wanted = [*range(1, site.count + 1, every)][:some]
        for first in range(0, some, 100):
            asked = {"sequence-numbers": Array(int, [*wanted[first : first + 100]]), "receiver-settle-mode": 0}
            answer = await client.ask(QUEUE, "com.microsoft:receive-by-sequence-number", asked)
            site.expect("received by number", len(answer["messages"]), len(wanted[first : first + 100]))
    site.restart("with all of them")
    left = site.count - some
    async with site.phase("peek through all", left, probes=True), connected(server) as client:
        site.expect("peeked", await peek_through(client.ask), left)
    await site.fill(lambda number: write_message(f"n-{number}", BODY), some, "send some")
    await receive_some(site, QUEUE)
    await purge(site, QUEUE, left, state="deferred")


# --- what several of them do ------------------------------------------------------------------------------------------


def some_of(site: Site) -> int:
    """As many as are tried where not all need be."""
    return min(10_000, max(1, site.count // 10))


def later_ms(site: Site) -> int:
    """A time after the fill and two restarts, at the beginning of a second."""
    return int(time.time() + site.count / SLOWEST_FILL + SPARE_S) * 1_000


async def sleep_until(site: Site, when_ms: int) -> None:
    """Nothing is done until then; what was filled in must have been so by now."""
    wait_s = when_ms / 1_000 - time.time()
    site.expect("was filled in time", wait_s > 0, expected=True)
    async with site.phase("nothing"):
        await asyncio.sleep(max(0.0, wait_s))


async def receive_some(site: Site, where: str) -> None:
    """Receive and complete."""
    async with site.phase("receive and complete some", some_of(site)), connected(site.server) as client:
        numbers = await client.take(where, some_of(site), ACCEPTED)
    site.expect("received in order, each once", numbers == sorted(set(numbers)), expected=True)


async def purge(site: Site, where: str, expected: int, state: str = "active") -> None:
    """Delete all that is left."""
    async with site.phase("purge", expected, probes=True), connected(site.server) as client:
        answer = await client.ask(where, "twinbus:purge", {"state": state})
    site.expect("purged", answer["removed"], expected)
    site.expect_counts(All=0)


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

INDEXES: Final[dict[str, Callable[[Site], Coroutine[None, None, None]]]] = {
    "sessions": measure_sessions,
    "scheduled": measure_scheduled,
    "duplicates": measure_duplicates,
    "expiry": measure_expiry,
    "dropped": measure_dropped,
    "deferred": measure_deferred,
}


def measure(names: Iterable[str], count: int, folder: Path) -> Iterator[Site]:
    """One index after the other, each in a server of its own."""
    with watching() as host, Measured.started(folder / "idle", *OPTIONS) as idle:
        assert isinstance(idle, Measured)
        for name in names:
            where = folder / name
            with Measured.started(where, *OPTIONS) as server:
                assert isinstance(server, Measured)
                server.make(PROBE)
                site = Site(name, server, idle, host, count * (DUPLICATES_FACTOR if name == "duplicates" else 1))
                uvloop.run(INDEXES[name](site))
                site.judge()
            shutil.rmtree(where)
            yield site


def main(words: list[str] | None = None) -> int:
    """Measure, write, judge."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--only", default=",".join(INDEXES), help="indexes, with commas between them")
    cli.add_argument("--count", type=int, default=1_000_000, help=f"in each index; duplicates: {DUPLICATES_FACTOR} x")
    cli.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to be measured")
    add_results_option(cli)
    asked = cli.parse_args(words)
    names = asked.only.split(",")
    if not INDEXES.keys() >= set(names):
        cli.error(f"--only {asked.only}: there are {', '.join(INDEXES)}")
    with tempfile.TemporaryDirectory(prefix="twinbus-bench-", dir=asked.folder) as folder:
        sites = list(measure(names, asked.count, Path(folder)))
    bars = [bar for site in sites for bar in site.bars]
    phases = [phase for site in sites for phase in site.phases]
    where = surroundings("uvloop", "rocksdict")
    page = (
        "# Full indexes, measured\n\n"
        f"Made by `python -m bench.indexes`: {asked.count:,} messages in each index, and {DUPLICATES_FACTOR} times as\n"
        f"many ids of duplicates, each index in a server of its own with one store, filled in batches of {BATCH}.\n"
        "Pauses are those of the server's loop, measured inside it; those of its own are without the time in which\n"
        "other programs had the processor, or the host had it, whichever is longer.\n\n"
        f"{bars_table(bars)}\n\n{HEAD}" + "\n".join([phase.row() for phase in phases]) + f"\n\n{facts(where)}\n"
    )
    measured = {
        "count": asked.count,
        "bars": bars,
        "phases": [asdict(phase) for phase in phases],
        "surroundings": where,
    }
    write(asked.results, "indexes", page, measured)
    return judge(bars)


if __name__ == "__main__":
    run(main)
