"""Measures partitioned queues: beside plain ones, over several processes, and with more and fewer fragments.

    python -m bench.partitioned [--rounds 3] [--count 150000] [--processes 1 2 3 4] [--folder DIR]

Three measurements, each in rounds that take turns, with the load client in C:

- beside a plain queue: one client, one process, the stores that a server has if nothing is said;
- two processes beside one: two clients at a time on one queue, without keys, held by different processes; with two
  processes a plain queue as well, which one of them serves;
- how it grows: the same with keys that lead to 1, 2, 4, 8 and 16 fragments, for each number of processes.

Processor time is what all processes of the server had, the supervisor's included, from before the first send until all
is received and settled. Writes docs/benchmarks/partitioned.md, .json and .svg; exits 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count as numbers_from
from pathlib import Path
from typing import Any, Final

from bench.support.load_clients import LoadClients, MultiProcessServer
from bench.support.plot import Panel, picture
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
from twinbus.model.partition_key import fragment_of

MIN_PLAIN_RATIO: Final = 0.85
MIN_SINGLE_PROCESS_RATIO: Final = 1.0
MAX_SINGLE_PROCESS_CPU_RATIO: Final = 1.4
PLAIN: Final = "plain"
PARTITIONED: Final = "partitioned"
FRAGMENTS: Final = (1, 2, 4, 8, 16)
CLIENTS: Final = 2
QUIET_S: Final = 0.5
"""Without background work: then one round does not pay for another."""
QUIET_TIMEOUT_S: Final = 20.0
EMPTY_TIMEOUT_S: Final = 20.0
POLL_INTERVAL_S: Final = 0.05
QUEUE_MB: Final = 5120


@dataclass
class Rates:
    """Round by round."""

    send: list[float] = field(default_factory=list)
    receive: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    """Of all processes, for one message that is sent, received and settled."""
    holders: list[int] = field(default_factory=list)
    """How many processes held the clients' connections; the fewer of sending and receiving."""
    hung_up: int = 0

    @property
    def through(self) -> list[float]:
        """Messages a second that were sent and then received: what an application gets of the queue in all."""
        return [1 / (1 / send + 1 / receive) for send, receive in zip(self.send, self.receive, strict=True)]

    def median(self, what: str) -> float:
        """Of all rounds."""
        values: list[float] = getattr(self, what)
        return statistics.median(values)

    def ratio(self, other: Rates, what: str) -> float:
        """Of each round to the other's in the same round, the median: what else the machine did is in both."""
        ratios: list[float] = [a / b for a, b in zip(getattr(self, what), getattr(other, what), strict=True)]
        return statistics.median(ratios)

    def text(self, what: str) -> str:
        """With what it is the median of."""
        values: list[float] = getattr(self, what)
        return f"{statistics.median(values):,.0f} of {', '.join(f'{value:,.0f}' for value in values)}"


def keys_of(fragments: int) -> list[str]:
    """One key for each of the first fragments."""
    found: dict[int, str] = {}
    for number in numbers_from():
        if len(found) == fragments:
            break
        key = f"key-{number}"
        fragment = fragment_of(key.encode())
        if fragment < fragments:
            found.setdefault(fragment, key)
    return [found[fragment] for fragment in range(fragments)]


def wait_until_quiet(server: MultiProcessServer) -> None:
    """Wait until RocksDB rests."""
    deadline, still_since, last = time.monotonic() + QUIET_TIMEOUT_S, time.monotonic(), server.processes.background
    while time.monotonic() < min(deadline, still_since + QUIET_S):
        time.sleep(POLL_INTERVAL_S)
        if (now := server.processes.background) != last:
            still_since, last = time.monotonic(), now


def wait_until_empty(server: MultiProcessServer, queue: str) -> None:
    """All that was received is settled. Exits where it never is: then a message was lost, or came twice."""
    deadline = time.monotonic() + EMPTY_TIMEOUT_S
    while (left := server.message_count(queue)) != 0:
        if time.monotonic() > deadline:
            sys.exit(f"{queue} holds {left} messages after all were received\n{server.log_tail()}")
        time.sleep(POLL_INTERVAL_S)


# --- beside a plain queue ---------------------------------------------------------------------------------------------


def measure_beside_plain(load: LoadClient, arguments: argparse.Namespace) -> dict[str, Rates]:
    """One client, in turns."""
    found = {PLAIN: Rates(), PARTITIONED: Rates()}
    for number in range(-1, arguments.rounds):  # one to warm up
        for name in (PLAIN, PARTITIONED) if number % 2 else (PARTITIONED, PLAIN):
            send, receive = load.send(name, arguments.count).rate, load.receive(name, arguments.count).rate
            if number >= 0:
                found[name].send.append(send)
                found[name].receive.append(receive)
                print(f"round {number + 1}, {name}: {send:,.0f} sends/s, {receive:,.0f} receives/s", flush=True)
    return found


# --- several processes ------------------------------------------------------------------------------------------------


