"""Measures partitioned queues, compared with plain queues, with several processes, and by number of fragments.

    python -m bench.partitioned [--rounds 3] [--count 150000] [--processes 1 2 3 4] [--folder DIR]

There are three measurements with the load client in C, each in several rounds:

- compared with a plain queue: one client, one process, the default number of stores;
- two processes compared with one: two clients at the same time on one queue, without keys, connected to different
  processes; with two processes also a plain queue, which belongs to one of them;
- growth: the same with keys that map to 1, 2, 4, 8 and 16 fragments, for each number of processes.

CPU time is that of all processes of the server, including the supervisor, from before the first send until all messages
are received and settled. Writes docs/benchmarks/partitioned.md, .json and .svg; exits with 1 if a threshold is missed.
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
"""Idle time of RocksDB before a round, so that no round includes the background work of an earlier one."""
QUIET_TIMEOUT_S: Final = 20.0
EMPTY_TIMEOUT_S: Final = 20.0
POLL_INTERVAL_S: Final = 0.05
QUEUE_MB: Final = 5120


@dataclass
class Rates:
    """Results of each round."""

    send: list[float] = field(default_factory=list)
    receive: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    """CPU time of all processes per message that is sent, received and settled."""
    holders: list[int] = field(default_factory=list)
    """Number of processes with a client's connection: the lower one of sending and receiving."""
    hung_up: int = 0

    @property
    def through(self) -> list[float]:
        """Return the throughput of each round: messages per second that are sent and then received."""
        return [1 / (1 / send + 1 / receive) for send, receive in zip(self.send, self.receive, strict=True)]

    def median(self, what: str) -> float:
        """Return the median of all rounds."""
        values: list[float] = getattr(self, what)
        return statistics.median(values)

    def ratio(self, other: Rates, what: str) -> float:
        """Return the median of the rounds' ratios, because other load on the machine affects both of a round."""
        ratios: list[float] = [a / b for a, b in zip(getattr(self, what), getattr(other, what), strict=True)]
        return statistics.median(ratios)

    def text(self, what: str) -> str:
        """Return the median with the values of all rounds."""
        values: list[float] = getattr(self, what)
        return f"{statistics.median(values):,.0f} (rounds: {', '.join(f'{value:,.0f}' for value in values)})"


def keys_of(fragments: int) -> list[str]:
    """Return one key for each of the first `fragments` fragments."""
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
    """Wait until RocksDB is idle."""
    deadline, still_since, last = time.monotonic() + QUIET_TIMEOUT_S, time.monotonic(), server.processes.background
    while time.monotonic() < min(deadline, still_since + QUIET_S):
        time.sleep(POLL_INTERVAL_S)
        if (now := server.processes.background) != last:
            still_since, last = time.monotonic(), now


def wait_until_empty(server: MultiProcessServer, queue: str) -> None:
    """Wait until all received messages are settled. Exit on time-out: a message was lost or duplicated."""
    deadline = time.monotonic() + EMPTY_TIMEOUT_S
    while (left := server.message_count(queue)) != 0:
        if time.monotonic() > deadline:
            sys.exit(f"{queue} holds {left} messages after all were received\n{server.log_tail()}")
        time.sleep(POLL_INTERVAL_S)


# --- compared with a plain queue --------------------------------------------------------------------------------------


def measure_beside_plain(load: LoadClient, arguments: argparse.Namespace) -> dict[str, Rates]:
    """Measure both kinds of queues alternately with one client."""
    found = {PLAIN: Rates(), PARTITIONED: Rates()}
    for number in range(-1, arguments.rounds):  # the first is a warm-up
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
    """Send, receive and settle `count` messages; None: without keys."""
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
"""Rates by number of processes, then by number of fragments that the keys map to (None: no keys)."""


def measure_growth(many: dict[int, LoadClients], arguments: argparse.Namespace) -> tuple[Table, Rates]:
    """Measure every number of processes with every number of fragments, and a plain queue with two processes."""
    plain = Rates()
    cells: tuple[int | None, ...] = (None, *FRAGMENTS)
    table: Table = {processes: {fragments: Rates() for fragments in cells} for processes in many}
    for clients in many.values():
        measure_once(clients, arguments.grid_count, None, Rates())  # warm-up
    if 2 in many:
        measure_once(many[2], arguments.grid_count, None, Rates(), PLAIN)
    for number in range(2 * arguments.rounds):  # twice as many without keys, because two thresholds depend on these
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


# --- results ----------------------------------------------------------------------------------------------------------


def find_thresholds(beside: dict[str, Rates], table: Table, plain_of_two: Rates) -> list[Threshold]:
    """Return the thresholds."""
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
    """Return further figures, which explain the thresholds."""
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
        rows[f"processor time per message, {who}"] = f"{rates.text('cpu_us')} us"
        everything = [cell for cell in row.values() if cell.holders]
        held, hung_up = min(min(cell.holders) for cell in everything), sum(cell.hung_up for cell in everything)
        rows[f"processes with a client's connection, {who}"] = f"{held} ({hung_up} connections closed to get there)"
    return rows


def growth_table(table: Table) -> str:
    """Return a table of rates and CPU time by processes and fragments."""
    head = "| processes | fragments used | sends/s | receives/s | processor time per message |\n|---|---|---|---|---|\n"
    return head + "\n".join(
        f"| {processes} | {fragments or 'all, without keys'} | {rates.median('send'):,.0f} | "
        f"{rates.median('receive'):,.0f} | {rates.median('cpu_us'):.1f} us |"
        for processes, row in table.items()
        for fragments, rates in row.items()
    )


def plot(table: Table) -> str:
    """Return the same as a picture."""
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
    """Start all servers, and measure them; servers that are not measured stay idle."""
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
    """Run the benchmark, write the results, and return the exit code."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--rounds", type=int, default=3)
    cli.add_argument("--count", type=int, default=150_000)
    cli.add_argument("--grid-count", type=int, default=60_000, help="messages per cell of the table")
    cli.add_argument("--processes", type=int, nargs="+", default=[1, 2, 3, 4])
    cli.add_argument("--size", type=int, default=1024)
    cli.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="folder on the disk to measure")
    add_results_option(cli)
    asked = cli.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="twinbus-bench-", dir=asked.folder) as name:
        beside, table, plain = measure(Path(name), asked)
    bars, figures = find_thresholds(beside, table, plain), describe(beside, table, plain)
    where = environment_facts("uvloop", "rocksdict")
    page = (
        "# Benchmark: partitioned queues\n\n"
        f"Generated by `python -m bench.partitioned`. Messages have {asked.size} incompressible bytes, and are\n"
        f"accepted when they are on disk. Figures are medians of {asked.rounds} alternating rounds (without keys,\n"
        "of twice as many); ratios are medians of the rounds' ratios. In the first table, \"of a plain queue's\"\n"
        'means relative to a plain queue, and "of one\'s" relative to one process.\n\n'
        "With two clients, both send to one partitioned queue, or receive from it, at the same time. If there are\n"
        "several processes, the clients are connected to different ones. The kernel chooses the process that accepts\n"
        "a connection, so a client that got the other client's process disconnected and tried again.\n\n"
        "Throughput is the number of messages per second that are sent, then received and settled. Processor time is\n"
        "that of all broker processes and their supervisor. The clients share the same two cores.\n\n"
        f"{thresholds_table(bars)}\n\n"
        "Rates by number of processes and fragments, with two clients and four stores. A fragment is used if a key\n"
        "maps to it:\n\n"
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
