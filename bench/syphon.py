"""Measures how fast the syphon moves a backlog, compared with the shovel of RabbitMQ 4 on the same machine.

    python -m bench.syphon [--rabbitmq DIR] [--rounds 3] [--count 100000]

For the syphon, two `twinbus serve` are a pair. Ten backlog queues of the secondary hold messages, parked like those of
a paired sender: half of them belong to 100 sessions and have a time to live, half are plain. A separate process hosts
the syphon. The shovel moves the same number of plain messages inside one RabbitMQ (bench/support/shovel.py), in several
queue layouts, of which the fastest counts. Both are measured from the arrival of the first message until all have
arrived and left their sources; and including the start. Writes docs/benchmarks/syphon.md and syphon.json; exits with 1
if a threshold is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime as dt
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uvloop

from bench.speed import default_folder, rabbitmq
from bench.support.results import (
    Threshold,
    add_results_option,
    check_thresholds,
    environment_facts,
    environment_lines,
    thresholds_table,
    write,
)
from bench.support.server import ROOT, ProcessStats, Server, run
from bench.support.shovel import PREFETCH, Moved, QueueLayout, Shovel
from twinbus.client import BrokeredMessage, MessagingFactory
from twinbus.client.management import NamespaceManager
from twinbus.client.pairing.backlog import rotation
from twinbus.client.pairing.backlog.rewriting import park
from twinbus.model.queue import QueueDescription

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MIN_RATIO: Final = 1.5
TARGET_RATIO: Final = 2.0
SIZE: Final = 1_024
SESSIONS: Final = 100
BACKLOG_QUEUES: Final = 10
PRIMARY: Final = "contoso"
SESSION_QUEUE: Final = "orders-in-sessions"
PLAIN_QUEUE: Final = "orders"
DESTINATIONS: Final = (SESSION_QUEUE, PLAIN_QUEUE)
ARRANGEMENTS: Final = (
    QueueLayout(BACKLOG_QUEUES, 1),
    QueueLayout(1, 1),
    QueueLayout(BACKLOG_QUEUES, len(DESTINATIONS)),
)
CONCURRENT_SENDS: Final = 500
POLL_INTERVAL_S: Final = 0.02
FIRST_LOOK_S: Final = 2.0
TIMEOUT_S: Final = 300.0


# --- the backlog ------------------------------------------------------------------------------------------------------


def parked_messages(count: int) -> Iterator[bytes]:
    """Yield messages as ten paired senders would park them, each in its backlog queue, with and without sessions."""
    now_ms, life = int(time.time() * 1000), dt.timedelta(days=1)
    for number in range(count):
        turn, is_plain = divmod(number // BACKLOG_QUEUES, 2)
        message = BrokeredMessage(
            os.urandom(SIZE),
            message_id=f"order-{number}",
            session_id=None if is_plain else f"session-{turn % SESSIONS}",
            time_to_live=None if is_plain else life,
        )
        path = PLAIN_QUEUE if is_plain else SESSION_QUEUE
        yield park(message.encode(now_ms), 0, path, is_possible_duplicate=False)


async def fill(primary: Server, secondary: Server, count: int) -> None:
    """Recreate the queues of both namespaces, and park the messages in those of the secondary."""
    await make_queues(primary, secondary)
    await park_messages(secondary, count)


async def make_queues(primary: Server, secondary: Server) -> None:
    """Recreate the destinations in the primary and the backlog queues in the secondary."""
    async with (
        NamespaceManager.from_connection_string(primary.management_string) as there,
        NamespaceManager.from_connection_string(secondary.management_string) as here,
    ):
        for path in DESTINATIONS:
            description = QueueDescription(max_size_mb=5120, requires_session=path == SESSION_QUEUE)
            await _recreate_queue(there, path, description)
        for path in backlog_paths():
            await _recreate_queue(here, path, rotation.BACKLOG_QUEUE_DESCRIPTION)


async def park_messages(secondary: Server, count: int) -> None:
    """Send messages to the backlog queues in rotation, as paired senders park them."""
    async with MessagingFactory.from_connection_string(secondary.connection_string) as factory:
        senders = [factory.create_message_sender(path) for path in backlog_paths()]
        sends = zip(itertools.cycle(senders), parked_messages(count), strict=False)
        while some := list(itertools.islice(sends, CONCURRENT_SENDS)):
            await asyncio.gather(*[sender.deliver(parked) for sender, parked in some])


def backlog_paths() -> list[str]:
    """Return the paths of the backlog queues."""
    return [rotation.backlog_queue_path(PRIMARY, index) for index in range(BACKLOG_QUEUES)]


async def _recreate_queue(manager: NamespaceManager, path: str, description: QueueDescription) -> None:
    if await manager.queue_exists(path):
        await manager.delete_queue(path)
    await manager.create_queue(path, description)


# --- the syphon -------------------------------------------------------------------------------------------------------


class Syphon:
    """The syphon between two servers."""

    host_options: tuple[str, ...] = ()
    """Options of the program that hosts the syphon."""

    def __init__(self, primary: Server, secondary: Server, checkout: Path = ROOT, python: str = sys.executable) -> None:
        """Create the syphon of two running servers. `checkout` and `python` are those of the host (default: these)."""
        self._primary = primary
        self._secondary = secondary
        self._checkout = checkout
        self._python = python

    def move(self, count: int) -> tuple[Moved, float]:
        """Fill the backlog queues, and start a host that drains them. Return the result and the host's CPU time."""
        uvloop.run(fill(self._primary, self._secondary, count))
        started_s = time.monotonic()
        with self.run_host() as host:
            first_s = self.wait(started_s, host, lambda: self.arrived() > 0)
            self._wait_for_most(first_s, count)
            last_s = self.wait(started_s, host, lambda: self.arrived() >= count and self.parked() == 0)
            cpu_s = ProcessStats(host.pid).cpu_s
        if self.arrived() != count:
            sys.exit(f"the syphon moved {self.arrived():,} messages instead of {count:,}")
        return Moved(count, last_s - first_s, last_s - started_s), cpu_s

    @contextlib.contextmanager
    def run_host(self) -> Iterator[subprocess.Popen[bytes]]:
        """Start the host. It ends with the block."""
        words = [self._python, "-m", "bench.syphon_host", PRIMARY, str(BACKLOG_QUEUES), *self.host_options]
        host = subprocess.Popen(words, cwd=self._checkout, stdin=subprocess.PIPE)
        assert host.stdin is not None
        with host.stdin as told:
            for string in (self._primary.connection_string, self._secondary.connection_string):
                told.write(f"{string}\n".encode())
            told.write(self._secondary.management_string.encode())
        try:
            yield host
        finally:
            host.terminate()
            host.wait()

    def wait(self, started_s: float, host: subprocess.Popen[bytes], test: Callable[[], bool]) -> float:
        """Wait until the test is true, and return the time. Exit if the host ends or takes too long."""
        while not test():
            if host.poll() is not None or time.monotonic() > started_s + TIMEOUT_S:
                sys.exit(f"the syphon did not move all: {self.parked():,} parked, {self.arrived():,} arrived")
            time.sleep(POLL_INTERVAL_S)
        return time.monotonic()

    def _wait_for_most(self, first_s: float, count: int) -> None:
        """Wait for most of the messages with few polls, because each poll costs the servers some milliseconds.

        The polls of the shovel run inside RabbitMQ, and cost next to nothing.
        """
        left_s = FIRST_LOOK_S
        while left_s > POLL_INTERVAL_S:
            time.sleep(left_s / 2)
            arrived = self.arrived()
            took_s = time.monotonic() - first_s
            left_s = min(FIRST_LOOK_S, took_s / max(1, arrived) * (count - arrived))

    def arrived(self) -> int:
        """Count the messages in the destinations."""
        return sum(self._primary.message_count(path) for path in DESTINATIONS)

    def parked(self) -> int:
        """Count the messages in the backlog queues."""
        return sum(self._secondary.message_count(path) for path in backlog_paths())


