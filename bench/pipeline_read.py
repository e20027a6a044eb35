"""Measures how fast Spark reads a partitioned queue into Parquet files, compared with the twinbus and the C client.

    python -m bench.pipeline_read [--rounds 3] [--count 500000] [--sizes 50000 100000 250000]

There is one `twinbus serve` with one partitioned queue, and one Spark session (`local[2]`), which is warmed up first.
In each round the queue is filled in steps, and at each of these sizes Spark reads all of it into Parquet, without
removing messages. When the queue is full, the twinbus client browses it, then receives and deletes all messages; the C
client receives and accepts the same number. Spark is compared with the faster of the twinbus client's two modes.

Writes docs/benchmarks/pipeline_read.md and .json; exits with 1 if a threshold is missed.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uvloop

from bench.partitioned import wait_until_quiet
from bench.support.load_clients import MultiProcessServer
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
from bench.support.server import LoadClient, build, run
from twinbus.client import MessagingFactory, ReceiveMode
from twinbus.pipeline.spark import session

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

QUEUE: Final = "orders"
QUEUE_MB: Final = 5_120
MIN_CLIENT_RATIO: Final = 0.6
MIN_C_CLIENT_RATIO: Final = 0.3
PREFETCH: Final = 5_000
PAGE: Final = 1_000
TIMEOUT_S: Final = 30.0
WARM_UP: Final = 20_000
SPARK: Final = "Spark, to Parquet"
BROWSING: Final = "twinbus client, browse"
DELETING: Final = "twinbus client, receive and delete"
IN_C: Final = "C client, receive and accept"


@dataclass(frozen=True, slots=True)
class ReadRun:
    """The result of reading a number of messages."""

    who: str
    count: int
    took_s: float
    server_us: float
    """CPU time of the server per message."""

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.count / self.took_s


class ReadBench:
    """The queue and its readers."""

    def __init__(self, server: MultiProcessServer, load: LoadClient, spark: SparkSession, folder: Path) -> None:
        """Create the benchmark with a running server and Spark session."""
        self._server = server
        self._load = load
        self._spark = spark
        self._output = folder / "parquet"
        self.held = 0

    def fill(self, count: int) -> None:
        """Fill the queue up to `count` messages."""
        self._load.send(QUEUE, count - self.held)
        self.held = count
        wait_until_quiet(self._server)

    def _measure(self, who: str, count: int, work: Callable[[], int]) -> ReadRun:
        used_s, started_s = self._server.processes.cpu_s, time.monotonic()
        found = work()
        took_s, used_s = time.monotonic() - started_s, self._server.processes.cpu_s - used_s
        assert found == count, f"{who} read {found:,} of {count:,} messages"
        ran = ReadRun(who, count, took_s, used_s / count * 1e6)
        print(f"{who}: {count:,} at {ran.rate:,.0f}/s, {ran.server_us:.1f} us of server CPU", flush=True)
        wait_until_quiet(self._server)
        return ran

    def spark_reads(self) -> ReadRun:
        """Read all messages into files with Spark."""
        rows = self._spark.read.format("servicebus").options(
            connectionString=self._server.connection_string, entity=QUEUE
        )

        def work() -> int:
            rows.load().write.parquet(str(self._output))
            return self.held

        ran = self._measure(SPARK, self.held, work)
        written = self._spark.read.parquet(str(self._output)).select("sequenceNumber").distinct().count()
        assert written == self.held, f"{written:,} of {self.held:,} messages are in the files"
        shutil.rmtree(self._output)
        return ran

    def client_browses(self) -> ReadRun:
        """Browse all messages with the twinbus client."""

        async def work() -> int:
            async with self._factory() as factory:
                browser = factory.create_message_browser(QUEUE)
                seen = 0
                while seen < self.held:
                    seen += len(await browser.receive_batch(PAGE, TIMEOUT_S))
                return seen

        return self._measure(BROWSING, self.held, lambda: uvloop.run(work()))

    def client_takes(self) -> ReadRun:
        """Receive and delete all messages with the twinbus client."""

        async def work() -> int:
            async with self._factory() as factory:
                mode = ReceiveMode.RECEIVE_AND_DELETE
                receiver = factory.create_message_receiver(QUEUE, mode, prefetch=PREFETCH)
                taken = 0
                while taken < self.held:
                    taken += len(await receiver.receive_batch(PAGE, TIMEOUT_S))
                return taken

        ran = self._measure(DELETING, self.held, lambda: uvloop.run(work()))
        self.held = 0
        return ran

    def c_takes(self) -> ReadRun:
        """Receive and accept all messages with the C client."""
        took_s: list[float] = []

        def work() -> int:
            took_s.append(self.held / self._load.receive(QUEUE, self.held).rate)
            return self.held

        ran = self._measure(IN_C, self.held, work)
        self.held = 0
        return ReadRun(ran.who, ran.count, took_s[0], ran.server_us)  # without the start, and the wait at the end

    def _factory(self) -> MessagingFactory:
        return MessagingFactory.from_connection_string(self._server.connection_string)


def measure(site: ReadBench, arguments: argparse.Namespace) -> list[list[ReadRun]]:
    """Run all readers in each round."""
    rounds = []
    for number in range(arguments.rounds):
        print(f"round {number + 1}", flush=True)
        found = []
        for size in sorted({*arguments.sizes, arguments.count}):
            site.fill(size)
            found.append(site.spark_reads())
        found += [site.client_browses(), site.client_takes()]
        site.fill(arguments.count)
        found.append(site.c_takes())
        rounds.append(found)
    return rounds


def rates(rounds: list[list[ReadRun]], who: str, count: int) -> list[float]:
    """Return the rate of one reader for each round."""
    return [next(ran.rate for ran in found if (ran.who, ran.count) == (who, count)) for found in rounds]


def find_thresholds(rounds: list[list[ReadRun]], count: int) -> list[Threshold]:
    """Return the thresholds, for the medians of the rounds' ratios."""
    spark, in_c = rates(rounds, SPARK, count), rates(rounds, IN_C, count)
    plain = [max(two) for two in zip(rates(rounds, BROWSING, count), rates(rounds, DELETING, count), strict=True)]

    def ratio(others: list[float]) -> float:
        return statistics.median(mine / other for mine, other in zip(spark, others, strict=True))

    return [
        Threshold(
            f"Spark, {count:,} messages into Parquet, relative to the twinbus client",
            ratio(plain),
            MIN_CLIENT_RATIO,
            "x",
        ),
        Threshold(
            f"Spark, {count:,} messages into Parquet, relative to the C client", ratio(in_c), MIN_C_CLIENT_RATIO, "x"
        ),
    ]


