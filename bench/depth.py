"""Measures memory, restarts and speed of a server that holds millions of messages, and after they were received.

    python -m bench.depth [--messages 5000000] [--chunk 100000] [--rounds 3] [--folder DIR]

All messages are in one store, in as few queues as their size limit allows. The reference is a second server with an
empty queue on the same disk. Speed is measured on one of the deep queues: while RocksDB still compacts the data that
was just written or deleted, and when RocksDB is idle, alternating with the reference. All messages are sent and
received in chunks of one size, so that each receive gets exactly the messages of one send, and the load client detects
missing and duplicated messages. A rate includes the wait for the first message. Writes docs/benchmarks/depth.md and
depth.json; exits with 1 if a threshold is missed. Needs up to 4 KB of disk space per message.
"""

from __future__ import annotations

import argparse
import math
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.support.results import (
    Threshold,
    add_results_option,
    check_thresholds,
    environment_facts,
    environment_lines,
    figures_table,
    thresholds_table,
    write,
)
from bench.support.server import MIB, LoadClient, Server, build, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.support.server import LoadRun

QUEUE_MAX_MB: Final = 5120
QUEUE_USABLE: Final = 0.9
"""Share of a queue's size that is filled: another chunk must fit."""
HEADERS_BYTES: Final = 130
"""Approximate size of a stored message without its body."""
DISK_FACTOR: Final = 3.5
"""Disk space relative to the data: data, output of compactions, and write-ahead log."""
DISK_SPARE_BYTES: Final = 2 * 2**30
MAX_RESIDENT_MIB: Final = 1024
MAX_RESTART_S: Final = 10.0
MIN_BUSY_RATIO: Final = 0.5
MIN_IDLE_RATIO: Final = 0.7
PROGRESS_EVERY_S: Final = 10.0
QUIET_S: Final = 5.0


@dataclass
class Rates:
    """Messages per second of each round, and RocksDB's background work meanwhile."""

    send: list[float] = field(default_factory=list)
    receive: list[float] = field(default_factory=list)
    wait_s: list[float] = field(default_factory=list)
    """Seconds until the first message of each receive."""
    background_mb_s: list[float] = field(default_factory=list)
    """Megabytes per second read and written by flushes and compactions."""

    def add_round(self, load: LoadClient, queue: str, chunk: int) -> None:
        """Send a chunk to a queue, and receive a chunk from it."""
        started, before = time.monotonic(), load.server.process.background
        sent, received = load.send(queue, chunk), load.receive(queue, chunk)
        moved = load.server.process.background.bytes - before.bytes
        self.send.append(sent.whole_rate)
        self.receive.append(received.whole_rate)
        self.wait_s.append(received.wait_s)
        self.background_mb_s.append(moved / 1e6 / (time.monotonic() - started))

    def text(self) -> str:
        """Return the text for a table."""
        send, receive = statistics.median(self.send), statistics.median(self.receive)
        wait_ms, background = 1e3 * max(self.wait_s), statistics.median(self.background_mb_s)
        return (
            f"{send:,.0f} sends/s, {receive:,.0f} receives/s, first message within {wait_ms:,.0f} ms, "
            f"compaction {background:,.0f} MB/s"
        )