def measure_once(
    clients: LoadClients, count: int, fragments: int | None, rates: Rates, queue: str = PARTITIONED
) -> None:
    """Send, receive and settle so many messages; None: without keys."""
    server = clients.server
    wait_until_quiet(server)
    before_s = server.processes.cpu_s
    sent = clients.send(queue, count, keys_of(fragments) if fragments is not None else ())
    taken = clients.receive(queue, sent.count)
    wait_until_empty(server, queue)
    rates.cpu_us.append((server.processes.cpu_s - before_s) / sent.count * 1e6)
    rates.send.append(sent.rate)
    rates.receive.append(taken.rate)
    rates.holders.append(min(sent.holders, taken.holders))
    rates.hung_up += sent.hung_up + taken.hung_up


Table = dict[int, dict[int | None, Rates]]
"""By processes, then by fragments that keys lead to; None: no keys."""


def measure_growth(many: dict[int, LoadClients], arguments: argparse.Namespace) -> tuple[Table, Rates]:
    """Every number of processes with every number of fragments, in each round; and a plain queue of two processes."""
    plain = Rates()
    cells: tuple[int | None, ...] = (None, *FRAGMENTS)
    table: Table = {processes: {fragments: Rates() for fragments in cells} for processes in many}
    for clients in many.values():
        measure_once(clients, arguments.grid_count, None, Rates())  # to warm up
    if 2 in many:
        measure_once(many[2], arguments.grid_count, None, Rates(), PLAIN)
    for number in range(2 * arguments.rounds):  # twice as many without keys: two bars depend on these
        for fragments in cells if number < arguments.rounds else (None,):
            for processes in many if number % 2 else reversed(many):
                rates = table[processes][fragments]
                measure_once(
                    many[processes], arguments.count if fragments is None else arguments.grid_count, fragments, rates
                )
                print(
                    f"round {number + 1}, processes {processes}, fragments {fragments or 'all, no keys'}: "
                    f"{rates.send[-1]:,.0f} sends/s, {rates.receive[-1]:,.0f} receives/s, {rates.cpu_us[-1]:.1f} us",
                    flush=True,
                )
        if 2 in many:
            measure_once(many[2], arguments.count, None, plain, PLAIN)
            print(f"round {number + 1}, processes 2, plain: {plain.send[-1]:,.0f} sends/s", flush=True)
    return table, plain


# --- what is told -----------------------------------------------------------------------------------------------------


def find_thresholds(beside: dict[str, Rates], table: Table, plain_of_two: Rates) -> list[Threshold]:
    """What is needed."""
    plain, divided = beside[PLAIN], beside[PARTITIONED]
    bars = [
        Threshold(
            f"{PARTITIONED}-{short} of the plain queue's, one process", divided.ratio(plain, what), MIN_PLAIN_RATIO, "x"
        )
        for short, what in (("send", "send"), ("recv", "receive"))
    ]
    if {1, 2} <= table.keys():
        one, two = table[1][None], table[2][None]
        for what in ("send", "receive"):
            ratio = two.ratio(one, what)
            bars.append(
                Threshold(
                    f"two processes' total {what} rate of one's, two clients", ratio, MIN_SINGLE_PROCESS_RATIO, "x"
                )
            )
            ratio = two.ratio(plain_of_two, what)
            bars.append(
                Threshold(
                    f"{PARTITIONED} {what} rate of a plain queue's, two processes", ratio, MIN_SINGLE_PROCESS_RATIO, "x"
                )
            )
        ratio = two.ratio(plain_of_two, "through")
        bars.append(
            Threshold(
                f"{PARTITIONED} queue's throughput of a plain queue's, two processes",
                ratio,
                MIN_SINGLE_PROCESS_RATIO,
                "x",
            )
        )
        name = "processor time for a message (send, receive, settle) of two processes, of one's"
        bars.append(Threshold(name, two.ratio(one, "cpu_us"), MAX_SINGLE_PROCESS_CPU_RATIO, "x", is_ceiling=True))
    return bars


def describe(beside: dict[str, Rates], table: Table, plain_of_two: Rates) -> dict[str, str]:
    """What explains the bars."""
    rows = {}
    for queue, rates in beside.items():
        rows[f"sends/s, {queue} queue, one process, one client"] = rates.text("send")
        rows[f"receives/s, {queue} queue, one process, one client"] = rates.text("receive")
    if plain_of_two.send:
        rows["sends/s, plain queue, 2 processes, two clients"] = plain_of_two.text("send")
        rows["receives/s, plain queue, 2 processes, two clients"] = plain_of_two.text("receive")
    for processes, row in table.items():
        who = "one process" if processes == 1 else f"{processes} processes"
        rates = row[None]
        rows[f"sends/s, {who}, two clients"] = rates.text("send")
        rows[f"receives/s, {who}, two clients"] = rates.text("receive")
        rows[f"processor time for a message, {who}"] = f"{rates.text('cpu_us')} us"
        everything = [cell for cell in row.values() if cell.holders]
        held, hung_up = min(min(cell.holders) for cell in everything), sum(cell.hung_up for cell in everything)
        rows[f"the two clients' connections, {who}"] = f"in {held} processes; {hung_up} hung up until it was so"
    return rows