def growth_table(rounds: list[list[ReadRun]]) -> str:
    """Return a table of Spark's rates by number of messages."""
    head = "| messages | time | messages/s | server CPU time per message |\n|---|---|---|---|\n"
    sizes = sorted({ran.count for ran in rounds[0] if ran.who == SPARK})
    rows = []
    for size in sizes:
        runs = [ran for found in rounds for ran in found if (ran.who, ran.count) == (SPARK, size)]
        took_s, server_us = (statistics.median(getattr(ran, what) for ran in runs) for what in ("took_s", "server_us"))
        rows.append(f"| {size:,} | {took_s:.1f} s | {size / took_s:,.0f} | {server_us:.1f} us |")
    return head + "\n".join(rows)


def describe(rounds: list[list[ReadRun]], count: int) -> dict[str, str]:
    """Return further figures, which explain the thresholds."""
    found = {}
    for who in (SPARK, BROWSING, DELETING, IN_C):
        values = rates(rounds, who, count)
        found[f"messages/s, {who}"] = (
            f"{statistics.median(values):,.0f} (rounds: {', '.join(f'{v:,.0f}' for v in values)})"
        )
    return found


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark, write the results, and return the exit code."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--rounds", type=int, default=3)
    cli.add_argument("--count", type=int, default=500_000)
    cli.add_argument("--sizes", type=int, nargs="*", default=[50_000, 100_000, 250_000])
    cli.add_argument("--size", type=int, default=1024)
    cli.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="folder on the disk to measure")
    add_results_option(cli)
    asked = cli.parse_args(argv)
    with (
        tempfile.TemporaryDirectory(prefix="twinbus-bench-", dir=asked.folder) as name,
        MultiProcessServer.started(Path(name) / "server") as server,
        session("bench", master="local[2]") as spark,
    ):
        assert isinstance(server, MultiProcessServer)
        server.create_partitioned_queue(QUEUE, QUEUE_MB)
        site = ReadBench(server, LoadClient(build(Path(name)), server, asked.size), spark, Path(name))
        site.fill(min(WARM_UP, asked.count))
        site.spark_reads()
        site.client_takes()
        rounds = measure(site, asked)
        server.stop()
    bars, where = find_thresholds(rounds, asked.count), environment_facts("pyspark", "pyarrow", "uvloop", "rocksdict")
    page = (
        "# Benchmark: reading a queue with Spark\n\n"
        "Generated by `make bench` (`python -m bench.pipeline_read`). A partitioned queue of a server with one\n"
        f"process has incompressible messages of {asked.size:,} bytes. Spark on `local[2]` reads them into Parquet\n"
        'with `spark.read.format("servicebus")`; the time is that of the query, without the start of the session.\n\n'
        "The twinbus client reads the same messages without processing them: it browses them, then receives and\n"
        "deletes them. The C client receives and accepts the same number. Ratios compare Spark with the faster mode\n"
        f"of the twinbus client; figures are medians of {asked.rounds} rounds. The server, Spark, its Python workers\n"
        "and the clients share two processors. Only the ratios are meaningful.\n\n"
        f"{thresholds_table(bars)}\n\n{growth_table(rounds)}\n\n{figures_table(describe(rounds, asked.count))}\n\n"
        f"{environment_lines(where)}\n"
    )
    measured = {"bars": bars, "rounds": [[asdict(ran) for ran in found] for found in rounds], "surroundings": where}
    write(asked.results, "pipeline_read", page, measured)
    return check_thresholds(bars)


if __name__ == "__main__":
    run(main)
