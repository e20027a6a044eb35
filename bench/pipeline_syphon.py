"""The syphon on Spark beside the in-process one: how fast each brings parked messages back, in turns.

    python -m bench.pipeline_syphon [--rounds 3] [--count 100000] [--sizes 25000 50000 200000] [--master local[2,4]]

Between two `twinbus serve` processes lie the same messages in the same backlog queues as in bench/syphon.py. One syphon
is hosted by a program of its own, the other by tasks of a Spark that was started before. Both are measured from the
first message that has arrived until all have, and have left; and with the start, which for Spark is that of its job.
Writes docs/benchmarks/pipeline_syphon.md and pipeline_syphon.json; exits 1 where the bar is missed.
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
"""That are moved as well, to see how it grows."""


class SparkSyphonBench(Syphon):
    """By tasks of a Spark that runs for as long as this is entered."""

    def __init__(self, primary: Server, secondary: Server, master: str) -> None:
        """Both servers run."""
        super().__init__(primary, secondary)
        self._master = master
        self._strings = (primary.connection_string, secondary.connection_string, secondary.management_string)
        self._host: subprocess.Popen[str]

    def __enter__(self) -> Self:
        words = [sys.executable, "-m", "bench.pipeline_syphon_host", self._master, PRIMARY]
        self._host = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._tell("\n".join(self._strings))
        if self._answer() != "ready":
            sys.exit("Spark does not start")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._host.stdin is not None
        self._host.stdin.close()  # its end
        self._host.wait()

    @contextlib.contextmanager
    def run_host(self) -> Iterator[subprocess.Popen[str]]:  # type: ignore[override]  # this one speaks
        """Have the job started; it has ended when the block ends."""
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
    """All rounds."""

    in_process: list[Moved] = field(default_factory=list)
    on_spark: list[Moved] = field(default_factory=list)

    @property
    def thresholds(self) -> list[Threshold]:
        """What is needed of the ratio."""
        ratio = rate_of(self.on_spark) / rate_of(self.in_process)
        return [Threshold("messages a second on Spark, of the in-process syphon's", ratio, MIN_RATIO, "x")]

    @property
    def rows(self) -> dict[str, list[Moved]]:
        """Both by their names."""
        return {"in a program of its own": self.in_process, "on Spark": self.on_spark}


def measure(in_process: Syphon, on_spark: Syphon, rounds: int, count: int) -> SparkSyphonMeasurement:
    """In turns."""
    measured = SparkSyphonMeasurement()
    for number in range(1, rounds + 1):
        for name, syphon in (("in-process", in_process), ("Spark", on_spark)):
            moved, _ = syphon.move(count)
            (measured.on_spark if syphon is on_spark else measured.in_process).append(moved)
            told = f"{moved.rate:,.0f}/s, {moved.whole_rate:,.0f}/s with its start"
            print(f"{count:,} messages, round {number}, {name}: {told}", flush=True)
    return measured


def growth_table(grown: dict[int, SparkSyphonMeasurement]) -> str:
    """How it grows with what is parked."""
    lines = [
        "| messages | in a program of its own | on Spark | of that | on Spark, with the start |",
        "|---|---|---|---|---|",
    ]
    for count, found in sorted(grown.items()):
        cells = [rate_of(found.in_process), rate_of(found.on_spark)]
        rates = " | ".join(f"{rate:,.0f}" for rate in cells)
        lines.append(f"| {count:,} | {rates} | {cells[1] / cells[0]:.2f}x | {whole_rate_of(found.on_spark):,.0f} |")
    return "\n".join(lines)


def make_page(grown: dict[int, SparkSyphonMeasurement], where: dict[str, str], count: int, master: str) -> str:
    """All of it, for people."""
    measured = grown[count]
    lines = [
        f"| {name} | {rate_of(moves):,.0f} | {whole_rate_of(moves):,.0f} | "
        f"{', '.join(f'{move.rate:,.0f}' for move in moves)} |"
        for name, moves in measured.rows.items()
    ]
    start_s = statistics.median(move.whole_s - move.moving_s for move in measured.on_spark)
    return (
        "# The syphon on Spark, measured\n\n"
        f"Made by `python -m bench.pipeline_syphon`: {count:,} parked messages of {SIZE:,} bytes in {BACKLOG_QUEUES}\n"
        f"backlog queues are brought back to two queues of the primary, half of them in {SESSIONS} sessions, in\n"
        "order, and with a time to live. The same pumps move them, in a program of their own (as in\n"
        f"[syphon.md](syphon.md)) and in tasks of Spark (`{master}`, started before). Both took turns on one\n"
        "machine; only the ratio means anything.\n\n"
        f"{thresholds_table(measured.thresholds)}\n\n"
        "| messages/s | median | with the start | each round |\n|---|---|---|---|\n"
        + "\n".join(lines)
        + f"\n\nFrom the start of a job to its first message took {start_s:,.1f} s.\n\n"
        f"How it grows, messages a second:\n\n{growth_table(grown)}\n\n"
        f"{environment_lines(where)}\n"
    )


def main(argv: list[str] | None = None) -> int:
    """Measure, write, judge."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--rounds", type=int, default=3)
    cli.add_argument("--count", type=int, default=100_000)
    cli.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="moved once each; default: %(default)s")
    cli.add_argument("--master", default=MASTER, help="default: %(default)s")
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