# --- comparison -------------------------------------------------------------------------------------------------------


@dataclass
class SyphonMeasurement:
    """Results of all rounds."""

    syphon: list[Moved] = field(default_factory=list)
    host_cpu_s: list[float] = field(default_factory=list)
    shovels: dict[str, list[Moved]] = field(default_factory=dict)

    @property
    def best(self) -> str:
        """The queue layout in which the shovel is fastest."""
        return max(self.shovels, key=lambda name: rate_of(self.shovels[name]))

    @property
    def thresholds(self) -> list[Threshold]:
        """The thresholds."""
        ours, theirs = self.syphon, self.shovels[self.best]
        return [
            Threshold(
                f"rate, relative to the shovel (target: {TARGET_RATIO:g}x)",
                rate_of(ours) / rate_of(theirs),
                MIN_RATIO,
                "x",
            ),
        ]


def rate_of(moves: list[Moved]) -> float:
    """Return the median rate."""
    return statistics.median(move.rate for move in moves)


def whole_rate_of(moves: list[Moved]) -> float:
    """Return the median rate including the start."""
    return statistics.median(move.whole_rate for move in moves)


def measure(syphon: Syphon, shovel: Shovel, rounds: int, count: int) -> SyphonMeasurement:
    """Measure the syphon, and the shovel in all queue layouts, in each round."""
    measured = SyphonMeasurement()
    for number in range(1, rounds + 1):
        moved, cpu_s = syphon.move(count)
        measured.syphon.append(moved)
        measured.host_cpu_s.append(cpu_s)
        print(f"round {number}, syphon: {moved.rate:,.0f}/s, {moved.whole_rate:,.0f}/s with its start", flush=True)
        for arrangement in ARRANGEMENTS:
            moved = shovel.move(arrangement, count, SIZE)
            measured.shovels.setdefault(str(arrangement), []).append(moved)
            print(f"round {number}, shovel, {arrangement}: {moved.rate:,.0f}/s", flush=True)
    return measured