def growth_table(table: Table) -> str:
    """Rates and processor time, by processes and fragments."""
    head = (
        "| processes | fragments used | sends/s | receives/s | processor time for a message |\n|---|---|---|---|---|\n"
    )
    return head + "\n".join(
        f"| {processes} | {fragments or 'all, without keys'} | {rates.median('send'):,.0f} | "
        f"{rates.median('receive'):,.0f} | {rates.median('cpu_us'):.1f} us |"
        for processes, row in table.items()
        for fragments, rates in row.items()
    )


def plot(table: Table) -> str:
    """The same, as a picture."""
    kinds = (("sends", "messages/s, two clients", "send"), ("receives", "messages/s, two clients", "receive"))
    panels = [*kinds, ("processor time", "us for a message: send, receive, settle", "cpu_us")]
    return picture(
        [
            Panel(title, unit, {_name(processes): _line(row, what) for processes, row in table.items()})
            for title, unit, what in panels
        ],
        "fragments used",
    )


def _name(processes: int) -> str:
    return "one process" if processes == 1 else f"{processes} processes"


def _line(row: dict[int | None, Rates], what: str) -> list[tuple[float, float]]:
    return [(fragments, rates.median(what)) for fragments, rates in row.items() if fragments is not None]


def measure(folder: Path, arguments: argparse.Namespace) -> tuple[dict[str, Rates], Table, Rates]:
    """Start the servers, which stay idle while others are measured, and measure them."""
    binary = build(folder)
    with MultiProcessServer.started(folder / "beside") as server:
        server.create_queue(PLAIN, QUEUE_MB)
        assert isinstance(server, MultiProcessServer)
        server.create_partitioned_queue(PARTITIONED, QUEUE_MB)
        beside = measure_beside_plain(LoadClient(binary, server, arguments.size), arguments)
        server.stop()
    with ExitStack() as stack:
        many = {}
        for processes in arguments.processes:
            options = [] if processes == 1 else ["--workers", str(processes)]
            server = stack.enter_context(MultiProcessServer.started(folder / f"processes-{processes}", *options))
            assert isinstance(server, MultiProcessServer)
            server.create_partitioned_queue(PARTITIONED, QUEUE_MB)
            server.create_queue(PLAIN, QUEUE_MB)
            many[processes] = LoadClients(binary, server, CLIENTS, arguments.size)
        table, plain = measure_growth(many, arguments)
        for clients in many.values():
            clients.server.stop()
    return beside, table, plain


def main(argv: list[str] | None = None) -> int:
    """Measure, write, judge."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--rounds", type=int, default=3)
    cli.add_argument("--count", type=int, default=150_000)
    cli.add_argument("--grid-count", type=int, default=60_000, help="messages of one cell of the table")
    cli.add_argument("--processes", type=int, nargs="+", default=[1, 2, 3, 4])
    cli.add_argument("--size", type=int, default=1024)
    cli.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to be measured")
    add_results_option(cli)
    asked = cli.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="twinbus-bench-", dir=asked.folder) as name:
        beside, table, plain = measure(Path(name), asked)
    bars, figures = find_thresholds(beside, table, plain), describe(beside, table, plain)
    where = environment_facts("uvloop", "rocksdict")
    page = (
        "# Partitioned queues, measured\n\n"
        f"Made by `python -m bench.partitioned`: incompressible messages of {asked.size} bytes, each accepted when\n"
        f"it is on disk; medians of {asked.rounds} rounds that take turns (without keys, of twice as many), a ratio\n"
        "that of the rounds' ratios. Where two clients are measured, both send to one partitioned queue, or receive\n"
        "from it, at a time, and their connections are held by different processes where there are several: the\n"
        "kernel chooses who accepts, so a client whose connection came to the other's process hung up and tried\n"
        "again. Throughput is messages a second that are sent, then received and settled. Processor time is that\n"
        "of all broker processes with their supervisor; the clients need the same two cores.\n\n"
        f"{thresholds_table(bars)}\n\n"
        "How both grow, two clients, four stores; a fragment is used if a key leads to it:\n\n"
        f"{growth_table(table)}\n\n![Rates and processor time by fragments and processes](partitioned.svg)\n\n"
        f"{figures_table(figures)}\n\n{environment_lines(where)}\n"
    )
    measured: dict[str, Any] = {
        "bars": bars,
        "beside a plain queue": {name: vars(rates) for name, rates in beside.items()},
        "growth": [
            {"processes": processes, "fragments": fragments, **vars(rates)}
            for processes, row in table.items()
            for fragments, rates in row.items()
        ],
        "plain queue, two processes": vars(plain),
        "surroundings": where,
    }
    asked.results.mkdir(parents=True, exist_ok=True)
    (asked.results / "partitioned.svg").write_text(plot(table))
    write(asked.results, "partitioned", page, measured)
    return check_thresholds(bars)


if __name__ == "__main__":
    run(main)
