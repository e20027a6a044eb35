"""Measures the cost of pairing without an outage: CPU time of a paired sender, compared with an unpaired one.

    python -m bench.paired [--runs 9] [--count 40000]

Each run is a separate process that sends messages of 1 KB, 100 at a time, to one `twinbus serve`; paired runs have
another one as their secondary. Paired and unpaired runs alternate. The figure is the CPU time of the sending process
between its first and last send, as the median of all runs. Writes docs/benchmarks/paired.md and paired.json; exits with
1 if a threshold is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
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
from twinbus.client import BrokeredMessage, MessagingFactory
from twinbus.client.management import NamespaceManager
from twinbus.client.pairing import SendAvailabilityPairedNamespaceOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from twinbus.client.sender import MessageSender

MAX_OVERHEAD_PERCENT: Final = 5.0
SIZE: Final = 1_024
CONCURRENT_SENDS: Final = 100
QUEUE: Final = "orders"
TIMEOUT_S: Final = 300.0


# --- one run, in a separate process -----------------------------------------------------------------------------------


def cpu_s() -> float:
    """Return the CPU time of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def send(sender: MessageSender, count: int) -> dict[str, float]:
    """Send `count` messages. Return microseconds of CPU time per message, and messages per second."""
    body = os.urandom(SIZE)
    await asyncio.gather(*[sender.send(BrokeredMessage(body)) for _ in range(CONCURRENT_SENDS)])  # attaches the link
    used_s, started_s = cpu_s(), time.monotonic()
    for _ in range(count // CONCURRENT_SENDS):
        await asyncio.gather(*[sender.send(BrokeredMessage(body)) for _ in range(CONCURRENT_SENDS)])
    used_s, took_s = cpu_s() - used_s, time.monotonic() - started_s
    return {"cpu_us": used_s / count * 1e6, "rate": count / took_s}


@contextlib.asynccontextmanager
async def factory_of(primary: str, secondary: str | None, management: str) -> AsyncIterator[MessagingFactory]:
    """Create a factory, paired if there is a secondary."""
    async with MessagingFactory.from_connection_string(primary) as factory:
        if secondary is None:
            yield factory
            return
        async with NamespaceManager.from_connection_string(management) as manager:
            options = SendAvailabilityPairedNamespaceOptions(
                secondary_factory=MessagingFactory.from_connection_string(secondary),
                secondary_namespace_manager=manager,
                primary_namespace_name="contoso",
            )
            async with await factory.pair_namespace(options):
                yield factory


async def run_in_child(told: dict[str, str], count: int) -> dict[str, float]:
    """Perform one run in the child process."""
    async with factory_of(told["primary"], told.get("secondary"), told["management"]) as factory:
        return await send(factory.create_message_sender(QUEUE), count)


# --- all runs ---------------------------------------------------------------------------------------------------------


def run_child(primary: Server, secondary: Server, count: int, *, is_paired: bool) -> dict[str, float]:
    """Start a child process for one run."""
    told = {"primary": primary.connection_string, "management": secondary.management_string}
    if is_paired:
        told["secondary"] = secondary.connection_string
    done = subprocess.run(
        [sys.executable, "-m", "bench.paired", "--child", "--count", str(count)],
        input=json.dumps(told),
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        timeout=TIMEOUT_S,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measure(primary: Server, secondary: Server, runs: int, count: int) -> dict[str, list[dict[str, float]]]:
    """Measure both kinds alternately, in changing order, after a warm-up run of each that does not count."""
    found: dict[str, list[dict[str, float]]] = {"unpaired": [], "paired": []}
    primary.create_queue(QUEUE, 5120)
    for kind in found:
        run_child(primary, secondary, count // 10, is_paired=kind == "paired")
    for number in range(runs):
        for kind in list(found)[:: 1 if number % 2 else -1]:
            one = run_child(primary, secondary, count, is_paired=kind == "paired")
            found[kind].append(one)
            print(f"run {number + 1}, {kind}: {one['cpu_us']:.2f} us, {one['rate']:,.0f}/s", flush=True)
    return found


def median(runs: list[dict[str, float]], name: str) -> float:
    """Return the median of one figure."""
    return statistics.median(one[name] for one in runs)


def find_thresholds(found: dict[str, list[dict[str, float]]]) -> list[Threshold]:
    """Return the thresholds."""
    more = median(found["paired"], "cpu_us") / median(found["unpaired"], "cpu_us") - 1
    what = "processor time per message that pairing adds"
    return [Threshold(what, 100 * more, MAX_OVERHEAD_PERCENT, " %", is_ceiling=True)]


def make_page(
    found: dict[str, list[dict[str, float]]], thresholds: list[Threshold], where: dict[str, str], count: int
) -> str:
    """Return the page."""
    rows = [
        f"| {kind} | {median(runs, 'cpu_us'):.2f} us | {median(runs, 'rate'):,.0f} | "
        f"{', '.join(format(one['cpu_us'], '.2f') for one in runs)} |"
        for kind, runs in found.items()
    ]
    return (
        "# Benchmark: cost of pairing\n\n"
        f"Generated by `make bench` (`python -m bench.paired`). Each run is a separate process that sends {count:,}\n"
        f"messages of {SIZE:,} bytes, {CONCURRENT_SENDS} at a time, to an available namespace. "
        "Paired and unpaired runs\n"
        "alternate. The processor time is that of the sending process, from its first to its last send.\n\n"
        f"{thresholds_table(thresholds)}\n\n"
        "| sender | processor time per message | messages/s | each run, us |\n|---|---|---|---|\n"
        + "\n".join(rows)
        + f"\n\n{environment_lines(where)}\n"
    )


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark, write the results, and return the exit code."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--runs", type=int, default=9)
    cli.add_argument("--count", type=int, default=40_000)
    add_results_option(cli)
    cli.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    asked = cli.parse_args(argv)
    if asked.child:
        print(json.dumps(uvloop.run(run_in_child(json.load(sys.stdin), asked.count))))
        return 0
    with (
        tempfile.TemporaryDirectory(prefix="twinbus-bench-") as folder,
        Server.started(Path(folder) / "primary") as primary,
        Server.started(Path(folder) / "secondary") as secondary,
    ):
        found = measure(primary, secondary, asked.runs, asked.count)
    bars, where = find_thresholds(found), environment_facts("uvloop")
    measured = {"bars": bars, **found, "surroundings": where}
    write(asked.results, "paired", make_page(found, bars, where, asked.count), measured)
    return check_thresholds(bars)


if __name__ == "__main__":
    run(main)
