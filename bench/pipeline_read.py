"""Measures how fast Spark reads a partitioned queue into Parquet files, beside our plain client and the client in C.

    python -m bench.pipeline_read [--rounds 3] [--count 500000] [--sizes 50000 100000 250000]

One `twinbus serve` with one partitioned queue, one Spark session (`local[2]`) that is started, and has read a little,
before anything is measured. In each round the queue is filled in steps, and at each of these sizes Spark reads all of
it into Parquet, which takes nothing from the queue. With all messages there our client reads the same queue as it is (a
browser), then receives and deletes all of it; and the C client receives and accepts as many again. The faster of our
client's two ways is what Spark is compared with.

Writes docs/benchmarks/pipeline_read.md and .json; exits 1 where a bar is missed.
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
BROWSING: Final = "our client, browsing"
DELETING: Final = "our client, receive and delete"
IN_C: Final = "the C client, receive and accept"


@dataclass(frozen=True, slots=True)
class ReadRun:
    """One reading of so many messages."""

    who: str
    count: int
    took_s: float
    server_us: float
    """Processor time of the server for a message."""

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.count / self.took_s


class ReadBench:
    """The queue, and those who read it."""

    def __init__(self, server: MultiProcessServer, load: LoadClient, spark: SparkSession, folder: Path) -> None:
        """All of them are there already."""
        self._server = server
        self._load = load
        self._spark = spark
        self._output = folder / "parquet"
        self.held = 0

    def fill(self, count: int) -> None:
        """Have so many messages in the queue."""
        self._load.send(QUEUE, count - self.held)
        self.held = count
        wait_until_quiet(self._server)

    def _measure(self, who: str, count: int, work: Callable[[], int]) -> ReadRun:
        used_s, started_s = self._server.processes.cpu_s, time.monotonic()
        found = work()
        took_s, used_s = time.monotonic() - started_s, self._server.processes.cpu_s - used_s
        assert found == count, f"{who} read {found:,} of {count:,} messages"
        ran = ReadRun(who, count, took_s, used_s / count * 1e6)
        print(f"{who}: {count:,} at {ran.rate:,.0f}/s, {ran.server_us:.1f} us of the server", flush=True)
        wait_until_quiet(self._server)
        return ran

    def spark_reads(self) -> ReadRun:
        """All that is there, into files."""
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
        """All that is there."""

        async def work() -> int:
            async with self._factory() as factory:
                browser = factory.create_message_browser(QUEUE)
                seen = 0
                while seen < self.held:
                    seen += len(await browser.receive_batch(PAGE, TIMEOUT_S))
                return seen

        return self._measure(BROWSING, self.held, lambda: uvloop.run(work()))

    def client_takes(self) -> ReadRun:
        """All that is there: the queue is empty then."""

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
        """All that is there."""
        took_s: list[float] = []

        def work() -> int:
            took_s.append(self.held / self._load.receive(QUEUE, self.held).rate)
            return self.held

        ran = self._measure(IN_C, self.held, work)
        self.held = 0
        return ReadRun(ran.who, ran.count, took_s[0], ran.server_us)  # without its start, and its wait at the end

    def _factory(self) -> MessagingFactory:
        return MessagingFactory.from_connection_string(self._server.connection_string)


def measure(site: ReadBench, arguments: argparse.Namespace) -> list[list[ReadRun]]:
    """In each round all of them."""
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
    """Of one of them, round by round."""
    return [next(ran.rate for ran in found if (ran.who, ran.count) == (who, count)) for found in rounds]


def find_thresholds(rounds: list[list[ReadRun]], count: int) -> list[Threshold]:
    """What is needed: the medians of the rounds' ratios."""
    spark, in_c = rates(rounds, SPARK, count), rates(rounds, IN_C, count)
    plain = [max(two) for two in zip(rates(rounds, BROWSING, count), rates(rounds, DELETING, count), strict=True)]

    def ratio(others: list[float]) -> float:
        return statistics.median(mine / other for mine, other in zip(spark, others, strict=True))

    return [
        Threshold(
            f"Spark reads {count:,} messages into Parquet, of our client's rate", ratio(plain), MIN_CLIENT_RATIO, "x"
        ),
        Threshold(
            f"Spark reads {count:,} messages into Parquet, of the C client's rate", ratio(in_c), MIN_C_CLIENT_RATIO, "x"
        ),
    ]


def growth_table(rounds: list[list[ReadRun]]) -> str:
    """Spark, by how much there is."""
    head = "| messages | read into Parquet | messages/s | the server's processor time for one |\n|---|---|---|---|\n"
    sizes = sorted({ran.count for ran in rounds[0] if ran.who == SPARK})
    rows = []
    for size in sizes:
        runs = [ran for found in rounds for ran in found if (ran.who, ran.count) == (SPARK, size)]
        took_s, server_us = (statistics.median(getattr(ran, what) for ran in runs) for what in ("took_s", "server_us"))
        rows.append(f"| {size:,} | {took_s:.1f} s | {size / took_s:,.0f} | {server_us:.1f} us |")
    return head + "\n".join(rows)


def describe(rounds: list[list[ReadRun]], count: int) -> dict[str, str]:
    """What explains the bars."""
    found = {}
    for who in (SPARK, BROWSING, DELETING, IN_C):
        values = rates(rounds, who, count)
        found[f"messages/s, {who}"] = f"{statistics.median(values):,.0f} of {', '.join(f'{v:,.0f}' for v in values)}"
    return found


def main(argv: list[str] | None = None) -> int:
    """Measure, write, judge."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--rounds", type=int, default=3)
    cli.add_argument("--count", type=int, default=500_000)
    cli.add_argument("--sizes", type=int, nargs="*", default=[50_000, 100_000, 250_000])
    cli.add_argument("--size", type=int, default=1024)
    cli.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to be measured")
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
        "# Spark reading a queue, measured\n\n"
        f"Made by `make bench` (`python -m bench.pipeline_read`): incompressible messages of {asked.size:,} bytes in\n"
        'a partitioned queue of one process, read by `spark.read.format("servicebus")` on `local[2]` into Parquet,\n'
        "from the query's start to its end, without the start of the session; beside our client, which reads or takes\n"
        "the same messages and does nothing with them, and the C client, which receives and accepts them. Medians of\n"
        f"{asked.rounds} rounds; a ratio is that of a round, to the faster of our client's two ways. Two processors\n"
        "have to do for server, Spark, its Python workers and the clients; only ratios mean anything.\n\n"
        f"{thresholds_table(bars)}\n\n{growth_table(rounds)}\n\n{figures_table(describe(rounds, asked.count))}\n\n"
        f"{environment_lines(where)}\n"
    )
    measured = {"bars": bars, "rounds": [[asdict(ran) for ran in found] for found in rounds], "surroundings": where}
    write(asked.results, "pipeline_read", page, measured)
    return check_thresholds(bars)


if __name__ == "__main__":
    run(main)
