"""Measures the effect of an outage on an application: how long its sends take, and how many fail.

    python -m bench.outage [--rate 1000] [--seconds 6] [--rounds 3] [--folder DIR]

A program sends at a fixed rate to a pair of servers, without waiting for earlier sends. It fails over at once, pings
every second, and waits two seconds for a silent primary. The primary is killed and restarted, stopped and continued,
and disconnected by a silent network. Writes docs/benchmarks/outage.md and outage.json; exits with 1 if a threshold is
missed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
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
from bench.support.server import Server, run
from tests.support.relay import Relay
from twinbus.client import BrokeredMessage, MessagingFactory
from twinbus.client.management import NamespaceManager
from twinbus.client.pairing import EventKind, SendAvailabilityPairedNamespaceOptions
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from twinbus.client.pairing import Pairing, PairingEvent

QUEUE: Final = "orders"
BODY_BYTES: Final = 1_024
OPERATION_TIMEOUT_S: Final = 20.0
ATTEMPT_TIMEOUT_S: Final = 2.0
PING_S: Final = 1.0
PING_TAKES_S: Final = 0.1
"""Maximum duration of a ping, in addition to the interval."""
STEP_S: Final = 0.005
"""Interval at which groups of sends start."""
WARM_S: Final = 2.0
RETURN_S: Final = 20.0
MAX_RETURN_S: Final = 1.0
SHOWN_FAILURES: Final = 5
"""Maximum number of different errors that are recorded per outage."""


class Namespace(Server):
    """A server of the pair."""

    @property
    def http_port(self) -> int:
        """Port for management over HTTP."""
        return self._http_port

    def start(self) -> float:
        """Start the server; a restart uses the same ports."""
        if self.amqp_port:
            self._options = (*self._options, f"--amqp-port={self.amqp_port}", f"--http-port={self._http_port}")
        return super().start()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the server's process."""
        os.kill(self.process.pid, number)

    def string_for(self, port: int) -> str:
        """Return the connection string with another port."""
        return (
            f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName={self.key_name};SharedAccessKey={self.key}"
            ";UseDevelopmentEmulator=true"
        )


@dataclass(frozen=True, slots=True)
class Send:
    """A send of the application."""

    began_s: float
    took_s: float
    is_parked: bool
    failure: str | None


@dataclass
class OutageMeasurement:
    """The result of one outage."""

    kind: str
    sends: int
    parked: int
    failed: int
    longest_s: float
    """Duration of the longest send."""
    longest_after_failover_s: float
    """Duration of the longest send that started after the failover."""
    failover_s: float
    """Time from the outage to the failover."""
    back_s: float
    """Time from the return of the primary to the first send that it accepted."""
    failures: dict[str, int]
    """Errors of failed sends, with their numbers."""


@dataclass
class Application:
    """A program that sends at a fixed rate."""

    pairing: Pairing
    sends: list[Send] = field(default_factory=list)
    failed_over_s: list[float] = field(default_factory=list)
    _parked: set[object] = field(default_factory=set)

    def listen(self, event: PairingEvent) -> None:
        """Record the events of the pair."""
        if event.kind is EventKind.PARKED:
            self._parked.add(event.message_id)
        elif event.kind is EventKind.FAILED_OVER:
            self.failed_over_s.append(time.monotonic())

    async def send_at(self, rate: float, is_over: asyncio.Event) -> None:
        """Start `rate` sends per second until `is_over` is set; then wait for the last of them."""
        client, body = self.pairing.primary.create_queue_client(QUEUE), os.urandom(BODY_BYTES)
        started_s, count = time.monotonic(), 0
        sending: set[asyncio.Task[None]] = set()

        async def send() -> None:
            message, failure, began_s = BrokeredMessage(body), None, time.monotonic()
            try:
                await client.send(message)
            except ServiceBusError as error:
                failure = f"{type(error).__name__}: {error}"
            took_s = time.monotonic() - began_s
            self.sends.append(Send(began_s, took_s, message.message_id in self._parked, failure))

        while not is_over.is_set():
            due = round((time.monotonic() - started_s) * rate)
            for _ in range(due - count):
                task = asyncio.ensure_future(send())
                sending.add(task)
                task.add_done_callback(sending.discard)
            count = max(count, due)
            await asyncio.sleep(STEP_S)
        await asyncio.gather(*sending)


