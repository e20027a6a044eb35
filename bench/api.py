"""Measures the metrics page and the JSON API of a namespace with the maximum number of entities.

    python -m bench.api [--entities 10000] [--requests 40] [--messages 60000] [--rounds 5] [--seconds 20]
        [--folder DIR]

Creates the entities over HTTP. Then it scrapes `/metrics` and lists entities through the API on one connection that
stays open, and measures each request, the processor time of the server (from /proc, so that the client's is not
included) and the pauses of the event loop; the first scrape, for which all lines are rendered, is measured by itself.
At last, messages are sent and received, in alternating rounds with and without a scrape every five seconds, and the CPU
time of the server is compared. A round lasts long enough for several scrapes. Writes docs/benchmarks/api.md and
api.json; exits with 1 if a threshold is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import statistics
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import msgspec
import uvloop

from bench.entities import make_queues
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
from bench.support.server import LoadClient, Server, build, run
from twinbus.client.management import QueueDescription

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_P95_MS: Final = 200.0
MAX_PAUSE_MS: Final = 15.0
MAX_CPU_RATIO: Final = 1.03
SCRAPE_INTERVAL_S: Final = 5.0
PAGE_SIZE: Final = 1_000
USED_QUEUES: Final = 50
"""How many queues have messages, so that the page does not consist of zeros only."""


NAMES: Final = {
    "first scrape": "first scrape",
    "scrape": "scrape",
    "page": f"page of {PAGE_SIZE:,} entities",
    "list": "list of all entities, page by page",
}


class _Page(msgspec.Struct):
    """A page whose entities are not decoded: the measured time is the server's."""

    entities: list[msgspec.Raw]
    next: str | None


class ApiClient:
    """One HTTP connection to the API of a server."""

    def __init__(self, server: Server) -> None:
        """Create a client; the first request connects."""
        self._connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
        self._headers = {"Authorization": server.token("")}

    def get(self, target: str, method: str = "GET") -> bytes:
        """Return the body of the response."""
        self._connection.request(method, target, headers=self._headers)
        response = self._connection.getresponse()
        body = response.read()
        assert response.status == http.HTTPStatus.OK, (target, response.status, body[:300])
        return body

    def list_entities(self) -> int:
        """List all entities, page by page, and return their number."""
        count, after = self.list_page("")
        while after is not None:
            size, after = self.list_page(f"&after={quote(after)}")
            count += size
        return count

    def list_page(self, after: str) -> tuple[int, str | None]:
        """Return the number of entities on one page, and the value of `after` for the next page."""
        page = msgspec.json.decode(self.get(f"/$api/v1/entities?top={PAGE_SIZE}{after}"), type=_Page)
        return len(page.entities), page.next


def p95_ms(seconds: list[float]) -> float:
    """Return the 95th percentile in milliseconds."""
    return statistics.quantiles(seconds, n=20)[-1] * 1000


@dataclass
class Requests:
    """The measurements of one kind of request."""

    times_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    """Processor time of the server for each request."""
    longest_pause_ms: float = 0.0
    size: int = 0
    """Bytes of the page of metrics, or entities in the list."""


def measure_requests(server: Server, requests: int) -> dict[str, Requests]:
    """Return the measurements by kind of request."""
    client = ApiClient(server)
    kinds: dict[str, tuple[int, Callable[[], int]]] = {
        "first scrape": (1, lambda: len(client.get("/metrics"))),
        "scrape": (requests, lambda: len(client.get("/metrics"))),
        "page": (requests, lambda: client.list_page("")[0]),
        "list": (requests, client.list_entities),
    }
    found: dict[str, Requests] = {}
    for what, (count, request) in kinds.items():
        measured = found[what] = Requests()
        client.get("/$pauses", method="DELETE")
        for _ in range(count):
            cpu_s, started_s = server.process.foreground_cpu_s, time.perf_counter()
            measured.size = request()
            measured.times_s.append(time.perf_counter() - started_s)
            measured.cpu_s.append(server.process.foreground_cpu_s - cpu_s)
        measured.longest_pause_ms = json.loads(client.get("/$pauses", method="DELETE"))["longest_own_ms"]
    return found


