"""Measures the twinbus client, compared with azure-servicebus (sync and aio) in the same use cases.

    python -m bench.sdk [--rounds 3] [--count 3000]

The libraries alternate on one `twinbus serve`, with one queue, one connection, and messages of 1 KB, which are created
when they are sent and read when they are received. In a use case, both libraries have the same number of messages per
call and of concurrent calls. Writes docs/benchmarks/sdk.md and sdk.json; exits with 1 if a threshold is missed.
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
"""Use cases with a threshold. With one message at a time, every library mostly waits for the server."""
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
"""The twinbus client gets more messages by this factor, so that all runs take about the same time."""
ONE_BY_ONE_PART: Final = 5
"""Use cases with one message at a time get fewer messages by this factor."""

_queues: Final = (f"queue-{number}" for number in itertools.count())


@dataclass(frozen=True, slots=True)
class ClientRun:
    """The result of one run of a use case."""

    rate: float
    """Messages per second."""
    cpu_us: float
    """CPU time of this process per message."""


Results = dict[UseCase, dict[str, list[ClientRun]]]


def measure_one(client: str, use: UseCase, server: Server, count: int) -> ClientRun:
    """Run a use case of one library on a new queue, which is filled first if the use case receives."""
    queue = next(_queues)
    server.create_queue(queue)
    if use.receives:
        uvloop.run(fill(server.connection_string, queue, count))
    with CLIENTS[client](server.connection_string, queue, use) as work:
        used_s, started_s = time.process_time(), time.monotonic()
        work(count)
        took_s, used_s = time.monotonic() - started_s, time.process_time() - used_s
    left, expected = server.message_count(queue), 0 if use.receives else count
    assert left == expected, f"{client}, {use.value}: the queue has {left} messages instead of {expected}"
    return ClientRun(count / took_s, used_s / count * 1e6)


def measure(server: Server, rounds: int, count: int) -> Results:
    """Run every use case with each library that supports it, in each round."""
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
    """Return the median rate."""
    return statistics.median(ran.rate for ran in runs)


def ratio_of(by_client: dict[str, list[ClientRun]]) -> float:
    """Return the rate of the twinbus client relative to the faster azure-servicebus client."""
    return rate_of(by_client[OURS]) / max(rate_of(runs) for client, runs in by_client.items() if client != OURS)


def best_ratio(results: Results, uses: Sequence[UseCase]) -> float:
    """Return the rate of the twinbus client relative to azure-servicebus, each in its fastest use case."""
    ours = max(rate_of(results[use][OURS]) for use in uses)
    others = [rate_of(runs) for use in uses for client, runs in results[use].items() if client != OURS]
    return ours / max(others)


def find_thresholds(results: Results) -> list[Threshold]:
    """Return the thresholds."""
    alike = [Threshold(use.value, ratio_of(results[use]), MIN_RATIO, "x") for use in REQUIRED_USES]
    return alike + [Threshold(what, best_ratio(results, uses), MIN_RATIO, "x") for what, uses in BEST_OF.items()]


def make_page(results: Results, thresholds: list[Threshold], where: dict[str, str]) -> str:
    """Return the page."""
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
        "# Benchmark: the twinbus client and azure-servicebus\n\n"
        f"Generated by `make bench` (`python -m bench.sdk`). The libraries send and receive messages of {SIZE:,}\n"
        "bytes with one `twinbus serve`, alternately and in the same way: with the same number of messages per call\n"
        "and of concurrent calls. When a send returns, the message is on disk; when a completion returns, the message\n"
        "is deleted. The CPU time of the client per message is in parentheses. The ratio is that of the twinbus\n"
        "client to the faster azure-servicebus client. Only the ratios are meaningful.\n\n"
        f"{thresholds_table(thresholds)}\n\n"
        f"| messages/s | {' | '.join(CLIENTS)} | ratio |\n|{'---|' * (len(CLIENTS) + 2)}\n"
        + "\n".join(rows)
        + "\n\nUse cases with one message at a time have no threshold, because every library mostly waits for the\n"
        f"server. The sync library supports only one call at a time.\n\n{environment_lines(where)}\n"
    )


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark, write the results, and return the exit code."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--rounds", type=int, default=3)
    cli.add_argument("--count", type=int, default=3_000, help="messages per run of azure-servicebus")
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