@contextlib.asynccontextmanager
async def application(primary: Namespace, secondary: Namespace, port: int) -> AsyncIterator[Application]:
    """Create a paired application that connects to the primary through `port`."""
    async with (
        MessagingFactory.from_connection_string(primary.string_for(port), operation_timeout=OPERATION_TIMEOUT_S) as one,
        MessagingFactory.from_connection_string(
            secondary.string_for(secondary.amqp_port), operation_timeout=OPERATION_TIMEOUT_S
        ) as other,
        NamespaceManager.from_connection_string(secondary.string_for(secondary.http_port)) as manager,
    ):
        options = SendAvailabilityPairedNamespaceOptions(
            secondary_factory=other,
            secondary_namespace_manager=manager,
            failover_interval=0,
            ping_primary_interval=PING_S,
            primary_attempt_timeout=ATTEMPT_TIMEOUT_S,
            primary_namespace_name="bench",
        )
        async with await one.pair_namespace(options) as pairing:
            app = Application(pairing)
            pairing.on_event(app.listen)
            yield app


async def measure(
    kind: str,
    app: Application,
    rate: float,
    seconds: float,
    begin: Callable[[], object],
    end: Callable[[], Awaitable[object]],
) -> OutageMeasurement:
    """Send during an outage, and wait until the primary accepts messages again."""
    is_over = asyncio.Event()
    sending = asyncio.ensure_future(app.send_at(rate, is_over))
    await asyncio.sleep(WARM_S)
    began_s = time.monotonic()
    begin()
    await asyncio.sleep(seconds)
    await end()
    back_s = time.monotonic()
    first: Send | None = None
    while first is None and time.monotonic() < back_s + RETURN_S:
        await asyncio.sleep(STEP_S)
        straight = (send for send in reversed(app.sends) if send.began_s >= back_s and not send.is_parked)
        first = next(straight, None)
    is_over.set()
    await sending
    taken = [send.began_s + send.took_s for send in app.sends if send.began_s >= back_s and not send.is_parked]
    failover_s = min((at_s for at_s in app.failed_over_s if at_s >= began_s), default=float("inf"))
    after = [send.took_s for send in app.sends if send.began_s >= failover_s]
    return OutageMeasurement(
        kind,
        len(app.sends),
        sum(send.is_parked for send in app.sends),
        sum(send.failure is not None for send in app.sends),
        max(send.took_s for send in app.sends),
        max(after, default=float("inf")),
        failover_s - began_s,
        min(taken, default=float("inf")) - back_s,
        dict(Counter(send.failure for send in app.sends if send.failure is not None).most_common(SHOWN_FAILURES)),
    )


async def measure_all(primary: Namespace, secondary: Namespace, rate: float, seconds: float) -> list[OutageMeasurement]:
    """Run one round: each kind of outage once."""

    async def start() -> None:
        await asyncio.to_thread(primary.start)

    async def proceed() -> None:
        primary.send_signal(signal.SIGCONT)

    found = []
    async with application(primary, secondary, primary.amqp_port) as app:
        found.append(await measure("killed", app, rate, seconds, primary.kill, start))
    async with application(primary, secondary, primary.amqp_port) as app:
        stop = lambda: primary.send_signal(signal.SIGSTOP)  # noqa: E731  # short, used once
        found.append(await measure("stopped", app, rate, seconds, stop, proceed))
    async with Relay("127.0.0.1", primary.amqp_port) as relay, application(primary, secondary, relay.port) as app:
        found.append(await measure("network silent", app, rate, seconds, relay.drop_silently, relay.restore))
    for measured in found:
        print(row(measured), flush=True)
    return found


