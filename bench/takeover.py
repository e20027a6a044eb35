"""Measures the time until another host of the syphon takes over if the active one is silent, killed, or closed.

    python -m bench.takeover [--runs 20]

There is a pair of servers, and two processes that host the syphon. The active host is stopped (SIGSTOP) and continued,
disconnected from the secondary by a silent network, killed, or closed (SIGTERM). At that moment, a message is parked in
each backlog queue. The takeover is complete when the other host has moved all of them to the primary. A host that
returns stands by, and takes over next. Writes docs/benchmarks/takeover.md and takeover.json; exits with 1 if a
threshold is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uvloop

from bench.support.results import (
    Threshold,
    add_results_option,
    check_thresholds,
    environment_facts,
    environment_lines,
    thresholds_table,
    write,
)
from bench.support.server import ROOT, Server, run
from tests.support.relay import Relay
from twinbus.client import BrokeredMessage, MessagingFactory
from twinbus.client.pairing.backlog import rotation
from twinbus.client.pairing.backlog.rewriting import park
from twinbus.client.pairing.syphon.pump import SILENCE_LIMIT_S, STANDBY_POLL_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from twinbus.client.sender import MessageSender

MAX_TAKEOVER_S: Final = 10.0
"""Maximum p95 if the host is silent."""
MAX_CLEAN_TAKEOVER_S: Final = STANDBY_POLL_S + 1.0
"""Maximum p95 if the connection of the host has ended."""
PRIMARY: Final = "contoso"
QUEUE: Final = "orders"
BACKLOG_QUEUES: Final = 10
KINDS: Final = ("stopped", "network silent", "killed", "closed")
SILENT_KINDS: Final = KINDS[:2]
POLL_INTERVAL_S: Final = 0.05
TIMEOUT_S: Final = 400.0
"""Longer than any takeover, so that a slow takeover is measured and not cut off."""
SETTLE_S: Final = 3.0
"""Time that a run waits for a returned host before it counts the messages that have arrived."""


class SyphonHostProcess:
    """A process that hosts the syphon, and the network between it and the secondary."""

    def __init__(self, relay: Relay, log: Path) -> None:
        """Create a host that is not started."""
        self.relay = relay
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, primary: Server, secondary: Server) -> None:
        """Start the process."""
        words = [sys.executable, "-m", "bench.syphon_host", PRIMARY, str(BACKLOG_QUEUES)]
        with self._log.open("ab") as log:  # one log for all starts
            self._process = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stderr=log)
        assert self._process.stdin is not None
        through = secondary.connection_string.replace(f":{secondary.amqp_port}", f":{self.relay.port}", 1)
        with self._process.stdin as told:
            told.write(f"{primary.connection_string}\n{through}\n{secondary.management_string}".encode())

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        assert self._process is not None
        self._process.send_signal(number)

    async def end(self) -> None:
        """Wait until the process ends, and kill it on time-out."""
        if self._process is not None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
            self._process = None


@dataclass
class TakeoverSetup:
    """The pair and the two hosts."""

    primary: Server
    secondary: Server
    senders: Sequence[MessageSender]
    active: SyphonHostProcess
    stand_by: SyphonHostProcess
    parked: int = 0

    async def park(self) -> None:
        """Put one message in each backlog queue."""
        for sender in self.senders:
            message = BrokeredMessage("x", message_id=f"order-{self.parked}")
            await sender.deliver(park(message.encode(int(time.time() * 1000)), 0, QUEUE, is_possible_duplicate=False))
            self.parked += 1

    async def arrived(self) -> int:
        """Return the number of messages in the primary."""
        return await asyncio.to_thread(self.primary.message_count, QUEUE)

    async def seconds_until_all_arrived(self, since_s: float) -> float:
        """Wait until all parked messages have arrived, and return the seconds since `since_s`."""
        while await self.arrived() < self.parked:
            if time.monotonic() > since_s + TIMEOUT_S:
                sys.exit(f"after {TIMEOUT_S:g} s {await self.arrived():,} of {self.parked:,} messages have arrived")
            await asyncio.sleep(POLL_INTERVAL_S)
        return time.monotonic() - since_s

    async def begin(self) -> None:
        """Start both hosts, one after the other."""
        for host in (self.stand_by, self.active):
            await self._start(host)
        await asyncio.sleep(SETTLE_S)

    async def _start(self, host: SyphonHostProcess) -> None:
        host.start(self.primary, self.secondary)
        await asyncio.sleep(SETTLE_S)
        await self.park()
        await self.seconds_until_all_arrived(time.monotonic())

    async def take_over(self, kind: str) -> float:
        """Make the active host fail. Return the seconds until the other host, now active, has moved all messages."""
        await asyncio.sleep(random.uniform(0, SILENCE_LIMIT_S))  # a random moment
        struck, since_s = self.active, time.monotonic()
        if kind == "stopped":
            struck.send_signal(signal.SIGSTOP)
        elif kind == "network silent":
            struck.relay.drop_silently()
        else:
            struck.send_signal(signal.SIGKILL if kind == "killed" else signal.SIGTERM)
        await self.park()
        took_s = await self.seconds_until_all_arrived(since_s)
        self.active, self.stand_by = self.stand_by, struck
        await self._restore_host(struck, kind)
        return took_s

    async def _restore_host(self, failed: SyphonHostProcess, kind: str) -> None:
        if kind == "stopped":
            failed.send_signal(signal.SIGCONT)
        elif kind == "network silent":
            await failed.relay.restore()
        else:
            await failed.end()
            self.active, self.stand_by = failed, self.active  # the host that was started last is active
            await self._start(failed)
        await asyncio.sleep(SETTLE_S)


@dataclass
class TakeoverMeasurement:
    """Results of all runs."""

    took_s: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    twice: int = 0
    """Number of duplicates that have arrived."""

    @property
    def thresholds(self) -> list[Threshold]:
        """The thresholds."""
        bars = [
            Threshold(
                f"{kind}: p95 of the takeover time",
                percentile(took_s, 95),
                MAX_TAKEOVER_S if kind in SILENT_KINDS else MAX_CLEAN_TAKEOVER_S,
                " s",
                is_ceiling=True,
            )
            for kind, took_s in self.took_s.items()
        ]
        return [*bars, Threshold("messages that arrived twice", self.twice, 0, is_ceiling=True)]


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the smallest value that `percent` percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


@contextlib.asynccontextmanager
async def start_setup(primary: Server, secondary: Server, folder: Path) -> AsyncIterator[TakeoverSetup]:
    """Run both hosts for the duration of the block."""
    async with (
        Relay("127.0.0.1", secondary.amqp_port) as one,
        Relay("127.0.0.1", secondary.amqp_port) as other,
        MessagingFactory.from_connection_string(secondary.connection_string) as factory,
    ):
        senders = [
            factory.create_message_sender(rotation.backlog_queue_path(PRIMARY, index))
            for index in range(BACKLOG_QUEUES)
        ]
        hosts = SyphonHostProcess(one, folder / "one.log"), SyphonHostProcess(other, folder / "other.log")
        made = TakeoverSetup(primary, secondary, senders, *hosts)
        try:
            await made.begin()
            yield made
        finally:
            for host in hosts:
                await host.end()


async def measure(primary: Server, secondary: Server, runs: int, folder: Path) -> TakeoverMeasurement:
    """Measure `runs` takeovers of each kind, alternately."""
    measured = TakeoverMeasurement()
    async with start_setup(primary, secondary, folder) as here:
        for number in range(1, runs + 1):
            for kind, took_s in measured.took_s.items():
                took_s.append(await here.take_over(kind))
                print(f"run {number}, {kind}: {took_s[-1]:.2f} s", flush=True)
        measured.twice = await here.arrived() - here.parked
    return measured


def make_page(measured: TakeoverMeasurement, where: dict[str, str], runs: int) -> str:
    """Return the page."""
    rows = "\n".join(
        f"| {kind} | {statistics.median(took_s):.2f} s | {percentile(took_s, 95):.2f} s | {max(took_s):.2f} s |"
        for kind, took_s in measured.took_s.items()
    )
    return (
        "# Benchmark: takeover of the syphon\n\n"
        f"Generated by `python -m bench.takeover`. Two processes host the syphon of {BACKLOG_QUEUES} backlog queues.\n"
        f"The active host fails {runs} times in each way, at random moments. At that moment, a message is parked in\n"
        "each queue. A takeover is complete when all of these messages have arrived in the primary. A silent host\n"
        f"loses its queues after {SILENCE_LIMIT_S:g} s; a standby host asks for them every {STANDBY_POLL_S:g} s.\n\n"
        f"{thresholds_table(measured.thresholds)}\n\n"
        "| failure of the active host | p50 | p95 | max |\n|---|---|---|---|\n"
        f"{rows}\n\n{environment_lines(where)}\n"
    )


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark, write the results, and return the exit code."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--runs", type=int, default=20, help="takeovers of each kind (default: %(default)s)")
    add_results_option(cli)
    asked = cli.parse_args(argv)
    with (
        tempfile.TemporaryDirectory(prefix="twinbus-bench-") as folder,
        Server.started(Path(folder) / "primary", "--min-free=0") as primary,
        Server.started(Path(folder) / "secondary", "--min-free=0") as secondary,
    ):
        primary.create_queue(QUEUE)
        measured = uvloop.run(measure(primary, secondary, asked.runs, Path(folder)))
    where = environment_facts("uvloop", "rocksdict")
    where["load average"] = f"{os.getloadavg()[0]:.1f}"  # other load on the machine affects every figure
    kept = {"bars": measured.thresholds, "took_s": measured.took_s, "surroundings": where}
    write(asked.results, "takeover", make_page(measured, where, asked.runs), kept)
    return check_thresholds(measured.thresholds)


if __name__ == "__main__":
    run(main)
