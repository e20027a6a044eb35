"""Measures how fast Spark's rows become messages, beside our plain client that sends as many.

    python -m bench.pipeline_write [--rounds 3] [--count 200000]

Rows of 1 KB lie in Parquet files; a session of Spark on this machine's processors writes them to a queue of one
`twinbus serve`, through the data source. Beside it a process of its own sends as many messages by `send`, 100 at a
time, and another by `send_batch`, 16 batches of 100 at a time. They take turns, each with a queue of its own. The start
of Spark and of processes is not counted. Writes docs/benchmarks/pipeline_write.md and pipeline_write.json; exits 1
where a bar is missed.
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
"""Parts of the count that the table of growth has."""
WARM_UP: Final = 5_000
QUEUE_MB: Final = 5_120
TIMEOUT_S: Final = 600.0
SPARK: Final = "Spark, data source"
SINGLE: Final = "plain client, send"
BATCHED: Final = "plain client, send_batch"


# --- the plain client: a program of its own ---------------------------------------------------------------------------


async def run_in_child(told: dict[str, str], count: int) -> float:
    """Messages a second."""
    async with MessagingFactory.from_connection_string(told["connection_string"]) as factory:
        sender = factory.create_message_sender(told["queue"])
        await sender.open()
        started_s = time.monotonic()
        await (send_batches if told["kind"] == BATCHED else send_single)(sender, count)
        return count / (time.monotonic() - started_s)


async def send_single(sender: MessageSender, count: int) -> None:
    """As many applications do."""
    body = os.urandom(SIZE)
    for _ in range(count // AT_ONCE):
        await asyncio.gather(*[sender.send(BrokeredMessage(body)) for _ in range(AT_ONCE)])


async def send_batches(sender: MessageSender, count: int) -> None:
    """As fast as it goes."""
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
    """One run, in a process of its own."""
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
    """So many rows of random bytes, in some files."""
    place = folder / f"rows-{count}"
    place.mkdir()
    for number in range(FILES):
        part = range(number * count // FILES, (number + 1) * count // FILES)
        table = pa.table({"messageId": [str(row) for row in part], "body": [os.urandom(SIZE) for _ in part]})
        pq.write_table(table, place / f"{number}.parquet", compression=None)
    return place


def run_spark(spark: SparkSession, server: Server, queue: str, place: Path, count: int) -> float:
    """One job; rows a second."""
    rows = spark.read.parquet(str(place))
    started_s = time.monotonic()
    rows.write.format("servicebus").options(connectionString=server.connection_string, entity=queue).mode(
        "append"
    ).save()
    rate = count / (time.monotonic() - started_s)
    if (found := server.message_count(queue)) != count:
        sys.exit(f"{count} rows were written, and {found} messages are there")
    return rate


# --- all runs ---------------------------------------------------------------------------------------------------------


class WriteBench:
    """All of it, on one server."""

    def __init__(self, spark: SparkSession, server: Server, folder: Path) -> None:
        """Nothing was measured yet."""
        self._spark = spark
        self._server = server
        self._folder = folder
        self._numbers: Iterator[int] = iter(range(1_000_000))

    def rates(self, count: int, rounds: int) -> dict[str, list[float]]:
        """All three in turns; which of them is first changes each time."""
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
    """What is needed: also of our client's faster way."""
    rates = {kind: statistics.median(runs) for kind, runs in found.items()}
    return [
        Threshold(f"rows that Spark writes, beside `{kind}`", rates[SPARK] / rates[kind], MIN_RATIO, "x")
        for kind in (SINGLE, BATCHED)
    ]


def make_page(
    grown: dict[int, dict[str, list[float]]],
    thresholds: list[Threshold],
    where: dict[str, str],
    count: int,
    rounds: int,
) -> str:
    """All of it, for people."""
    kinds = (SPARK, SINGLE, BATCHED)
    lines = []
    for rows, found in grown.items():
        rates = {kind: statistics.median(found[kind]) for kind in kinds}
        shares = [rates[SPARK] / rates[kind] for kind in (SINGLE, BATCHED)]
        cells = [f"{rows:,}", *[f"{rates[kind]:,.0f}" for kind in kinds], *[f"{share:.2f}" for share in shares]]
        lines.append(f"| {' | '.join(cells)} |")
    runs = "\n".join(f"| {kind} | {', '.join(format(rate, ',.0f') for rate in grown[count][kind])} |" for kind in kinds)
    return (
        "# Writing from Spark, measured\n\n"
        f"Made by `make bench` (`python -m bench.pipeline_write`): rows of {SIZE:,} bytes in Parquet files, written\n"
        f"to a queue through the data source by a session on {os.cpu_count()} processors, which the server shares;\n"
        f"beside it our client in a process of its own, with `send` ({AT_ONCE} at a time) and with `send_batch`\n"
        f"({BATCHES} batches of {AT_ONCE} at a time). Medians of {rounds} rounds, in turns; the start of Spark is not\n"
        f"counted.\n\n"
        f"{thresholds_table(thresholds)}\n\n"
        f"How it grows, messages a second:\n\n| rows | {' | '.join(kinds)} | beside send | beside send_batch |\n"
        "|---|---|---|---|---|---|\n" + "\n".join(lines) + "\n\n"
        f"Each run of {count:,}:\n\n| | messages/s |\n|---|---|\n{runs}\n\n{environment_lines(where)}\n"
    )


def main(argv: list[str] | None = None) -> int:
    """Measure, write, judge."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--rounds", type=int, default=3)
    cli.add_argument("--count", type=int, default=200_000)
    add_results_option(cli)
    cli.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    asked = cli.parse_args(argv)
    if asked.child:
        print(json.dumps(uvloop.run(run_in_child(json.load(sys.stdin), asked.count))))
        return 0
    from twinbus.pipeline.spark import session  # noqa: PLC0415  # the child does without Spark

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
