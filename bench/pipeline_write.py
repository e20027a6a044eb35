"""Measures how fast Spark sends rows as messages, compared with the twinbus client.

    python -m bench.pipeline_write [--rounds 3] [--count 200000]

Rows of 1 KB are in Parquet files. A Spark session on all processors of this machine writes them to a queue of one
`twinbus serve`, through the data source. For comparison, a separate process sends the same number of messages with
`send`, 100 at a time, and another one with `send_batch`, 16 batches of 100 at a time. The three alternate, each with
its own queue. Times do not include the start of Spark and of processes. Writes docs/benchmarks/pipeline_write.md and
pipeline_write.json; exits with 1 if a threshold is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
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
from twinbus.client import BrokeredMessage, MessagingFactory
from twinbus.client.sync import NamespaceManager

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from twinbus.client import MessageSender

MIN_RATIO: Final = 0.6
SIZE: Final = 1_024
AT_ONCE: Final = 100
BATCHES: Final = 16
FILES: Final = 4
GROWTH: Final = (0.25, 1.0, 4.0)
"""Multiples of the count in the table of growth."""
WARM_UP: Final = 5_000
QUEUE_MB: Final = 5_120
TIMEOUT_S: Final = 600.0
SPARK: Final = "Spark, data source"
SINGLE: Final = "twinbus client, send"
BATCHED: Final = "twinbus client, send_batch"


# --- the twinbus client, in a separate process ------------------------------------------------------------------------


async def run_in_child(told: dict[str, str], count: int) -> float:
    """Send messages in the child process, and return messages per second."""
    async with MessagingFactory.from_connection_string(told["connection_string"]) as factory:
        sender = factory.create_message_sender(told["queue"])
        await sender.open()
        started_s = time.monotonic()
        await (send_batches if told["kind"] == BATCHED else send_single)(sender, count)
        return count / (time.monotonic() - started_s)


async def send_single(sender: MessageSender, count: int) -> None:
    """Send messages with concurrent single sends, as many applications do."""
    body = os.urandom(SIZE)
    for _ in range(count // AT_ONCE):
        await asyncio.gather(*[sender.send(BrokeredMessage(body)) for _ in range(AT_ONCE)])


async def send_batches(sender: MessageSender, count: int) -> None:
    """Send messages in concurrent batches, which is the fastest way."""
    body, room = os.urandom(SIZE), asyncio.Semaphore(BATCHES)

    async def send() -> None:
        try:
            await sender.send_batch([BrokeredMessage(body) for _ in range(AT_ONCE)])
        finally:
            room.release()

    async with asyncio.TaskGroup() as group:
        for _ in range(count // AT_ONCE):
            await room.acquire()
            group.create_task(send())


def run_child(server: Server, queue: str, kind: str, count: int) -> float:
    """Start a child process for one run."""
    told = {"connection_string": server.connection_string, "queue": queue, "kind": kind}
    done = subprocess.run(
        [sys.executable, "-m", "bench.pipeline_write", "--child", "--count", str(count)],
        input=json.dumps(told),
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        timeout=TIMEOUT_S,
        check=True,
    )
    return float(json.loads(done.stdout))


# --- Spark ------------------------------------------------------------------------------------------------------------


def make_rows(folder: Path, count: int) -> Path:
    """Write rows of random bytes to several files."""
    place = folder / f"rows-{count}"
    place.mkdir()
    for number in range(FILES):
        part = range(number * count // FILES, (number + 1) * count // FILES)
        table = pa.table({"messageId": [str(row) for row in part], "body": [os.urandom(SIZE) for _ in part]})
        pq.write_table(table, place / f"{number}.parquet", compression=None)
    return place


def run_spark(spark: SparkSession, server: Server, queue: str, place: Path, count: int) -> float:
    """Run one job, and return rows per second."""
    rows = spark.read.parquet(str(place))
    started_s = time.monotonic()
    rows.write.format("servicebus").options(connectionString=server.connection_string, entity=queue).mode(
        "append"
    ).save()
    rate = count / (time.monotonic() - started_s)
    if (found := server.message_count(queue)) != count:
        sys.exit(f"{count} rows were written, but the queue has {found} messages")
    return rate


# --- all runs ---------------------------------------------------------------------------------------------------------


class WriteBench:
    """The benchmark on one server."""

    def __init__(self, spark: SparkSession, server: Server, folder: Path) -> None:
        """Create the benchmark with a running server and Spark session."""
        self._spark = spark
        self._server = server
        self._folder = folder
        self._numbers: Iterator[int] = iter(range(1_000_000))

    def rates(self, count: int, rounds: int) -> dict[str, list[float]]:
        """Measure all three alternately, in changing order."""
        place = make_rows(self._folder, count)
        ways: dict[str, Callable[[str], float]] = {
            SPARK: lambda queue: run_spark(self._spark, self._server, queue, place, count),
            SINGLE: lambda queue: run_child(self._server, queue, SINGLE, count),
            BATCHED: lambda queue: run_child(self._server, queue, BATCHED, count),
        }
        found: dict[str, list[float]] = {kind: [] for kind in ways}
        for number in range(rounds):
            for kind in list(ways)[:: 1 if number % 2 else -1]:
                queue = f"queue-{next(self._numbers)}"
                self._server.create_queue(queue, QUEUE_MB)
                found[kind].append(ways[kind](queue))
                with NamespaceManager.from_connection_string(self._server.management_string) as manager:
                    manager.delete_queue(queue)
                print(f"{count:,} rows, round {number + 1}, {kind}: {found[kind][-1]:,.0f}/s", flush=True)
        return found


def find_thresholds(found: dict[str, list[float]]) -> list[Threshold]:
    """Return the thresholds, relative to both modes of the twinbus client."""
    rates = {kind: statistics.median(runs) for kind, runs in found.items()}
    return [
        Threshold(f"Spark, relative to {kind}", rates[SPARK] / rates[kind], MIN_RATIO, "x")
        for kind in (SINGLE, BATCHED)
    ]


def make_page(
    grown: dict[int, dict[str, list[float]]],
    thresholds: list[Threshold],
    where: dict[str, str],
    count: int,
    rounds: int,
) -> str:
    """Return the page."""
    kinds = (SPARK, SINGLE, BATCHED)
    lines = []
    for rows, found in grown.items():
        rates = {kind: statistics.median(found[kind]) for kind in kinds}
        shares = [rates[SPARK] / rates[kind] for kind in (SINGLE, BATCHED)]
        cells = [f"{rows:,}", *[f"{rates[kind]:,.0f}" for kind in kinds], *[f"{share:.2f}" for share in shares]]
        lines.append(f"| {' | '.join(cells)} |")
    runs = "\n".join(f"| {kind} | {', '.join(format(rate, ',.0f') for rate in grown[count][kind])} |" for kind in kinds)
    return (
        "# Benchmark: writing with Spark\n\n"
        "Generated by `make bench` (`python -m bench.pipeline_write`). A Spark session writes rows of\n"
        f"{SIZE:,} bytes from Parquet files to a queue, through the data source, on {os.cpu_count()} processors that\n"
        "it shares with the server. It is compared with the twinbus client in a separate process, with `send`\n"
        f"({AT_ONCE} at a time) and with `send_batch` ({BATCHES} batches of {AT_ONCE} at a time). Figures are\n"
        f"medians of {rounds} alternating rounds, without the start of Spark.\n\n"
        f"{thresholds_table(thresholds)}\n\n"
        f"Messages per second by number of rows:\n\n| rows | {' | '.join(kinds)} | Spark/send | Spark/send_batch |\n"
        "|---|---|---|---|---|---|\n" + "\n".join(lines) + "\n\n"
        f"All runs with {count:,} rows:\n\n| | messages/s |\n|---|---|\n{runs}\n\n{environment_lines(where)}\n"
    )


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark, write the results, and return the exit code."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--rounds", type=int, default=3)
    cli.add_argument("--count", type=int, default=200_000)
    add_results_option(cli)
    cli.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    asked = cli.parse_args(argv)
    if asked.child:
        print(json.dumps(uvloop.run(run_in_child(json.load(sys.stdin), asked.count))))
        return 0
    from twinbus.pipeline.spark import session  # noqa: PLC0415  # the child does not need Spark

    with (
        tempfile.TemporaryDirectory(prefix="twinbus-bench-") as folder,
        Server.started(Path(folder) / "server") as server,
        session("twinbus bench", settings={"spark.driver.memory": "1g"}) as spark,
    ):
        measuring = WriteBench(spark, server, Path(folder))
        measuring.rates(WARM_UP, 1)
        counts = [int(asked.count * part) // AT_ONCE * AT_ONCE for part in GROWTH]
        grown = {count: measuring.rates(count, asked.rounds) for count in counts}
    bars, where = find_thresholds(grown[counts[1]]), environment_facts("pyspark", "pyarrow", "uvloop")
    measured = {"bars": bars, "rates": grown, "surroundings": where}
    write(asked.results, "pipeline_write", make_page(grown, bars, where, counts[1], asked.rounds), measured)
    return check_thresholds(bars)


if __name__ == "__main__":
    run(main)