def make_page(measured: SyphonMeasurement, where: dict[str, str], count: int) -> str:
    """Return the page."""
    rows = {"syphon": measured.syphon, **{f"shovel, {name}": moves for name, moves in measured.shovels.items()}}
    lines = [
        f"| {name} | {rate_of(moves):,.0f} | {whole_rate_of(moves):,.0f} | "
        f"{', '.join(f'{move.rate:,.0f}' for move in moves)} |"
        for name, moves in rows.items()
    ]
    cpu_us = statistics.median(measured.host_cpu_s) / count * 1e6
    return (
        "# Benchmark: the syphon and RabbitMQ's shovel\n\n"
        f"Generated by `make bench` (`python -m bench.syphon`). Both move {count:,} messages of {SIZE:,} bytes, and\n"
        "delete a message at its source only after it is on disk at its destination. They alternate on one machine.\n"
        "Only the ratio is meaningful.\n\n"
        f"The syphon moves parked messages from {BACKLOG_QUEUES} backlog queues of one `twinbus serve` to two queues\n"
        f"of another. Half of them belong to {SESSIONS} sessions, arrive in order, and have a time to live. The\n"
        f"shovel of RabbitMQ 4 moves plain messages within one broker (`on-confirm`, up to {PREFETCH:,} messages in\n"
        "flight per shovel). Its fastest queue layout counts, which is\n"
        f"{measured.best}.\n\n"
        f"{thresholds_table(measured.thresholds)}\n\n"
        "| messages/s | median | with the start | each round |\n|---|---|---|---|\n"
        + "\n".join(lines)
        + f"\n\nThe host of the syphon used {cpu_us:,.0f} us of CPU time per message, including its start.\n\n"
        f"{environment_lines(where)}\n"
    )


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark, write the results, and return the exit code."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--rabbitmq", type=Path, default=default_folder(), metavar="DIR", help="default: %(default)s")
    cli.add_argument("--rounds", type=int, default=3)
    cli.add_argument("--count", type=int, default=100_000)
    add_results_option(cli)
    asked = cli.parse_args(argv)
    with (
        tempfile.TemporaryDirectory(prefix="twinbus-bench-") as folder,
        rabbitmq(asked.rabbitmq),
        Server.started(Path(folder) / "primary") as primary,
        Server.started(Path(folder) / "secondary") as secondary,
    ):
        measured = measure(Syphon(primary, secondary), Shovel(asked.rabbitmq), asked.rounds, asked.count)
    where = environment_facts("uvloop", "rocksdict")
    kept = {
        "bars": measured.thresholds,
        "syphon": [asdict(moved) for moved in measured.syphon],
        "host_cpu_s": measured.host_cpu_s,
        "shovels": {name: [asdict(moved) for moved in moves] for name, moves in measured.shovels.items()},
        "surroundings": where,
    }
    write(asked.results, "syphon", make_page(measured, where, asked.count), kept)
    return check_thresholds(measured.thresholds)


if __name__ == "__main__":
    run(main)