@contextlib.contextmanager
def scraping(server: Server) -> Iterator[None]:
    """Scrape the server regularly during the block."""
    is_over = threading.Event()

    def scrape() -> None:
        client = ApiClient(server)
        while not is_over.wait(SCRAPE_INTERVAL_S):
            client.get("/metrics")

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def measure_cpu(server: Server, binary: Path, messages: int, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Return the CPU time per message in microseconds, with and without scrapes, in alternating rounds.

    In a round, `messages` are sent and received repeatedly, for at least `seconds`.
    """
    load = LoadClient(binary, server)
    found: dict[str, list[float]] = {"without": [], "with": []}
    for number in range(2 * rounds):
        what = ("without", "with")[number % 2]
        with scraping(server) if what == "with" else contextlib.nullcontext():
            before_s, end_s, passed = server.process.foreground_cpu_s, time.monotonic() + seconds, 0
            while not passed or time.monotonic() < end_s:
                load.send("load", messages)
                load.receive("load", messages)
                passed += messages
            found[what].append((server.process.foreground_cpu_s - before_s) / passed * 1e6)
    return found


def measure(folder: Path, arguments: argparse.Namespace) -> tuple[list[Threshold], dict[str, str]]:
    """Fill the namespace, and measure it."""
    binary = build(folder)
    with Server.started(folder / "server", "--measure-pauses") as server:
        names = [f"queue-{number}" for number in range(arguments.entities - 1)]
        uvloop.run(make_queues(server, names, QueueDescription()))
        server.create_queue("load", max_size_mb=5_120)
        load = LoadClient(binary, server)
        for name in names[:USED_QUEUES]:
            load.send(name, 10)
        requests = measure_requests(server, arguments.requests)
        spent = measure_cpu(server, binary, arguments.messages, arguments.rounds, arguments.seconds)
        server.stop()
    ratio = statistics.median(spent["with"]) / statistics.median(spent["without"])
    thresholds = [
        Threshold("entities in the list", requests["list"].size, arguments.entities),
        *[
            Threshold(f"{NAMES[what]}, 95th percentile", p95_ms(one.times_s), MAX_P95_MS, " ms", is_ceiling=True)
            for what, one in requests.items()
            if len(one.times_s) > 1
        ],
        *[
            Threshold(
                f"longest pause of the event loop, {what}", one.longest_pause_ms, MAX_PAUSE_MS, " ms", is_ceiling=True
            )
            for what, one in requests.items()
        ],
        Threshold("CPU per message with scrapes, relative", ratio, MAX_CPU_RATIO, is_ceiling=True),
    ]
    figures = {
        "size of the page of metrics": f"{requests['scrape'].size / 1e6:,.1f} MB",
        **{
            f"{NAMES[what]}, median": f"{statistics.median(one.times_s) * 1000:,.0f} ms, "
            f"{statistics.median(one.cpu_s) * 1000:,.0f} ms of them CPU time of the server"
            for what, one in requests.items()
        },
        **{
            f"CPU per message sent and received, {what} scrapes": f"{statistics.median(values):,.1f} µs"
            for what, values in spent.items()
        },
    }
    return thresholds, figures


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark, write the results, and return the exit code."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--entities", type=int, default=10_000)
    cli.add_argument("--requests", type=int, default=40, help="number of scrapes, and of lists")
    cli.add_argument("--messages", type=int, default=60_000, help="messages sent and received in each round")
    cli.add_argument("--rounds", type=int, default=5, help="number of rounds with scrapes, and of rounds without")
    cli.add_argument("--seconds", type=float, default=20.0, help="shortest time of a round")
    cli.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="folder on the disk to measure")
    add_results_option(cli)
    asked = cli.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="twinbus-bench-", dir=asked.folder) as name:
        thresholds, figures = measure(Path(name), asked)
    where = environment_facts("uvloop", "msgspec")
    page = (
        "# Benchmark: metrics and the JSON API\n\n"
        f"Generated by `python -m bench.api`. The namespace has {asked.entities:,} queues, on a server with one\n"
        f"process. A list of all entities consists of pages of {PAGE_SIZE:,}. CPU time per message is that of the\n"
        f"server while messages are sent and received for {asked.seconds:.0f} s or more, with and without a scrape\n"
        f"every {SCRAPE_INTERVAL_S:.0f} s.\n\n"
        f"{thresholds_table(thresholds)}\n\n{figures_table(figures)}\n\n{environment_lines(where)}\n"
    )
    measured = {"entities": asked.entities, "bars": thresholds, "figures": figures, "surroundings": where}
    write(asked.results, "api", page, measured)
    return check_thresholds(thresholds)


if __name__ == "__main__":
    run(main)