class DepthBench:
    """A run of the benchmark: the server under test, the reference, and the results so far."""

    def __init__(self, deep: LoadClient, reference: LoadClient, arguments: argparse.Namespace) -> None:
        """Create a run. Both servers are running."""
        self.thresholds: list[Threshold] = []
        self.figures: dict[str, str] = {}
        self.rates: dict[str, Rates] = {}
        self.curves: dict[str, list[float]] = {}
        """Rate of each chunk while the queues are filled and emptied."""
        self._load = deep
        self._server = deep.server
        self._reference = reference
        self._chunk: int = arguments.chunk
        self._rounds: int = arguments.rounds
        self._still_s: float = arguments.still
        self._chunks: int = max(1, round(arguments.messages / arguments.chunk))
        usable_bytes = QUEUE_MAX_MB * MIB * QUEUE_USABLE - arguments.chunk * (arguments.size + HEADERS_BYTES)
        fits = usable_bytes / (arguments.size + HEADERS_BYTES)
        self.queues = [f"deep-{number}" for number in range(math.ceil(self.messages / fits))]
        self._at = self.queues[0]
        """Queue on which speed is measured."""

    @property
    def messages(self) -> int:
        """Number of messages, rounded to whole chunks."""
        return self._chunks * self._chunk

    def run(self) -> None:
        """Run all steps."""
        self._measure_reference()
        for name in self.queues:
            self._server.create_queue(name, QUEUE_MAX_MB)
        self._pass_through("fill", self._load.send)
        self._measure(f"with {self.messages:,} waiting", self.messages)
        self._pass_through("emptying", self._load.receive)
        self._measure(f"after {self.messages:,} were received", 0)
        self.figures["warnings in the server's log"] = str(len(self._server.log_errors()))

    def _measure_reference(self) -> None:
        self._reference.server.create_queue("empty", QUEUE_MAX_MB)
        Rates().add_round(self._reference, "empty", self._chunk)  # warm-up
        rates = Rates()
        for _ in range(self._rounds):
            rates.add_round(self._reference, "empty", self._chunk)
        self._record_rates("an empty queue", rates)
        self.figures["resident memory, an empty queue"] = _mib(self._reference.server.process.resident_bytes)

    def _pass_through(self, what: str, step: Callable[[str, int], LoadRun]) -> None:
        """Send or receive all messages, one queue after the other."""
        curve, last = self.curves.setdefault(what, []), time.monotonic()
        for number in range(self._chunks):
            curve.append(step(self.queues[number % len(self.queues)], self._chunk).whole_rate)
            if time.monotonic() > last + PROGRESS_EVERY_S or number + 1 == self._chunks:
                last = time.monotonic()
                done, resident = (number + 1) * self._chunk, self._server.process.resident_bytes
                print(f"{what}: {done:,} at {curve[-1]:,.0f}/s, resident {_mib(resident)}", flush=True)
        self.figures[what] = f"{statistics.median(curve):,.0f} messages/s, slowest chunk {min(curve):,.0f}"

    def _measure(self, when: str, expected: int) -> None:
        """Measure memory, speed while RocksDB compacts and while it is idle, and restarts."""
        busy = self._measure_busy(when)
        rest_s = self._server.process.wait_for_idle_background(self._still_s)
        self.figures[f"end of compaction, {when}"] = f"after {rest_s:,.0f} s" if rest_s is not None else "never"
        idle, reference = self._measure_idle(when)
        self._check_rates(when, busy, idle, reference)
        self._record_memory(when)
        self._restart(when)
        lost = expected - sum(self._server.message_count(name) for name in self.queues)
        self.thresholds.append(Threshold(f"messages missing or too many, {when}", abs(lost), 0, is_ceiling=True))

    def _measure_busy(self, when: str) -> Rates:
        rates = Rates()
        for _ in range(self._rounds):
            rates.add_round(self._load, self._at, self._chunk)
        self._record_rates(f"{when}, compacting", rates)
        return rates

    def _measure_idle(self, when: str) -> tuple[Rates, Rates]:
        rates, reference = Rates(), Rates()
        for _ in range(self._rounds):
            for load, queue, found in ((self._reference, "empty", reference), (self._load, self._at, rates)):
                found.add_round(load, queue, self._chunk)
                load.server.process.wait_for_idle_background(min(self._still_s, 1.0), timeout_s=60.0)
        self._record_rates(f"{when}, at rest", rates)
        self._record_rates(f"an empty queue, measured alternately, {when}", reference)
        return rates, reference

    def _check_rates(self, when: str, busy: Rates, idle: Rates, reference: Rates) -> None:
        for mode in ("send", "receive"):
            # Not measured alternately: the compaction of one server would slow down the other, too.
            ratio = statistics.median(getattr(busy, mode)) / statistics.median(getattr(reference, mode))
            self.thresholds.append(
                Threshold(f"{mode} rate of an empty queue's, {when}, compacting", ratio, MIN_BUSY_RATIO, "x")
            )
            pairs = zip(getattr(idle, mode), getattr(reference, mode), strict=True)
            ratio = statistics.median(ours / empty for ours, empty in pairs)
            self.thresholds.append(
                Threshold(f"{mode} rate of an empty queue's, {when}, at rest", ratio, MIN_IDLE_RATIO, "x")
            )

    def _restart(self, when: str) -> None:
        """Restart the server cleanly, and then after a kill under load."""
        server = self._server
        stop_s, start_s = server.stop(), server.start()
        self.figures[f"clean restart, {when}"] = f"{stop_s:.2f} s to stop, {start_s:.2f} s to serve"
        self.thresholds.append(Threshold(f"restart, {when}", stop_s + start_s, MAX_RESTART_S, " s", is_ceiling=True))
        self.figures[f"resident memory after the restart, {when}"] = _mib(server.process.resident_bytes)
        self._load.send(self._at, self._chunk)
        server.kill()
        start_s = server.start()
        self.thresholds.append(
            Threshold(f"restart after SIGKILL, {when}", start_s, MAX_RESTART_S, " s", is_ceiling=True)
        )
        first = self._load.receive(self._at, self._chunk)
        self.figures[f"first message after the restart, {when}"] = f"{1e3 * first.wait_s:,.0f} ms"

    def _record_memory(self, when: str) -> None:
        process = self._server.process
        self.figures[f"resident memory, {when}"] = _mib(process.resident_bytes)
        peak = process.peak_resident_bytes / MIB
        self.thresholds.append(Threshold(f"resident at most, {when}", peak, MAX_RESIDENT_MIB, " MiB", is_ceiling=True))

    def _record_rates(self, name: str, rates: Rates) -> None:
        self.rates[name] = rates
        self.figures[name] = rates.text()
        print(f"{name}: {rates.text()}", flush=True)


