"""Measures the cost of subscriptions: sends per second to a topic, by number of subscriptions and kind of filter.

    python -m bench.topics [--seconds 3] [--rounds 3] [--folder DIR]

Each set of subscriptions has its own topic in one server with one store. Messages of 1 KB with three properties are
sent as single messages, with up to 200 in flight, and accepted when all their copies are on disk. Each round measures
every topic, and a queue for comparison; figures are medians of the rounds. Writes docs/benchmarks/topics.md and
topics.json; exits with 1 if a threshold is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

import uvloop

from bench.support.engine_client import connect_client
from bench.support.results import (
    Threshold,
    add_results_option,
    check_thresholds,
    environment_facts,
    environment_lines,
    thresholds_table,
    write,
)
from bench.support.server import Server, run
from twinbus.amqp.message import Properties, build, data

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.support.engine_client import EngineClient

MIN_SENDS: Final = 2_000
MANY_SUBSCRIPTIONS: Final = 1_000
AT_ONCE: Final = 200
BODY_BYTES: Final = 1_024
QUEUE: Final = "beside"
_ENTRY: Final = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
    '<{0} xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"'
    ' xmlns:i="http://www.w3.org/2001/XMLSchema-instance">{1}</{0}></content></entry>'
)
_RULE: Final = '<DefaultRuleDescription><Filter i:type="{}">{}</Filter><Name>r</Name></DefaultRuleDescription>'
_PROPERTY: Final = (
    '<Properties><KeyValueOfstringanyType><Key>region</Key><Value xmlns:d6p1="http://www.w3.org/2001/XMLSchema"'
    ' i:type="d6p1:string">r{}</Value></KeyValueOfstringanyType></Properties>'
)


def _sql(expression: str) -> str:
    return _RULE.format("SqlFilter", f"<SqlExpression>{escape(expression)}</SqlExpression>")


KINDS: Final[dict[str, Callable[[int], str]]] = {
    "all messages": lambda _: "",
    "region = 'rN'": lambda number: _sql(f"region = 'r{number}'"),
    "kind = 'order' AND region = 'rN' AND size > 3": lambda number: _sql(
        f"kind = 'order' AND region = 'r{number}' AND size > 3"
    ),
    "correlation: region": lambda number: _RULE.format("CorrelationFilter", _PROPERTY.format(number)),
    "size > N (no match)": lambda number: _sql(f"size > {1_000 + number}"),
    "region LIKE '%-N' (no match)": lambda number: _sql(f"region LIKE '%-{number}'"),
}
"""Functions that return the rule of a subscription, by the condition that messages must meet."""
SETS: Final = (
    *[("all messages", count) for count in (0, 1, 3, 10, 100)],
    *[("region = 'rN'", count) for count in (1, 10, 100, MANY_SUBSCRIPTIONS)],
    ("kind = 'order' AND region = 'rN' AND size > 3", MANY_SUBSCRIPTIONS),
    ("correlation: region", MANY_SUBSCRIPTIONS),
    *[("size > N (no match)", count) for count in (1, 10, 100, MANY_SUBSCRIPTIONS)],
    ("region LIKE '%-N' (no match)", 100),
)
REQUIRED_SET: Final = ("region = 'rN'", MANY_SUBSCRIPTIONS)


@dataclass
class Topic:
    """A topic with one set of subscriptions."""

    kind: str
    count: int
    path: str
    rates: list[float] = field(default_factory=list)
    """Sends per second of each round."""

    @property
    def rate(self) -> float:
        """Median of all rounds."""
        return statistics.median(self.rates)


class Namespace(Server):
    """A server with topics."""

    def make_topic(self, path: str) -> None:
        """Create a topic that does not exist yet."""
        size = "<MaxSizeInMegabytes>5120</MaxSizeInMegabytes>"
        self._request("PUT", path, _ENTRY.format("TopicDescription", size), expected=201)

    def subscribe(self, topic: str, name: str, rule: str) -> None:
        """Create a subscription with one rule."""
        path = f"{topic}/Subscriptions/{name}"
        self._request("PUT", path, _ENTRY.format("SubscriptionDescription", rule), expected=201)

    def remove(self, path: str) -> None:
        """Delete an entity."""
        self._request("DELETE", path, None, expected=200)


def messages() -> Iterator[bytes]:
    """Yield incompressible messages, each of another region."""
    for number in itertools.count():
        yield build(
            properties=Properties(message_id=f"m{number}"),
            application_properties={"region": f"r{number % MANY_SUBSCRIPTIONS}", "kind": "order", "size": 7},
            body=data(os.urandom(BODY_BYTES)),
        )


async def rate_of(client: EngineClient, path: str, seconds: float) -> float:
    """Return accepted sends per second."""
    link = await client.attach_sender(path)
    made = list(itertools.islice(messages(), 2_000))
    count, started = 0, time.monotonic()
    while time.monotonic() - started < seconds:
        await client.send_on(link, made[:500], at_once=AT_ONCE, message_format=0)
        made = made[500:] + made[:500]
        count += 500
    took_s = time.monotonic() - started
    await client.detach(link)
    return count / took_s


async def measure(server: Namespace, seconds: float, rounds: int) -> tuple[list[Topic], list[float]]:
    """Measure all topics and the queue in each round."""
    server.create_queue(QUEUE, 5120)
    topics = [Topic(kind, count, f"topic-{number}") for number, (kind, count) in enumerate(SETS)]
    for topic in topics:
        server.make_topic(topic.path)
        for number in range(topic.count):
            server.subscribe(topic.path, f"s{number}", KINDS[topic.kind](number))
    queue_rates: list[float] = []
    for _ in range(rounds):
        async with connect_client(server) as client:
            queue_rates.append(await rate_of(client, QUEUE, seconds))
            for topic in topics:
                topic.rates.append(await rate_of(client, topic.path, seconds))
                print(f"| {topic.kind} | {topic.count:,} | {topic.rates[-1]:,.0f}/s |", flush=True)
                await asyncio.sleep(0.2)
    return topics, queue_rates


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark, write the results, and return the exit code."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--seconds", type=float, default=3.0, help="duration per set and round")
    cli.add_argument("--rounds", type=int, default=3)
    cli.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="folder on the disk to measure")
    add_results_option(cli)
    asked = cli.parse_args(argv)
    with (
        tempfile.TemporaryDirectory(prefix="twinbus-bench-", dir=asked.folder) as folder,
        Namespace.started(Path(folder), "--stores", "1") as server,
    ):
        assert isinstance(server, Namespace)
        topics, queue_rates = uvloop.run(measure(server, asked.seconds, asked.rounds))
    queue_rate = statistics.median(queue_rates)
    barred = next(topic for topic in topics if (topic.kind, topic.count) == REQUIRED_SET)
    bars = [
        Threshold(f"{MANY_SUBSCRIPTIONS:,} subscriptions with `{barred.kind}` each", barred.rate, MIN_SENDS, " sends/s")
    ]
    rows = [
        f"| {topic.kind} | {topic.count:,} | {topic.rate:,.0f}/s | {topic.rate / queue_rate:.2f} | "
        f"{1e6 / topic.rate:,.0f} us |"
        for topic in topics
    ]
    where = environment_facts("uvloop", "rocksdict", "lark")
    page = (
        "# Benchmark: topics\n\n"
        f"Generated by `python -m bench.topics`. One client in Python sends single messages of {BODY_BYTES:,} bytes\n"
        f"with three properties, up to {AT_ONCE} in flight. Figures are medians of {asked.rounds} rounds. With the\n"
        f"same client, a queue accepts {queue_rate:,.0f} messages per second.\n\n"
        f"{thresholds_table(bars)}\n\n"
        "| filter | subscriptions | sends | relative to the queue | time per send |\n|---|---|---|---|---|\n"
        + "\n".join(rows)
        + f"\n\n{environment_lines(where)}\n"
    )
    measured = {"bars": bars, "topics": [vars(topic) for topic in topics], "queue": queue_rates, "surroundings": where}
    write(asked.results, "topics", page, measured)
    return check_thresholds(bars)


if __name__ == "__main__":
    run(main)