def find_thresholds(found: Sequence[OutageMeasurement]) -> list[Threshold]:
    """Return the thresholds, for the worst of all rounds."""
    bars = []
    for kind in ("killed", "stopped", "network silent"):
        of_kind = [measured for measured in found if measured.kind == kind]
        longest_s = MAX_RETURN_S if kind == "killed" else ATTEMPT_TIMEOUT_S + 1
        bars += [
            Threshold(f"{kind}: failed sends", max(one.failed for one in of_kind), 0, is_ceiling=True),
            Threshold(f"{kind}: longest send", max(one.longest_s for one in of_kind), longest_s, " s", is_ceiling=True),
            Threshold(
                f"{kind}: longest send that started after failover",
                max(one.longest_after_failover_s for one in of_kind),
                MAX_RETURN_S,
                " s",
                is_ceiling=True,
            ),
            Threshold(
                f"{kind}: time from the return of the primary to its first accepted send",
                max(one.back_s for one in of_kind),
                PING_S + PING_TAKES_S,
                " s",
                is_ceiling=True,
            ),
        ]
    return bars


def row(measured: OutageMeasurement) -> str:
    """Return a row of the table."""
    return (
        f"| {measured.kind} | {measured.sends:,} | {measured.parked:,} | {measured.failed:,} | "
        f"{measured.failover_s:.2f} s | {measured.longest_s:.2f} s | {measured.longest_after_failover_s:.2f} s | "
        f"{measured.back_s:.2f} s |"
    )


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark, write the results, and return the exit code."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--rate", type=float, default=1_000.0, help="sends per second")
    cli.add_argument("--seconds", type=float, default=6.0, help="duration of each outage")
    cli.add_argument("--rounds", type=int, default=3)
    cli.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="folder on the disk to measure")
    add_results_option(cli)
    asked = cli.parse_args(argv)
    with (
        tempfile.TemporaryDirectory(prefix="twinbus-bench-", dir=asked.folder) as folder,
        Namespace.started(Path(folder, "one"), "--min-free=0") as primary,
        Namespace.started(Path(folder, "other"), "--min-free=0") as secondary,
    ):
        assert isinstance(primary, Namespace)
        assert isinstance(secondary, Namespace)
        primary.create_queue(QUEUE, 5120)
        found: list[OutageMeasurement] = []
        for _ in range(asked.rounds):
            found += uvloop.run(measure_all(primary, secondary, asked.rate, asked.seconds))
    bars, where = find_thresholds(found), environment_facts("uvloop", "rocksdict")
    where["load average"] = f"{os.getloadavg()[0]:.1f}"  # other load on the machine affects every figure
    page = (
        "# Benchmark: an outage from the application's view\n\n"
        f"Generated by `python -m bench.outage`. An application starts {asked.rate:,.0f} sends of {BODY_BYTES:,}\n"
        f"bytes per second, without waiting for earlier sends, during outages of {asked.seconds:g} s. The worst of\n"
        f"{asked.rounds} rounds counts. Settings: `failover_interval` 0, `ping_primary_interval` {PING_S:g} s, "
        f"`primary_attempt_timeout`\n{ATTEMPT_TIMEOUT_S:g} s, operation timeout {OPERATION_TIMEOUT_S:g} s. "
        "A killed primary returns when it serves again.\n"
        f"A ping may take {PING_TAKES_S:g} s in addition to its interval.\n\n"
        f"{thresholds_table(bars)}\n\n"
        "| primary | sends | parked | failed | time to failover | longest send | longest after failover | return |\n"
        "|---|---|---|---|---|---|---|---|\n"
        + "\n".join(row(one) for one in found)
        + f"\n\n{environment_lines(where)}\n"
    )
    measured = {"bars": bars, "outages": [asdict(one) for one in found], "surroundings": where}
    write(asked.results, "outage", page, measured)
    return check_thresholds(bars)


if __name__ == "__main__":
    run(main)
