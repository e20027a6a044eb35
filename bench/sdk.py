"""Measures our client beside azure-servicebus, sync and aio, in the same uses of the same server, in turns.

    python -m bench.sdk [--rounds 3] [--count 3000]

One `twinbus serve`, one queue, one connection, messages of 1 KB, each made when it is sent and read when it is
received. A use is what both libraries offer in the same form: as many messages in a call, as many calls under way.
Writes docs/benchmarks/sdk.md and sdk.json; exits 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
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
from bench.support.sdk_use_cases import CLIENTS, CONCURRENT_CALLS, OURS, SIZE, UseCase, fill, offers
from bench.support.server import Server, run

if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_RATIO: Final = 5.0
REQUIRED_USES: Final = (UseCase.SEND_LISTS, UseCase.SEND_AT_ONCE, UseCase.RECEIVE_AT_ONCE, UseCase.RECEIVE_AND_DELETE)
"""The others are told, without a bar: what goes one by one waits for the server most of the time, whoever sends it."""
BEST_OF: Final = {
    "send, each in its fastest use": (UseCase.SEND_ONE, UseCase.SEND_LISTS, UseCase.SEND_AT_ONCE),
    "receive and complete, each in its fastest use": (
        UseCase.RECEIVE_ONE,
        UseCase.RECEIVE_LISTS,
        UseCase.RECEIVE_AT_ONCE,
    ),
}
ONE_BY_ONE: Final = (UseCase.SEND_ONE, UseCase.RECEIVE_ONE, UseCase.RECEIVE_LISTS)
OURS_TIMES: Final = 5
"""We are given more messages, so that all take about as long."""
ONE_BY_ONE_PART: Final = 5
"""And each of them fewer where they go one by one."""

_queues: Final = (f"queue-{number}" for number in itertools.count())


@dataclass(frozen=True, slots=True)
class ClientRun:
    """One use, once."""

    rate: float
    """Messages a second."""
    cpu_us: float
    """Processor time of this process for a message."""


Results = dict[UseCase, dict[str, list[ClientRun]]]


def measure_one(client: str, use: UseCase, server: Server, count: int) -> ClientRun:
    """One use of one library, on a queue of its own; a receiving one finds as many messages as it takes."""
    queue = next(_queues)
    server.create_queue(queue)
    if use.receives:
        uvloop.run(fill(server.connection_string, queue, count))
    with CLIENTS[client](server.connection_string, queue, use) as work:
        used_s, started_s = time.process_time(), time.monotonic()
        work(count)
        took_s, used_s = time.monotonic() - started_s, time.process_time() - used_s
    left, expected = server.message_count(queue), 0 if use.receives else count
    assert left == expected, f"{client}, {use.value}: {left} messages are in the queue, not {expected}"
    return ClientRun(count / took_s, used_s / count * 1e6)


def measure(server: Server, rounds: int, count: int) -> Results:
    """In each round every use, by each library that has it."""
    results: Results = {use: {} for use in UseCase}
    for number, use, client in itertools.product(range(1, rounds + 1), UseCase, CLIENTS):
        if offers(client, use):
            messages = count * (OURS_TIMES if client == OURS else 1)
            messages //= ONE_BY_ONE_PART if use in ONE_BY_ONE else 1
            ran = measure_one(client, use, server, -(-messages // CONCURRENT_CALLS) * CONCURRENT_CALLS)
            results[use].setdefault(client, []).append(ran)
            print(f"round {number}, {use.value}, {client}: {ran.rate:,.0f}/s, {ran.cpu_us:,.0f} us", flush=True)
    return results


def rate_of(runs: list[ClientRun]) -> float:
    """The median."""
    return statistics.median(ran.rate for ran in runs)


def ratio_of(by_client: dict[str, list[ClientRun]]) -> float:
    """Ours to the faster of azure's."""
    return rate_of(by_client[OURS]) / max(rate_of(runs) for client, runs in by_client.items() if client != OURS)


def best_ratio(results: Results, uses: Sequence[UseCase]) -> float:
    """Ours to azure's, each in the fastest of these uses."""
    ours = max(rate_of(results[use][OURS]) for use in uses)
    others = [rate_of(runs) for use in uses for client, runs in results[use].items() if client != OURS]
    return ours / max(others)


def find_thresholds(results: Results) -> list[Threshold]:
    """What is needed."""
    alike = [Threshold(use.value, ratio_of(results[use]), MIN_RATIO, "x") for use in REQUIRED_USES]
    return alike + [Threshold(what, best_ratio(results, uses), MIN_RATIO, "x") for what, uses in BEST_OF.items()]


def make_page(results: Results, thresholds: list[Threshold], where: dict[str, str]) -> str:
    """All of it, for people."""
    rows = []
    for use, by_client in results.items():
        figures = [
            f"{rate_of(by_client[client]):,.0f} ({statistics.median(ran.cpu_us for ran in by_client[client]):,.0f} us)"
            if client in by_client
            else "-"
            for client in CLIENTS
        ]
        rows.append(f"| {use.value} | {' | '.join(figures)} | {ratio_of(by_client):.2f}x |")
    return (
        "# Our client beside azure-servicebus, measured\n\n"
        f"Made by `make bench` (`python -m bench.sdk`): messages of {SIZE:,} bytes to and from one `twinbus serve`,\n"
        "by each library in turn, used in the same way: as many messages in a call, as many calls under way. Each\n"
        "message is on disk when a send returns, and gone when its completion does. In brackets: processor time of\n"
        "the client for a message. The ratio is ours to the faster of azure's two; only ratios mean anything.\n\n"
        f"{thresholds_table(thresholds)}\n\n"
        f"| messages/s | {' | '.join(CLIENTS)} | ratio |\n|{'---|' * (len(CLIENTS) + 2)}\n"
        + "\n".join(rows)
        + "\n\nWhere messages go one by one everybody waits for the server most of the time: that has no bar. The\n"
        f"sync library can only wait for one call at a time.\n\n{environment_lines(where)}\n"
    )


def main(argv: list[str] | None = None) -> int:
    """Measure, write, judge."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--rounds", type=int, default=3)
    cli.add_argument("--count", type=int, default=3_000, help="messages of each run of azure's")
    add_results_option(cli)
    asked = cli.parse_args(argv)
    with (
        tempfile.TemporaryDirectory(prefix="twinbus-bench-") as folder,
        Server.started(Path(folder)) as server,
    ):
        results = measure(server, asked.rounds, asked.count)
    bars, where = find_thresholds(results), environment_facts("uvloop", "azure-servicebus")
    measured = {
        "bars": bars,
        "uses": {
            use.value: {client: [asdict(ran) for ran in runs] for client, runs in by_client.items()}
            for use, by_client in results.items()
        },
        "surroundings": where,
    }
    write(asked.results, "sdk", make_page(results, bars, where), measured)
    return check_thresholds(bars)


if __name__ == "__main__":
    run(main)
