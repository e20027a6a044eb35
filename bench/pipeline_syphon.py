"""Measures the syphon on Spark, compared with the syphon in a program.

    python -m bench.pipeline_syphon [--rounds 3] [--count 100000] [--sizes 25000 50000 200000] [--master local[2,4]]

Two `twinbus serve` have the same messages in the same backlog queues as in bench/syphon.py. A separate program hosts
one syphon, and tasks of a running Spark session host the other, alternately. Both are measured from the arrival of the
first message until all have arrived and left the backlog; and including the start, which for Spark is that of its job.
Writes docs/benchmarks/pipeline_syphon.md and pipeline_syphon.json; exits with 1 if the threshold is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

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
from bench.syphon import BACKLOG_QUEUES, PRIMARY, SESSIONS, SIZE, Syphon, rate_of, whole_rate_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.support.shovel import Moved

MIN_RATIO: Final = 0.7
MASTER: Final = "local[2,4]"
SIZES: Final = (25_000, 50_000, 200_000)
"""Further numbers of messages, to measure the growth."""


class SparkSyphonBench(Syphon):
    """The syphon on Spark. As a context manager, it runs the Spark session."""

    def __init__(self, primary: Server, secondary: Server, master: str) -> None:
        """Create the syphon of two running servers."""
        super().__init__(primary, secondary)
        self._master = master
        self._strings = (primary.connection_string, secondary.connection_string, secondary.management_string)
        self._host: subprocess.Popen[str]

    def __enter__(self) -> Self:
        words = [sys.executable, "-m", "bench.pipeline_syphon_host", self._master, PRIMARY]
        self._host = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._tell("\n".join(self._strings))
        if self._answer() != "ready":
            sys.exit("Spark did not start")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._host.stdin is not None
        self._host.stdin.close()  # ends the host
        self._host.wait()

    @contextlib.contextmanager
    def run_host(self) -> Iterator[subprocess.Popen[str]]:  # type: ignore[override]  # text, not bytes
        """Start the job. It has ended when the block ends."""
        self._tell("go")
        yield self._host
        self._answer()

    def _tell(self, text: str) -> None:
        assert self._host.stdin is not None
        print(text, file=self._host.stdin, flush=True)

    def _answer(self) -> str:
        assert self._host.stdout is not None
        return self._host.stdout.readline().strip()


@dataclass
class SparkSyphonMeasurement:
    """Results of all rounds."""

    in_process: list[Moved] = field(default_factory=list)
    on_spark: list[Moved] = field(default_factory=list)

    @property
    def thresholds(self) -> list[Threshold]:
        """The thresholds."""
        ratio = rate_of(self.on_spark) / rate_of(self.in_process)
        return [Threshold("rate on Spark, relative to the syphon in a program", ratio, MIN_RATIO, "x")]

    @property
    def rows(self) -> dict[str, list[Moved]]:
        """Results by name of the host."""
        return {"in a program": self.in_process, "on Spark": self.on_spark}


def measure(in_process: Syphon, on_spark: Syphon, rounds: int, count: int) -> SparkSyphonMeasurement:
    """Measure both alternately."""
    measured = SparkSyphonMeasurement()
    for number in range(1, rounds + 1):
        for name, syphon in (("in-process", in_process), ("Spark", on_spark)):
            moved, _ = syphon.move(count)
            (measured.on_spark if syphon is on_spark else measured.in_process).append(moved)
            told = f"{moved.rate:,.0f}/s, {moved.whole_rate:,.0f}/s with its start"
            print(f"{count:,} messages, round {number}, {name}: {told}", flush=True)
    return measured


def growth_table(grown: dict[int, SparkSyphonMeasurement]) -> str:
    """Return a table of rates by number of parked messages."""
    lines = [
        "| messages | in a program | on Spark | ratio | on Spark, with the start |",
        "|---|---|---|---|---|",
    ]
    for count, found in sorted(grown.items()):
        cells = [rate_of(found.in_process), rate_of(found.on_spark)]
        rates = " | ".join(f"{rate:,.0f}" for rate in cells)
        lines.append(f"| {count:,} | {rates} | {cells[1] / cells[0]:.2f}x | {whole_rate_of(found.on_spark):,.0f} |")
    return "\n".join(lines)


def make_page(grown: dict[int, SparkSyphonMeasurement], where: dict[str, str], count: int, master: str) -> str:
    """Return the page."""
    measured = grown[count]
    lines = [
        f"| {name} | {rate_of(moves):,.0f} | {whole_rate_of(moves):,.0f} | "
        f"{', '.join(f'{move.rate:,.0f}' for move in moves)} |"
        for name, moves in measured.rows.items()
    ]
    start_s = statistics.median(move.whole_s - move.moving_s for move in measured.on_spark)
    return (
        "# Benchmark: the syphon on Spark\n\n"
        f"Generated by `python -m bench.pipeline_syphon`. The syphon moves {count:,} parked messages of {SIZE:,}\n"
        f"bytes from {BACKLOG_QUEUES} backlog queues to two queues of the primary. Half of the messages belong to\n"
        f"{SESSIONS} sessions, arrive in order, and have a time to live. The same pumps run in a program (as in\n"
        f"[syphon.md](syphon.md)) and in tasks of a running Spark session (`{master}`), alternately on one machine.\n"
        "Only the ratio is meaningful.\n\n"
        f"{thresholds_table(measured.thresholds)}\n\n"
        "| messages/s | median | with the start | each round |\n|---|---|---|---|\n"
        + "\n".join(lines)
        + f"\n\nFrom the start of a job to its first message took {start_s:,.1f} s.\n\n"
        f"Messages per second by number of parked messages:\n\n{growth_table(grown)}\n\n"
        f"{environment_lines(where)}\n"
    )


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark, write the results, and return the exit code."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--rounds", type=int, default=3)
    cli.add_argument("--count", type=int, default=100_000)
    cli.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="further numbers of messages")
    cli.add_argument("--master", default=MASTER, help="(default: %(default)s)")
    add_results_option(cli)
    asked = cli.parse_args(argv)
    with (
        tempfile.TemporaryDirectory(prefix="twinbus-bench-") as folder,
        Server.started(Path(folder) / "primary") as primary,
        Server.started(Path(folder) / "secondary") as secondary,
        SparkSyphonBench(primary, secondary, asked.master) as on_spark,
    ):
        in_process = Syphon(primary, secondary)
        grown = {count: measure(in_process, on_spark, 1, count) for count in asked.sizes}
        grown[asked.count] = measured = measure(in_process, on_spark, asked.rounds, asked.count)
    where = environment_facts("uvloop", "rocksdict", "pyspark")
    kept = {
        "bars": measured.thresholds,
        **{name: [asdict(moved) for moved in moves] for name, moves in measured.rows.items()},
        "grown": {count: asdict(found) for count, found in grown.items()},
        "surroundings": where,
    }
    write(asked.results, "pipeline_syphon", make_page(grown, where, asked.count, asked.master), kept)
    return check_thresholds(measured.thresholds)


if __name__ == "__main__":
    run(main)
