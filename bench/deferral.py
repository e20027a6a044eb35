"""Measures the syphon if half of a backlog must wait for its destination, compared with a backlog that moves freely.

    python -m bench.deferral [--messages 200000] [--rounds 5] [--defer]

As in bench/syphon.py, two `twinbus serve` are a pair, and a separate process hosts the syphon. Ten backlog queues hold
the messages: half of them belong to 100 sessions and have a time to live, half are plain. Two cases alternate. In one,
both destinations accept all messages. In the other, the queue with sessions is disabled: the syphon sets that half of
the backlog aside, and the queue is enabled once the other half has arrived and all of this half is set aside.

Both cases are measured from the arrival of the first message until all have arrived and left the backlog, including the
time until the syphon notices that the queue is enabled. The secondary withholds messages that are set aside. With
`--defer`, the syphon defers them and receives them by sequence number, as with a server that cannot withhold messages.
Writes docs/benchmarks/deferral.md and deferral.json, or deferral_by_number; exits with 1 if the threshold is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uvloop

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
from bench.support.server import ProcessStats, Server, run
from bench.syphon import BACKLOG_QUEUES, PRIMARY, SESSION_QUEUE, SESSIONS, SIZE, Syphon, fill
from twinbus.client.management import NamespaceManager
from twinbus.client.pairing.backlog import rotation

if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_RATIO: Final = 0.9
LOOK_SELDOM_S: Final = 0.25


@dataclass
class Moved:
    """The result of moving one backlog."""

    messages: int
    seconds: float
    """Seconds from the arrival of the first message until all have arrived and left the backlog."""
    back_s: float = 0.0
    """Part of that time after the disabled queue was enabled."""
    host_cpu_s: float = 0.0
    secondary_cpu_s: float = 0.0
    primary_cpu_s: float = 0.0

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds


class DeferringSyphon(Syphon):
    """The syphon with a destination that can be disabled."""

    def __init__(self, primary: Server, secondary: Server, *, defers: bool) -> None:
        """Create the syphon of two running servers. `defers`: defer messages instead of having them withheld."""
        super().__init__(primary, secondary)
        self._servers = (primary, secondary)
        self._defers = defers
        if defers:
            self.host_options = ("--defer",)

    def drain(self, count: int, *, sets_aside: bool) -> Moved:
        """Fill the backlog queues, and start a host that drains them."""
        primary, secondary = self._servers
        uvloop.run(fill(primary, secondary, count))
        if sets_aside:
            uvloop.run(self._set_status("SendDisabled"))
        before = [server.process.cpu_s for server in self._servers]
        started_s, enabled_s = time.monotonic(), 0.0
        with self.run_host() as host:
            first_s = self.wait(started_s, host, lambda: self.arrived() > 0)
            if sets_aside:
                self._wait_for_most(first_s, count // 2)  # each poll costs the servers some time
                self.wait(started_s, host, lambda: self.arrived() >= count // 2)
                if self._defers:
                    uvloop.run(self._until_deferred(count // 2))
                uvloop.run(self._set_status("Active"))
                enabled_s = time.monotonic()
            self._wait_for_most(first_s, count)
            last_s = self.wait(started_s, host, lambda: self.arrived() >= count and self.parked() == 0)
            host_cpu_s = ProcessStats(host.pid).cpu_s
        spent = [server.process.cpu_s - was for server, was in zip(self._servers, before, strict=True)]
        return Moved(
            messages=count,
            seconds=last_s - first_s,
            back_s=last_s - enabled_s if sets_aside else 0.0,
            host_cpu_s=host_cpu_s,
            primary_cpu_s=spent[0],
            secondary_cpu_s=spent[1],
        )

    async def _set_status(self, status: str) -> None:
        async with NamespaceManager.from_connection_string(self._servers[0].management_string) as manager:
            description = await manager.get_queue(SESSION_QUEUE)
            await manager.update_queue(SESSION_QUEUE, replace(description, status=status))

    async def _until_deferred(self, count: int) -> None:
        """Wait until `count` messages are set aside."""
        async with NamespaceManager.from_connection_string(self._servers[1].management_string) as manager:
            while True:
                queues = [queue async for queue in manager.get_queues(rotation.backlog_queue_prefix(PRIMARY))]
                if sum(queue.runtime.deferred_count for queue in queues) >= count:
                    return
                await asyncio.sleep(LOOK_SELDOM_S)


def rate_of(moves: Sequence[Moved]) -> float:
    """Return the median rate."""
    return statistics.median(moved.rate for moved in moves)


def page_of(
    plain: Sequence[Moved], aside: Sequence[Moved], bar: Threshold, where: dict[str, str], *, defers: bool
) -> str:
    """Return the page."""
    count, way = plain[0].messages, "deferred" if defers else "withheld by the backlog queue"
    back = statistics.median(moved.messages / 2 / moved.back_s for moved in aside)
    figures = {
        "messages/s, none set aside": f"{rate_of(plain):,.0f} ({', '.join(f'{moved.rate:,.0f}' for moved in plain)})",
        "messages/s, half set aside": (f"{rate_of(aside):,.0f} ({', '.join(f'{moved.rate:,.0f}' for moved in aside)})"),
        "messages/s of those set aside, once their queue is enabled": f"{back:,.0f}",
    } | {
        f"CPU time per message, {name}": f"{_cpu_us(plain, name):,.0f} us, {_cpu_us(aside, name):,.0f} us"
        for name in ("host", "primary", "secondary")
    }
    return (
        "# Benchmark: messages set aside by the syphon\n\n"
        f"Generated by `python -m bench.deferral{' --defer' if defers else ''}`. The syphon moves {count:,} parked\n"
        f"messages of {SIZE:,} bytes from {BACKLOG_QUEUES} backlog queues of one `twinbus serve` to two queues of\n"
        f"another. Half of the messages belong to {SESSIONS} sessions. Two cases alternate: both queues accept all\n"
        "messages, or the queue with sessions is disabled until the syphon has set all of its messages aside\n"
        f"({way}). Times include setting messages aside, and the time until the\n"
        "syphon notices that the queue is enabled. CPU times are given for both cases. Only ratios are meaningful.\n\n"
        f"{thresholds_table([bar])}\n\n{figures_table(figures)}\n\n{environment_lines(where)}\n"
    )


def _cpu_us(moves: Sequence[Moved], name: str) -> float:
    return statistics.median(float(asdict(moved)[f"{name}_cpu_s"]) / moved.messages * 1e6 for moved in moves)


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark, write the results, and return the exit code."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--messages", type=int, default=200_000)
    cli.add_argument("--rounds", type=int, default=5)
    cli.add_argument("--defer", action="store_true", help="defer messages instead of having them withheld")
    add_results_option(cli)
    asked = cli.parse_args(argv)
    plain: list[Moved] = []
    aside: list[Moved] = []
    with (
        tempfile.TemporaryDirectory(prefix="twinbus-bench-") as folder,
        Server.started(Path(folder) / "primary") as primary,
        Server.started(Path(folder) / "secondary") as secondary,
    ):
        syphon = DeferringSyphon(primary, secondary, defers=asked.defer)
        for number in range(1, asked.rounds + 1):
            for moves, sets_aside in ((plain, False), (aside, True)):
                moves.append(syphon.drain(asked.messages, sets_aside=sets_aside))
                word = "half set aside" if sets_aside else "none set aside"
                print(f"round {number}, {word}: {moves[-1].rate:,.0f}/s", flush=True)
    bar = Threshold("rate with half set aside, relative to none", rate_of(aside) / rate_of(plain), MIN_RATIO)
    where = environment_facts("uvloop", "rocksdict")
    kept = {
        "bars": [bar],
        "plain": [asdict(moved) for moved in plain],
        "aside": [asdict(moved) for moved in aside],
        "surroundings": where,
    }
    write(
        asked.results,
        "deferral_by_number" if asked.defer else "deferral",
        page_of(plain, aside, bar, where, defers=asked.defer),
        kept,
    )
    return check_thresholds([bar])


if __name__ == "__main__":
    run(main)