def _mib(size: int) -> str:
    return f"{size / MIB:,.0f} MiB"


def check_disk(folder: Path, messages: int, size: int) -> None:
    """Exit if the disk has not enough free space."""
    needed = int(messages * (size + HEADERS_BYTES) * DISK_FACTOR) + DISK_SPARE_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        sys.exit(f"{folder} has {free / 2**30:,.0f} GiB free, {needed / 2**30:,.0f} are needed: use --folder")


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark, write the results, and return the exit code."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--messages", type=int, default=5_000_000)
    cli.add_argument("--chunk", type=int, default=100_000, help="messages per run of the load client")
    cli.add_argument("--rounds", type=int, default=3)
    cli.add_argument("--size", type=int, default=1024)
    cli.add_argument("--still", type=float, default=QUIET_S, help="seconds without background work that count as idle")
    cli.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="folder on the disk to measure")
    add_results_option(cli)
    asked = cli.parse_args(argv)
    check_disk(asked.folder, asked.messages, asked.size)
    with tempfile.TemporaryDirectory(prefix="twinbus-bench-", dir=asked.folder) as name:
        folder = Path(name)
        load = build(folder)
        with (
            Server.started(folder / "reference", "--stores", "1") as reference,
            Server.started(folder / "deep", "--stores", "1") as deep,
        ):
            depth = DepthBench(LoadClient(load, deep, asked.size), LoadClient(load, reference, asked.size), asked)
            depth.run()
    where = environment_facts("uvloop", "rocksdict")
    page = (
        "# Benchmark: deep queues\n\n"
        f"Generated by `python -m bench.depth`. One store holds {depth.messages:,} incompressible messages of\n"
        f"{asked.size} bytes (queues: {len(depth.queues)}). A server with an empty queue on the same disk is the\n"
        "reference: rates are relative to those of its empty queue. Rates are measured while RocksDB compacts the\n"
        "data (compacting), and when it is idle (at rest).\n\n"
        f"{thresholds_table(depth.thresholds)}\n\n{figures_table(depth.figures)}\n\n{environment_lines(where)}\n"
    )
    measured = {
        "messages": depth.messages,
        "bars": depth.thresholds,
        "figures": depth.figures,
        "rates": {name: vars(rates) for name, rates in depth.rates.items()},
        "curves": depth.curves,
        "surroundings": where,
    }
    write(asked.results, "depth", page, measured)
    return check_thresholds(depth.thresholds)


if __name__ == "__main__":
    run(main)
