"""Measures time and memory of `twinbus pipeline costs` for a year of usage, and how both grow with the number of rows.

    python -m bench.costs [--rows 5000000 10000000 25000000 50000000] [--folder DIR]

The servers' own code writes usage of that many rows, minute by minute, for as many days as needed. A separate process
then computes its costs like `twinbus pipeline costs`, on two processors. The time includes reading, adding up, joining
with journals, writing FOCUS rows as Parquet, and the HTML page, but not the start of Spark. Memory is the resident
memory of Java and Python together, sampled ten times a second. Writes docs/benchmarks/costs.md and costs.json; exits
with 1 if a threshold is missed.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from bench.support.costs_generator import write_journals, write_usage
from bench.support.results import (
    Threshold,
    add_results_option,
    check_thresholds,
    environment_facts,
    environment_lines,
    thresholds_table,
    write,
)
from bench.support.server import MIB
from bench.support.server_processes import children_of
from twinbus.pipeline.costs.bill import SPARK_SETTINGS, BillingTerms
from twinbus.pipeline.costs.html_page import render_page
from twinbus.pipeline.costs.report import CostReportSettings, explain
from twinbus.pipeline.costs.report_document import report_document
from twinbus.pipeline.costs.tariff import read_tariff
from twinbus.pipeline.spark import session

ROWS: Final = (5_000_000, 10_000_000, 25_000_000, 50_000_000)
ROWS_PER_MINUTE: Final = 96
MAX_S: Final = 180.0
MAX_MIB: Final = 3_072
"""Java's heap of 2 GiB, and half as much for the rest of Java and for Python."""
POLL_INTERVAL_S: Final = 0.1
PAGE_BYTES: Final = resource.getpagesize()
_DAY: Final = ROWS_PER_MINUTE * 1_440


@dataclass
class Run:
    """The result for one number of rows."""

    rows: int
    days: int
    files: int
    mib: float
    write_s: float
    outages: int
    seconds: float = 0.0
    peak_mib: float = 0.0
    focus_rows: int = 0
    steps: dict[str, float] | None = None


def main() -> int:
    """Run the benchmark, write the results, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--folder", type=Path)
    add_results_option(parser)
    parser.add_argument("--price", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.price is not None:
        price(asked.price)
        return 0
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        runs = [measure(Path(folder) / str(rows), rows) for rows in asked.rows]
    last = runs[-1]
    bars = [
        Threshold(f"time for {last.rows:,} rows of usage", last.seconds, MAX_S, " s", is_ceiling=True),
        Threshold("peak memory of Java and Python together", last.peak_mib, MAX_MIB, " MiB", is_ceiling=True),
    ]
    where = environment_facts("pyspark", "pyarrow")
    write(
        asked.results, "costs", page(runs, bars, where), {"bars": bars, "runs": [asdict(run) for run in runs], **where}
    )
    return check_thresholds(bars)


def measure(folder: Path, rows: int) -> Run:
    """Measure one number of rows: write the usage, compute its costs, and remove it."""
    days = -(-rows // _DAY)
    started = time.monotonic()
    written = write_usage(folder, days=days, rows_per_minute=ROWS_PER_MINUTE)
    outages = write_journals(folder / "journals", days=days)
    run = Run(written.rows, days, written.files, written.bytes / MIB, time.monotonic() - started, outages)
    print(f"{written.rows:,} rows in {written.files:,} files written in {run.write_s:,.0f} s", flush=True)
    child = subprocess.Popen([sys.executable, "-m", "bench.costs", "--price", str(folder)], stdout=subprocess.PIPE)
    while child.poll() is None:
        run.peak_mib = max(run.peak_mib, resident_mib(child.pid))
        time.sleep(POLL_INTERVAL_S)
    assert child.stdout is not None
    told = json.loads(child.stdout.read().splitlines()[-1])
    run.seconds, run.focus_rows, run.steps = told["seconds"], told["focus_rows"], told["steps"]
    print(f"... priced in {run.seconds:,.1f} s, with {run.peak_mib:,.0f} MiB", flush=True)
    shutil.rmtree(folder)
    return run


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process and its descendants, or 0 if it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * PAGE_BYTES / MIB + sum(resident_mib(child) for child in children_of(pid))
    except OSError:
        return 0.0


def price(folder: Path) -> None:
    """Compute costs like `twinbus pipeline costs`, after the start of Spark."""
    data = [str(folder / name) for name in ("contoso", "contoso-backup")]
    focus = folder / "focus"
    terms = BillingTerms(tariff=read_tariff())
    wanted = CostReportSettings(
        usage_folders=data, journal_folders=[str(folder / "journals")], terms=terms, parquet_folder=str(focus)
    )
    with session("bench", master="local[2]", settings=SPARK_SETTINGS) as spark:
        started = time.monotonic()
        steps: list[tuple[str, float]] = []
        report = explain(spark, wanted, lambda what: steps.append((what, time.monotonic() - started)))
        (folder / "costs.html").write_text(render_page(report_document(report), "bench"))
        seconds = time.monotonic() - started
        ends = [at for _, at in steps[1:]] + [seconds]
        took = {what: round(end - at, 2) for (what, at), end in zip(steps, ends, strict=True)}
        count = spark.read.parquet(str(focus)).count()
    print(json.dumps({"seconds": seconds, "focus_rows": count, "steps": took}))


def page(runs: list[Run], thresholds: list[Threshold], where: dict[str, str]) -> str:
    """Return the page."""
    lines = [
        "# Benchmark: costs of a year of usage\n",
        "Generated by `python -m bench.costs`. The input is the usage of a pair with 96 rows per minute, written by",
        "the servers' own code, with one file per process and hour, and the clients' journals of its outages. The",
        "benchmark runs `twinbus pipeline costs` on two processors (`local[2]`) with a heap of 2 GiB, and writes the",
        "report, FOCUS rows as Parquet, and the HTML page. Times do not include the start of Spark.\n",
        thresholds_table(thresholds),
        "",
        "| rows | days | files | size | time | rows per second | peak memory | FOCUS rows | outages |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {run.rows:,} | {run.days:,} | {run.files:,} | {run.mib:,.0f} MiB | {run.seconds:,.1f} s "
        f"| {run.rows / run.seconds:,.0f} | {run.peak_mib:,.0f} MiB | {run.focus_rows:,} | {run.outages:,} |"
        for run in runs
    ]
    steps = runs[-1].steps or {}
    lines += ["", f"Time of each step for {runs[-1].rows:,} rows:", "", "| step | seconds |", "|---|---|"]
    lines += [f"| {what} | {seconds:,.1f} |" for what, seconds in steps.items()]
    return "\n".join([*lines, "", environment_lines(where), ""])


if __name__ == "__main__":
    sys.exit(main())
